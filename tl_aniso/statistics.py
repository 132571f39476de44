"""Intervals over documents (never over rows) and adjusted p-values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from torch import Tensor

from tl_aniso.errors import TlAnisoError

__all__ = [
    "FEWEST_SHARDS",
    "Contrast",
    "Interval",
    "effective_shards",
    "excess_contrast",
    "mean_excess_contrast",
    "mean_excess_interval",
    "mean_share_difference",
    "mean_share_interval",
    "odds_ratio_contrast",
    "odds_ratio_interval",
    "share_difference",
    "share_interval",
]

Shards: TypeAlias = Float[Tensor, " shards"] | Float[np.ndarray, " shards"] | Sequence[float]

# With fewer shards the jackknife variance is itself little more than noise.
FEWEST_SHARDS = 4


class Interval(NamedTuple):
    """A confidence interval; both ends NaN where the text is too little to give one."""

    low: float
    high: float


class Contrast(NamedTuple):
    """A paired difference with its confidence interval and the two-sided p-value of its t-test against 0."""

    value: float
    low: float
    high: float
    p_value: float


# Selected and total energy by shard, checked.
_Pair: TypeAlias = tuple[np.ndarray, np.ndarray]


def share_interval(selected: Shards, total: Shards, *, level: float = 0.95) -> Interval:
    """Interval of the pooled share sum(selected) / sum(total): delete-one jackknife over shards of documents.

    On the logit, with t quantiles of n_eff - 1 degrees of freedom, at least 1, where n_eff = (sum total)^2 / sum
    total^2 is the effective number of shards: where few documents hold most of the energy, few shards count
    (``docs/method.md``, Intervals). Shards without any energy are left out. NaN for fewer than four shards, or
    where a share is 0 or 1 (no finite logit).

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
    from scipy.special import expit  # comes with scikit-learn; slow to import

    found = _jackknife([_shards(selected, total, "selected", "total")], (1,), level, scale=_logit)
    return Interval(float(expit(found.low)), float(expit(found.high)))


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
    ratio, as `share_interval`, with the fewer degrees of freedom of the two; shards without energy in either are
    left out.

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
    found = odds_ratio_contrast(selected_a, total_a, selected_b, total_b, level=level)
    return Interval(_exp(found.low), _exp(found.high))


def odds_ratio_contrast(
    selected_a: Shards, total_a: Shards, selected_b: Shards, total_b: Shards, *, level: float = 0.95
) -> Contrast:
    """The log odds ratio of two pooled shares over the same shards, with interval and p-value.

    At equal rank and width this is also log(R_a / R_b).

    Raises:
        TlAnisoError: as `share_interval`.

    Example:
        >>> from tl_aniso.statistics import odds_ratio_contrast
        >>> a, b, total = [5.0, 6.0, 5.5, 6.5], [2.0, 3.0, 2.5, 3.5], [10.0, 10.0, 10.0, 10.0]
        >>> found = odds_ratio_contrast(a, total, b, total)
        >>> round(found.value, 2), found.p_value < 0.001
        (1.27, True)
    """
    return _jackknife(_two(selected_a, total_a, selected_b, total_b), (1, -1), level, scale=_logit)


def share_difference(
    selected_a: Shards, total_a: Shards, selected_b: Shards, total_b: Shards, *, level: float = 0.95
) -> Contrast:
    """The difference of two pooled shares over the same shards, a less b, with interval and p-value.

    Paired and by jackknife as `odds_ratio_interval`, but of the shares themselves, on Fisher's scale: the interval is
    symmetric in artanh of the difference and so stays within -1 ... 1. NaN where the difference is -1 or 1.

    Raises:
        TlAnisoError: as `share_interval`.

    Example:
        >>> from tl_aniso.statistics import share_difference
        >>> a, b, total = [5.0, 6.0, 5.5, 6.5], [2.0, 3.0, 2.5, 3.5], [10.0, 10.0, 10.0, 10.0]
        >>> found = share_difference(a, total, b, total)
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.3, 0.3, 0.3)
    """
    return _fisher(
        _jackknife(_two(selected_a, total_a, selected_b, total_b), (1, -1), level, scale=_share, link=_artanh)
    )


