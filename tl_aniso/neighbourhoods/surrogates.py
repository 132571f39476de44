"""Flat rows to compare with: Gaussian, with the mean and the covariance of given ones."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike
from tl_aniso.row_isotropy import checked_rows

__all__ = ["gaussian_rows"]


def gaussian_rows(
    rows: Float[ArrayLike, "n d"], *, generator: torch.Generator, count: int | None = None
) -> Float64[Tensor, "count d"]:
    """Rows drawn from the Gaussian with the mean and the sample covariance (over n) of `rows`.

    Drawn as combinations of the centred rows, so a covariance of more columns than rows needs no d x d matrix.

    Args:
        rows: n of them.
        generator: on the CPU.
        count: rows to draw; n by default.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import gaussian_rows
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
        >>> gaussian_rows(rows, generator=torch.Generator().manual_seed(0))[:, 1].tolist()
        [2.0, 2.0]
    """
    points = checked_rows(rows, "surrogate").detach()
    n = len(points)
    mean = points.mean(0)
    draws = torch.randn(n if count is None else count, n, generator=generator, dtype=torch.float64).to(points.device)
    return mean + draws @ ((points - mean) / n**0.5)
