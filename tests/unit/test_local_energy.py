"""Gradient energy in local planes: the counterexample of docs/theory.md, the slow way, and the exact null."""

import math

import numpy as np
import pytest
import torch

from tl_aniso.energy import energy_null, energy_share
from tl_aniso.errors import ShortTextError
from tl_aniso.neighbourhoods.energies import Neighbourhood, energy_shares
from tl_aniso.neighbourhoods.frame import COLUMNS, to_geometry_frame
from tl_aniso.neighbourhoods.gradient_energy import GradientRows, normal_share, plane_share
from tl_aniso.neighbourhoods.groups import Groups, shuffled
from tl_aniso.neighbourhoods.rows import energy_rows
from tl_aniso.neighbourhoods.types import choose_types


def parabola(n: int, t: float, seed: int) -> torch.Tensor:
    u = t * (2 * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)
    return torch.stack([u, u.square()], 1)


def normal_over_tangent(n: int, t: float, *, summed: bool, trials: int = 300) -> float:
    """Rows x = (u, u^2) with gradient x each (squared loss, W = 0, target -1): mean energies over trials."""
    tangent = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    inside, total = 0.0, 0.0
    for seed in range(trials):
        rows = parabola(n, t, seed)
        gradient = GradientRows(rows, torch.ones(n, 1, dtype=torch.float64))
        energy = float((rows.sum(0) if summed else rows).square().sum())
        inside += energy * plane_share(gradient, tangent, summed=summed)
        total += energy
    return (total - inside) / inside


def test_counterexample() -> None:
    """Per token the tangent wins by 3 t^2 / 5; over N tokens the normal part wins beyond N t^2 of about 3."""
    t = 0.1
    assert normal_over_tangent(200, t, summed=False) == pytest.approx(3 * t * t / 5, rel=0.1)
    assert normal_over_tangent(30, t, summed=True) < 0.5  # N t^2 = 0.3
    assert normal_over_tangent(3000, t, summed=True, trials=100) > 3  # N t^2 = 30
    # E (sum u)^2 = N t^2 / 3 and (E sum u^2)^2 = N^2 t^4 / 9, so the crossing is at N t^2 = 3.
    assert normal_over_tangent(300, t, summed=True) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("summed", [True, False])
def test_shares_are_those_of_the_second_moment(summed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 9, generator=generator, dtype=torch.float64)
    factors = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(9, 3, generator=generator, dtype=torch.float64)).Q
    moment = torch.zeros(9, 9, dtype=torch.float64)
    if summed:
        gradient = sum(torch.outer(f, r) for f, r in zip(factors, rows, strict=True))
        moment = gradient.T @ gradient
    else:
        for f, r in zip(factors, rows, strict=True):
            moment += torch.outer(f, r).T @ torch.outer(f, r)
    share = plane_share(GradientRows(rows, factors), basis, summed=summed)
    assert share == pytest.approx(energy_share(moment, basis), rel=1e-12)
    assert normal_share(share, 3, 9) == pytest.approx(energy_null(moment, basis).mean, rel=1e-12)


def planted(n_types: int, *, linked: bool) -> list[Neighbourhood]:
    """Reader gradients: g depends on the tangent part of x, or on nothing."""
    found = []
    for seed in range(n_types):
        generator = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64)).Q
        scales = torch.tensor([3.0] * 2 + [2.0] * 14, dtype=torch.float64)
        rows = torch.randn(160, 16, generator=generator, dtype=torch.float64) * scales @ basis.T
        first, second = rows[:80], rows[80:]
        factors = torch.randn(80, 6, generator=generator, dtype=torch.float64)
        if linked:
            factors = 0.2 * factors + (second @ basis[:, :2]) @ torch.randn(2, 6, generator=generator).double()
        found.append(Neighbourhood(first, GradientRows(second - first.mean(0), factors), second))
    return found


def test_excess_is_there_where_planted_and_not_where_it_is_not() -> None:
    groups = Groups(np.arange(12) >= 6)
    fixed = {"gradient": "weight", "site": "blocks.0.attn.W_Q"}
    for linked in (True, False):
        shares = energy_shares(planted(12, linked=linked), 2, n_surrogates=4, seed=0)
        frame = to_geometry_frame(energy_rows(fixed, groups, shares, 2, 16))
        raw = frame[(frame["variant"] == "raw") & (frame["group"] == "all")]
        excess = raw[raw["measure"] == "local_excess"].set_index("control").loc["gaussian_surrogate"]
        r = raw[raw["measure"] == "local_r"].iloc[0]
        assert r["value"] > 1.2  # variance alone gives some
        if linked:
            assert excess["ci_low"] > 2
        else:
            assert excess["ci_low"] < 1 < excess["ci_high"]
        assert excess["difference"] == pytest.approx(math.log(excess["value"]))
        assert excess["value"] == pytest.approx(r["value"] / excess["control_value"])


def test_intervals_over_types_cover() -> None:
    groups = Groups(np.arange(24) >= 12)
    hits = {"all": 0, "rare - frequent": 0}
    for seed in range(200):
        values = np.random.default_rng(seed).standard_normal(24) + groups.is_rare
        hits["all"] += groups.of("all", values).covers(0.5)
        hits["rare - frequent"] += groups.of("rare - frequent", values).covers(1.0)
    assert 180 <= hits["rare - frequent"] <= 198
    assert hits["all"] >= 180


def test_permuted_labels_are_uniform_under_no_difference() -> None:
    groups = Groups(np.arange(20) >= 10)
    p = [shuffled(groups, np.random.default_rng(s).standard_normal(20), n=99, seed=s)[0] for s in range(200)]
    assert 2 <= sum(value <= 0.05 for value in p) <= 20
    assert math.isnan(shuffled(groups, np.where(groups.is_rare, np.nan, 1.0), n=9, seed=0)[0])


def test_missing_values_are_left_out_and_counted() -> None:
    groups = Groups(np.array([False, False, True, True, True]))
    values = np.array([1.0, 3.0, 5.0, np.nan, 7.0])
    assert groups.of("rare", values).value == 6.0
    assert groups.count("rare", values) == 2
    assert groups.count("rare - frequent", values) == 4


def test_types_need_occurrences_in_both_halves() -> None:
    counts = np.array([[50, 3, 40, 30, 20, 10], [0, 3, 40, 30, 20, 10]])
    found = choose_types(counts, 2, 10)
    assert found.frequent == (2, 3)
    assert found.rare == (5, 4)
    assert found.counts[2] == 80
    with pytest.raises(ShortTextError, match="4 token types"):
        choose_types(counts, 3, 10)


def test_columns_are_those_of_the_geometry_frame() -> None:
    assert tuple(to_geometry_frame([]).columns) == COLUMNS
    assert len(COLUMNS) == 32
