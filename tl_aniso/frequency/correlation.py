"""Correlations over token types, with what leaving out one type does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from tl_aniso.errors import TlAnisoError
from tl_aniso.statistics import Interval

__all__ = [
    "FEWEST_TYPES",
    "Correlation",
    "Kind",
    "correlate",
    "difference_interval",
    "interval",
    "permuted",
]

Kind: TypeAlias = Literal["pearson", "spearman"]

# Below this a correlation is little but its own noise, and its spread cannot be told.
FEWEST_TYPES = 4
# Most numbers of a block of permutations.
_BLOCK = 4_000_000


@dataclass(frozen=True, eq=False)
class Correlation:
    """A correlation over types.

    Attributes:
        value: of all types; NaN where it has none.
        without: with each type left out in turn, in the order of the types.
    """

    value: float
    without: Float[np.ndarray, " n"]


def correlate(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], kind: Kind) -> Correlation:
    """Pearson's r or Spearman's rho, and each type's influence on it.

    Pearson's r without type i is exact, in closed form. Of Spearman's rho it is taken to first order, by its influence
    function with mid-ranks for ties, which counts that leaving out one type moves the ranks of all others. Both cost
    no more than a sort.

    Returns:
        NaN for fewer than 4 types, or where one of x and y is constant.

    Raises:
        TlAnisoError: lengths that differ, numbers that are not finite.

    Example:
        >>> import numpy as np
        >>> x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> round(correlate(x, x**2, "pearson").value, 3), round(correlate(x, -(x**3), "spearman").value, 6)
        (0.981, -1.0)
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise TlAnisoError(f"x and y must hold one number for each type, got shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise TlAnisoError("a correlation needs finite numbers; leave out types without a value")
    n = len(x)
    if n < FEWEST_TYPES or _constant(x) or _constant(y):
        return Correlation(math.nan, np.full(n, math.nan))
    return _pearson(x, y) if kind == "pearson" else _spearman(x, y)


def interval(found: Correlation, *, level: float = 0.95) -> Interval:
    """Interval of a correlation over types: delete-one jackknife on Fisher's scale artanh, with t quantiles.

    Fisher's own interval, artanh r +- z / sqrt(n - 3), holds for Gaussian pairs alone. Distances of frequent types
    scatter less than those of rare ones, and both tails are long: the jackknife takes that from the types themselves.

    Returns:
        Both ends NaN where the correlation is NaN, 1 or -1.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.standard_normal(200)
        >>> low, high = interval(correlate(x, x + rng.standard_normal(200), "pearson"))
        >>> bool(low < 0.5**0.5 < high)
        True
    """
    return _on_fishers_scale(found.value, found.without, level)


def difference_interval(mine: Correlation, other: Correlation, *, level: float = 0.95) -> Interval:
    """Interval of the difference of two correlations over the same types: each type is left out of both at once.

    A type that one of the two does not have is given there with the value of all types. On Fisher's scale of half the
    difference, so that it stays within -2 ... 2.
    """
    half = _on_fishers_scale((mine.value - other.value) / 2, (mine.without - other.without) / 2, level)
    return Interval(2 * half.low, 2 * half.high)


def permuted(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, "m n"], *, n_draws: int, seed: int
) -> dict[Kind, Float[np.ndarray, "n_draws m"]]:
    """Correlations of each row of y with x permuted over the types: what there is where frequency means nothing.

    Every row and both kinds see the same permutations.

    Example:
        >>> import numpy as np
        >>> x = np.arange(50.0)
        >>> null = permuted(x, np.stack([x, -x]), n_draws=99, seed=0)
        >>> null["pearson"].shape, bool(abs(null["spearman"]).max() < 0.6)
        ((99, 2), True)
    """
    n = len(x)
    scaled = {"pearson": (_standard(x), _standard(y)), "spearman": (_standard(_ranks(x)), _standard(_ranks(y)))}
    rng = np.random.default_rng(seed)
    found: dict[Kind, list[np.ndarray]] = {"pearson": [], "spearman": []}
    step = max(1, _BLOCK // max(n, 1))
    for start in range(0, n_draws, step):
        size = min(step, n_draws - start)
        order = rng.permuted(np.broadcast_to(np.arange(n), (size, n)), axis=1)
        for kind, values in found.items():
            across, up = scaled[kind]
            values.append(across[order] @ up.T / n)
    return {kind: np.concatenate(values) for kind, values in found.items()}


def _pearson(x: np.ndarray, y: np.ndarray) -> Correlation:
    n = len(x)
    a, b = _standard(x), _standard(y)
    r = float(a @ b) / n
    # Sums of squares and products about the mean, without type i: n - a_i^2 n / (n - 1), and so on.
    left = np.clip(1 - a**2 / (n - 1), 0, None) * np.clip(1 - b**2 / (n - 1), 0, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = (r - a * b / (n - 1)) / np.sqrt(left)
    return Correlation(min(1.0, max(-1.0, r)), np.clip(without, -1.0, 1.0))


def _spearman(x: np.ndarray, y: np.ndarray) -> Correlation:
    n = len(x)
    u, v = (_ranks(values) - (n + 1) / 2 for values in (x, y))
    u, v = u / n, v / n  # distribution functions less their means
    var_u, var_v, cov = float(u @ u) / n, float(v @ v) / n, float(u @ v) / n
    rho = cov / math.sqrt(var_u * var_v)
    of_cov = u * v - cov + _moved(x, u, v) + _moved(y, v, u)
    of_u = u**2 - var_u + 2 * _moved(x, u, u)
    of_v = v**2 - var_v + 2 * _moved(y, v, v)
    influence = of_cov / math.sqrt(var_u * var_v) - rho / 2 * (of_u / var_u + of_v / var_v)
    return Correlation(min(1.0, max(-1.0, rho)), np.clip(rho - influence / (n - 1), -1.0, 1.0))


def _moved(x: np.ndarray, ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over j of (1[x_i < x_j] + 1/2 1[x_i = x_j] - F(x_j)) w_j: what type i does to the ranks of the others."""
    order = np.argsort(x, kind="stable")
    _, first, inverse, counts = np.unique(x[order], return_index=True, return_inverse=True, return_counts=True)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    stop = first + counts
    above = sums[-1] - (sums[stop] + sums[first]) / 2
    back = np.empty(len(x))
    back[order] = above[inverse]
    # F(x_j) = rank + 1/2 and the weights have mean 0, so that the half drops out.
    return (back - ranks @ weights) / len(x)


def _on_fishers_scale(value: float, without: np.ndarray, level: float) -> Interval:
    if not 0.0 < level < 1.0:
        raise TlAnisoError(f"level must lie between 0 and 1, got {level}")
    n = len(without)
    if n < FEWEST_TYPES or not (abs(value) < 1 and (np.abs(without) < 1).all()):
        return Interval(math.nan, math.nan)
    from scipy.special import stdtrit  # comes with scikit-learn; slow to import

    deleted = np.arctanh(without)
    error = math.sqrt((n - 1) / n * float(((deleted - deleted.mean()) ** 2).sum()))
    reach = float(stdtrit(n - 2, 0.5 + level / 2)) * error
    centre = math.atanh(value)
    return Interval(math.tanh(centre - reach), math.tanh(centre + reach))


def _ranks(values: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, axis=-1), dtype=np.float64)


def _standard(values: np.ndarray) -> np.ndarray:
    """Less the mean, over the standard deviation, along the last axis; zeros where that is constant."""
    centred = values - values.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True))
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)


def _constant(values: np.ndarray) -> bool:
    """Equal, or equal but for rounding."""
    return float(np.ptp(values)) <= 1e-12 * float(np.abs(values).max())
