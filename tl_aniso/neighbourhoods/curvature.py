"""What is measured of the rows of one type or neighbourhood, and of flat rows beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.intrinsic import DimensionMethod, intrinsic_dimension
from tl_aniso.neighbourhoods.dimension import spectral_dimension
from tl_aniso.neighbourhoods.planes import local_plane
from tl_aniso.neighbourhoods.quadratic import quadratic_fit
from tl_aniso.neighbourhoods.slope import curvature_slope
from tl_aniso.neighbourhoods.surrogates import gaussian_rows
from tl_aniso.neighbourhoods.visible import smooth_visible_share, visible_share

__all__ = ["Measured", "common_rank", "measure_rows", "measure_surrogates", "measured_names"]

# (measure, variant) -> value; NaN where it has none. `_SCALE` is no measure: squared mean tangent amplitude.
Measured = dict[tuple[str, str], float]

_SCALE = ("scale", "")
# Rows per coefficient of the quadratic fit, for the largest rank chosen by rule.
_ROWS_PER_COEFFICIENT = 5


def measured_names(dimensions: Sequence[DimensionMethod]) -> tuple[tuple[str, str], ...]:
    """(measure, variant) of everything that `measure_rows` gives."""
    return (
        ("curvature_slope", "raw"),
        ("curvature_slope", "without_floor"),
        ("visible_share", "raw"),
        ("visible_share", "smooth"),
        ("curvature_energy", "raw"),
        ("local_dimension", "raw"),
        *(("local_dimension", method) for method in dimensions),
    )


def measure_rows(rows: Float64[Tensor, "n d"], rank: int, *, dimensions: Sequence[DimensionMethod] = ()) -> Measured:
    """Slope, visible share, curvature energy and dimension of the rows of one neighbourhood, about their mean.

    ``curvature_energy`` is here mean |1/2 II(u, u)|^2 over (mean |u|^2)^2, in one over squared length: it does not
    depend on how widely the rows spread on one surface. NaN is what the rows do not determine.
    """
    found: Measured = dict.fromkeys((*measured_names(dimensions), _SCALE), math.nan)
    try:
        plane = local_plane(rows, rank)
        found["local_dimension", "raw"] = spectral_dimension(plane.spectrum)
        found["visible_share", "raw"] = visible_share(plane).value
        found[_SCALE] = scale = float(plane.tangent.square().sum(1).mean())
        for method in dimensions:
            found["local_dimension", method] = intrinsic_dimension(rows, method=method)
        fit = quadratic_fit(plane)
        found["visible_share", "smooth"] = smooth_visible_share(fit).value
        found["curvature_energy", "raw"] = fit.energy().value / scale**2
        slope = curvature_slope(fit)
        found["curvature_slope", "raw"] = slope.slope.value
        found["curvature_slope", "without_floor"] = slope.raw.value
    except UndefinedMeasureError:
        pass  # equal rows (the first layer of a model without positions), too few of them: counted by the caller
    return found


def measure_surrogates(
    rows: Float64[Tensor, "n d"],
    rank: int,
    *,
    n: int,
    generator: torch.Generator,
    dimensions: Sequence[DimensionMethod] = (),
) -> Measured:
    """`measure_rows` of Gaussian rows with the same mean and covariance, averaged over n draws."""
    try:
        draws = [measure_rows(gaussian_rows(rows, generator=generator), rank, dimensions=dimensions) for _ in range(n)]
    except UndefinedMeasureError:
        return dict.fromkeys((*measured_names(dimensions), _SCALE), math.nan)
    return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def common_rank(neighbourhoods: Sequence[Float64[Tensor, "n d"]]) -> int:
    """One rank for all neighbourhoods of a site: the median of their participation ratios, rounded.

    At least 1, and at most what leaves five rows to every coefficient of the quadratic fit. Real spectra fall without
    a gap, so the rule of `choose_rank` would follow noise.

    Raises:
        UndefinedMeasureError: no neighbourhood with rows that differ.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods.curvature import common_rank
        >>> rows = torch.randn(100, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> common_rank([rows * torch.tensor([9.0, 9.0, 1, 1, 1, 1, 1, 1])])
        2
    """
    found = []
    for rows in neighbourhoods:
        values = torch.linalg.svdvals(rows - rows.mean(0)).square()
        if float(values.sum()) > 0:
            found.append(spectral_dimension(values))
    if not found:
        raise UndefinedMeasureError("all rows of every token type are equal at this site")
    coefficients = min(len(rows) for rows in neighbourhoods) / _ROWS_PER_COEFFICIENT
    most = max(1, math.floor((math.sqrt(8 * coefficients + 1) - 3) / 2))
    return int(min(max(round(float(np.median(found))), 1), most))
