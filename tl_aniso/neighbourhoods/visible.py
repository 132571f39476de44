"""The share of local energy that is normal: as it lies, and without noise."""

from __future__ import annotations

import math

from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.neighbourhoods.estimate import Estimate, estimate
from tl_aniso.neighbourhoods.planes import LocalPlane
from tl_aniso.neighbourhoods.quadratic import QuadraticFit

# In standard errors above 0, where an interval moves to the logit.
_CLEAR = 4.0

__all__ = ["smooth_visible_share", "visible_share"]


def visible_share(plane: LocalPlane, *, radius: float | None = None, level: float = 0.95) -> Estimate:
    """Normal energy over all energy about the plane's centre: mean |x_N|^2 / (mean |x_T|^2 + mean |x_N|^2).

    Everything beside the plane counts: curvature, noise, and directions that a plane of rank k leaves out. The
    interval is the delta method over rows, holding the plane fixed.

    Args:
        plane: of `local_plane`. About an anchor on the surface, the share is that of the theory; about the mean, of
            variance, which is less by the mean's own distance from the surface.
        radius: only rows with |x_T| up to this.
        level: of confidence.

    Raises:
        UndefinedMeasureError: fewer than two rows within the radius.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import local_plane, visible_share
        >>> rows = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(visible_share(local_plane(rows, 1)).value, 6)
        0.2
    """
    tangent, normal = plane.tangent.square().sum(1), plane.normal.square().sum(1)
    if radius is not None:
        within = tangent <= radius * radius
        tangent, normal = tangent[within], normal[within]
    if len(tangent) < 2:
        raise UndefinedMeasureError(f"a visible share needs two rows or more within the radius, got {len(tangent)}")
    return _ratio(normal, tangent, 0.0, level)


def smooth_visible_share(fit: QuadraticFit, *, level: float = 0.95) -> Estimate:
    """The share of normal energy without noise: that of 1/2 II(u, u) about the foot of the surface.

    mean |1/2 II(u, u)|^2, corrected for noise as in `QuadraticFit.energy`, over itself and mean |u|^2. On a surface
    within a small radius this is the theory's visible share, however much isotropic noise there is; on rows without
    a quadratic part it is 0 in expectation and may be negative. The interval has both the noise and the rows.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import local_plane, quadratic_fit, smooth_visible_share
        >>> u = torch.linspace(-1, 1, 21, dtype=torch.float64)
        >>> fit = quadratic_fit(local_plane(torch.stack([u, u**2 / 2], 1), 1))
        >>> truth = float((u**4 / 4).mean() / (u**4 / 4 + u**2).mean())
        >>> abs(smooth_visible_share(fit).value - truth) < 1e-12
        True
    """
    energy = fit.energy(level=level)
    tangent = fit.tangent.square().sum(1)
    drawn = fit.fitted.square().sum(1)
    # Fitted energies hold the estimate's own noise; taken off alike at every row.
    return _ratio(drawn - (drawn.mean() - energy.value), tangent, energy.std, level)


def _ratio(normal: Float64[Tensor, " n"], tangent: Float64[Tensor, " n"], extra: float, level: float) -> Estimate:
    """mean normal / mean of both; `extra` is a further standard error of mean normal."""
    from scipy.special import expit  # comes with scikit-learn; slow to import

    n = len(normal)
    top, below = float(normal.mean()), float(tangent.mean())
    total = top + below
    if not total > 0:
        raise UndefinedMeasureError("the neighbourhood holds no energy about its centre")
    share = top / total
    sampled = float(((1 - share) * normal - share * tangent).var()) / n / total**2
    own = (extra * below / total**2) ** 2
    std = math.sqrt(sampled + own)
    if share <= _CLEAR * std:
        return estimate(share, std, df=n - 1, level=level)
    # Clear of 0, energies scatter by a factor rather than a difference.
    odds = estimate(math.log(share / (1 - share)), std / (share * (1 - share)), df=n - 1, level=level)
    return Estimate(share, float(expit(odds.low)), float(expit(odds.high)), std)
