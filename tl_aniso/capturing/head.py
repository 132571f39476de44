"""From the last hidden state to the loss and back, in pieces, so that vocabulary x length never sets the memory.

Logits are made a piece at a time and dropped. A piece is some whole sequences where they fit; else rows of one
sequence, or, where inner products of logit gradients are wanted, slices of the vocabulary: a first pass over them finds
each row's normaliser, a second one makes the gradient slice by slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tl_aniso.capturing.objectives import Targets
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.projection import Formed
from tl_aniso.weight_moments import symmetric_product

__all__ = ["Head", "Inner", "Unembedding", "cross_entropy_head"]

# Logits held at once, in elements: 2^25 floats are 128 MiB; with fewer rows the products slow down.
_CHUNK = 2**25
# Below it a float32 probability loses digits, and at last becomes zero; its logarithm is then taken from the logits.
_RARE = 1e-30

Inner = Literal["none", "kernel", "cheapest"]


@dataclass(frozen=True)
class Head:
    """Loss and gradient at the unembedding.

    Attributes:
        gradient: dL/dh, h being the input of the unembedding.
        loss: summed loss per sequence, in nats, float64.
        kernel: inner products g_s . g_t of the logit gradients of each sequence, if asked for.
        formed: instead of the kernel, where forming G is cheaper.
    """

    gradient: Float[Tensor, "batch length d"]
    loss: Float[Tensor, " batch"]
    kernel: Float[Tensor, "batch length length"] | None
    formed: Formed | None = None


@dataclass(frozen=True)
class Unembedding:
    """The map from the last hidden state to logits.

    Attributes:
        weight: vocabulary x d.
        bias: added to the logits, or None.
        softcap: logits are ``cap * tanh(. / cap)`` of the linear map, or None.
    """

    weight: Float[Tensor, "vocabulary d"]
    bias: Float[Tensor, " vocabulary"] | None = None
    softcap: float | None = None

    @classmethod
    def of(cls, module: nn.Module, softcap: float | None = None) -> "Unembedding":
        """The map that a module's ``weight`` and ``bias`` describe."""
        return cls(module.weight, getattr(module, "bias", None), softcap)  # type: ignore[arg-type]

    def logits(self, hidden: Float[Tensor, "... d"], part: slice = slice(None)) -> Float[Tensor, "... part"]:
        """Logits of a part of the vocabulary in float32, in memory of their own."""
        bias = None if self.bias is None else self.bias[part]
        found = torch.nn.functional.linear(hidden, self.weight[part], bias).float()
        if self.softcap is None:
            return found
        return found.div_(self.softcap).tanh_().mul_(self.softcap)

    def slope(self, logits: Float[Tensor, "... part"]) -> Float[Tensor, "... part"] | None:
        """Derivative of capped logits by uncapped ones; None without a cap."""
        return None if self.softcap is None else 1 - (logits / self.softcap).square_()