def excess_contrast(
    effect_a: tuple[Shards, Shards],
    control_a: tuple[Shards, Shards],
    effect_b: tuple[Shards, Shards],
    control_b: tuple[Shards, Shards],
    *,
    level: float = 0.95,
) -> Contrast:
    """log(excess_a / excess_b) over the same shards, where excess = odds(effect) / odds(control).

    Args:
        effect_a: selected and total energy of the effect in a, by shard.
        control_a: of the control in a.
        effect_b: of the effect in b.
        control_b: of the control in b.
        level: of confidence.

    Raises:
        TlAnisoError: as `share_interval`.

    Example:
        >>> from tl_aniso.statistics import excess_contrast
        >>> total = [10.0, 10.0, 10.0, 10.0]
        >>> high, low = ([5.0, 6.0, 5.5, 6.5], total), ([2.0, 3.0, 2.5, 3.5], total)
        >>> found = excess_contrast(high, low, low, low)
        >>> round(found.value, 2)
        1.27
    """
    names = ("effect_a", "control_a", "effect_b", "control_b")
    given = (effect_a, control_a, effect_b, control_b)
    pairs = [_shards(s, t, n, f"the total of {n}") for n, (s, t) in zip(names, given, strict=True)]
    return _jackknife(pairs, (1, -1, -1, 1), level, scale=_logit)


def mean_share_difference(
    terms: Sequence[tuple[tuple[Shards, Shards], tuple[Shards, Shards]]], *, level: float = 0.95
) -> Contrast:
    """The mean of several differences of shares over the same shards, such as those of all sites of a group.

    Each shard is deleted from every term at once, so that what the sites have in common is not counted as if they
    were independent.

    Args:
        terms: for each site, the selected and total energy by shard in a, and those in b.
        level: of confidence.

    Raises:
        TlAnisoError: as `share_interval`, or no terms.

    Example:
        >>> from tl_aniso.statistics import mean_share_difference
        >>> total = [10.0, 10.0, 10.0, 10.0]
        >>> low, high = ([2.0, 3.0, 2.5, 3.5], total), ([5.0, 6.0, 5.5, 6.5], total)
        >>> round(mean_share_difference([(high, low), (low, low)]).value, 3)
        0.15
    """
    pairs = [_shards(*p, "selected", "total") for term in terms for p in term]
    return _fisher(_mean(pairs, (1, -1), level, scale=_share, link=_artanh))


def mean_excess_contrast(terms: Sequence[tuple[tuple[Shards, Shards], ...]], *, level: float = 0.95) -> Contrast:
    """The mean of several log(excess_a / excess_b) over the same shards: the logarithm of a ratio of geometric means.

    Args:
        terms: for each site, (selected, total) by shard of: the effect in a, its control in a, the effect in b, its
            control in b.
        level: of confidence.

    Raises:
        TlAnisoError: as `share_interval`, or no terms.

    Example:
        >>> from tl_aniso.statistics import mean_excess_contrast
        >>> total = [10.0, 10.0, 10.0, 10.0]
        >>> low, high = ([2.0, 3.0, 2.5, 3.5], total), ([5.0, 6.0, 5.5, 6.5], total)
        >>> round(mean_excess_contrast([(high, low, low, low), (high, high, low, low)]).value, 3)
        0.636
    """
    pairs = [_shards(*p, "selected", "total") for term in terms for p in term]
    return _mean(pairs, (1, -1, -1, 1), level, scale=_logit)


def _mean(
    pairs: Sequence[_Pair],
    signs: Sequence[int],
    level: float,
    *,
    scale: Callable[[np.ndarray, np.ndarray], np.float64],
    link: Callable[[float], float] = float,
) -> Contrast:
    n = len(pairs) // len(signs)
    if not n:
        raise TlAnisoError("there are no terms to take the mean of")
    return _jackknife(pairs, [sign / n for sign in signs] * n, level, scale=scale, link=link)


def _two(selected_a: Shards, total_a: Shards, selected_b: Shards, total_b: Shards) -> list[_Pair]:
    return [
        _shards(selected_a, total_a, "selected_a", "total_a"),
        _shards(selected_b, total_b, "selected_b", "total_b"),
    ]


def effective_shards(*totals: Shards) -> float:
    """How many equal shards would weigh as much as these, (sum total)^2 / sum total^2; the smallest of several.

    Example:
        >>> from tl_aniso.statistics import effective_shards
        >>> effective_shards([1.0, 1.0, 1.0, 1.0]), round(effective_shards([1.0] * 4, [97.0, 1.0, 1.0, 1.0]), 2)
        (4.0, 1.06)
    """
    numbers = [np.asarray(total, dtype=np.float64) for total in totals]
    return min(_effective_number(total) if total.sum() > 0 else 0.0 for total in numbers)


