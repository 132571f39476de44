"""Measures of isotropy that need rows, not only their covariance: mean cosine and partition-function isotropy."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_floating, to_float64
from tl_aniso.checks import as_integer
from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError

__all__ = ["UnitSum", "checked_rows", "mean_cosine", "partition_isotropy"]


def checked_rows(points: Float[ArrayLike, "n d"], what: str) -> Float64[Tensor, "n d"]:
    """Rows in float64, of which a measure is defined.

    Raises:
        TlAnisoError: not n x d.
        UndefinedMeasureError: fewer than two rows, equal rows, or numbers that are not finite.
    """
    rows = as_floating(points, "points")
    if rows.ndim != 2 or 0 in rows.shape:
        raise TlAnisoError(f"points must be n x d, samples first, got shape {tuple(rows.shape)}")
    values = rows.detach()
    if len(values) < 2:
        raise UndefinedMeasureError(f"{what} needs at least two rows, got one")
    if not torch.isfinite(values).all():
        raise UndefinedMeasureError("points holds values that are not finite")
    if bool((values == values[0]).all()):
        raise UndefinedMeasureError(f"all rows of points are equal: their {what} is undefined")
    return to_float64(rows)


def _answer(value: Tensor, points: Any) -> Float[Tensor, ""]:
    exact = getattr(points, "dtype", None) is not None and str(points.dtype).endswith("float64")
    return value if exact else value.to(torch.float32)


class UnitSum:
    """Sum of unit rows, from which the mean cosine of all pairs follows exactly. Merges by addition.

    Rows of zeros have no direction; they are left out and counted in `n_zero`.

    Args:
        d: width of the rows.

    Attributes:
        count: rows with a direction.
        n_zero: rows of zeros.

    Example:
        >>> import torch
        >>> from tl_aniso.row_isotropy import UnitSum
        >>> rows = torch.tensor([[3.0, 0.0], [0.0, 5.0], [2.0, 0.0]])
        >>> whole = UnitSum(2).update(rows)
        >>> merged = UnitSum(2).update(rows[:1]).merge(UnitSum(2).update(rows[1:]))
        >>> round(whole.mean_cosine(), 4), round(merged.mean_cosine(), 4)
        (0.3333, 0.3333)
    """

    def __init__(self, d: int) -> None:
        self.d = as_integer("d", d, least=1)
        self.count = 0
        self.n_zero = 0
        self._sum = torch.zeros(self.d, dtype=torch.float64)

    @property
    def sum(self) -> Float64[Tensor, " d"]:
        """The sum of unit rows, on the CPU; a copy."""
        return self._sum.clone()

    def update(self, rows: Float[ArrayLike, "n d"]) -> Self:
        """Add rows. Returns the accumulator.

        Raises:
            TlAnisoError: rows that are not n x d.
            UndefinedMeasureError: numbers that are not finite.
        """
        values = as_floating(rows, "rows").detach()
        if values.ndim != 2 or values.shape[1] != self.d:
            raise TlAnisoError(f"rows must be n x {self.d}, got shape {tuple(values.shape)}")
        if not torch.isfinite(values).all():
            raise UndefinedMeasureError("rows holds values that are not finite")
        units, has_direction = _units(to_float64(values))
        kept = int(has_direction.sum())
        self.count += kept
        self.n_zero += len(values) - kept
        self._sum += units.sum(0).cpu()
        return self

    def merge(self, other: UnitSum) -> Self:
        """Take in what another one saw. Returns the accumulator.

        Raises:
            MergeError: another width.
        """
        if other.d != self.d:
            raise MergeError(f"sums of unit rows of widths {self.d} and {other.d} do not merge")
        self.count += other.count
        self.n_zero += other.n_zero
        self._sum += other._sum
        return self

    @classmethod
    def from_sums(cls, total: Float[Tensor, " d"], count: int, n_zero: int = 0) -> UnitSum:
        """The accumulator whose `sum`, `count` and `n_zero` were stored."""
        found = cls(len(total))
        found.count, found.n_zero = as_integer("count", count, least=0), as_integer("n_zero", n_zero, least=0)
        found._sum = total.detach().to("cpu", torch.float64, copy=True)
        return found

    def mean_cosine(self) -> float:
        """Mean cosine over all pairs of different rows: (|sum of units|^2 - n) / (n (n - 1)).

        Raises:
            UndefinedMeasureError: fewer than two rows with a direction.
        """
        return float(_mean_cosine(self._sum, self.count))


def _units(rows: Float64[Tensor, "n d"]) -> tuple[Float64[Tensor, "n d"], Tensor]:
    # Scaled by the largest entry first: squares of 1e-200 are zero.
    largest = rows.detach().abs().amax(1, keepdim=True)
    has_direction = largest[:, 0] > 0
    scaled = rows / largest.clamp(min=torch.finfo(torch.float64).tiny)
    return scaled / scaled.norm(dim=1, keepdim=True).clamp(min=0.5), has_direction


def _mean_cosine(total: Float64[Tensor, " d"], n: int) -> Float64[Tensor, ""]:
    if n < 2:
        raise UndefinedMeasureError(f"mean cosine needs at least two rows that are not zero, got {n}")
    return (total.square().sum() - n) / (n * (n - 1))


def mean_cosine(points: Float[ArrayLike, "n d"]) -> Float[Tensor, ""]:
    """Mean cosine over all pairs of different rows, exactly, from the sum of unit rows. Differentiable.

    0 in expectation for rows of independent random directions, 1 for parallel rows; a common offset shows here and
    not in a centred covariance. Rows of zeros have no direction and are left out.

    Returns:
        A 0-dimensional tensor, float64 for float64 input, else float32.

    Raises:
        TlAnisoError: not n x d.
        UndefinedMeasureError: fewer than two rows that are not zero, equal rows, numbers that are not finite.

    Example:
        >>> import torch
        >>> from tl_aniso.row_isotropy import mean_cosine
        >>> round(mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])).item(), 4)
        0.4714
    """
    units, has_direction = _units(checked_rows(points, "mean cosine"))
    return _answer(_mean_cosine(units.sum(0), int(has_direction.sum())), points)


def partition_isotropy(points: Float[ArrayLike, "n d"], *, scale: Literal["rms", "none"] = "rms") -> Float[Tensor, ""]:
    """min Z(c) / max Z(c), Z(c) = sum over rows of exp(c . x), over eigenvectors c of X^T X (Mu & Viswanath 2018).

    1 where no direction is special, towards 0 where one is. Eigenvectors have no sign, so c and -c are both taken. As
    published Z depends on the unit of the rows (those of size 1e-6 score 1.000, those of size 100 score 0); so by
    default rows are divided by the root mean square of their entries.

    Args:
        points: rows are samples; not centred.
        scale: "rms", or "none" for rows as they are.

    Returns:
        A 0-dimensional tensor between 0 and 1, float64 for float64 input, else float32.

    Raises:
        TlAnisoError: not n x d, an unknown scale.
        UndefinedMeasureError: one row, equal rows, numbers that are not finite.

    Example:
        >>> import torch
        >>> from tl_aniso.row_isotropy import partition_isotropy
        >>> axes = torch.cat([torch.eye(3), -torch.eye(3)])
        >>> round(partition_isotropy(axes).item(), 6), bool(partition_isotropy(axes + 1) < 0.1)
        (1.0, True)
    """
    if scale not in ("rms", "none"):
        raise TlAnisoError(f"scale must be 'rms' or 'none', got {scale!r}")
    rows = checked_rows(points, "partition isotropy")
    largest = rows.detach().abs().max()
    unit = rows / largest
    vectors = torch.linalg.eigh(unit.detach().T @ unit.detach()).eigenvectors
    if scale == "rms":
        rows = unit / unit.square().mean().sqrt()
    along = rows @ vectors
    log_z = torch.cat([torch.logsumexp(along, 0), torch.logsumexp(-along, 0)])
    return _answer((log_z.min() - log_z.max()).exp(), points)