def cross_entropy_head(
    unembedding: Unembedding,
    hidden: Float[Tensor, "batch length d"],
    targets: Targets,
    *,
    inner: Inner,
    counted: Bool[Tensor, "batch length"] | None = None,
) -> Head:
    """Summed cross-entropy, its gradient at the unembedding's input, and what dL/dW_U takes of the logit gradients.

    Args:
        unembedding: from hidden states to logits.
        hidden: its input.
        targets: what to predict.
        inner: of the logit gradients, their "kernel", "none", or the "cheapest" of the kernel and the moment of G.
        counted: positions of which a formed G is made; all by default.

    Raises:
        UndefinedMeasureError: the loss is not finite.
    """
    # In the weight's own precision, also where the model runs under autocast: logits decide every gradient behind them.
    hidden = hidden.detach().to(unembedding.weight.dtype)
    batch, length, d = hidden.shape
    vocabulary = unembedding.weight.shape[0]
    formed = inner == "cheapest" and _by_gradient(length, vocabulary, d)
    whole = length * vocabulary <= _CHUNK and not formed
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        if whole:
            per_chunk = max(1, _CHUNK // (length * vocabulary))
        elif inner == "none":
            return _checked(_by_rows(unembedding, hidden, targets))
        else:
            per_chunk = 1
        gradient = torch.empty_like(hidden, dtype=torch.float32)
        per_token = hidden.new_empty((batch, length), dtype=torch.float32)
        kernel = hidden.new_empty((batch, length, length), dtype=torch.float32) if inner != "none" else None
        kernel = None if formed else kernel
        made: list[Formed] = []
        for start in range(0, batch, per_chunk):
            rows = slice(start, start + per_chunk)
            ids, carries = targets.ids[rows], targets.carries[rows]
            into = None if kernel is None else kernel[rows]
            if whole:
                gradient[rows], per_token[rows] = _whole(unembedding, hidden[rows], ids, carries, into)
                continue
            chosen = torch.ones_like(carries[0]) if counted is None else counted[start]
            sink = _Gradient(hidden[start].float(), chosen) if formed else _Kernel(into[0])  # type: ignore[index]
            gradient[start], per_token[start] = _sliced(unembedding, hidden[start], ids[0], carries[0], sink)
            if isinstance(sink, _Gradient):
                made.append(sink.found())
    both = None
    if made:
        both = Formed(*(torch.stack([getattr(m, name)[0] for m in made]) for name in ("moment", "norms", "total")))
    return _checked(Head(gradient, _summed(per_token), kernel, both))


def _checked(head: Head) -> Head:
    if not bool(torch.isfinite(head.loss).all()):
        raise UndefinedMeasureError("the loss is not finite: logits at unembed.W_U hold NaN or infinite values")
    return head


def _summed(per_token: Float[Tensor, "batch length"]) -> Float[Tensor, " batch"]:
    return per_token.sum(1, dtype=torch.float32 if per_token.device.type == "mps" else torch.float64)


def _by_gradient(length: int, vocabulary: int, d: int) -> bool:
    """Whether forming G, with the logits made twice, takes fewer multiplications than the kernel."""
    by_kernel = length * length * (vocabulary + d) + length * d * d
    again = length * vocabulary * d if length * vocabulary <= _CHUNK else 0
    return again + length * vocabulary * d + vocabulary * d * d < by_kernel


def _by_rows(unembedding: Unembedding, hidden: Float[Tensor, "batch length d"], targets: Targets) -> Head:
    """Without inner products rows are independent: some at a time, whatever their sequence."""
    batch, length, d = hidden.shape
    flat, ids, carries = hidden.reshape(1, -1, d), targets.ids.reshape(1, -1), targets.carries.reshape(1, -1)
    gradient = torch.empty_like(flat, dtype=torch.float32)
    per_token = flat.new_empty(flat.shape[:2], dtype=torch.float32)
    step = max(1, _CHUNK // unembedding.weight.shape[0])
    for start in range(0, flat.shape[1], step):
        rows = slice(start, start + step)
        found = _whole(unembedding, flat[:, rows], ids[:, rows], carries[:, rows], None)
        gradient[:, rows], per_token[:, rows] = found
    return Head(gradient.reshape(batch, length, d), _summed(per_token.reshape(batch, length)), None)


def _whole(
    unembedding: Unembedding,
    hidden: Float[Tensor, "batch length d"],
    ids: Integer[Tensor, "batch length"],
    carries: Bool[Tensor, "batch length"],
    kernel: Float[Tensor, "batch length length"] | None,
) -> tuple[Float[Tensor, "batch length d"], Float[Tensor, "batch length"]]:
    """Gradient and loss of each token from all of its logits at once; the kernel is written where one is given."""
    weight = unembedding.weight
    ids, wide = ids[..., None], carries[..., None]
    logits = unembedding.logits(hidden)
    slope = unembedding.slope(logits)
    at_target = logits.gather(-1, ids)
    # One pass, and in place: the logits are the largest tensor of all, and reading them again and again costs as much.
    probabilities = torch.softmax(logits, -1, out=logits)
    found = probabilities.gather(-1, ids)
    per_token = -found.log()
    rare = (found < _RARE)[..., 0]
    if bool(rare.any()):
        per_token[rare] = _normaliser(unembedding, hidden[rare]) - at_target[rare]
    per_token = per_token[..., 0].mul_(carries)
    # The one-hot part before the product: a probability near 1 less 1 keeps its digits, their two products do not.
    # Masking behind it, on the narrow side: the wide one is masked for the kernel alone.
    one = wide.to(torch.float32)
    if slope is not None:
        probabilities.mul_(slope)
        one = one * slope.gather(-1, ids)
    probabilities.scatter_add_(-1, ids, -one)
    gradient = (probabilities.to(weight.dtype) @ weight).float().mul_(wide)
    if kernel is not None:
        probabilities[~carries] = 0
        torch.bmm(probabilities, probabilities.transpose(1, 2), out=kernel)
    return gradient, per_token


def _normaliser(unembedding: Unembedding, hidden: Float[Tensor, "row d"]) -> Float[Tensor, "row 1"]:
    """Log of the sum of exponentials, for rows whose softmax at the target is too small to tell it; few at a time."""
    return torch.cat([torch.logsumexp(unembedding.logits(rows), -1, keepdim=True) for rows in hidden.split(16)])


def _sliced(
    unembedding: Unembedding,
    hidden: Float[Tensor, "length d"],
    ids: Integer[Tensor, " length"],
    carries: Bool[Tensor, " length"],
    sink: "_Kernel | _Gradient",
) -> tuple[Float[Tensor, "length d"], Float[Tensor, " length"]]:
    """The same for one sequence over slices of the vocabulary, each handed to `sink` as a piece of dL/dlogits."""
    weight, (length, d) = unembedding.weight, hidden.shape
    step = max(1, _CHUNK // max(length, d))
    peak = hidden.new_full((length, 1), -torch.inf, dtype=torch.float32)
    total, at_target = torch.zeros_like(peak), torch.zeros_like(peak)
    for part in _slices(weight.shape[0], step):
        logits = unembedding.logits(hidden, part)
        inside, place = _places(ids, part)
        at_target += torch.where(inside, logits.gather(-1, place), 0.0)
        higher = torch.maximum(peak, logits.amax(-1, keepdim=True))
        total = total * (peak - higher).exp() + logits.sub_(higher).exp_().sum(-1, keepdim=True)
        peak = higher
        del logits  # or it would live beside the next slice's
    per_token = (total.log() + peak - at_target)[:, 0] * carries
    wide = carries[:, None]
    scale, gradient = wide / total, torch.zeros_like(hidden, dtype=torch.float32)
    for part in _slices(weight.shape[0], step):
        logits = unembedding.logits(hidden, part)
        slope = unembedding.slope(logits)
        inside, place = _places(ids, part)
        piece = logits.sub_(peak).exp_().mul_(scale)
        piece.scatter_add_(-1, place, -(inside & wide).to(piece.dtype))
        if slope is not None:
            piece.mul_(slope)
        gradient += (piece.to(weight.dtype) @ weight[part]).float()
        sink.add(piece)
        del logits, slope, piece
    return gradient, per_token


def _slices(vocabulary: int, step: int) -> Iterator[slice]:
    for start in range(0, vocabulary, step):
        yield slice(start, min(start + step, vocabulary))


def _places(ids: Integer[Tensor, " length"], part: slice) -> tuple[Tensor, Tensor]:
    """Which targets lie in a slice of the vocabulary, and where in it (anywhere for those that do not)."""
    inside = (ids >= part.start) & (ids < part.stop)
    return inside[:, None], (ids - part.start).clamp(0, part.stop - part.start - 1)[:, None]


class _Kernel:
    """Adds up inner products over slices."""

    def __init__(self, into: Float[Tensor, "length length"]) -> None:
        self._into = into.zero_()

    def add(self, piece: Float[Tensor, "length part"]) -> None:
        self._into.addmm_(piece, piece.T)


class _Gradient:
    """Forms the rows of G that belong to a slice and adds up G^T G, with what controls need of the factor."""

    def __init__(self, hidden: Float[Tensor, "length d"], counted: Bool[Tensor, " length"]) -> None:
        self._hidden = hidden
        self._counted = counted[:, None].to(hidden.dtype)
        self._moment = hidden.new_zeros((hidden.shape[1], hidden.shape[1]))
        self._norms = hidden.new_zeros(hidden.shape[0])
        self._total = hidden.new_zeros(())

    def add(self, piece: Float[Tensor, "length part"]) -> None:
        piece.mul_(self._counted)
        rows = piece.T @ self._hidden
        self._moment += symmetric_product(rows, rows)
        self._norms += piece.square().sum(1)
        self._total += piece.sum(0).square().sum()

    def found(self) -> Formed:
        return Formed(self._moment[None], self._norms[None], self._total[None])
