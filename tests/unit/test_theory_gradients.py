"""Row and summed gradients on curved samples: the counterexample and the general closed forms, against autograd."""

import math

import pytest
import torch

from tests.unit.test_theory_manifolds import MANIFOLDS, random_form, within
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.theory import (
    Energies,
    Errors,
    Paraboloid,
    SecondFundamentalForm,
    Sphere,
    counterexample,
    gradient_moments,
    gradient_rows,
)

PARABOLA = counterexample()


def sums(t: float, n: int, trials: int, seed: int) -> torch.Tensor:
    """Gradients at W = 0 of sum (W x - target)^2 / 2, target -1, over n tokens: by autograd, one row a trial."""
    generator = torch.Generator().manual_seed(seed)
    u = t * (2 * torch.rand(trials, n, generator=generator, dtype=torch.float64) - 1)
    x = torch.stack([u, u**2], dim=2)
    readout = torch.zeros(trials, 2, dtype=torch.float64, requires_grad=True)
    loss = ((x @ readout[:, :, None])[:, :, 0] + 1).square().sum() / 2
    return torch.autograd.grad(loss, readout)[0]


@pytest.mark.parametrize("t", [0.05, 0.1, 0.5, 1.0])
def test_rows_of_the_counterexample_are_tangent(t: float) -> None:
    moments = gradient_moments(PARABOLA, t, "uniform")
    assert moments.row.ratio == pytest.approx(3 * t**2 / 5)
    rows = sums(t, 1, 20_000, seed=1)
    assert within(rows[:, 1] ** 2 - 3 * t**2 / 5 * rows[:, 0] ** 2, 0.0)


@pytest.mark.parametrize("t", [0.05, 0.1, 0.5, 1.0])
def test_sums_of_the_counterexample_cross_where_n_t_squared_is_about_three(t: float) -> None:
    moments = gradient_moments(PARABOLA, t, "uniform")
    assert moments.crossing() == pytest.approx((3 - 4 * t**2 / 5) / t**2)
    assert moments.crossing() * t**2 == pytest.approx(3, abs=0.81 * t**2)
    at = moments.summed(moments.crossing())
    assert at.tangent == pytest.approx(at.normal)
    # Closed forms of the sums themselves.
    for n in (1, 7, 300):
        found = moments.summed(n)
        assert found.tangent == pytest.approx(n * t**2 / 3)
        assert found.normal == pytest.approx(n * 4 * t**4 / 45 + n**2 * t**4 / 9)


def test_sums_by_autograd_are_tangent_below_the_crossing_and_normal_above_it() -> None:
    t = 0.2  # crossing at N = 74.2
    moments = gradient_moments(PARABOLA, t, "uniform")
    for n in (20, 74, 200):
        rows = sums(t, n, 8_000, seed=n)
        expected = moments.summed(n)
        assert within(rows[:, 0] ** 2, expected.tangent)
        assert within(rows[:, 1] ** 2, expected.normal)
        difference = rows[:, 1] ** 2 - rows[:, 0] ** 2
        deviations = float(difference.mean() / difference.std()) * math.sqrt(len(rows))
        if n == 74:
            assert abs(deviations) < 4.5
        else:
            assert math.copysign(1, deviations) == (1 if n > 74 else -1)
            assert abs(deviations) > 10


@pytest.mark.parametrize(("c", "probability"), [(3.0, 0.683), (1.365, 0.5)])
def test_how_often_a_single_sum_is_normal(c: float, probability: float) -> None:
    # Small t: the normal part is N t^2 / 3, the tangent part normal with variance N t^2 / 3; P(z^2 < c / 3).
    t = 0.1
    rows = sums(t, round(c / t**2), 8_000, seed=11)
    assert float((rows[:, 1].abs() > rows[:, 0].abs()).double().mean()) == pytest.approx(probability, abs=0.03)


def test_a_readout_trained_by_one_step_hands_the_summed_direction_to_activation_gradients() -> None:
    t, n = 0.1, 2_000
    gradient = sums(t, n, 1, seed=5)[0]
    readout = -0.01 / n * gradient
    u = t * (2 * torch.rand(n, generator=torch.Generator().manual_seed(6), dtype=torch.float64) - 1)
    x = torch.stack([u, u**2], dim=1).requires_grad_()
    activation = torch.autograd.grad(((x @ readout + 1).square() / 2).sum(), x)[0]
    shares = [float(g[..., 1].square().sum() / g.square().sum()) for g in (gradient, activation)]
    assert shares[1] == pytest.approx(shares[0], rel=1e-9)
    assert shares[1] > 0.5
    assert gradient_moments(PARABOLA, t, "uniform").row.tangent_share > 0.99


ERRORS = {
    "constant": Errors(),
    "with spread": Errors(mean=-0.7, std=1.3),
    "with slope": Errors(mean=0.8, std=0.2, slope=(0.5, -1.0, 0.3)),
    "slope alone": Errors(mean=0.0, slope=(1.0, 0.0, 0.0)),
}


