"""How much two planes share: principal angles, and the projection kernel against random planes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_basis, as_floating
from tl_aniso.checks import as_names
from tl_aniso.errors import SiteError, TlAnisoError

if TYPE_CHECKING:
    from tl_aniso.subspace import TangentProxy

__all__ = ["ProjectionKernel", "compare_proxies", "principal_angles", "projection_kernel"]


@dataclass(frozen=True)
class ProjectionKernel:
    """Overlap of two planes of R^d, and what planes drawn uniformly would have.

    Attributes:
        value: mean squared cosine of the principal angles, tr(P1 P2) / min(k1, k2): 0 for orthogonal planes, 1 where
            one holds the other.
        mean: of a random plane against a fixed one, max(k1, k2) / d.
        std: its standard deviation over random planes.
        ranks: k1 and k2.
        d: width of the space.
    """

    value: float
    mean: float
    std: float
    ranks: tuple[int, int]
    d: int

    @property
    def z(self) -> float:
        """Deviations above the mean of random planes; NaN where every plane shares as much (k = d)."""
        return (self.value - self.mean) / self.std if self.std > 0 else math.nan


def principal_angles(Q1: ArrayLike, Q2: ArrayLike) -> Float64[Tensor, " k"]:
    """Principal angles between the spans of two orthonormal bases, smallest first.

    Small angles from their sines and large ones from their cosines (Bjorck and Golub 1973; Knyazev and Argentati
    2002), since the arc cosine of 1 - 1e-16 has lost half of its digits.

    Args:
        Q1: orthonormal d x k1.
        Q2: orthonormal d x k2.

    Returns:
        min(k1, k2) angles in radians, from 0 to pi / 2.

    Raises:
        TlAnisoError: a basis that is not orthonormal, or different d.

    Example:
        >>> import torch
        >>> from tl_aniso.subspace import principal_angles
        >>> angles = principal_angles(torch.eye(4)[:, :2], torch.eye(4)[:, 1:3])
        >>> torch.rad2deg(angles).round().tolist()
        [0.0, 90.0]
    """
    wide, narrow = _two(Q1, Q2)
    if wide.shape[1] < narrow.shape[1]:
        wide, narrow = narrow, wide
    overlap = wide.T @ narrow
    cosines = torch.linalg.svdvals(overlap).clamp(max=1.0)
    sines = torch.linalg.svdvals(narrow - wide @ overlap).clamp(max=1.0).flip(0)
    return torch.where(cosines.square() > 0.5, sines.arcsin(), cosines.arccos())


def projection_kernel(Q1: ArrayLike, Q2: ArrayLike) -> ProjectionKernel:
    """Mean squared cosine of the principal angles of two planes, beside its value for random planes.

    With one plane fixed and the other Haar, tr(P1 P2) has mean k1 k2 / d and variance
    2 k1 (d - k1) k2 (d - k2) / (d^2 (d - 1) (d + 2)); value, mean and std here are in units of min(k1, k2).

    Args:
        Q1: orthonormal d x k1.
        Q2: orthonormal d x k2.

    Raises:
        TlAnisoError: a basis that is not orthonormal, or different d.

    Example:
        >>> import torch
        >>> from tl_aniso.subspace import projection_kernel
        >>> found = projection_kernel(torch.eye(8)[:, :2], torch.eye(8)[:, 1:3])
        >>> found.value, found.mean, round(found.std, 4)
        (0.5, 0.25, 0.1268)
    """
    left, right = _two(Q1, Q2)
    d, k1, k2 = left.shape[0], left.shape[1], right.shape[1]
    least = min(k1, k2)
    value = float((left.T @ right).square().sum()) / least
    variance = 2 * k1 * (d - k1) * k2 * (d - k2) / (d * d * (d - 1) * (d + 2)) if d > 1 else 0.0
    return ProjectionKernel(min(value, 1.0), k1 * k2 / d / least, math.sqrt(variance) / least, (k1, k2), d)


def _two(Q1: ArrayLike, Q2: ArrayLike) -> tuple[Tensor, Tensor]:
    first = as_floating(Q1, "Q1")
    if first.ndim != 2:
        raise TlAnisoError(f"Q1 must be d x k, got shape {tuple(first.shape)}")
    left = as_basis(first, first.shape[0], "Q1")
    right = as_basis(Q2, left.shape[0], "Q2").to(left.device)
    # Orthonormal to float64 rounding, where a basis came in float32.
    return torch.linalg.qr(left).Q, torch.linalg.qr(right).Q


def compare_proxies(
    a: Mapping[str, TangentProxy], b: Mapping[str, TangentProxy], sites: Iterable[str] | None = None
) -> Any:
    """How much the planes of two sets of proxies share, site by site.

    Args:
        a: proxies, as of one checkpoint.
        b: proxies of another.
        sites: to compare; by default all, which both must hold.

    Returns:
        A pandas frame with columns site, d, rank_a, rank_b, kernel (mean squared cosine), null_mean, null_std, z
        (of random planes), smallest_angle, largest_angle (degrees), proxy_id_a, proxy_id_b.

    Raises:
        SiteError: a site that one of them lacks.
        TlAnisoError: different widths at a site.

    Example:
        >>> import torch
        >>> from tl_aniso import Moments, TangentProxies
        >>> from tl_aniso.subspace import TangentProxy, compare_proxies, fit_pca
        >>> def proxies(seed):
        ...     rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
        ...     pca = fit_pca(Moments(8).update(rows), 2)
        ...     return TangentProxies([TangentProxy.from_pca("unembed.input", pca, centred=True, requested_rank=2)])
        >>> table = compare_proxies(proxies(0), proxies(0))
        >>> table["kernel"].round(6).tolist(), table["null_mean"].tolist()
        ([1.0], [0.25])
    """
    import pandas as pd

    for name, proxies in (("a", a), ("b", b)):
        if not isinstance(proxies, Mapping):
            raise TlAnisoError(f"{name} must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    names = list(dict.fromkeys((*a, *b))) if sites is None else list(as_names("sites", sites))
    missing = [name for name in names if name not in a or name not in b]
    if missing:
        raise SiteError(
            f"only one of the two holds a proxy for {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}; name the sites to compare with sites=..."
        )
    rows = []
    for name in names:
        one, other = a[name], b[name]
        if one.d != other.d:
            raise TlAnisoError(f"the proxies at {name} have different widths, {one.d} and {other.d}")
        kernel = projection_kernel(one.basis, other.basis)
        angles = torch.rad2deg(principal_angles(one.basis, other.basis))
        rows.append(
            {
                "site": name,
                "d": one.d,
                "rank_a": one.rank,
                "rank_b": other.rank,
                "kernel": kernel.value,
                "null_mean": kernel.mean,
                "null_std": kernel.std,
                "z": kernel.z,
                "smallest_angle": float(angles[0]),
                "largest_angle": float(angles[-1]),
                "proxy_id_a": one.proxy_id,
                "proxy_id_b": other.proxy_id,
            }
        )
    return pd.DataFrame(rows)
