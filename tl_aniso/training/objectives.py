"""What a model is trained to predict: the next token, or tokens that were hidden from it."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from transformers import PreTrainedModel

from tl_aniso.errors import TlAnisoError

__all__ = ["MaskedTokens", "next_token_loss"]

Batch = Int64[torch.Tensor, "sequence position"]


def next_token_loss(model: PreTrainedModel, batch: Batch, step: int) -> Float[torch.Tensor, ""]:
    """Mean cross-entropy of every token but the first, each predicted from those before it; the same at every step."""
    loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
    return loss


@dataclass(frozen=True)
class MaskedTokens:
    """Masked language modelling: tokens are chosen, most of them hidden, and predicted from all the others.

    Which are chosen, and what stands in their place, is a function of (seed, step) and of the batch's shape alone: no
    model, no loss and no other random number changes it, and asking twice gives it twice.

    Attributes:
        mask_id: Id of the mask token, fed in the place of hidden ones.
        vocab_size: Replacements are drawn from the ids that `special` does not hold, below this one.
        rate: Share of the tokens that are chosen; at least one in every window.
        replacement: "bert" hides 80% of the chosen, puts a random token in the place of 10% and leaves 10% as they are;
            "mask" hides all of them.
        special: Ids that are never chosen and never drawn.
        seed: Of the choice.

    Raises:
        TlAnisoError: A rate outside 0 to 1, or another replacement.

    Example:
        >>> import torch
        >>> objective = MaskedTokens(mask_id=1, vocab_size=300, rate=0.3, replacement="mask")
        >>> fed, chosen = objective.hide(torch.full((2, 10), 7), step=5)
        >>> bool((fed[chosen] == 1).all()), bool((fed[~chosen] == 7).all()), bool(chosen.any(1).all())
        (True, True, True)
    """

    mask_id: int
    vocab_size: int
    rate: float = 0.3
    replacement: str = "bert"
    special: tuple[int, ...] = (0, 1)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < 1.0:
            raise TlAnisoError(f"The masking rate is {self.rate}; it must lie between 0 and 1.")
        if self.replacement not in ("bert", "mask"):
            raise TlAnisoError(f"replacement is {self.replacement!r}; use 'bert' (80/10/10) or 'mask'.")

    def hide(self, batch: Batch, step: int) -> tuple[Batch, Bool[torch.Tensor, "sequence position"]]:
        """What is fed in the place of a batch, and the positions whose tokens are to be predicted.

        Raises:
            TlAnisoError: A window that holds nothing but special tokens.
        """
        digest = hashlib.sha256(f"masked/{self.seed}/{step}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        # All numbers are drawn for every position, so that no token decides over another one's.
        order, kind = (torch.from_numpy(rng.random(batch.shape)) for _ in range(2))
        ordinary = torch.tensor([i for i in range(self.vocab_size) if i not in self.special])
        drawn = ordinary[torch.from_numpy(rng.integers(len(ordinary), size=batch.shape))]
        is_special = torch.isin(batch, torch.tensor(self.special, dtype=batch.dtype))
        if bool(is_special.all(1).any()):
            raise TlAnisoError("A window holds nothing but special tokens, so none of it can be predicted.")
        order = order.masked_fill(is_special, 2.0)
        chosen = order < self.rate
        chosen[torch.arange(len(batch)), order.argmin(1)] = True
        fed = batch.clone()
        if self.replacement == "mask":
            fed[chosen] = self.mask_id
        else:
            fed[chosen & (kind < 0.8)] = self.mask_id
            other = chosen & (kind >= 0.8) & (kind < 0.9)
            fed[other] = drawn[other]
        return fed, chosen

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> Float[torch.Tensor, ""]:
        """Mean cross-entropy of the chosen tokens; the model's head must be its output embedding and no more."""
        fed, chosen = self.hide(batch, step)
        states = model.base_model(input_ids=fed).last_hidden_state[chosen]
        return torch.nn.functional.cross_entropy(model.get_output_embeddings()(states), batch[chosen])
