"""The loss: what is summed, which positions carry gradient, and its gradient at the input of the unembedding.

The loss is the *sum* over the tokens of a sequence, so a sequence's numbers do not depend on its batch. Logits are
made a few sequences at a time and dropped, so the vocabulary never sets the memory.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.text.sequences import Sequence

__all__ = ["Head", "Targets", "causal_head", "causal_targets", "check_objective", "shuffled_targets"]

# Logits held at once, in elements: 2^25 floats are 128 MiB; with fewer rows the products slow down.
_CHUNK = 2**25


@dataclass(frozen=True)
class Targets:
    """What each position must predict, and the positions that predict anything."""

    ids: Integer[Tensor, "batch length"]
    carries: Bool[Tensor, "batch length"]


@dataclass(frozen=True)
class Head:
    """Loss and gradient at the unembedding.

    Attributes:
        gradient: dL/dh, h being the input of the unembedding.
        loss: summed loss per sequence, in nats, float64.
        kernel: inner products g_s . g_t of the logit gradients of each sequence, if asked for.
    """

    gradient: Float[Tensor, "batch length d"]
    loss: Float[Tensor, " batch"]
    kernel: Float[Tensor, "batch length length"] | None


def check_objective(objective: object) -> str:
    """The objective's name.

    Raises:
        TlAnisoError: anything but None or "causal".
    """
    if objective in (None, "causal"):
        return "causal"
    raise TlAnisoError(f"objective {objective!r} is not supported; use 'causal' (summed next-token cross-entropy)")


def causal_targets(ids: Integer[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Targets:
    """Each real position predicts the next one, if that is real too.

    Example:
        >>> import torch
        >>> causal_targets(torch.tensor([[7, 8, 0]]), torch.tensor([[True, True, False]])).carries.tolist()
        [[True, False, False]]
    """
    targets = torch.zeros_like(ids)
    targets[:, :-1] = ids[:, 1:]
    carries = torch.zeros_like(mask)
    carries[:, :-1] = mask[:, :-1] & mask[:, 1:]
    return Targets(targets, carries)


def shuffled_targets(targets: Targets, sequences: tuple[Sequence, ...], seed: int) -> Targets:
    """The targets of each sequence in another order: unigrams stay, content goes.

    The order is a pure function of (seed, document, piece), the same in every batch and at every checkpoint.
    """
    ids = targets.ids.clone()
    for row, sequence in enumerate(sequences):
        digest = hashlib.sha256(f"{seed}/{sequence.document}/{sequence.index}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        places = targets.carries[row].nonzero()[:, 0]
        order = torch.from_numpy(rng.permutation(len(places))).to(places.device)
        ids[row, places] = targets.ids[row, places[order]]
    return Targets(ids, targets.carries)


def causal_head(unembed: nn.Module, hidden: Float[Tensor, "batch length d"], targets: Targets, *, kernel: bool) -> Head:
    """Summed cross-entropy, its gradient at the unembedding's input, and the kernel of the logit gradients.

    Args:
        unembed: the linear module from the residual stream to logits.
        hidden: its input.
        targets: what to predict.
        kernel: whether the logit gradients' inner products are wanted.

    Raises:
        UndefinedMeasureError: the loss is not finite.
    """
    weight: Tensor = unembed.weight  # type: ignore[assignment]
    # In the weight's own precision, also where the model runs under autocast: logits decide every gradient behind them.
    hidden = hidden.detach().to(weight.dtype)
    batch, length, _ = hidden.shape
    per_chunk = max(1, _CHUNK // (length * weight.shape[0]))
    gradient = torch.empty_like(hidden, dtype=torch.float32)
    loss = hidden.new_empty(batch, dtype=torch.float64) if hidden.device.type != "mps" else hidden.new_empty(batch)
    inner = hidden.new_empty((batch, length, length), dtype=torch.float32) if kernel else None
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, batch, per_chunk):
            rows = slice(start, start + per_chunk)
            logits = unembed(hidden[rows]).float()
            ids, carries = targets.ids[rows, :, None], targets.carries[rows]
            at_target, peak = logits.gather(-1, ids), logits.amax(-1, keepdim=True)
            # From here the logits' own memory holds their softmax, and at last their gradient.
            probabilities = logits.sub_(peak).exp_()
            total = probabilities.sum(-1, keepdim=True)
            per_token = (total.log() + peak - at_target)[..., 0]
            loss[rows] = per_token.mul_(carries).sum(1, dtype=loss.dtype)
            # Scaling and the one-hot part on the narrow side of the product: the wide one is for the kernel alone.
            scale = carries[..., None] / total
            product = (probabilities.to(weight.dtype) @ weight).float().mul_(scale)
            gradient[rows] = product.sub_(weight[ids[..., 0]].float() * carries[..., None])
            if inner is not None:
                probabilities.mul_(scale)
                probabilities.scatter_add_(-1, ids, -carries[..., None].to(probabilities.dtype))
                inner[rows] = torch.bmm(probabilities, probabilities.transpose(1, 2))
    if not bool(torch.isfinite(loss).all()):
        raise UndefinedMeasureError("the loss is not finite: logits at unembed.W_U hold NaN or infinite values")
    return Head(gradient, loss, inner)