def mean_share_interval(pairs: Sequence[tuple[Shards, Shards]], *, level: float = 0.95) -> Interval:
    """Interval of the mean of several shares over the same shards, on the logit of that mean, as `share_interval`.

    Raises:
        TlAnisoError: as `share_interval`, or no pairs.

    Example:
        >>> from tl_aniso.statistics import mean_share_interval
        >>> low, high = mean_share_interval([([2.0, 3.0, 2.5, 3.5], [10.0, 10.0, 10.0, 10.0])] * 2)
        >>> round(low, 3), round(high, 3)
        (0.185, 0.389)
    """
    from scipy.special import expit

    found = _mean([_shards(*p, "selected", "total") for p in pairs], (1,), level, scale=_share, link=_logit_of)
    return Interval(float(expit(found.low)), float(expit(found.high)))


def mean_excess_interval(
    terms: Sequence[tuple[tuple[Shards, Shards], tuple[Shards, Shards]]], *, level: float = 0.95
) -> Interval:
    """Interval of the geometric mean of several excesses over the same shards.

    Args:
        terms: for each site, (selected, total) by shard of the effect and of its control.
        level: of confidence.

    Raises:
        TlAnisoError: as `share_interval`, or no terms.
    """
    pairs = [_shards(*p, "selected", "total") for term in terms for p in term]
    found = _mean(pairs, (1, -1), level, scale=_logit)
    return Interval(_exp(found.low), _exp(found.high))


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


def _share(chosen: np.ndarray, whole: np.ndarray) -> np.float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float64(chosen.sum()) / np.float64(whole.sum())


def _artanh(value: float) -> float:
    return math.atanh(value) if abs(value) < 1 else math.copysign(math.inf, value) if value == value else math.nan


def _logit_of(share: float) -> float:
    return math.log(share) - math.log1p(-share) if 0 < share < 1 else math.nan


def _fisher(found: Contrast) -> Contrast:
    return Contrast(math.tanh(found.value), math.tanh(found.low), math.tanh(found.high), found.p_value)


def _jackknife(
    pairs: Sequence[_Pair],
    signs: Sequence[float],
    level: float,
    *,
    scale: Callable[[np.ndarray, np.ndarray], np.float64],
    link: Callable[[float], float] = float,
) -> Contrast:
    """`link` of the signed sum of `scale` over the pairs, each shard deleted from all of them at once."""
    if not 0.0 < level < 1.0:
        raise TlAnisoError(f"level must lie between 0 and 1, got {level}")
    sizes = [chosen.size for chosen, _ in pairs]
    if len(set(sizes)) > 1:
        raise TlAnisoError(f"a has {sizes[0]} shards and b has {sizes[-1]}: they must be the same shards")
    keep = np.logical_and.reduce([whole > 0 for _, whole in pairs])
    pairs = [(chosen[keep], whole[keep]) for chosen, whole in pairs]
    n = int(keep.sum())

    def signed(rest: np.ndarray | slice) -> float:
        with np.errstate(invalid="ignore"):
            return link(float(sum(sign * scale(c[rest], w[rest]) for sign, (c, w) in zip(signs, pairs, strict=True))))

    estimate = signed(slice(None))
    # Deleted, not subtracted: a shard with nearly all the energy would leave rounding behind.
    deleted = np.array([signed(np.arange(n) != i) for i in range(n)])
    if n < FEWEST_SHARDS or not (np.isfinite(estimate) and np.isfinite(deleted).all()):
        return Contrast(estimate, math.nan, math.nan, math.nan)
    from scipy.special import stdtr, stdtrit  # comes with scikit-learn; slow to import

    freedom = max(1.0, min(_effective_number(whole) for _, whole in pairs) - 1)
    error = math.sqrt((n - 1) / n * float(((deleted - deleted.mean()) ** 2).sum()))
    reach = float(stdtrit(freedom, 0.5 + level / 2)) * error
    if error > 0:
        p_value = 2 * float(stdtr(freedom, -abs(estimate) / error))
    else:
        p_value = 1.0 if estimate == 0 else 0.0
    return Contrast(estimate, estimate - reach, estimate + reach, p_value)


def _effective_number(whole: np.ndarray) -> float:
    weights = whole / whole.max()  # so that no square under- or overflows
    return float(weights.sum() ** 2 / (weights**2).sum())


def _exp(value: float) -> float:
    return math.exp(value) if not value >= 709.0 else math.inf
