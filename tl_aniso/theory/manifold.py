"""What is asked of a manifold with known local geometry, and a sample of one.

The base point is 0, the tangent plane there is spanned by the first k axes of R^d, and every other axis is normal.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.theory.density import Density

__all__ = ["Manifold", "Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Points of a manifold, perhaps with noise, and where each was drawn.

    Attributes:
        points: in R^d, noise included; tangent part in the first k columns.
        tangent_coordinates: u, before the embedding and without noise.
        radius: |u| per point.

    Example:
        >>> import torch
        >>> from tl_aniso.theory import Sphere
        >>> sample = Sphere(1.0, k=2, d=5).sample(100, radius=0.5, generator=torch.Generator().manual_seed(0))
        >>> sample.points.shape, sample.tangent_coordinates.shape, bool(sample.radius.max() <= 0.5)
        (torch.Size([100, 5]), torch.Size([100, 2]), True)
    """

    points: Float64[Tensor, "n d"]
    tangent_coordinates: Float64[Tensor, "n k"]
    radius: Float64[Tensor, " n"]


@runtime_checkable
class Manifold(Protocol):
    """A k-dimensional manifold in R^d with base point 0 and the first k axes as its tangent plane there.

    Source: docs/theory.md; docs/method.md, section on local geometry.

    Example:
        >>> from tl_aniso.theory import Manifold, Paraboloid
        >>> isinstance(Paraboloid((1.0, -1.0), d=3), Manifold)
        True
    """

    @property
    def k(self) -> int:
        """Dimension of the manifold."""

    @property
    def d(self) -> int:
        """Dimension of the space around it."""

    def points(self, u: Float[Tensor, "n k"]) -> Float64[Tensor, "n d"]:
        """The points with tangent coordinates u."""

    def second_fundamental_form(self) -> Float64[Tensor, "m k k"]:
        """II at the base point, a symmetric k x k matrix for each of the first m normal axes."""

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
        """n points drawn independently."""

    def tangent_energy(
        self, radius: float, density: Density = "shell", *, noise: float = 0.0, noise_power: int = 0
    ) -> float:
        """E|x_T|^2."""

    def normal_energy(
        self,
        radius: float,
        density: Density = "shell",
        *,
        centred: bool = False,
        noise: float = 0.0,
        noise_power: int = 0,
    ) -> float:
        """E|x_N|^2, or E|x_N - E x_N|^2 where `centred`."""

    def visible_share(
        self,
        radius: float,
        density: Density = "shell",
        *,
        centred: bool = False,
        noise: float = 0.0,
        noise_power: int = 0,
    ) -> float:
        """Normal energy over the sum of tangent and normal energy."""
