"""Shares against rows, the exact null against draws, p-values against their nominal level."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.slow_numerics import expected_share_by_basis, share_by_rows
from tl_aniso.energy import (
    energy_null,
    energy_p_value,
    energy_p_values,
    energy_share,
    excess,
    odds,
    p_value_of_share,
    r_energy,
)
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.moments import Moments
from tl_aniso.subspace import normal_controls, random_planes


def gradient_rows(n=200, d=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing + 0.3


def second_moment(rows):
    return rows.T @ rows / len(rows)


def test_share_equals_the_energy_of_projected_rows():
    rows, plane = gradient_rows(), random_planes(12, 3, 1, seed=1)[0]
    expected = share_by_rows(rows.numpy(), plane.numpy())
    assert energy_share(second_moment(rows), plane) == pytest.approx(expected, rel=1e-12)
    assert energy_share(second_moment(rows).numpy(), plane.numpy()) == pytest.approx(expected, rel=1e-12)
    moments = Moments.uncentred(12).update(rows)
    assert energy_share(moments.second_moment(), plane) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.99])
def test_a_planted_share_comes_back(share):
    # Rows with exactly this share: energy s inside the plane, 1 - s outside, for every row.
    tangent = random_planes(32, 4, 1, seed=0)[0]
    normal = normal_controls(tangent, 1, seed=1)[0]
    generator = torch.Generator().manual_seed(2)
    inside, outside = (torch.nn.functional.normalize(torch.randn(50, 4, generator=generator).double()) for _ in "ab")
    rows = math.sqrt(share) * inside @ tangent.T + math.sqrt(1 - share) * outside @ normal.T
    assert energy_share(second_moment(rows), tangent) == pytest.approx(share, rel=1e-10)
    assert energy_share(second_moment(rows.float()), tangent.float()) == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize(("d", "k"), [(8, 1), (12, 5), (30, 15)])
def test_isotropic_rows_give_k_over_d_whatever_the_plane(d, k):
    plane = random_planes(d, k, 1, seed=d)[0]
    isotropic = 7.0 * torch.eye(d)
    assert energy_share(isotropic, plane) == pytest.approx(k / d, rel=1e-12)
    null = energy_null(isotropic, plane)
    assert null.mean == pytest.approx(k / d, rel=1e-12)
    assert null.std == pytest.approx(0.0, abs=1e-8)
    assert r_energy(k / d, k, d) == pytest.approx(1.0)
    assert energy_p_value(isotropic, plane, n=99) == 1.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-20, 1e-3, 1e12]))
def test_shares_are_unitless_rotation_free_and_add_up(seed, scale):
    moment, plane = second_moment(gradient_rows(seed=seed)), random_planes(12, 4, 1, seed=seed)[0]
    rotation, spin = random_planes(12, 12, 1, seed=seed + 1)[0], random_planes(4, 4, 1, seed=seed)[0]
    share = energy_share(moment, plane)
    assert energy_share(scale * moment, plane) == pytest.approx(share, rel=1e-12)
    assert energy_share(rotation @ moment @ rotation.T, rotation @ plane @ spin) == pytest.approx(share, rel=1e-9)
    whole = torch.linalg.qr(torch.cat([plane, torch.randn(12, 8).double()], 1)).Q
    assert share + energy_share(moment, whole[:, 4:]) == pytest.approx(1.0, rel=1e-12)
    null, scaled = energy_null(moment, plane), energy_null(scale * moment, plane)
    assert (scaled.mean, scaled.std) == (pytest.approx(null.mean, rel=1e-9), pytest.approx(null.std, rel=1e-9))


@pytest.mark.parametrize(("d", "k"), [(12, 3), (9, 1), (13, 6)])
def test_exact_null_against_20000_draws(d, k):
    moment = second_moment(gradient_rows(d=d, seed=d)).numpy()
    tangent = random_planes(d, k, 1, seed=k)[0].numpy()
    null = energy_null(moment, tangent)
    # Independent of the library: numpy draws, each orthonormalised in coordinates of the complement.
    complement = np.linalg.svd(tangent)[0][:, k:]
    draws = np.linalg.qr(np.random.default_rng(0).standard_normal((20_000, d - k, k)))[0]
    planes = complement @ draws
    shares = np.einsum("nik,ij,njk->n", planes, moment, planes, optimize=True) / np.trace(moment)
    spread = shares.std(ddof=1)
    assert abs(shares.mean() - null.mean) < 3 * spread / np.sqrt(20_000)
    fourth = np.mean((shares - shares.mean()) ** 4)
    error_of_std = np.sqrt((fourth - spread**4) / 20_000) / (2 * spread)
    assert abs(spread - null.std) < 3 * error_of_std
    assert null.mean == pytest.approx(expected_share_by_basis(moment, tangent), rel=1e-10)


def test_the_librarys_own_controls_follow_the_exact_null():
    moment, tangent = second_moment(gradient_rows()), random_planes(12, 3, 1, seed=1)[0]
    null = energy_null(moment, tangent)
    planes = normal_controls(tangent, 5000, seed=0)
    shares = torch.einsum("nik,ij,njk->n", planes, moment, planes) / moment.trace()
    assert abs(float(shares.mean()) - null.mean) < 3 * null.std / math.sqrt(5000)
    assert float(shares.std()) == pytest.approx(null.std, rel=0.05)


def test_the_null_where_the_complement_is_the_only_plane():
    moment = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    null = energy_null(moment, torch.eye(4)[:, :2])
    assert (null.mean, null.std) == (pytest.approx(0.3), 0.0)
    with pytest.raises(TlAnisoError, match=r"d // 2"):
        energy_null(moment, torch.eye(4)[:, :3])


def test_the_null_keeps_its_digits_under_a_dominant_tangent():
    spectrum = torch.cat([torch.tensor([1e12]), torch.linspace(1, 2, 19)]).double()
    rotation = random_planes(20, 20, 1, seed=0)[0]
    moment = rotation @ torch.diag(spectrum) @ rotation.T
    null = energy_null(moment, rotation[:, :1])
    rest = spectrum[1:]
    variance = 2 * 18 / (19 * 18 * 21) * float(rest.square().sum() - rest.sum() ** 2 / 19)
    assert null.mean == pytest.approx(float(rest.mean() / spectrum.sum()), rel=1e-3)
    assert null.std == pytest.approx(math.sqrt(variance) / float(spectrum.sum()), rel=1e-3)


def test_r_energy_is_the_ratio_to_the_mean_control_and_an_odds_ratio():
    moment, tangent = second_moment(gradient_rows()), random_planes(12, 3, 1, seed=1)[0]
    share, null = energy_share(moment, tangent), energy_null(moment, tangent)
    assert r_energy(share, 3, 12) == pytest.approx(share / null.mean, rel=1e-12)
    assert r_energy(share, 3, 12) == pytest.approx((share / 3) / ((1 - share) / 9), rel=1e-12)
    assert r_energy(0.5, 16, 128) == pytest.approx(7.0)
    assert r_energy(0.5, 16, 768) == pytest.approx(47.0)
    assert math.isinf(r_energy(1.0, 1, 4))
    with pytest.raises(TlAnisoError, match="rank 3"):
        r_energy(0.5, 3, 5)


def test_excess_is_an_odds_ratio():
    assert excess(0.5, 0.5) == 1.0
    assert excess(0.8, 0.5) == pytest.approx(4.0)
    assert excess(0.3, 0.6) == pytest.approx((3 / 7) / 1.5)
    assert odds(0.2) == pytest.approx(0.25)
    assert math.isinf(excess(0.5, 0.0))
    assert math.isnan(excess(0.0, 0.0))
    assert math.isnan(excess(math.nan, 0.5))
    for wrong in (-0.1, 1.2):
        with pytest.raises(TlAnisoError, match="between 0 and 1"):
            odds(wrong)


def test_p_values_count_planes_of_the_whole_space():
    # Independent of the eigenbasis shortcut: the same p-value, up to Monte Carlo error, from explicit planes.
    moment, tangent = second_moment(gradient_rows(seed=3)), random_planes(12, 3, 1, seed=11)[0]
    planes = np.linalg.qr(np.random.default_rng(1).standard_normal((20_000, 12, 3)))[0]
    values = np.einsum("nik,ij,njk->n", planes, moment.numpy(), planes, optimize=True) / float(moment.trace())
    for share in np.quantile(values, [0.3, 0.9, 0.99]):
        expected = float((values >= share).mean())
        got = p_value_of_share(moment, float(share), 3, n=4999, seed=5)
        assert abs(got - expected) < 4 * math.sqrt(expected * (1 - expected) * (1 / 5000 + 1 / 20_000))
    share = energy_share(moment, tangent)
    assert energy_p_value(moment, tangent, n=199, seed=2) == p_value_of_share(moment, share, 3, n=199, seed=2)


@pytest.fixture
def one_thread():
    """Thousands of small problems: handing each to several threads costs more than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_rejections_at_five_percent_are_five_percent():
    # Planes that have nothing to do with the gradients. Controls from the complement would reject 10 to 13%.
    rejected = 0
    planes = random_planes(16, 4, 2000, seed=123)
    for trial, plane in enumerate(planes):
        spectrum = torch.linspace(-3, 3, 16, dtype=torch.float64).mul(0.2 + trial % 5 / 4).exp()
        rejected += energy_p_value(torch.diag(spectrum), plane, n=199, seed=trial) <= 0.05
    assert 0.035 <= rejected / 2000 <= 0.065


