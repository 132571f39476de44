"""Manifolds with known answers: maps against autograd, energies against Monte Carlo and quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from tl_aniso.errors import TlAnisoError
from tl_aniso.theory import (
    Cylinder,
    Manifold,
    Paraboloid,
    SecondFundamentalForm,
    Sphere,
    Veronese,
    curvature_energy,
    radial_density,
    radial_mean,
    radial_moment,
    radial_probability,
)


def random_form(m: int, k: int, seed: int = 0) -> torch.Tensor:
    form = torch.randn(m, k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (form + form.mT) / 2


MANIFOLDS = {
    "sphere": Sphere(1.5, k=3, d=7),
    "circle": Sphere(0.8, k=1, d=2),
    "saddle": Paraboloid((1.0, -2.0, 0.5), d=6),
    "cylinder": Cylinder(1.2, k=3, d=5),
    "cylinder, k = 1": Cylinder(1.2, k=1, d=2),
    "veronese": Veronese(1.3, d=8),
    "form": SecondFundamentalForm(random_form(3, 4), d=9),
}
EVERY = pytest.mark.parametrize("manifold", MANIFOLDS.values(), ids=MANIFOLDS.keys())
DENSITIES = ("shell", "uniform", 0.7, 4.0, 25.0)


def within(values: torch.Tensor, expected: float, errors: float = 4.5) -> bool:
    """The mean of independent values lies within that many standard errors (or rounding) of the expected one."""
    error = float(values.std()) / math.sqrt(len(values))
    return abs(float(values.mean()) - expected) <= errors * error + 1e-12


@EVERY
def test_the_base_point_its_tangent_plane_and_its_curvature_are_those_of_the_map(manifold: Manifold) -> None:
    def point(u: torch.Tensor) -> torch.Tensor:
        return manifold.points(u[None])[0]

    origin = torch.zeros(manifold.k, dtype=torch.float64)
    k, form = manifold.k, manifold.second_fundamental_form()
    jacobian = torch.autograd.functional.jacobian(point, origin)
    hessian = torch.stack(
        [torch.autograd.functional.hessian(lambda u, i=i: point(u)[i], origin) for i in range(manifold.d)]
    )
    assert point(origin).abs().max() == 0.0
    torch.testing.assert_close(jacobian, torch.eye(manifold.d, k, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(hessian[k : k + len(form)], form, rtol=0, atol=1e-12)
    assert hessian[:k].abs().max() < 1e-12
    assert hessian[k + len(form) :].abs().max() == 0.0 if manifold.d > k + len(form) else True


@pytest.mark.parametrize("name", ["sphere", "circle", "cylinder", "veronese"])
def test_exponential_maps_keep_lengths_along_rays(name: str) -> None:
    # Speed along a ray is 1 at every distance, also across the seam of the series used near the base point.
    manifold = MANIFOLDS[name]
    direction = torch.randn(manifold.k, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction /= direction.norm()
    for t in (1e-4, 0.03, 0.045, 0.3, 1.1):
        speed = torch.autograd.functional.jacobian(
            lambda s: manifold.points(s * direction[None])[0], torch.tensor(t, dtype=torch.float64)
        )
        assert float(speed.norm()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("density", DENSITIES)
@EVERY
def test_energies_and_the_mean_normal_displacement_against_samples(manifold: Manifold, density: float | str) -> None:
    radius, generator = 0.9, torch.Generator().manual_seed(3)
    points = manifold.sample(10_000, radius=radius, density=density, generator=generator).points
    k = manifold.k
    mean_normal = manifold.mean_normal(radius, density)
    assert within(points[:, :k].square().sum(1), manifold.tangent_energy(radius, density))
    assert within(points[:, k:].square().sum(1), manifold.normal_energy(radius, density))
    for axis, expected in enumerate(mean_normal):
        assert within(points[:, k + axis], float(expected))
    left = points[:, k : k + len(mean_normal)] - mean_normal
    assert within(left.square().sum(1), manifold.normal_energy(radius, density, centred=True))


@EVERY
def test_to_leading_order_the_normal_energy_is_that_of_the_second_fundamental_form(manifold: Manifold) -> None:
    form, k = manifold.second_fundamental_form(), manifold.k
    trace, total = float(form.diagonal(dim1=1, dim2=2).sum(1).square().sum()), float(form.square().sum())
    energy = curvature_energy(form)
    assert energy.total == pytest.approx((trace + 2 * total) / (4 * k * (k + 2)))
    assert energy.mean == pytest.approx(trace / (4 * k * k))
    errors = []
    for t in (0.04, 0.02):
        leading = t**4 * (trace + 2 * total) / (4 * k * (k + 2))
        centred = t**4 * (total - trace / k) / (2 * k * (k + 2))
        errors.append(abs(manifold.normal_energy(t) / leading - 1))
        assert manifold.normal_energy(t, centred=True) == pytest.approx(centred, rel=2 * t**2, abs=1e-6 * leading)
        assert manifold.tangent_energy(t) == pytest.approx(t**2, rel=4 * t**2)
    # Relative errors of second order (u and -u): halving t quarters them; graphs have none.
    assert errors[0] < 1e-10 or errors[0] / errors[1] == pytest.approx(4.0, rel=0.01)


def test_the_sphere_formula_fails_without_the_factor_two_on_the_squared_form() -> None:
    # Teeth: of |tr|^2 + 2 |II|^2 a saddle has only the second part, a bowl both.
    saddle, bowl = Paraboloid((1.0, -1.0), d=3), Paraboloid((1.0, 1.0), d=3)
    assert bowl.normal_energy(0.1) / saddle.normal_energy(0.1) == pytest.approx((4 + 4) / (0 + 4))


@EVERY
def test_noise_adds_its_energy_per_axis(manifold: Manifold) -> None:
    generator = torch.Generator().manual_seed(5)
    for noise, power in ((0.1, 0), (0.3, 2)):
        options = {"noise": noise, "noise_power": power}
        points = manifold.sample(10_000, radius=0.8, density=2.0, generator=generator, **options).points
        k = manifold.k
        assert within(points[:, :k].square().sum(1), manifold.tangent_energy(0.8, 2.0, **options))
        assert within(points[:, k:].square().sum(1), manifold.normal_energy(0.8, 2.0, **options))
        share = manifold.visible_share(0.8, 2.0, **options)
        energy = points.square().sum(1)
        # The residual of the ratio has mean zero at the true share.
        assert within(points[:, k:].square().sum(1) - share * energy, 0.0)


@EVERY
def test_the_slope_is_two_near_the_base_point_and_stays_there_under_noise_of_second_order(manifold: Manifold) -> None:
    assert manifold.log_slope(1e-3) == pytest.approx(2.0, abs=1e-5)
    assert manifold.log_slope(1e-2, noise=1 / 20, noise_power=2) == pytest.approx(2.0, abs=1e-2)
    # Noise of one size everywhere is what is left at small t: the slope is lost.
    assert manifold.log_slope(1e-3, noise=1e-2) < 0.1


def test_slopes_of_sphere_and_veronese_surface_away_from_the_base_point() -> None:
    x = 0.7
    assert Sphere(1.0, 2, 3).log_slope(x) == pytest.approx((1 + math.cos(x)) / math.cos(x), rel=1e-6)
    assert Veronese(1.0, 5).log_slope(x) == pytest.approx(1 / (1 - math.tan(x) ** 2) * 2, rel=1e-6)


@pytest.mark.parametrize("a", [0.0, 0.7, 4.0, 60.0])
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_moments_quadrature_and_the_density_agree_with_each_other(k: int, a: float) -> None:
    radius = 1.7
    integral = quad(lambda t: t**3 * float(radial_density(np.array(t), k, radius, a)), 0, radius, epsabs=1e-12)[0]
    assert radial_moment(3, k, radius, a) == pytest.approx(integral, rel=1e-7)
    assert float(radial_mean(lambda t: t**3, k, radius, a)) == pytest.approx(integral, rel=1e-7)
    assert float(radial_mean(np.cos, k, radius, a)) == pytest.approx(
        quad(lambda t: math.cos(t) * float(radial_density(np.array(t), k, radius, a)), 0, radius)[0], rel=1e-7
    )
    below = quad(lambda t: float(radial_density(np.array(t), k, radius, a)), 0, 0.6)[0]
    assert radial_probability(0.6, k, radius, a) == pytest.approx(below, abs=1e-8)
    sample = Sphere(4.0, k, k + 1).sample(10_000, radius=radius, density=a, generator=torch.Generator().manual_seed(k))
    assert within(sample.radius**3, radial_moment(3, k, radius, a))
    middle = float(np.sqrt(radial_moment(2, k, radius, a)))
    assert within((sample.radius <= middle).double(), radial_probability(middle, k, radius, a))


def test_directions_are_uniform_and_samples_are_a_function_of_the_generator() -> None:
    manifold = SecondFundamentalForm(random_form(2, 3), d=6)
    drawn = [
        manifold.sample(10_000, radius=1.0, density=3.0, noise=0.1, generator=torch.Generator().manual_seed(7))
        for _ in range(2)
    ]
    assert torch.equal(drawn[0].points, drawn[1].points)
    assert drawn[0].points.dtype == torch.float64
    u = drawn[0].tangent_coordinates / drawn[0].radius[:, None]
    for axis in range(3):
        assert within(u[:, axis], 0.0)
        assert within(u[:, axis] ** 2, 1 / 3)
        assert within(u[:, axis] ** 4, 3 / 15)
    torch.testing.assert_close(drawn[0].tangent_coordinates.norm(dim=1), drawn[0].radius)


def test_a_form_does_not_change_under_the_hands_of_its_owner() -> None:
    tensor = random_form(1, 2)
    manifold = SecondFundamentalForm(tensor, d=3)
    before = manifold.normal_energy(0.5)
    tensor.zero_()
    manifold.second_fundamental_form().zero_()
    assert manifold.normal_energy(0.5) == before


def test_arguments_that_cannot_be_are_refused_by_name() -> None:
    generator = torch.Generator().manual_seed(0)
    sphere = Sphere(1.0, 2, 3)
    for call, words in [
        (lambda: Sphere(0.0, 2, 3), "radius"),
        (lambda: Sphere(1.0, 2, 2), "d of at least 3"),
        (lambda: Veronese(1.0, 4), "Veronese"),
        (lambda: Paraboloid((), 3), "curvatures"),
        (lambda: SecondFundamentalForm(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), 3), "symmetric"),
        (lambda: SecondFundamentalForm(torch.eye(2), 3), "m x k x k"),
        (lambda: sphere.points(torch.zeros(4, 3)), "n x 2"),
        (lambda: sphere.visible_share(4.0), "beyond 3.14"),
        (lambda: sphere.sample(10, radius=0.5, density="ball", generator=generator), "density"),
        (lambda: sphere.sample(10, radius=0.5, density=-1.0, generator=generator), "concentration"),
        (lambda: sphere.sample(0, radius=0.5, generator=generator), "n must be"),
        (lambda: sphere.sample(10, radius=0.5, noise=-1.0, generator=generator), "noise"),
        (lambda: sphere.sample(10, radius=0.5, noise=1.0, noise_power=1.5, generator=generator), "noise_power"),
        (lambda: Paraboloid((0.0,), 2).log_slope(0.1), "flat"),
    ]:
        with pytest.raises(TlAnisoError, match=words):
            call()
