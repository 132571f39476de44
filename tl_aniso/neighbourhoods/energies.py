"""Shares of gradient energy in the tangent planes of single types, and in the planes of their controls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.neighbourhoods.gradient_energy import GradientRows, plane_share
from tl_aniso.neighbourhoods.planes import local_plane
from tl_aniso.neighbourhoods.surrogates import gaussian_rows

__all__ = ["CONTROLS", "EnergyShares", "Neighbourhood", "energy_shares"]

CONTROLS = ("gaussian_surrogate", "other_type")
_OTHERS = 4  # planes of other types that a type's gradient is measured in


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Rows that give a plane, and a gradient over other documents.

    Attributes:
        fitted: activations of half A.
        gradient: over half B; of a reader with its inputs about the mean of `fitted`.
        inputs: of a reader, its inputs over half B, which the Gaussian surrogate replaces.
    """

    fitted: Float64[Tensor, "n d"]
    gradient: GradientRows
    inputs: Float64[Tensor, "m d"] | None = None


@dataclass(frozen=True)
class EnergyShares:
    """Shares of one gradient in its own plane and in those of controls; NaN where there is none.

    Attributes:
        summed: whether of the sum over occurrences, or one occurrence at a time.
        own: per type.
        controls: name -> per type.
    """

    summed: bool
    own: np.ndarray
    controls: dict[str, np.ndarray]


def energy_shares(
    neighbourhoods: Sequence[Neighbourhood], rank: int, *, n_surrogates: int, seed: int
) -> list[EnergyShares]:
    """Shares of every type's gradient, summed and per occurrence, with those of two controls.

    * ``other_type``: the planes of up to four other types, drawn at random; their mean share.
    * ``gaussian_surrogate``: Gaussian rows of the same mean and covariance. Of a reader's gradient they take the place
      of its inputs, beside the true gradients of its outputs: what is left is the covariance without the link of x
      and g. Of other gradients they give the plane, which covariance alone decides; the control then shows only how
      well so many rows determine a plane.

    Args:
        neighbourhoods: by type.
        rank: of every plane.
        n_surrogates: draws averaged over.
        seed: of surrogates and of the choice of other types.
    """
    generator = torch.Generator().manual_seed(seed)
    bases = [_basis(entry.fitted, rank) for entry in neighbourhoods]
    found = {(summed, name): np.full(len(bases), math.nan) for summed in (True, False) for name in ("own", *CONTROLS)}
    for i, (entry, basis) in enumerate(zip(neighbourhoods, bases, strict=True)):
        if basis is None:
            continue
        others = [b for j, b in enumerate(bases) if j != i and b is not None]
        picked = torch.randperm(len(others), generator=generator)[:_OTHERS].tolist()
        drawn = [_surrogate(entry, basis, rank, generator) for _ in range(n_surrogates)]
        for summed in (True, False):
            found[summed, "own"][i] = _share(entry.gradient, basis, summed)
            if picked:
                found[summed, "other_type"][i] = np.mean([_share(entry.gradient, others[j], summed) for j in picked])
            found[summed, "gaussian_surrogate"][i] = np.mean([_share(*pair, summed) for pair in drawn])
    return [
        EnergyShares(summed, found[summed, "own"], {name: found[summed, name] for name in CONTROLS})
        for summed in (True, False)
    ]


def _surrogate(
    entry: Neighbourhood, basis: Float64[Tensor, "d k"], rank: int, generator: torch.Generator
) -> tuple[GradientRows, Float64[Tensor, "d k"]]:
    if entry.inputs is not None:
        rows = gaussian_rows(entry.inputs, generator=generator) - entry.fitted.mean(0)
        return GradientRows(rows, entry.gradient.factors), basis
    drawn = _basis(gaussian_rows(entry.fitted, generator=generator), rank)
    return entry.gradient, basis if drawn is None else drawn


def _basis(rows: Float64[Tensor, "n d"], rank: int) -> Float64[Tensor, "d k"] | None:
    try:
        return local_plane(rows, rank).basis
    except UndefinedMeasureError:
        return None


def _share(gradient: GradientRows, basis: Float64[Tensor, "d k"], summed: bool) -> float:
    try:
        return plane_share(gradient, basis, summed=summed)
    except UndefinedMeasureError:
        return math.nan
