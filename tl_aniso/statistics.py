"""Intervals over documents (never over rows) and adjusted p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from torch import Tensor

from tl_aniso.errors import TlAnisoError

__all__ = ["FEWEST_SHARDS", "Interval", "holm", "odds_ratio_interval", "share_interval"]

Shards: TypeAlias = Float[Tensor, " shards"] | Float[np.ndarray, " shards"] | Sequence[float]

# With fewer shards the jackknife variance is itself little more than noise.
FEWEST_SHARDS = 4


class Interval(NamedTuple):
    """A confidence interval; both ends NaN where the text is too little to give one."""

    low: float
    high: float


_UNKNOWN = Interval(math.nan, math.nan)


def share_interval(selected: Shards, total: Shards, *, level: float = 0.95) -> Interval:
    """Interval of the pooled share sum(selected) / sum(total): delete-one jackknife over shards of documents.

    On the logit, with t quantiles of (shards - 1) degrees of freedom; shards without any energy are left out.
    NaN for fewer than four shards, or where a share is 0 or 1 (no finite logit).

    Args:
        selected: energy in the plane, by shard.
        total: all energy, by shard.
        level: of confidence.

    Raises:
        TlAnisoError: lengths that differ, negative or non-finite energies, selected above total, a level
            outside 0 ... 1.

    Example:
        >>> from tl_aniso.statistics import share_interval
        >>> low, high = share_interval([2.0, 3.0, 2.5, 3.5], [10.0, 10.0, 10.0, 10.0])
        >>> round(low, 3), round(high, 3)
        (0.185, 0.389)
    """
    chosen, whole = _shards(selected, total, "selected", "total")
    keep = whole > 0
    chosen, whole = chosen[keep], whole[keep]
    return _jackknife(_logit(chosen, whole), _logit_without_each(chosen, whole), level, odds=False)


def odds_ratio_interval(
    selected_a: Shards,
    total_a: Shards,
    selected_b: Shards,
    total_b: Shards,
    *,
    level: float = 0.95,
) -> Interval:
    """Interval of the odds ratio of two pooled shares over the same shards, a over b.

    Paired: each shard is deleted from both at once, so what documents have in common cancels. On the log odds
    ratio, as `share_interval`; shards without energy in either are left out.

    Returns:
        Odds ratios, 1 where a and b hold the same share.

    Raises:
        TlAnisoError: as `share_interval`.

    Example:
        >>> from tl_aniso.statistics import odds_ratio_interval
        >>> a, b, total = [5.0, 6.0, 5.5, 6.5], [2.0, 3.0, 2.5, 3.5], [10.0, 10.0, 10.0, 10.0]
        >>> low, high = odds_ratio_interval(a, total, b, total)
        >>> round(low, 2), round(high, 2)
        (3.24, 3.93)
    """
    chosen_a, whole_a = _shards(selected_a, total_a, "selected_a", "total_a")
    chosen_b, whole_b = _shards(selected_b, total_b, "selected_b", "total_b")
    if chosen_a.shape != chosen_b.shape:
        raise TlAnisoError(f"a has {chosen_a.size} shards and b has {chosen_b.size}: they must be the same shards")
    keep = (whole_a > 0) & (whole_b > 0)
    chosen_a, whole_a, chosen_b, whole_b = chosen_a[keep], whole_a[keep], chosen_b[keep], whole_b[keep]
    estimate = _logit(chosen_a, whole_a) - _logit(chosen_b, whole_b)
    deleted = _logit_without_each(chosen_a, whole_a) - _logit_without_each(chosen_b, whole_b)
    return _jackknife(estimate, deleted, level, odds=True)


def _shards(selected: Shards, total: Shards, name: str, total_name: str) -> tuple[np.ndarray, np.ndarray]:
    chosen, whole = (np.asarray(values, dtype=np.float64) for values in (selected, total))
    if chosen.ndim != 1 or chosen.shape != whole.shape:
        raise TlAnisoError(
            f"{name} and {total_name} must hold one number per shard, got {chosen.shape} and {whole.shape}"
        )
    if not (np.isfinite(chosen).all() and np.isfinite(whole).all()):
        raise TlAnisoError(f"{name} and {total_name} must be finite")
    # Projections of float32 sums may overshoot by rounding.
    if (chosen < 0).any() or (chosen > whole * (1 + 1e-6)).any():
        raise TlAnisoError(f"{name} must lie between 0 and {total_name} in every shard")
    return chosen, whole


def _logit(chosen: np.ndarray, whole: np.ndarray) -> np.float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.float64(chosen.sum())) - np.log(np.float64(max(whole.sum() - chosen.sum(), 0.0)))


def _logit_without_each(chosen: np.ndarray, whole: np.ndarray) -> np.ndarray:
    # Deleted, not subtracted: a shard with nearly all the energy would leave rounding behind.
    index = range(chosen.size)
    return np.array([_logit(np.delete(chosen, i), np.delete(whole, i)) for i in index], dtype=np.float64)


def _jackknife(estimate: np.float64, deleted: np.ndarray, level: float, *, odds: bool) -> Interval:
    if not 0.0 < level < 1.0:
        raise TlAnisoError(f"level must lie between 0 and 1, got {level}")
    n = deleted.size
    if n < FEWEST_SHARDS or not (np.isfinite(estimate) and np.isfinite(deleted).all()):
        return _UNKNOWN
    from scipy.special import expit, stdtrit  # comes with scikit-learn; slow to import

    error = math.sqrt((n - 1) / n * float(((deleted - deleted.mean()) ** 2).sum()))
    reach = float(stdtrit(n - 1, 0.5 + level / 2)) * error
    low, high = float(estimate) - reach, float(estimate) + reach
    if odds:
        return Interval(_exp(low), _exp(high))
    return Interval(float(expit(low)), float(expit(high)))


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm-adjusted p-values (family-wise, valid under any dependence); NaN stays NaN and counts for nothing.

    Raises:
        TlAnisoError: a p-value outside 0 ... 1.

    Example:
        >>> from tl_aniso.statistics import holm
        >>> holm([0.01, float("nan"), 0.04, 0.03]).tolist()
        [0.03, nan, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(values)
    present = values[known]
    if values.ndim != 1 or ((present < 0) | (present > 1)).any():
        raise TlAnisoError("p-values must be one list of numbers between 0 and 1")
    order = np.argsort(present, kind="stable")
    steps = present[order] * np.arange(present.size, 0, -1)
    adjusted = np.empty_like(present)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    result = np.full_like(values, np.nan)
    result[known] = adjusted
    return result