@pytest.mark.parametrize("errors", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("density", ["shell", "uniform", 4.0])
def test_closed_forms_of_rows_and_sums_on_a_general_form(errors: Errors, density: float | str) -> None:
    manifold, radius, n = SecondFundamentalForm(random_form(2, 3, seed=4), d=6), 0.9, 40
    generator = torch.Generator().manual_seed(8)
    sample = manifold.sample(n * 2_000, radius=radius, density=density, generator=generator)
    rows = gradient_rows(sample, errors, generator)
    moments = gradient_moments(manifold, radius, density, errors)
    tangent, normal = rows[:, :3], rows[:, 3:]
    assert within(tangent.square().sum(1), moments.row.tangent)
    assert within(normal.square().sum(1), moments.row.normal)
    total = rows.reshape(-1, n, 6).sum(1)
    expected = moments.summed(n)
    assert within(total[:, :3].square().sum(1), expected.tangent)
    assert within(total[:, 3:].square().sum(1), expected.normal)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_sums_on_every_manifold_with_errors_alike(name: str) -> None:
    manifold, n = MANIFOLDS[name], 30
    generator = torch.Generator().manual_seed(9)
    errors = Errors(mean=1.0, std=0.5)
    sample = manifold.sample(n * 1_000, radius=0.8, density=1.0, generator=generator)
    total = gradient_rows(sample, errors, generator).reshape(-1, n, manifold.d).sum(1)
    expected = gradient_moments(manifold, 0.8, 1.0, errors).summed(n)
    assert within(total[:, : manifold.k].square().sum(1), expected.tangent)
    assert within(total[:, manifold.k :].square().sum(1), expected.normal)


def test_the_crossing_needs_mean_curvature_and_errors_that_agree() -> None:
    bowl, saddle = Paraboloid((1.0, 1.0), d=3), Paraboloid((1.0, -1.0), d=3)
    # Shells: N t^2 about 4 k^2 / |tr II|^2; balls: N rho^2 about 4 k (k + 2) / |tr II|^2.
    assert gradient_moments(bowl, 0.01).crossing() * 0.01**2 == pytest.approx(4 * 4 / 4, rel=1e-3)
    assert gradient_moments(bowl, 0.01, "uniform").crossing() * 0.01**2 == pytest.approx(4 * 2 * 4 / 4, rel=1e-3)
    assert gradient_moments(saddle, 0.01).crossing() == math.inf
    assert gradient_moments(bowl, 0.01, errors=Errors(mean=0.0, std=1.0)).crossing() == math.inf
    spread = gradient_moments(bowl, 0.01, errors=Errors(mean=1.0, std=3.0)).crossing()
    assert spread / gradient_moments(bowl, 0.01).crossing() == pytest.approx(1 + 9, rel=1e-2)


def test_with_a_slope_the_ratio_of_large_sums_does_not_depend_on_the_radius() -> None:
    # Upper bounds O(t) and O(t^2) on rows would have this ratio fall as t^2.
    form = random_form(2, 3, seed=4)
    manifold, errors = SecondFundamentalForm(form, d=5), Errors(mean=0.8, slope=(0.5, -1.0, 0.3))
    trace = float(form.diagonal(dim1=1, dim2=2).sum(1).square().sum())
    expected = 0.8**2 * trace / (4 * (0.25 + 1.0 + 0.09))
    for t in (1e-4, 1e-2, 1.0):
        for density in ("shell", 5.0):
            moments = gradient_moments(manifold, t, density, errors)
            assert moments.limit_ratio() == pytest.approx(expected)
            assert moments.summed(1e16).ratio == pytest.approx(expected, rel=1e-3)
    assert gradient_moments(manifold, 1e-4, "shell", errors).row.ratio < 1e-7


def test_what_has_no_closed_form_or_no_value_is_refused() -> None:
    with pytest.raises(TlAnisoError, match="quadratic graphs"):
        gradient_moments(Sphere(1.0, 2, 3), 0.1, errors=Errors(slope=(1.0, 0.0)))
    with pytest.raises(TlAnisoError, match="2 dimensions"):
        gradient_moments(Paraboloid((1.0, 1.0), 3), 0.1, errors=Errors(slope=(1.0,)))
    with pytest.raises(TlAnisoError, match="std"):
        Errors(std=-1.0)
    with pytest.raises(TlAnisoError, match="finite"):
        Errors(mean=float("nan"))
    with pytest.raises(TlAnisoError, match="at least one token"):
        gradient_moments(PARABOLA, 0.1).summed(0)
    with pytest.raises(UndefinedMeasureError, match="mean row is zero"):
        gradient_moments(Paraboloid((1.0, -1.0), 3), 0.1).limit_ratio()
    assert math.isnan(Energies(0.0, 0.0).ratio)
    assert math.isnan(Energies(0.0, 0.0).tangent_share)
    assert Energies(0.0, 1.0).ratio == math.inf
