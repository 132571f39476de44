"""What a model is fed for an objective, and what it must predict."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from tl_aniso.capturing.objectives import Targets, causal_targets
from tl_aniso.capturing.prepare import PreparedText
from tl_aniso.capturing.sums import HALVES
from tl_aniso.text import Batch
from tl_aniso.text.masking import Masking, mask_sequence, ordinary_places

__all__ = ["Fed", "feed", "positions_by_kind"]


@dataclass(frozen=True)
class Fed:
    """One batch as an objective has it.

    Attributes:
        ids: what the model reads; the batch itself keeps the original ids.
        targets: what each position must predict, and which ones predict anything.
        masked: positions that were masked; None where the objective masks nothing.
    """

    ids: Integer[Tensor, "batch length"]
    targets: Targets
    masked: Bool[Tensor, "batch length"] | None = None


def feed(batch: Batch, masking: Masking | None, seed: int) -> Fed:
    """The batch as it is with each token to predict the next, or masked with the masked tokens to predict.

    Example:
        >>> from tl_aniso.text import make_batches, make_sequences
        >>> (batch,) = make_batches(make_sequences([[5, 6, 7]], seq_len=8).sequences, 1)
        >>> feed(batch, None, 0).targets.carries.tolist()
        [[True, True, False]]
        >>> fed = feed(batch, Masking(1.0, "mask", 4, (4,), 40), 0)
        >>> fed.ids.tolist(), fed.targets.ids.tolist()
        ([[4, 4, 4]], [[5, 6, 7]])
    """
    if masking is None:
        return Fed(batch.ids, causal_targets(batch.ids, batch.mask))
    ids, masked = batch.ids.clone(), torch.zeros_like(batch.mask)
    for row, sequence in enumerate(batch.sequences):
        found = mask_sequence(sequence, masking, seed=seed)
        ids[row, : len(sequence)] = torch.from_numpy(found.ids).to(ids.device)
        masked[row, : len(sequence)] = torch.from_numpy(found.places).to(ids.device)
    return Fed(ids, Targets(batch.ids, masked), masked)


def positions_by_kind(prepared: PreparedText, seed: int) -> dict[str, dict[str, int]]:
    """Half -> kind of position -> how many there are: masked, unmasked (ordinary tokens read as they are), special."""
    found = {half: {"masked": 0, "unmasked": 0, "special": 0} for half in HALVES}
    for sequence in prepared.sequences.sequences:
        counts = found[sequence.half]
        ordinary = int(ordinary_places(sequence, prepared.special).sum())
        masked = 0
        if prepared.masking is not None:
            masked = int(mask_sequence(sequence, prepared.masking, seed=seed).places.sum())
        counts["masked"] += masked
        counts["unmasked"] += ordinary - masked
        counts["special"] += len(sequence) - ordinary
    return found
