"""How far each type's embedding strays from its own centroid over checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError

__all__ = ["VARIANTS", "Distances", "over_checkpoints", "rounded"]

VARIANTS = ("raw", "drift_removed")
_BLOCK = 1024
# Types that the covariance of movements is taken over: enough for any spectrum that decides anything.
_FOR_COVARIANCE = 2048
# Below so small a part of its norm, what float32 rows show of a distance is their rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Distances:
    """Of the types measured, in their order.

    Attributes:
        values: variant -> root mean square distance to the centroid.
        norm: root mean square norm.
        movement: variant -> covariance about the centroid (C - 1 below), pooled over types.
    """

    values: dict[str, Float[np.ndarray, " n"]]
    norm: Float[np.ndarray, " n"]
    movement: dict[str, Float64[Tensor, "d d"]]


def over_checkpoints(
    read: Sequence[Callable[[Int64[Tensor, " some"]], Float[Tensor, "some d"]]],
    types: Int64[Tensor, " n"],
    site: str,
    *,
    seed: int,
    covariances: bool = True,
) -> Distances:
    """Distances over checkpoints, as they are and with the mean over types taken off at each checkpoint.

    Args:
        read: for each checkpoint, from types to their embeddings; called block by block, so that no two whole tables
            are held.
        types: the types measured, over which the common drift is the mean.
        site: for messages.
        seed: of the types that the covariance of movements is taken over.
        covariances: whether to form those.

    Raises:
        UndefinedMeasureError: an embedding that is not finite.
    """
    blocks = types.split(_BLOCK)
    drift = torch.stack([sum(table(some).double().sum(0) for some in blocks) / max(len(types), 1) for table in read])  # type: ignore[misc]
    if not torch.isfinite(drift).all():
        raise UndefinedMeasureError(f"{site}: embeddings hold values that are not finite; leave that checkpoint out")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.zeros(len(types), dtype=torch.bool)
    drawn[torch.randperm(len(types), generator=generator)[:_FOR_COVARIANCE]] = True
    squares: dict[str, list[Tensor]] = {variant: [] for variant in VARIANTS}
    norms: list[Tensor] = []
    movement = {variant: torch.zeros(drift.shape[1], drift.shape[1], dtype=torch.float64) for variant in VARIANTS}
    for some, marked in zip(blocks, drawn.split(_BLOCK), strict=True):
        held = torch.stack([table(some).double() for table in read])
        norms.append(held.square().sum(2).mean(0).sqrt())
        held -= held.mean(0)
        for variant in VARIANTS:
            if variant != "raw":
                held -= (drift - drift.mean(0))[:, None]
            squares[variant].append(held.square().sum(2).mean(0))
            if covariances:
                flat = held[:, marked].flatten(0, 1)
                movement[variant] += flat.T @ flat
    freedom = max(1, int(drawn.sum()) * (len(read) - 1))
    norm = torch.cat(norms).numpy()
    values = {variant: rounded(torch.cat(found).sqrt().numpy(), norm) for variant, found in squares.items()}
    return Distances(values, norm, {variant: total / freedom for variant, total in movement.items()})


def rounded(distances: Float[np.ndarray, " n"], norms: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Distances, with 0 for those that are no more than the rounding of float32 rows of such norms."""
    return np.where(distances <= _ROUNDING * norms, 0.0, distances)
