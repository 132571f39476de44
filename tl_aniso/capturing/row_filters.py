"""Which rows of a batch the filters leave: special tokens, sinks, masked and unmasked positions."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

__all__ = ["SINK_FACTOR", "kinds_of", "not_sinks", "without"]

SINK_FACTOR = 10.0


def kinds_of(
    ids: Integer[Tensor, "batch length"],
    special: tuple[int, ...],
    masked: Bool[Tensor, "batch length"] | None,
) -> dict[str, Bool[Tensor, "batch length"]]:
    """Positions by kind; by the original ids, as a masked position is not special because it holds the mask token.

    Example:
        >>> kinds_of(torch.tensor([[1, 7]]), (1,), None)
        {'special': tensor([[ True, False]])}
    """
    found = torch.isin(ids, torch.tensor(special, dtype=ids.dtype, device=ids.device))
    if masked is None:
        return {"special": found}
    return {"special": found, "masked": masked, "unmasked": ~masked & ~found}


def without(
    mask: Bool[Tensor, "batch length"],
    kinds: Mapping[str, Bool[Tensor, "batch length"]],
    filters: Iterable[str],
) -> Bool[Tensor, "batch length"]:
    """Real positions without the kinds that filters name; sinks are a property of a value, and judged with it.

    Example:
        >>> mask = torch.tensor([[True, True]])
        >>> without(mask, {"special": torch.tensor([[True, False]])}, ("special", "sink")).tolist()
        [[False, True]]
    """
    keep = mask
    for name in filters:
        if name in kinds:
            keep = keep & ~kinds[name]
    return keep


def not_sinks(norms: Float[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
    """Positions whose residual norm is at most `SINK_FACTOR` times the median of their sequence.

    Example:
        >>> not_sinks(torch.tensor([[50.0, 1.0, 2.0]]), torch.tensor([[True, True, True]])).tolist()
        [[False, True, True]]
    """
    median = norms.masked_fill(~mask, torch.nan).nanmedian(dim=1, keepdim=True).values
    return norms <= SINK_FACTOR * median
