"""Sphere, cylinder and Veronese surface: exponential maps, with energies exact at every radius."""

import math

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import gammaln
from torch import Tensor

from tl_aniso.checks import as_integer
from tl_aniso.theory.density import as_positive
from tl_aniso.theory.known import KnownManifold, as_dimension

__all__ = ["Cylinder", "Sphere", "Veronese"]


def _one_minus_cos(x: np.ndarray) -> np.ndarray:
    return 2.0 * np.sin(x / 2.0) ** 2


def _sinc_root(q: Tensor) -> Tensor:
    """sin(x) / x of x = sqrt(q): smooth in q, so that points have all their derivatives at the base point too."""
    small = q < 1e-3
    x = torch.where(small, 1.0, q).sqrt()
    series = 1.0 - q / 6.0 * (1.0 - q / 20.0 * (1.0 - q / 42.0 * (1.0 - q / 72.0)))
    return torch.where(small, series, x.sin() / x)


class _Round(KnownManifold):
    """Dimensions and radius of the classes below."""

    def __init__(self, radius: float, k: int, d: int) -> None:
        self._radius_of = radius
        self._k, self._d = k, d

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._radius_of:g}, k={self.k}, d={self.d})"

    @property
    def k(self) -> int:
        """Dimension of the manifold."""
        return self._k

    @property
    def d(self) -> int:
        """Dimension of the space around it."""
        return self._d

    def _pad(self, *parts: Tensor) -> Tensor:
        found = torch.cat(parts, dim=1)
        return torch.cat([found, found.new_zeros(len(found), self.d - found.shape[1])], dim=1)


class Sphere(_Round):
    """A k-sphere of radius R by its exponential map: |u| is the distance walked along the surface.

    x(u) = (R sin(t/R) u/t, R (1 - cos(t/R))), t = |u|: the share of normal energy at t is sin^2(t / 2R), exactly.

    Args:
        radius: R.
        k: dimension of the sphere.
        d: dimension of the space, at least k + 1.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> import math
        >>> math.isclose(Sphere(2.0, k=3, d=10).visible_share(1.0), math.sin(0.25) ** 2)
        True
    """

    def __init__(self, radius: float, k: int, d: int) -> None:
        k = as_integer("k", k, least=1)
        super().__init__(as_positive("radius", radius), k, as_dimension(d, k + 1, f"a sphere with k = {k}"))

    @property
    def reach(self) -> float:
        """pi R, the antipode."""
        return math.pi * self._radius_of

    def second_fundamental_form(self) -> Float64[Tensor, "1 k k"]:
        """The identity over R."""
        return torch.eye(self.k, dtype=torch.float64)[None] / self._radius_of

    def _embed(self, u: Float64[Tensor, "n k"]) -> Float64[Tensor, "n d"]:
        q = u.square().sum(1, keepdim=True) / self._radius_of**2
        # 1 - cos x = x^2 / 2 (sin(x/2) / (x/2))^2, without cancellation.
        height = self._radius_of * q / 2.0 * _sinc_root(q / 4.0) ** 2
        return self._pad(u * _sinc_root(q), height)

    def _tangent(self, t: np.ndarray) -> np.ndarray:
        return (self._radius_of * np.sin(t / self._radius_of)) ** 2

    def _normal(self, t: np.ndarray) -> np.ndarray:
        return (self._radius_of * _one_minus_cos(t / self._radius_of)) ** 2

    def _mean_normal(self, t: np.ndarray) -> np.ndarray:
        return self._radius_of * _one_minus_cos(t / self._radius_of)[:, None]


class Cylinder(_Round):
    """A circle of radius R times k - 1 straight lines, by its exponential map: one curved direction among k.

    x(u) = (R sin(u_1/R), u_2 ... u_k, R (1 - cos(u_1/R))). With L(s) = E cos(s w_1) = 0F1(k/2; -s^2/4), w uniform on
    the unit sphere of R^k and s = t/R, exactly

        E|x_T|^2 = R^2 (1 - L(2s)) / 2 + t^2 (k - 1)/k,  E|x_N|^2 = R^2 (3/2 - 2 L(s) + L(2s)/2).

    Args:
        radius: R of the circle.
        k: dimension of the cylinder; 1 is the circle.
        d: dimension of the space, at least k + 1.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> tube = Cylinder(1.0, k=2, d=3)
        >>> round(tube.normal_energy(0.1) / (0.1**4 * 3 / 32), 3)  # (|tr|^2 + 2 |II|^2) / (4 k (k + 2)) = 3/32
        0.999
    """

    def __init__(self, radius: float, k: int, d: int) -> None:
        k = as_integer("k", k, least=1)
        super().__init__(as_positive("radius", radius), k, as_dimension(d, k + 1, f"a cylinder with k = {k}"))

    @property
    def reach(self) -> float:
        """pi R, half the way round."""
        return math.pi * self._radius_of

    def second_fundamental_form(self) -> Float64[Tensor, "1 k k"]:
        """1/R in the curved direction, 0 elsewhere."""
        form = torch.zeros(1, self.k, self.k, dtype=torch.float64)
        form[0, 0, 0] = 1.0 / self._radius_of
        return form

    def _embed(self, u: Float64[Tensor, "n k"]) -> Float64[Tensor, "n d"]:
        angle = u[:, :1] / self._radius_of
        return self._pad(self._radius_of * angle.sin(), u[:, 1:], 2.0 * self._radius_of * (angle / 2.0).sin() ** 2)

    def _tangent(self, t: np.ndarray) -> np.ndarray:
        s = t / self._radius_of
        return self._radius_of**2 * -_cosines(self.k, s, 0.0, 0.5, start=1) + t**2 * (self.k - 1) / self.k

    def _normal(self, t: np.ndarray) -> np.ndarray:
        return self._radius_of**2 * _cosines(self.k, t / self._radius_of, -2.0, 0.5, start=2)

    def _mean_normal(self, t: np.ndarray) -> np.ndarray:
        return self._radius_of * _cosines(self.k, t / self._radius_of, -1.0, 0.0, start=1)[:, None]


