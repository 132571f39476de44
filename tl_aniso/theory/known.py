"""What manifolds with closed forms share: draws, noise, and averages over a density of the radius.

A manifold gives its tangent energy, normal energy and mean normal displacement at radius t, averaged over directions;
this module turns them into averages over t.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import as_floating, to_float64
from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.theory.density import Density, as_positive, radial_mean, radial_moment, sample_radius
from tl_aniso.theory.manifold import Sample

__all__ = ["KnownManifold", "as_dimension", "as_manifold"]


def as_dimension(d: int, least: int, what: str) -> int:
    """The dimension of the space around a manifold that needs `least` of it.

    Raises:
        TlAnisoError: not an integer, or too small; `what` says for what.

    Example:
        >>> as_dimension(5, 3, "a sphere with k = 2")
        5
    """
    d = as_integer("d", d, least=1)
    if d < least:
        raise TlAnisoError(f"{what} needs d of at least {least}, got {d}")
    return d


class KnownManifold(ABC):
    """Averages, draws and checks that all manifolds here share; a subclass gives closed forms at a fixed radius.

    Amplitudes are roots of mean squares. Every x_T has mean zero, as u and -u are equally likely, so only the normal
    energy depends on centring: removing the mean of all samples removes E x_N, which the mean curvature makes.

    Noise is Gaussian in all d coordinates, independent of the point, with standard deviation
    `noise * t**noise_power` in each: `noise_power=0` is the same everywhere, `noise_power=2` keeps its proportion to
    the normal amplitude as t falls.
    """

    @property
    @abstractmethod
    def k(self) -> int:
        """Dimension of the manifold."""

    @property
    @abstractmethod
    def d(self) -> int:
        """Dimension of the space around it."""

    @property
    def reach(self) -> float:
        """Largest |u| at which `points` is one to one (infinite for graphs); larger radii are refused."""
        return float("inf")

    @abstractmethod
    def second_fundamental_form(self) -> Float64[Tensor, "m k k"]:
        """II at the base point, a symmetric k x k matrix for each of the first m normal axes."""

    @abstractmethod
    def _embed(self, u: Float64[Tensor, "n k"]) -> Float64[Tensor, "n d"]: ...

    @abstractmethod
    def _tangent(self, t: np.ndarray) -> np.ndarray:
        """E|x_T|^2 over directions, at each radius of t."""

    @abstractmethod
    def _normal(self, t: np.ndarray) -> np.ndarray:
        """E|x_N|^2 over directions, at each radius of t."""

    @abstractmethod
    def _mean_normal(self, t: np.ndarray) -> np.ndarray:
        """E x_N over directions, (n, m), at each radius of t."""

    def points(self, u: Float[Tensor, "n k"]) -> Float64[Tensor, "n d"]:
        """The points with tangent coordinates u; which map that is, the class says.

        Differentiable in u.

        Raises:
            TlAnisoError: u is not n x k.
        """
        values = to_float64(as_floating(u, "u"))
        if values.ndim != 2 or values.shape[1] != self.k:
            raise TlAnisoError(f"u must be n x {self.k}, got shape {tuple(values.shape)}")
        return self._embed(values)

    def sample(
        self,
        n: int,
        *,
        radius: float,
        density: Density = "uniform",
        noise: float = 0.0,
        noise_power: int = 0,
        generator: torch.Generator,
    ) -> Sample:
        """n independent points: |u| from `density`, the direction of u uniform, then noise.

        Args:
            n: number of points.
            radius: largest |u|, in the unit of the manifold.
            density: "uniform" in the tangent ball, "shell" (|u| = radius), or a concentration a >= 0
                (`tl_aniso.theory.density`).
            noise: standard deviation of a coordinate, in units of length^(1 - noise_power).
            noise_power: power of |u| that the standard deviation is multiplied by.
            generator: of torch; the draws are a function of its state.

        Raises:
            TlAnisoError: values out of range, or a radius beyond `reach`.
        """
        rho = self._radius(radius)
        sigma, power = _as_noise(noise, noise_power)
        t = sample_radius(n, self.k, rho, density, generator)
        direction = torch.randn(len(t), self.k, generator=generator, dtype=torch.float64)
        u = t[:, None] * direction / direction.norm(dim=1, keepdim=True)
        points = self._embed(u)
        if sigma > 0.0:
            normal = torch.randn(points.shape, generator=generator, dtype=torch.float64)
            points = points + sigma * t[:, None] ** power * normal
        return Sample(points, u, t)

    def mean_normal(self, radius: float, density: Density = "shell") -> Float64[Tensor, " m"]:
        """E x_N along the first m normal axes, those of `second_fundamental_form`; it is zero along all others."""
        return torch.from_numpy(np.array(radial_mean(self._mean_normal, self.k, self._radius(radius), density)))

    def tangent_energy(
        self, radius: float, density: Density = "shell", *, noise: float = 0.0, noise_power: int = 0
    ) -> float:
        """E|x_T|^2; at radius exactly t with density "shell"."""
        found = float(radial_mean(self._tangent, self.k, self._radius(radius), density))
        return found + self.k * self._noise_energy(radius, density, noise, noise_power)

    def normal_energy(
        self,
        radius: float,
        density: Density = "shell",
        *,
        centred: bool = False,
        noise: float = 0.0,
        noise_power: int = 0,
    ) -> float:
        """E|x_N|^2; E|x_N - E x_N|^2 where `centred`, what is left when the mean of many samples is removed."""
        found = float(radial_mean(self._normal, self.k, self._radius(radius), density))
        if centred:
            found = max(0.0, found - float(self.mean_normal(radius, density).square().sum()))
        return found + (self.d - self.k) * self._noise_energy(radius, density, noise, noise_power)

    def visible_share(
        self,
        radius: float,
        density: Density = "shell",
        *,
        centred: bool = False,
        noise: float = 0.0,
        noise_power: int = 0,
    ) -> float:
        """E|x_N|^2 / (E|x_T|^2 + E|x_N|^2), the ratio of the two means.

        At a radius whose square is no number above 0 in float64, its limit at 0: what noise shows, if anything.
        """
        tangent = self.tangent_energy(radius, density, noise=noise, noise_power=noise_power)
        normal = self.normal_energy(radius, density, centred=centred, noise=noise, noise_power=noise_power)
        if tangent + normal == 0.0:
            sigma, power = _as_noise(noise, noise_power)
            # Tangent energy falls as t^2, normal energy as t^4: noise alone can be left, and at power 1 beside t^2.
            level = {0: math.inf, 1: sigma**2}.get(power, 0.0) if sigma else 0.0
            return (self.d - self.k) / (self.d + 1.0 / level) if level else 0.0
        return normal / (tangent + normal)

    def log_slope(self, radius: float, *, noise: float = 0.0, noise_power: int = 0) -> float:
        """d log(normal amplitude) / d log(tangent amplitude) over shells at `radius`: 2 as t goes to 0 without noise.

        By a central difference of the closed forms, to about 1e-7.

        Raises:
            UndefinedMeasureError: a flat manifold without noise, which has no normal amplitude.
        """
        step = 1e-4
        rho = self._radius(radius)
        low, high = rho * (1.0 - step), min(rho * (1.0 + step), self.reach)
        normal = [self.normal_energy(r, noise=noise, noise_power=noise_power) for r in (low, high)]
        tangent = [self.tangent_energy(r, noise=noise, noise_power=noise_power) for r in (low, high)]
        if min(normal) <= 0.0:
            raise UndefinedMeasureError("a flat manifold without noise has no normal amplitude, so no slope")
        return float(np.log(normal[1] / normal[0]) / np.log(tangent[1] / tangent[0]))

    def _radius(self, radius: float) -> float:
        rho = as_positive("radius", radius)
        if rho > self.reach * (1.0 + 1e-12):
            raise TlAnisoError(
                f"radius {rho:g} is beyond {self.reach:g}, where this manifold comes back to itself; lower the radius"
            )
        return rho

    def _noise_energy(self, radius: float, density: Density, noise: float, noise_power: int) -> float:
        sigma, power = _as_noise(noise, noise_power)
        return sigma**2 * radial_moment(2 * power, self.k, radius, density) if sigma else 0.0


def _as_noise(noise: float, noise_power: int) -> tuple[float, int]:
    return as_positive("noise", noise, zero=True), as_integer("noise_power", noise_power, least=0, most=8)


def as_manifold(manifold: Any) -> KnownManifold:
    """`manifold` itself.

    Raises:
        TlAnisoError: anything but a manifold with closed forms.

    Example:
        >>> from tl_aniso.theory import Sphere
        >>> as_manifold(Sphere(1.0, k=2, d=3))
        Sphere(1, k=2, d=3)
    """
    if not isinstance(manifold, KnownManifold):
        raise TlAnisoError(f"manifold must be one of tl_aniso.theory, such as Sphere(1.0, k=2, d=3), got {manifold!r}")
    return manifold
