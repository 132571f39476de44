"""How normal amplitude grows with tangent amplitude: the slope of their logarithms, noise taken apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.neighbourhoods.estimate import Estimate, estimate, undefined
from tl_aniso.neighbourhoods.quadratic import QuadraticFit

__all__ = ["STEEPEST", "SlopeFit", "curvature_slope", "power_law"]

# Largest power considered: four times a quadratic surface's order would be noise fitted as a cliff.
STEEPEST = 4.0
# Ratio of likelihoods, in dispersion units, that a floor must improve to be believed: chi-squared of one degree of
# freedom at 1e-4. Where nothing grows with u, a power and a floor trade freely, and a wrong floor gives any power.
_FLOOR = 15.14
# The same at 0.05: between the two a floor is not fitted but may be there, and the interval reaches to where it would
# take the slope.
_DOUBT = 3.84
_FEWEST = 8
_ITERATIONS = 60


@dataclass(frozen=True)
class SlopeFit:
    """E |x_N|^2 = floor + scale |u|^(2 slope), fitted to the rows' squared amplitudes.

    Attributes:
        slope: of log normal against log tangent amplitude above the floor, between 0 and `STEEPEST`, with interval.
        floor: energy of the noise that does not shrink with |u|, as a share of the mean normal energy; 0 where the
            data do not call for one.
        raw: the slope without any floor, which noise makes flatter.
        n: rows.
    """

    slope: Estimate
    floor: float
    raw: Estimate
    n: int


def curvature_slope(fit: QuadraticFit, *, level: float = 0.95) -> SlopeFit:
    """Slope of log normal against log tangent amplitude over the rows of one neighbourhood.

    2 on a curved surface, 0 where normal and tangent parts are independent (Gaussian rows), 1 at most where rows are
    Gaussian but for a common random factor (long tails): ``docs/method.md``, section 7. Amplitudes are those about
    the foot of the surface and its tangent plane there, `QuadraticFit.bent`: about the mean, a sphere would have none
    near its rim and much at its pole. Of the quadratic fit nothing else is used, so the power is free.

    The interval is that of the fit's sandwich variance. It holds the plane and the foot fixed; where a floor is neither
    clearly there nor clearly not, it reaches up to the slope above one.

    Raises:
        UndefinedMeasureError: fewer than 8 rows off the foot, or no normal part.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import curvature_slope, local_plane, quadratic_fit
        >>> u = torch.linspace(-1, 1, 22, dtype=torch.float64)
        >>> fit = quadratic_fit(local_plane(torch.stack([u, 3 * u**2 / 2], 1), 1))
        >>> round(curvature_slope(fit).slope.value, 3)
        2.0
    """
    return power_law(fit.tangent.square().sum(1), fit.bent.square().sum(1), level=level)


def power_law(tangent: Float64[Tensor, " n"], normal: Float64[Tensor, " n"], *, level: float = 0.95) -> SlopeFit:
    """Gamma quasi-likelihood of squared normal amplitudes, with mean floor + scale * tangent^slope.

    The likelihood weighs every row by its expected energy, as a regression of logarithms would, yet models the mean
    of the energy, to which noise adds and from which it can be taken. A floor is fitted only where it raises the
    likelihood by more than chance does once in 10,000 times.

    Args:
        tangent: squared tangent amplitudes.
        normal: squared normal amplitudes.
        level: of confidence.

    Raises:
        UndefinedMeasureError: fewer than 8 rows with a tangent part, or no normal part.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods.slope import power_law
        >>> r2 = torch.linspace(0.1, 1, 50, dtype=torch.float64)
        >>> round(power_law(r2, 7 * r2).slope.value, 6)  # amplitude goes as radius
        1.0
    """
    r2, energy = (np.asarray(v.detach().cpu(), dtype=np.float64) for v in (tangent, normal))
    kept = r2 > 0
    r2, energy = r2[kept], energy[kept]
    if len(r2) < _FEWEST or not energy.sum() > 0:
        raise UndefinedMeasureError(
            f"a slope needs {_FEWEST} rows with a tangent part and a normal part, got {len(r2)}"
        )
    logs = np.log(r2)
    logs -= logs.mean()
    energy = energy / energy.mean()
    if float(np.ptp(logs)) < 1e-9:
        raise UndefinedMeasureError("all rows lie at one tangent amplitude, so normal amplitude has no slope over it")
    plain = _fit(logs, energy, np.array([0.0, 1.0]))
    floored = min((_fit(logs, energy, np.array([-0.5, s, -1.0])) for s in (1.0, 2.0)), key=lambda f: f[1])
    residual = energy / _mean(floored[0], logs) - 1
    dispersion = float(np.square(residual).sum()) / max(len(logs) - 3, 1)
    gain = 2 * (plain[1] - floored[1]) / max(dispersion, 1e-12)
    raw = _interval(plain[0], logs, energy, level)
    # Exact surfaces leave no dispersion to test with, and no floor either.
    if gain <= _FLOOR or dispersion < 1e-9:
        if gain <= _DOUBT or dispersion < 1e-9:
            return SlopeFit(raw, 0.0, raw, len(logs))
        high = _interval(floored[0], logs, energy, level).high
        return SlopeFit(raw._replace(high=max(raw.high, high)), 0.0, raw, len(logs))
    return SlopeFit(_interval(floored[0], logs, energy, level), float(math.exp(floored[0][2])), raw, len(logs))


def _mean(theta: np.ndarray, logs: np.ndarray) -> np.ndarray:
    rising = np.exp(theta[0] + theta[1] * logs)
    return rising if len(theta) == 2 else rising + np.exp(theta[2])


def _derivative(theta: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Of log mean by (log scale, slope, log floor)."""
    rising = np.exp(theta[0] + theta[1] * logs)
    if len(theta) == 2:
        return np.stack([np.ones_like(logs), logs], 1)
    floor = np.full_like(logs, np.exp(theta[2]))
    return np.stack([rising, rising * logs, floor], 1) / (rising + floor)[:, None]


