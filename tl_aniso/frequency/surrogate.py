"""Distances of types whose rows all come from one Gaussian: what the estimator gives where frequency means nothing."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.frequency.store import SiteRows

__all__ = ["gaussian_distances", "moving_distances", "within_covariance"]

# Directions drawn one by one; the rest of the spectrum is drawn as one chi-square with its mean and variance.
_APART = 8
_BLOCK = 1024


def within_covariance(rows: SiteRows) -> Float64[Tensor, "d d"]:
    """The covariance of rows about the mean of their type, pooled over types; zeros where no type came twice.

    From the scatter of all rows less that of the types' means; scaled to the sum of squares that the types themselves
    hold, which took no difference.
    """
    count = rows.all.count
    seen = count.nonzero()[:, 0]
    freedom = int(count.sum()) - len(seen)
    d = rows.all.d
    if freedom < 1:
        return torch.zeros(d, d, dtype=torch.float64)
    scatter, mean = rows.pooled.scatter.cpu(), rows.pooled.mean.cpu()
    for types in seen.split(_BLOCK):
        gap = (rows.all.means(types) - mean) * count[types].double().sqrt()[:, None]
        scatter = scatter - gap.T @ gap
    values, vectors = torch.linalg.eigh((scatter + scatter.T) / 2)
    values = values.clamp(min=0.0)
    total = float(values.sum())
    values = values * (float(rows.all.squares.sum()) / total if total > 0 else 0.0)
    return (vectors * (values / freedom)) @ vectors.T


def gaussian_distances(
    covariance: Float64[Tensor, "d d"], counts: Float[np.ndarray, " n"], *, n_draws: int, seed: int
) -> Float[np.ndarray, "n_draws n"]:
    """Root mean square distance (n - 1 below) of `counts` rows to their mean, if all types had this covariance.

    The sum of squares is a sum over eigenvalues of lambda chi^2(n - 1), which is drawn without drawing rows: exactly
    for the eight largest, the rest by one chi-square with their mean and variance (Satterthwaite).

    Example:
        >>> import torch
        >>> drawn = gaussian_distances(torch.eye(4, dtype=torch.float64), np.array([50.0, 500.0]), n_draws=200, seed=0)
        >>> drawn.shape, bool(abs((drawn**2).mean(0) - 4.0).max() < 0.2)
        ((200, 2), True)
    """
    values = np.sort(torch.linalg.eigvalsh(covariance).clamp(min=0.0).numpy())[::-1]
    freedom = np.asarray(counts, dtype=np.float64) - 1
    rng = np.random.default_rng(seed)
    shape = (n_draws, len(freedom))
    total = np.zeros(shape)
    for value in values[:_APART]:
        total += value * 2 * rng.standard_gamma(np.broadcast_to(freedom / 2, shape))
    rest = values[_APART:]
    if rest.sum() > 0:
        unit, number = (rest**2).sum() / rest.sum(), rest.sum() ** 2 / (rest**2).sum()
        total += unit * 2 * rng.standard_gamma(np.broadcast_to(number * freedom / 2, shape))
    return np.asarray(np.sqrt(total / freedom))


def moving_distances(
    movement: Float64[Tensor, "d d"],
    noise: Float64[Tensor, "d d"] | None,
    counts: Float[np.ndarray, " n"],
    n_checkpoints: int,
    *,
    n_draws: int,
    seed: int,
) -> Float[np.ndarray, "n_draws n"]:
    """Root mean square distance to the centroid over checkpoints, if all types moved with one covariance.

    With `noise`, the covariance within types, each mean also has the error of its n occurrences, noise / n, drawn anew
    at every checkpoint. The same text at every checkpoint makes errors alike, and alike they cancel: the surrogate is
    an upper bound of what the number of occurrences alone can do.

    Args:
        movement: covariance of an embedding about its own centroid; that of the error of its mean included.
        noise: covariance of rows within a type, or None for tables, which have no error.
        counts: occurrences of each type.
        n_checkpoints: C; the sum of squares has C - 1 degrees of freedom and is divided by C.
        n_draws: how many vocabularies to draw.
        seed: of the draws.
    """
    n = np.asarray(counts, dtype=np.float64)
    own = movement
    zero = torch.zeros_like(movement) if noise is None else noise
    if noise is not None:
        values, vectors = torch.linalg.eigh(movement - noise * float((1 / n).mean()))
        own = (vectors * values.clamp(min=0.0)) @ vectors.T
    first = float(own.trace()) + float(zero.trace()) / n
    second = float((own**2).sum()) + 2 * float((own * zero).sum()) / n + float((zero**2).sum()) / n**2
    shape = (n_draws, len(n))
    if not (first > 0).all():
        return np.zeros(shape)
    number = first**2 / second * (n_checkpoints - 1)
    drawn = 2 * np.random.default_rng(seed).standard_gamma(np.broadcast_to(number / 2, shape))
    return np.asarray(np.sqrt(second / first * drawn / n_checkpoints))
