"""Numbers of single token types, averaged over groups of types with intervals over types."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tl_aniso.neighbourhoods.estimate import Estimate, estimate, undefined

__all__ = ["GROUPS", "Groups", "mean_of", "shuffled"]

GROUPS = ("all", "frequent", "rare", "rare - frequent")


def mean_of(values: np.ndarray) -> Estimate:
    """Mean over the finite values with Student's interval; no ends for fewer than two."""
    known = values[np.isfinite(values)]
    if not len(known):
        return undefined()
    std = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return estimate(float(known.mean()), std, df=len(known) - 1)


def _difference(rare: np.ndarray, frequent: np.ndarray) -> Estimate:
    """Welch's interval of the difference of two means."""
    a, b = mean_of(rare), mean_of(frequent)
    na, nb = np.isfinite(rare).sum(), np.isfinite(frequent).sum()
    std = math.hypot(a.std, b.std)
    if not (na > 1 and nb > 1 and std > 0):
        return undefined()._replace(value=a.value - b.value)
    return estimate(a.value - b.value, std, df=float(std**4 / (a.std**4 / (na - 1) + b.std**4 / (nb - 1))))


@dataclass(frozen=True, eq=False)
class Groups:
    """Which types are frequent and which rare, in the order of arrays of per-type values.

    Attributes:
        is_rare: per type.
    """

    is_rare: np.ndarray

    def of(self, group: str, values: np.ndarray) -> Estimate:
        """Mean over a group's types, or the difference of two groups, with interval over types.

        Example:
            >>> import numpy as np
            >>> from tl_aniso.neighbourhoods.groups import Groups
            >>> values = np.array([1.0, 2.0, 5.0, 8.0])
            >>> groups = Groups(np.array([False, False, True, True]))
            >>> groups.of("all", values).value, groups.of("rare - frequent", values).value
            (4.0, 5.0)
        """
        if group == "all":
            return mean_of(values)
        rare, frequent = values[self.is_rare], values[~self.is_rare]
        if group == "rare - frequent":
            return _difference(rare, frequent)
        return mean_of(rare if group == "rare" else frequent)

    def count(self, group: str, values: np.ndarray) -> int:
        """Types with a value in the group."""
        chosen = {"frequent": ~self.is_rare, "rare": self.is_rare}.get(group, np.ones(len(values), dtype=bool))
        return int(np.isfinite(values[chosen]).sum())


def shuffled(groups: Groups, values: np.ndarray, *, n: int, seed: int) -> tuple[float, np.ndarray]:
    """Two-sided p-value of rare - frequent with the labels of types permuted, and the permuted differences.

    (1 + how many are as far from 0) / (1 + n); NaN and none where a group has no value.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.neighbourhoods.groups import Groups, shuffled
        >>> values = np.concatenate([np.zeros(20), np.ones(20)]) + 0.01 * np.arange(40)
        >>> shuffled(Groups(np.arange(40) >= 20), values, n=99, seed=0)[0]
        0.01
    """
    known = np.isfinite(values)
    kept, rare = values[known], groups.is_rare[known]
    if not rare.any() or rare.all():
        return math.nan, np.empty(0)
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(rare) for _ in range(n)])
    means = (labels @ kept) / rare.sum() - (~labels @ kept) / (~rare).sum()
    found = abs(kept[rare].mean() - kept[~rare].mean())
    return (1 + int((np.abs(means) >= found * (1 - 1e-10)).sum())) / (1 + n), means
