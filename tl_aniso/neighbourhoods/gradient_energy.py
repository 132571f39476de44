"""Gradient energy in the local tangent plane: sums over occurrences, and one occurrence at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError

__all__ = ["GradientRows", "normal_share", "plane_share"]

T = TypeVar("T", float, np.ndarray)


@dataclass(frozen=True, eq=False)
class GradientRows:
    """A gradient as rows in R^d and what multiplies them.

    The gradient summed over occurrences is ``F^T R``; of one occurrence it is the outer product of a row of each.
    Of activations, R holds dL/dh and F is a column of ones. Of a reader, R holds its inputs x less a centre and F the
    gradients g of its outputs. Of a writer, R holds the gradients of its outputs and F its inputs.

    Attributes:
        rows: R.
        factors: F.
    """

    rows: Float64[Tensor, "n d"]
    factors: Float64[Tensor, "n f"]


def plane_share(gradient: GradientRows, basis: Float64[Tensor, "d k"], *, summed: bool) -> float:
    """Share of the gradient's energy that lies in a plane: tr(Q^T S Q) / tr(S).

    S is ``R^T F F^T R`` of the sum over occurrences, or of single occurrences ``sum |f_t|^2 r_t r_t^T``.

    Raises:
        UndefinedMeasureError: no energy.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods.gradient_energy import GradientRows, plane_share
        >>> rows = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
        >>> found = GradientRows(rows, torch.ones(2, 1, dtype=torch.float64))
        >>> first = torch.eye(2, dtype=torch.float64)[:, :1]
        >>> plane_share(found, first, summed=False), plane_share(found, first, summed=True)
        (0.5, 0.0)
    """
    inside = gradient.rows @ basis
    if summed:
        total = float((gradient.factors.T @ gradient.rows).square().sum())
        part = float((gradient.factors.T @ inside).square().sum())
    else:
        weights = gradient.factors.square().sum(1)
        total = float(weights @ gradient.rows.square().sum(1))
        part = float(weights @ inside.square().sum(1))
    if not total > 0:
        raise UndefinedMeasureError("the gradient holds no energy over these occurrences")
    return min(part / total, 1.0)


def normal_share(share: T, rank: int, d: int) -> T:
    """Mean share of planes of the same rank drawn uniformly beside this one: (1 - E) k / (d - k), exactly.

    What `tl_aniso.energy.energy_null` gives for S, of which the mean takes no more than E.

    Example:
        >>> from tl_aniso.neighbourhoods.gradient_energy import normal_share
        >>> round(normal_share(0.6, 1, 4), 4)
        0.1333
    """
    return (1 - share) * rank / (d - rank)
