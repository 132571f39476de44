"""A number with its standard error and interval."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Estimate", "estimate", "undefined"]


class Estimate(NamedTuple):
    """An estimate; `std` is its standard error, all NaN where there is none.

    Example:
        >>> from tl_aniso.neighbourhoods.estimate import estimate
        >>> found = estimate(2.0, 0.1, df=30)
        >>> round(found.low, 2), round(found.high, 2), found.covers(2.1)
        (1.8, 2.2, True)
    """

    value: float
    low: float
    high: float
    std: float

    def covers(self, truth: float) -> bool:
        """Whether the interval holds `truth`."""
        return self.low <= truth <= self.high


def estimate(value: float, std: float, *, df: float, level: float = 0.95) -> Estimate:
    """`value` with the interval of Student's t of `df` degrees of freedom; ends are NaN below one."""
    from scipy.special import stdtrit  # comes with scikit-learn; slow to import

    half = float(stdtrit(df, 0.5 + level / 2)) * std if df >= 1 else math.nan
    return Estimate(value, value - half, value + half, std)


def undefined() -> Estimate:
    """No estimate."""
    return Estimate(math.nan, math.nan, math.nan, math.nan)