def test_the_smallest_p_value_and_its_seed():
    moment = torch.diag(torch.tensor([1e3] * 2 + [1.0] * 18))
    tangent = torch.eye(20)[:, :2]
    assert energy_p_value(moment, tangent) == 1 / 1000
    assert energy_p_value(moment, tangent, n=19) == 1 / 20
    middling = random_planes(20, 2, 1, seed=0)[0]
    assert energy_p_value(moment, middling, seed=1) == energy_p_value(moment, middling, seed=1)
    assert len({energy_p_value(moment, middling, seed=seed) for seed in range(6)}) > 1
    several = energy_p_values(moment, middling, [1, 2], n=99)
    assert several[2] == energy_p_value(moment, middling, n=99)
    assert several[1] == energy_p_value(moment, middling[:, :1], n=99)


def test_misuse_is_named():
    moment, plane = torch.eye(6), torch.eye(6)[:, :2]
    with pytest.raises(TlAnisoError, match="transpose"):
        energy_share(moment, plane.T)
    with pytest.raises(TlAnisoError, match="not orthonormal"):
        energy_share(moment, 1.01 * plane)
    with pytest.raises(TlAnisoError, match="not symmetric"):
        energy_share(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).abs(), plane)
    with pytest.raises(TlAnisoError, match="square"):
        energy_share(torch.randn(9, 6), plane)
    for wrong in (torch.zeros(6, 6), torch.full((6, 6), math.nan), torch.eye(6) * math.inf):
        for function in (energy_share, energy_null, energy_p_value):
            with pytest.raises(UndefinedMeasureError):
                function(wrong, plane)
    with pytest.raises(TlAnisoError, match="not orthonormal"):
        energy_share(moment, plane * math.nan)
    with pytest.raises(TlAnisoError, match="planes"):
        energy_p_value(moment, plane, n=0)
    with pytest.raises(TlAnisoError, match="rank 3"):
        energy_p_values(moment, plane, [3])
