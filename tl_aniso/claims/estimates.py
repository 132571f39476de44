"""Estimates with intervals: pooled over sites, over runs and models, rank correlations with depth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

__all__ = ["Estimate", "Untestable", "correlation", "crossed", "difference", "mean_of", "t_quantile"]


# No error but a verdict, carried to where it is written down.
class Untestable(Exception):
    """Too little was measured to say either; the message says what is lacking. Never reaches a user."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, on an additive scale: logarithms of ratios, differences or correlations.

    Attributes:
        value: the estimate.
        low: lower end; NaN where there is no interval.
        high: upper end.
        p_value: two-sided, that the value is the threshold; NaN where there is none.
        how: what the interval is over.
        n: of these, how many.
        why_none: why there is no interval, where there is none.
        share: of energies, E behind the value (a difference of E behind a difference).
        grain: spacing of the values that it can take, of rank correlations; 0 of what is continuous.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    how: str = ""
    n: int = 1
    why_none: str = ""
    share: float = math.nan
    grain: float = 0.0


def t_quantile(level: float, freedom: float) -> float:
    """Two-sided t quantile; of infinite freedom the normal's.

    Example:
        >>> round(t_quantile(0.95, 2), 2), round(t_quantile(0.95, float("inf")), 2)
        (4.3, 1.96)
    """
    from scipy.special import ndtri, stdtrit  # comes with scikit-learn; slow to import

    q = 0.5 + level / 2
    return float(ndtri(q) if math.isinf(freedom) else stdtrit(freedom, q))


def mean_of(values: Sequence[float], how: str, level: float, null: float = 0.0, grain: float = 0.0) -> Estimate:
    """Mean of independent values with their t interval, n - 1 degrees of freedom; one value has none.

    Values that can only lie `grain` apart agree more often than what is behind them: each is known to half a grain, so
    their variance is taken to be at least grain^2 / 12 (Sheppard). Else equal ranks would give an interval of no width.

    Example:
        >>> found = mean_of([1.0, 2.0, 3.0], "runs", 0.95)
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (2.0, -0.48, 4.48)
    """
    known = np.asarray(values, dtype=np.float64)
    n = len(known)
    if n < 2:
        return Estimate(float(known.mean()) if n else math.nan, how=how, n=n, why_none=f"one of {how} has no interval")
    error = max(float(known.std(ddof=1)), grain / math.sqrt(12)) / math.sqrt(n)
    return replace(_with_error(float(known.mean()), error, n - 1, how, n, level, null), grain=grain)


def crossed(table: Float[np.ndarray, "rows columns"], how: str, level: float, null: float = 0.0) -> Estimate:
    """Mean of differences of every row with every column, both sampled: rows and columns each add their variance.

    se^2 = var(row means) / rows + var(column means) / columns; that counts what remains within cells twice and so is
    a little wide. min(rows, columns) - 1 degrees of freedom.
    """
    rows, columns = table.shape
    n = min(rows, columns)
    if n < 2:
        return Estimate(float(table.mean()), how=how, n=n, why_none=f"one of {how} on a side has no interval")
    square = table.mean(1).var(ddof=1) / rows + table.mean(0).var(ddof=1) / columns
    return _with_error(float(table.mean()), math.sqrt(square), n - 1, how, n, level, null)


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a - b of two estimates of which it is not known how they depend on each other.

    The interval is as wide as both together, which is enough whatever the correlation: a standard deviation of a sum
    is at most the sum of standard deviations.
    """
    reach_low, reach_high = (a.value - a.low) + (b.high - b.value), (a.high - a.value) + (b.value - b.low)
    value = a.value - b.value
    return Estimate(
        value,
        value - reach_low,
        value + reach_high,
        how=a.how,
        n=min(a.n, b.n),
        why_none=a.why_none or b.why_none,
        share=a.share - b.share,
    )


def correlation(
    depths: Sequence[float], values: Sequence[float], level: float, least: int, null: float = 0.0
) -> Estimate:
    """Spearman's correlation of values with depth, with the interval of Bonett and Wright (2000) over layers.

    z = artanh(rho), se^2 = (1 + rho^2 / 2) / (n - 3). A perfect order is taken a quarter of a step below 1,
    where z would be infinite, and 0 where all values tie. No interval for fewer than `least` layers.

    Example:
        >>> found = correlation([0, 1, 2, 3, 4, 5], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 0.95, 5)
        >>> found.value, found.high < 0
        (-1.0, True)
    """
    n = len(values)
    grain = 12 / (n * (n**2 - 1)) if n > 1 else 0.0  # two neighbours change places
    # What is equal in exact arithmetic ties.
    x, y = _ranks(depths), _ranks(np.round(values, 9))
    spread = float(x.std() * y.std())
    rho = float(np.clip(((x - x.mean()) * (y - y.mean())).mean() / spread, -1.0, 1.0)) if spread > 0 else 0.0
    if abs(rho) > 1 - 1e-12:
        rho = math.copysign(1.0, rho)
    if n < least:
        return Estimate(
            rho,
            how="layers",
            n=n,
            why_none=f"{n} layers are too few for an interval over layers ({least} needed)",
            grain=grain,
        )
    from scipy.special import ndtr  # comes with scikit-learn; slow to import

    inside = math.copysign(min(abs(rho), 1 - grain / 4), rho)
    z, error = math.atanh(inside), math.sqrt((1 + inside**2 / 2) / (n - 3))
    reach = t_quantile(level, math.inf) * error
    low, high = min(math.tanh(z - reach), rho), max(math.tanh(z + reach), rho)
    return Estimate(rho, low, high, float(2 * ndtr(-abs(z - math.atanh(null)) / error)), "layers", n, grain=grain)


def _ranks(values: Sequence[float] | Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    from scipy.stats import rankdata  # comes with scikit-learn; slow to import

    return np.asarray(rankdata(np.asarray(values, dtype=np.float64)), dtype=np.float64)


def _with_error(value: float, error: float, freedom: float, how: str, n: int, level: float, null: float) -> Estimate:
    from scipy.special import stdtr  # comes with scikit-learn; slow to import

    reach = t_quantile(level, freedom) * error
    if error > 0:
        p_value = 2 * float(stdtr(freedom, -abs(value - null) / error))
    else:
        p_value = 1.0 if value == null else 0.0
    return Estimate(value, value - reach, value + reach, p_value, how, n)
