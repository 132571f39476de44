"""What concentration and nearest neighbours do to visible curvature, against samples and differences."""

import math

import pytest
import torch

from tests.unit.test_theory_manifolds import MANIFOLDS, random_form, within
from tl_aniso.errors import TlAnisoError
from tl_aniso.theory import (
    KnownManifold,
    Paraboloid,
    SecondFundamentalForm,
    Sphere,
    concentration_effect,
    concentration_slope,
    curvature_energy,
    energy_radius,
    leading_share,
    neighbour_moment,
    neighbour_share,
)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("density", ["shell", "uniform", 6.0])
@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_leading_share_is_the_limit_of_the_exact_one(name: str, density: float | str, centred: bool) -> None:
    manifold, t = MANIFOLDS[name], 1e-3
    exact = manifold.visible_share(t, density, centred=centred)
    leading = leading_share(manifold.second_fundamental_form(), t, density, centred=centred)
    assert exact == pytest.approx(leading, rel=1e-5, abs=1e-12 * t**2 + 1e-15)


@pytest.mark.parametrize("a", [0.0, 1.5, 20.0])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_radius_of_the_shell_that_shows_as_much(k: int, a: float) -> None:
    bowl = Paraboloid([1.0] * k, d=k + 1)
    shell = energy_radius(k, 0.6, a)
    assert shell == pytest.approx(0.6 * math.sqrt((k + 2) * (k + 3) / ((k + a + 3) * (k + a + 4))))
    # To leading order alone in general, exactly for a quadratic graph: both energies are powers of t.
    assert bowl.visible_share(shell) == pytest.approx(bowl.visible_share(0.6, a), rel=1e-9)


@pytest.mark.parametrize("a", [0.3, 2.0, 15.0])
def test_the_derivative_in_the_concentration(a: float) -> None:
    manifold = SecondFundamentalForm(random_form(2, 3), d=6)
    step = 1e-4
    shares = [manifold.visible_share(1.5, a + sign * step) for sign in (1, -1)]
    assert concentration_slope(manifold, 1.5, a) == pytest.approx(
        math.log(shares[0] / shares[1]) / (2 * step), rel=1e-6
    )
    with pytest.raises(TlAnisoError, match="quadratic graphs"):
        concentration_slope(Sphere(1.0, 2, 3), 0.5, a)
    with pytest.raises(TlAnisoError, match="shell"):
        concentration_slope(manifold, 0.5, "shell")


@pytest.mark.parametrize("name", MANIFOLDS)
def test_more_concentration_shows_less_curvature(name: str) -> None:
    effects = [concentration_effect(MANIFOLDS[name], 0.9, a) for a in ("shell", 0.0, 1.0, 5.0, 50.0)]
    assert effects[1] == 1.0
    assert effects == sorted(effects, reverse=True)


def test_samples_at_the_base_point_hide_nothing_by_their_number() -> None:
    # 99 of 100 samples at the base point, one on the shell: the share of energy is that of the shell.
    sphere = Sphere(1.0, k=2, d=3)
    points = sphere.sample(10_000, radius=0.5, density="shell", generator=torch.Generator().manual_seed(0)).points
    crowded = torch.cat([points[:100], sphere.points(torch.zeros(9_900, 2))])
    share = float(crowded[:, 2:].square().sum() / crowded.square().sum())
    assert share == pytest.approx(sphere.visible_share(0.5), rel=1e-9)


@pytest.mark.parametrize(("n", "neighbours", "k"), [(400, 20, 2), (300, 5, 4), (50, 50, 3)])
def test_moments_of_the_nearest_neighbours(n: int, neighbours: int, k: int) -> None:
    generator = torch.Generator().manual_seed(2)
    manifold = SecondFundamentalForm(random_form(2, k), d=k + 2)
    trials = 1500
    t = 0.7 * torch.rand(trials, n, generator=generator, dtype=torch.float64) ** (1 / k)
    nearest = t.sort(dim=1).values[:, :neighbours]
    for q in (2, 4):
        assert within((nearest**q).mean(1), neighbour_moment(q, n, neighbours, k, 0.7))
    expected = curvature_energy(manifold.second_fundamental_form()).total * float(
        (nearest**4).mean() / (nearest**2).mean()
    )
    assert neighbour_share(manifold.second_fundamental_form(), n, neighbours, 0.7) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("k", [2, 5, 20])