def _fit(logs: np.ndarray, energy: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Fisher scoring with a damping that follows success, within bounds."""
    low = np.array([-40.0, -STEEPEST if len(start) == 2 else 0.0, -40.0])[: len(start)]
    high = np.array([10.0, STEEPEST, 10.0])[: len(start)]
    theta, damping = start, 1e-3
    mean = _mean(theta, logs)
    loss = float((np.log(mean) + energy / mean).sum())
    for _ in range(_ITERATIONS):
        rows = _derivative(theta, logs)
        gradient, information = rows.T @ (energy / mean - 1), rows.T @ rows
        information[np.diag_indices(len(theta))] *= 1 + damping
        information[np.diag_indices(len(theta))] += 1e-9
        trial = np.clip(theta + np.clip(np.linalg.solve(information, gradient), -3, 3), low, high)
        trial_mean = _mean(trial, logs)
        trial_loss = float((np.log(trial_mean) + energy / trial_mean).sum())
        if trial_loss > loss:
            damping = min(10 * damping + 1e-3, 1e6)
            if damping >= 1e6:
                break
            continue
        gain, theta, mean, loss, damping = loss - trial_loss, trial, trial_mean, trial_loss, damping / 10
        if gain < 1e-5:
            break
    return theta, loss


def _interval(theta: np.ndarray, logs: np.ndarray, energy: np.ndarray, level: float) -> Estimate:
    """Of the power, by the sandwich of expected information and the scores' variance (over 1 - leverage)."""
    rows = _derivative(theta, logs)
    slope = float(theta[1])
    bread = rows.T @ rows
    if np.linalg.cond(bread) > 1e12:
        return undefined()._replace(value=slope)
    inverse = np.linalg.inv(bread)
    leverage = np.einsum("ij,jk,ik->i", rows, inverse, rows).clip(max=1 - 1e-9)
    scores = rows * ((energy / _mean(theta, logs) - 1) / (1 - leverage))[:, None]
    n, p = rows.shape
    variance = float((inverse @ (scores.T @ scores) @ inverse)[1, 1])
    return estimate(slope, math.sqrt(variance), df=n - p, level=level)
