"""What sampling near the base point does to visible curvature: exact ratios, a derivative, and nearest neighbours."""

import math

from jaxtyping import Float
from torch import Tensor

from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.theory.density import Density, as_concentration, as_positive, radial_moment
from tl_aniso.theory.known import KnownManifold, as_manifold
from tl_aniso.theory.quadratic import SecondFundamentalForm, curvature_energy

__all__ = [
    "concentration_effect",
    "concentration_slope",
    "energy_radius",
    "leading_share",
    "neighbour_moment",
    "neighbour_share",
]


def energy_radius(k: int, radius: float, density: Density = "uniform") -> float:
    """sqrt(E t^4 / E t^2): the radius of the shell that shows as much curvature as the density does.

    rho sqrt((k + 2) (k + 3) / ((k + a + 3) (k + a + 4))) at concentration a; rho on the shell. Of a density this ratio
    is all that the visible share depends on to leading order. The far tail decides it: samples at t = 0 do not
    change it, however many.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> round(energy_radius(2, 1.0), 6) == round((4 / 6) ** 0.5, 6)
        True
    """
    return math.sqrt(radial_moment(4, k, radius, density) / radial_moment(2, k, radius, density))


def leading_share(
    form: Float[Tensor, "m k k"], radius: float, density: Density = "shell", *, centred: bool = False
) -> float:
    """The visible share to leading order in the radius: kappa E t^4 / E t^2, kappa that of `curvature_energy`.

    Centred at the mean of all samples, the mean part counts with Var t^2 in place of E t^4, the traceless part as
    before.

    Args:
        form: II, in 1/length.
        radius: of the density.
        density: of the radius (`tl_aniso.theory.density`).
        centred: whether the mean normal displacement is removed.

    Raises:
        TlAnisoError: values out of range.

    Example:
        >>> import torch
        >>> from tl_aniso.theory import Sphere
        >>> sphere = Sphere(1.0, k=2, d=3)
        >>> leading_share(sphere.second_fundamental_form(), 0.1), round(sphere.visible_share(0.1), 6)
        (0.0025..., 0.002498)
    """
    energy, k = curvature_energy(form), form.shape[1]
    second, fourth = (radial_moment(q, k, radius, density) for q in (2, 4))
    mean = fourth - second**2 if centred else fourth
    # The limit at 0, where the square of the radius underflows.
    return (energy.mean * mean + energy.traceless * fourth) / second if second else 0.0


def concentration_effect(
    manifold: KnownManifold, radius: float, density: Density, than: Density = "uniform", *, centred: bool = False
) -> float:
    """Visible share under `density` over that under another: below 1 where the first hides curvature.

    Raises:
        TlAnisoError: no manifold of `tl_aniso.theory`, or values out of range.
        UndefinedMeasureError: the other share is zero.

    Example:
        >>> from tl_aniso.theory import Sphere
        >>> round(concentration_effect(Sphere(1.0, k=2, d=3), 0.5, 8.0), 3)  # about 5 * 6 / (13 * 14) in the limit
        0.167
    """
    other = as_manifold(manifold).visible_share(radius, than, centred=centred)
    if other <= 0.0:
        raise UndefinedMeasureError(
            "the manifold shows no curvature, at this radius and in float64, under the density that is compared with"
        )
    return manifold.visible_share(radius, density, centred=centred) / other


def concentration_slope(manifold: SecondFundamentalForm, radius: float, a: float) -> float:
    """d log(visible share) / da of a quadratic graph, exactly: -(1 - share) (1/(k + a + 3) + 1/(k + a + 4)).

    Without the factor (1 - share), to leading order, it holds for every manifold.

    Raises:
        TlAnisoError: another manifold, a shell, or values out of range.

    Example:
        >>> from tl_aniso.theory import Paraboloid
        >>> round(concentration_slope(Paraboloid((1.0, 1.0), d=3), 0.1, 0.0), 3)  # about -(1/5 + 1/6)
        -0.366
    """
    if not isinstance(manifold, SecondFundamentalForm):
        raise TlAnisoError(f"the derivative is exact for quadratic graphs alone, not for {manifold!r}")
    found = as_concentration(a)
    if found is None:
        raise TlAnisoError('"shell" has no concentration to vary; pass a number')
    k = manifold.k
    return -(1.0 - manifold.visible_share(radius, found)) * (1.0 / (k + found + 3.0) + 1.0 / (k + found + 4.0))


def neighbour_moment(q: int, n: int, neighbours: int, k: int, radius: float) -> float:
    """E t^q over the K nearest to the base point of n points uniform in the tangent ball, exactly.

    rho^q k/(k + q) G(K + 1 + q/k) G(n + 1) / (G(K + 1) G(n + 1 + q/k)), G the gamma function: about
    rho^q k/(k + q) (K/n)^(q/k).

    Raises:
        TlAnisoError: values out of range, or more neighbours than points.

    Example:
        >>> neighbour_moment(2, 100, 100, 2, 1.0), round(neighbour_moment(2, 10_000, 100, 2, 1.0), 5)
        (0.5, 0.00505)
    """
    as_integer("q", q, least=0)
    as_integer("k", k, least=1)
    as_integer("neighbours", neighbours, least=1, most=as_integer("n", n, least=1))
    c = q / k
    log = math.lgamma(neighbours + 1 + c) - math.lgamma(neighbours + 1) + math.lgamma(n + 1) - math.lgamma(n + 1 + c)
    return as_positive("radius", radius) ** q * k / (k + q) * math.exp(log)


def neighbour_share(form: Float[Tensor, "m k k"], n: int, neighbours: int, radius: float) -> float:
    """The visible share among the K nearest of n points to leading order: it falls as n^(-2/k).

    This is how denser sampling hides curvature where neighbourhoods hold a fixed number of points, and how little it
    hides in many dimensions: ten times the points leave 10^(-2/k) of the share, a tenth at k = 2 and 0.8 at k = 20.

    Raises:
        TlAnisoError: values out of range, or more neighbours than points.

    Example:
        >>> import torch
        >>> shares = [neighbour_share(torch.eye(2)[None], n, 50, 1.0) for n in (1000, 10_000)]
        >>> round(shares[1] / shares[0], 2)
        0.1
    """
    k = form.shape[1]
    moments = [neighbour_moment(q, n, neighbours, k, radius) for q in (4, 2)]
    return curvature_energy(form).total * moments[0] / moments[1]
