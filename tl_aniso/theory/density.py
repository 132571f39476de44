"""How samples lie around the base point: densities of the radius, their moments, means and draws.

A radius t in [0, rho] has density

    p(t) = t^(k-1) (1 - t/rho)^a / (rho^k B(k, a + 1)),

the volume element of a k-dimensional ball times a weight that falls towards its rim: t/rho is Beta(k, a + 1). a = 0 is
the uniform ball ("uniform"); the larger a, the more of the mass lies near t = 0; "shell" puts all of it at t = rho.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import betainc, betaincinv, betaln, roots_jacobi
from torch import Tensor

from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError

__all__ = [
    "Density",
    "as_concentration",
    "as_generator",
    "as_positive",
    "radial_density",
    "radial_mean",
    "radial_moment",
    "radial_probability",
    "sample_radius",
]

Density: TypeAlias = Literal["uniform", "shell"] | float

# Enough for integrands analytic on the disc: trigonometric functions of t up to a few wavelengths, to rounding.
_NODES = 48


def as_positive(name: str, value: float, *, zero: bool = False) -> float:
    """`value` as a finite float above zero, or at zero where that is allowed.

    Raises:
        TlAnisoError: anything else.

    Example:
        >>> as_positive("radius", 2)
        2.0
    """
    allowed = "at least 0" if zero else "above 0"
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TlAnisoError(f"{name} must be a number {allowed}, got {value!r}") from None
    if not math.isfinite(number) or number < 0.0 or (number == 0.0 and not zero):
        raise TlAnisoError(f"{name} must be finite and {allowed}, got {value!r}")
    return number


def as_concentration(density: Density) -> float | None:
    """The exponent a of a density; None for the shell.

    Raises:
        TlAnisoError: another word, or an exponent below 0.

    Example:
        >>> as_concentration("uniform"), as_concentration(3), as_concentration("shell")
        (0.0, 3.0, None)
    """
    if isinstance(density, str):
        if density not in ("uniform", "shell"):
            raise TlAnisoError(f'density must be "uniform", "shell" or a concentration a >= 0, got {density!r}')
        return None if density == "shell" else 0.0
    return as_positive("the concentration a of a density", density, zero=True)


def as_generator(generator: torch.Generator) -> torch.Generator:
    """`generator` itself.

    Raises:
        TlAnisoError: anything but a generator of torch, such as a seed.

    Example:
        >>> as_generator(torch.Generator()).device
        device(type='cpu')
    """
    if not isinstance(generator, torch.Generator):
        raise TlAnisoError(
            f"generator must be a torch.Generator, got {generator!r}; torch.Generator().manual_seed(0) makes one"
        )
    return generator


def radial_density(t: np.ndarray, k: int, radius: float, density: Density) -> np.ndarray:
    """p(t) at radii t, per unit of length; zero beyond `radius`.

    Raises:
        TlAnisoError: the shell, which has no density, or values out of range.

    Example:
        >>> import numpy as np
        >>> radial_density(np.array([0.5]), 2, 1.0, "uniform")  # 2 t
        array([1.])
    """
    a = as_concentration(density)
    if a is None:
        raise TlAnisoError('"shell" is a point mass at the radius and has no density to evaluate')
    s = np.asarray(t, dtype=np.float64) / as_positive("radius", radius)
    inside = (s >= 0.0) & (s <= 1.0)
    s = np.where(inside, s, 0.0)
    return np.where(inside, s ** (k - 1) * (1.0 - s) ** a * math.exp(-betaln(k, a + 1.0)) / radius, 0.0)


def radial_probability(t: float, k: int, radius: float, density: Density) -> float:
    """The share of samples within radius t of the base point.

    Example:
        >>> radial_probability(0.5, 2, 1.0, "uniform"), round(radial_probability(0.5, 2, 1.0, 8.0), 4)
        (0.25, 0.9893)
    """
    a = as_concentration(density)
    s = min(1.0, as_positive("t", t, zero=True) / as_positive("radius", radius))
    return float(s >= 1.0) if a is None else float(betainc(k, a + 1.0, s))


def radial_moment(q: int, k: int, radius: float, density: Density) -> float:
    """E t^q = rho^q B(k + q, a + 1) / B(k, a + 1); rho^q on the shell, rho^q k / (k + q) in the uniform ball.

    Args:
        q: order, at least 0.
        k: dimension of the tangent plane.
        radius: rho, the largest radius.
        density: "uniform", "shell" or the concentration a.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> radial_moment(2, 2, 1.0, "uniform"), radial_moment(2, 2, 3.0, "shell")
        (0.5, 9.0)
    """
    a = as_concentration(density)
    as_integer("q", q, least=0)
    as_integer("k", k, least=1)
    scale = as_positive("radius", radius) ** q
    if a is None:
        return scale
    # B(k + q, a + 1) / B(k, a + 1) is a finite product.
    return scale * math.prod((k + j) / (k + j + a + 1.0) for j in range(q))


def radial_mean(function: Callable[[np.ndarray], np.ndarray], k: int, radius: float, density: Density) -> np.ndarray:
    """E f(t), by Gauss-Jacobi quadrature with p(t) as its weight: exact for polynomials of degree under 96.

    Args:
        function: of radii (n,), returning (n,) or (n, ...).

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> import numpy as np
        >>> bool(np.isclose(radial_mean(lambda t: t**2, 2, 1.0, "uniform"), 0.5))
        True
    """
    a = as_concentration(density)
    if a is None:
        return np.asarray(function(np.array([as_positive("radius", radius)])))[0]
    nodes, weights = roots_jacobi(_NODES, a, k - 1.0)
    values = np.asarray(function((nodes + 1.0) / 2.0 * as_positive("radius", radius)))
    return np.tensordot(weights / weights.sum(), values, axes=1)


def sample_radius(n: int, k: int, radius: float, density: Density, generator: torch.Generator) -> Float64[Tensor, " n"]:
    """n radii, by the inverse of the distribution function of Beta(k, a + 1).

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> import torch
        >>> t = sample_radius(1000, 2, 1.0, 8.0, torch.Generator().manual_seed(0))
        >>> bool(t.max() <= 1), round(float(t.mean()), 2)
        (True, 0.18)
    """
    a = as_concentration(density)
    rho = as_positive("radius", radius)
    n = as_integer("n", n, least=1)
    as_generator(generator)
    if a is None:
        return torch.full((n,), rho, dtype=torch.float64)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    if a == 0.0:
        return rho * uniform ** (1.0 / k)
    return rho * torch.from_numpy(np.asarray(betaincinv(float(k), a + 1.0, uniform.numpy())))