def test_the_share_of_neighbours_falls_with_the_number_of_points(k: int) -> None:
    form = torch.eye(k)[None]
    ratio = neighbour_share(form, 1_000_000, 200, 1.0) / neighbour_share(form, 100_000, 200, 1.0)
    assert ratio == pytest.approx(10 ** (-2 / k), rel=1e-3)
    with pytest.raises(TlAnisoError, match="neighbours"):
        neighbour_share(form, 10, 11, 1.0)


def share_interval(points: torch.Tensor, k: int) -> tuple[float, float]:
    """95 per cent interval of a ratio of means, by its linearisation."""
    normal, energy = points[:, k:].square().sum(1), points.square().sum(1)
    share = normal.sum() / energy.sum()
    error = (normal - share * energy).std() / energy.mean() / math.sqrt(len(points))
    return float(share - 1.96 * error), float(share + 1.96 * error)


@pytest.mark.parametrize("density", ["shell", "uniform", 3.0])
@pytest.mark.parametrize("name", ["sphere", "saddle", "cylinder", "veronese", "form"])
def test_intervals_of_the_visible_share_cover_the_closed_form(name: str, density: float | str) -> None:
    manifold: KnownManifold = MANIFOLDS[name]
    options = {"radius": 0.5, "density": density, "noise": 0.05}
    expected = manifold.visible_share(**options)
    flat = manifold.visible_share(0.5, density)  # the nearest wrong answer: noise forgotten
    covered = missed = 0
    for seed in range(100):
        points = manifold.sample(800, generator=torch.Generator().manual_seed(seed), **options).points
        low, high = share_interval(points, manifold.k)
        covered += low <= expected <= high
        missed += low <= flat <= high
    assert 90 <= covered <= 99
    assert missed < 60


@pytest.mark.parametrize("name", ["sphere", "saddle", "cylinder", "veronese", "form"])
def test_slopes_of_samples_are_two_under_noise_of_second_order(name: str) -> None:
    manifold, slopes = MANIFOLDS[name], []
    for seed in range(100):
        sample = manifold.sample(
            800, radius=0.15, noise=1 / 20, noise_power=2, generator=torch.Generator().manual_seed(seed)
        )
        k = manifold.k
        x, y = (part.norm(dim=1).log() for part in (sample.points[:, :k], sample.points[:, k:]))
        slopes.append(float(((x - x.mean()) * y).sum() / (x - x.mean()).square().sum()))
    assert sum(slopes) / 100 == pytest.approx(2.0, abs=0.1)


def quadratic_interval(t: torch.Tensor, height: torch.Tensor) -> tuple[float, float]:
    """95 per cent interval of the coefficient of t^2 in a height through the origin, robust to unequal spread."""
    square = t**2
    coefficient = (square * height).sum() / (square**2).sum()
    error = ((square * (height - coefficient * square)) ** 2).sum().sqrt() / (square**2).sum()
    return float(coefficient - 1.96 * error), float(coefficient + 1.96 * error)


@pytest.mark.parametrize("name", ["sphere", "saddle", "cylinder", "veronese", "form"])
def test_intervals_of_the_mean_curvature_cover_it_and_those_of_flat_surrogates_cover_zero(name: str) -> None:
    manifold = MANIFOLDS[name]
    k, form = manifold.k, manifold.second_fundamental_form()
    # On the axis with the largest trace: the coefficient is tr II / (2 k), up to 1e-3 of itself at this radius.
    axis = int(form.diagonal(dim1=1, dim2=2).sum(1).abs().argmax())
    expected = float(form[axis].trace()) / (2 * k)
    covered = flat = 0
    slopes = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        points = manifold.sample(800, radius=0.1, noise=0.002, generator=generator).points
        low, high = quadratic_interval(points[:, :k].norm(dim=1), points[:, k + axis])
        covered += low <= expected <= high
        centred = points - points.mean(0)
        root = torch.linalg.cholesky(centred.T @ centred / 800)
        gaussian = torch.randn(800, manifold.d, generator=generator, dtype=torch.float64) @ root.T
        low, high = quadratic_interval(gaussian[:, :k].norm(dim=1), gaussian[:, k + axis])
        flat += low <= 0.0 <= high
        x, y = (part.norm(dim=1).log() for part in (gaussian[:, :k], gaussian[:, k:]))
        slopes.append(float(((x - x.mean()) * y).sum() / (x - x.mean()).square().sum()))
    assert 90 <= covered <= 99
    assert 90 <= flat <= 99
    assert max(slopes) <= 1.1
