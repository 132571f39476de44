"""The tangent plane of a set of rows by local PCA, and the rows' coordinates in it and beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_floating, to_float64
from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.row_isotropy import checked_rows

__all__ = ["LocalPlane", "choose_rank", "local_plane", "nearest_rows"]

# Variance below this share of the largest is rounding of the rows themselves.
_ROUNDING = 1e-14


@dataclass(frozen=True, eq=False)
class LocalPlane:
    """Rows of one neighbourhood, seen from its tangent plane.

    Attributes:
        centre: where tangent coordinates are zero: the rows' mean or a given anchor.
        basis: orthonormal basis of the plane, the first k principal axes of the rows about their mean.
        spectrum: every eigenvalue of the rows' covariance that is not zero, descending (divided by n - 1).
        tangent: coordinates in the plane about the centre.
        normal: coordinates beside the plane about the centre, in an orthonormal basis of the directions that the rows
            reach (at most n - 1 of them, and one for the centre); the others are zero.
        d: width of the rows.
        about_mean: whether the centre is the mean.
    """

    centre: Float64[Tensor, " d"]
    basis: Float64[Tensor, "d k"]
    spectrum: Float64[Tensor, " r"]
    tangent: Float64[Tensor, "n k"]
    normal: Float64[Tensor, "n m"]
    d: int
    about_mean: bool

    @property
    def rank(self) -> int:
        """k."""
        return self.tangent.shape[1]

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.tangent)


def local_plane(
    rows: Float[ArrayLike, "n d"],
    rank: int | None = None,
    *,
    centre: Float[ArrayLike, " d"] | None = None,
) -> LocalPlane:
    """Tangent plane of rows by local PCA, and the coordinates that every other measure of this room starts from.

    The plane comes from the covariance about the rows' mean wherever the centre lies: the second moment about an
    anchor on a curved surface would tilt it towards the surface's mean.

    Args:
        rows: of one neighbourhood; computed in float64, by a singular value decomposition (d x d is never formed).
        rank: k, dimension of the plane; None takes `choose_rank` of the spectrum.
        centre: the point that amplitudes are measured from; None for the rows' mean.

    Raises:
        TlAnisoError: not n x d, a rank at or above what the rows span, a centre that does not fit.
        UndefinedMeasureError: one row, equal rows, numbers that are not finite.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import local_plane
        >>> u = torch.linspace(-1, 1, 21, dtype=torch.float64)
        >>> plane = local_plane(torch.stack([u, u**2 / 2], 1), 1)
        >>> plane.basis.abs().round(decimals=3).flatten().tolist()
        [1.0, 0.0]
    """
    points = checked_rows(rows, "tangent plane").detach()
    mean = points.mean(0)
    left, values, right = torch.linalg.svd(points - mean, full_matrices=False)
    reached = int((values.square() > _ROUNDING * values[0].square()).sum())
    left, values, right = left[:, :reached], values[:reached], right[:reached]
    spectrum = values.square() / (len(points) - 1)
    k = choose_rank(spectrum) if rank is None else as_integer("rank", rank, least=1)
    if k >= reached:
        raise TlAnisoError(
            f"a tangent plane of rank {k} leaves no normal direction: the {len(points)} rows span {reached} about "
            "their mean; lower the rank"
        )
    coordinates = left * values
    tangent, normal = coordinates[:, :k], coordinates[:, k:]
    if centre is None:
        return LocalPlane(mean, right[:k].T.contiguous(), spectrum, tangent, normal, points.shape[1], True)
    anchor = to_float64(as_floating(centre, "centre").detach()).to(points.device)
    if anchor.shape != mean.shape or not torch.isfinite(anchor).all():
        raise TlAnisoError(f"centre must be {len(mean)} finite numbers, got shape {tuple(anchor.shape)}")
    shift = right @ (mean - anchor)
    beside = torch.linalg.vector_norm(mean - anchor - right.T @ shift).expand(len(points), 1)
    normal = torch.cat([normal + shift[k:], beside], 1)
    return LocalPlane(anchor, right[:k].T.contiguous(), spectrum, tangent + shift[:k], normal, points.shape[1], False)


def choose_rank(spectrum: Float[ArrayLike, " r"], *, most: int | None = None) -> int:
    """Dimension of a tangent plane from a local spectrum: where the ratio of successive eigenvalues is largest.

    On a surface of dimension k sampled within radius t, tangent eigenvalues go as t^2 and normal ones as t^4, so the
    ratio of eigenvalues k and k + 1 grows as 1 / t^2 while the others stay. A spectrum without such a gap has no
    dimension in this sense; the rule then says little, and a rank should be given.

    Args:
        spectrum: eigenvalues, descending, more than one.
        most: largest rank to consider; by default half of their number.

    Raises:
        UndefinedMeasureError: fewer than two positive eigenvalues.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import choose_rank
        >>> choose_rank(torch.tensor([1.0, 0.8, 0.01, 0.008]))
        2
    """
    values = to_float64(as_floating(spectrum, "spectrum").detach())
    values = values[values > 0]
    if len(values) < 2:
        raise UndefinedMeasureError("a rank cannot be chosen from fewer than two positive eigenvalues; give one")
    limit = max(1, len(values) // 2) if most is None else min(as_integer("most", most, least=1), len(values) - 1)
    return int((values[:limit] / values[1 : limit + 1]).argmax()) + 1


def nearest_rows(
    rows: Float[ArrayLike, "n d"], anchor: Float[ArrayLike, " d"], count: int
) -> Float64[Tensor, "count d"]:
    """The `count` rows nearest to an anchor by Euclidean distance, nearest first (ties in their order).

    Args:
        rows: candidates; the anchor itself counts, where it is among them.
        anchor: a point.
        count: neighbours.

    Raises:
        TlAnisoError: more neighbours than rows, or shapes that do not fit.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import nearest_rows
        >>> nearest_rows(torch.tensor([[0.0], [5.0], [2.0]]), torch.tensor([1.5]), 2).flatten().tolist()
        [2.0, 0.0]
    """
    points = checked_rows(rows, "neighbourhood").detach()
    point = to_float64(as_floating(anchor, "anchor").detach()).to(points.device)
    if point.shape != points.shape[1:]:
        raise TlAnisoError(f"anchor must be {points.shape[1]} numbers, got shape {tuple(point.shape)}")
    n = as_integer("count", count, least=2, most=len(points))
    order = torch.argsort((points - point).square().sum(1), stable=True)
    return points[order[:n]]