def _cosines(k: int, s: np.ndarray, once: float, twice: float, *, start: int) -> np.ndarray:
    """once * L(s) + twice * L(2s) less its terms in s below s^(2 start), which the callers' constants cancel.

    Summed as the power series, since the difference of the functions has no digits left at small s. Up to s = pi, the
    largest allowed, terms stay small enough for 12 digits.
    """
    j = np.arange(start, 64, dtype=np.float64)
    sign = np.where(j % 2 == 0, 1.0, -1.0)
    log = gammaln(k / 2.0) - gammaln(j + 1.0) - gammaln(k / 2.0 + j)
    weight = sign * (once + twice * 4.0**j) * np.exp(log)
    return ((s[:, None] ** 2 / 4.0) ** j * weight).sum(1)


class Veronese(_Round):
    """The Veronese surface in R^5: a projective plane, curved alike in all tangent directions; k = 2.

    By its exponential map, with p = (sin(t/s) u/t, cos(t/s)) on the unit sphere and s the scale,

        x(u) = s (p_1 p_3, p_2 p_3;  p_1 p_2, (p_1^2 - p_2^2)/2, sqrt(3) (p_1^2 + p_2^2)/2).

    It has the inner geometry of a sphere of radius s and lies on a 4-sphere of radius s / sqrt(3). The first two normal
    directions carry the traceless part of II, the third its mean part. The share of normal energy at t is sin^2(t/s),
    exactly; on a shell a quarter of the normal energy is left after centring.

    Args:
        scale: s.
        d: dimension of the space, at least 5.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> import math
        >>> surface = Veronese(1.0, d=5)
        >>> math.isclose(surface.visible_share(0.3), math.sin(0.3) ** 2)
        True
        >>> round(surface.normal_energy(0.3, centred=True) / surface.normal_energy(0.3), 12)
        0.25
    """

    def __init__(self, scale: float, d: int) -> None:
        super().__init__(as_positive("scale", scale), 2, as_dimension(d, 5, "a Veronese surface"))

    def __repr__(self) -> str:
        return f"Veronese({self._radius_of:g}, d={self.d})"

    @property
    def reach(self) -> float:
        """pi s / 2, where opposite points are identified."""
        return math.pi * self._radius_of / 2.0

    def second_fundamental_form(self) -> Float64[Tensor, "3 2 2"]:
        """[[0, 1], [1, 0]], diag(1, -1) and sqrt(3) times the identity, over s."""
        form = [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, -1.0]], [[math.sqrt(3.0), 0.0], [0.0, math.sqrt(3.0)]]]
        return torch.tensor(form, dtype=torch.float64) / self._radius_of

    def _embed(self, u: Float64[Tensor, "n 2"]) -> Float64[Tensor, "n d"]:
        s = self._radius_of
        q = u.square().sum(1, keepdim=True) / s**2
        p = u / s * _sinc_root(q)
        upright = 1.0 - q / 2.0 * _sinc_root(q / 4.0) ** 2
        first, second = p[:, :1], p[:, 1:]
        squared = p.square().sum(1, keepdim=True)
        normal = [first * second, (first**2 - second**2) / 2.0, math.sqrt(3.0) / 2.0 * squared]
        return self._pad(s * p * upright, *(s * part for part in normal))

    def _tangent(self, t: np.ndarray) -> np.ndarray:
        s = self._radius_of
        return (s * np.sin(2.0 * t / s) / 2.0) ** 2

    def _normal(self, t: np.ndarray) -> np.ndarray:
        s = self._radius_of
        return s**2 * np.sin(t / s) ** 4

    def _mean_normal(self, t: np.ndarray) -> np.ndarray:
        s = self._radius_of
        height = math.sqrt(3.0) / 2.0 * s * np.sin(t / s) ** 2
        return np.stack([np.zeros_like(t), np.zeros_like(t), height], axis=1)
