"""Moments against loops over rows, and the algebra of adding them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.slow_numerics import moments_by_loop
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.moments import Moments


def rows_of(n, d, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return (torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing + 2.0).to(dtype)


def distance(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("d", [1, 7, 257, 301])  # above 256 the product is taken in blocks, of unequal width here
def test_equal_the_loop_over_rows(d):
    rows = rows_of(40, d)
    mean, scatter = moments_by_loop(rows.numpy())
    got = Moments(d).update(rows[:13]).update(rows[13:])
    assert got.count == 40
    np.testing.assert_allclose(got.mean, mean, rtol=1e-12)
    assert distance(got.scatter, torch.from_numpy(scatter)) < 1e-12
    assert distance(got.covariance(), torch.from_numpy(np.cov(rows.numpy().T, ddof=1)).reshape(d, d)) < 1e-12
    assert distance(got.second_moment(), rows.T @ rows / 40) < 1e-12


def test_rows_of_zeros_cost_no_precision():
    # Less the mean they are all alike, and in float32 the roundings of equal products add up: to 3e-6 here.
    rows = rows_of(2000, 32, dtype=torch.float32)
    rows[torch.rand(2000, generator=torch.Generator().manual_seed(1)) < 0.85] = 0
    exact = rows.double()
    for pieces in ([rows], rows.split(100), [rows[:0], torch.zeros(3, 32), rows, torch.zeros(4, 32)]):
        got = Moments(32)
        for piece in pieces:
            got.update(piece)
        n = sum(len(piece) for piece in pieces)
        assert got.count == n
        assert distance(got.second_moment() * n, exact.T @ exact) < 5e-7
        assert distance(got.mean * n, exact.sum(0)) < 5e-7


@pytest.mark.parametrize("d", [6, 300])
def test_uncentred_is_the_sum_of_outer_products(d):
    rows = rows_of(25, d)
    got = Moments.uncentred(d).update(rows[:10]).update(rows[10:])
    assert distance(got.scatter, rows.T @ rows) < 1e-13
    assert distance(got.second_moment(), rows.T @ rows / 25) < 1e-13
    with pytest.raises(TlAnisoError, match="mean"):
        _ = got.mean
    with pytest.raises(TlAnisoError, match="second_moment"):
        got.covariance()


def test_sums_of_sequences_are_counted_as_sequences():
    gradients = [rows_of(9, 5, seed) for seed in range(4)]
    got = Moments.uncentred(5)
    for gradient in gradients:
        got.add_sums(1, gradient.T @ gradient)
    expected = sum(g.T @ g for g in gradients) / 4
    assert got.count == 4
    assert distance(got.second_moment(), expected) < 1e-14
    with pytest.raises(TlAnisoError, match="mean"):
        Moments(5).add_sums(1, torch.eye(5))


@pytest.mark.parametrize("parts", [(1, 39), (20, 20), (1, 1, 38), (0, 40), (13, 14, 13)])
def test_merging_float64_rows_is_one_shot(parts):
    rows = rows_of(40, 9) + 100.0
    whole, merged = Moments(9).update(rows), Moments(9)
    for part in rows.split(parts):
        merged = merged + Moments(9).update(part)
    assert merged.count == whole.count
    assert distance(merged.scatter, whole.scatter) < 1e-12
    assert distance(merged.mean, whole.mean) < 1e-12


def test_merging_equal_batches_of_float32_rows_is_exact():
    batches = [rows_of(64, 30, seed, torch.float32) for seed in range(6)]
    one, left, right = Moments(30), Moments(30), Moments(30)
    for i, batch in enumerate(batches):
        one.update(batch)
        (left if i % 2 else right).update(batch)
    assert distance((left + right).scatter, one.scatter) < 1e-12


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_regrouping_float32_rows_costs_rounding_only(size):
    rows = rows_of(5000, 12, dtype=torch.float32)
    regrouped = Moments(12)
    for batch in rows.split(size):
        regrouped.update(batch)
    exact = Moments(12).update(rows.double())
    assert distance(regrouped.scatter, exact.scatter) < 1e-6


def test_a_large_column_mean_costs_float32_rows_no_digits():
    rows = (torch.randn(3000, 8, generator=torch.Generator().manual_seed(1)) + 3000.0).float()
    got = Moments(8).update(rows[:1000]).update(rows[1000:])
    exact = torch.cov(rows.double().T)
    assert distance(got.covariance(), exact) < 1e-6
    assert float((got.mean - rows.double().mean(0)).abs().max()) < 1e-6


def test_the_rounding_of_the_batch_mean_is_corrected():
    # Rows so close together that a float32 mean, off by up to 1e-4, would be seen in the scatter.
    rows = 3000.0 + 2.0**-11 * torch.randint(0, 4, (999, 6), generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(rows.float().double(), rows)
    got = Moments(6).update(rows.float())
    assert distance(got.covariance(), torch.cov(rows.T)) < 1e-5
    assert float((got.mean - rows.mean(0)).abs().max()) < 1e-9


def test_low_precision_rows_are_multiplied_in_float32():
    rows = rows_of(500, 10).to(torch.bfloat16)
    exact = Moments(10).update(rows.double())
    got = Moments(10).update(rows)
    assert distance(got.scatter, exact.scatter) < 1e-6
    assert got.eps == torch.finfo(torch.bfloat16).eps


def test_autocast_and_inference_mode_of_the_user_do_not_reach_the_sums():
    rows = rows_of(200, 20, dtype=torch.float32)
    exact = Moments(20).update(rows.double())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        got = Moments(20).update(rows.clone())
    got.update(rows)
    assert distance(got.second_moment(), exact.second_moment()) < 1e-6


def test_many_updates_keep_every_correction():
    # More updates than corrections that are kept back at a time.
    rows = rows_of(900, 4)
    got = Moments(4)
    for batch in rows.split(3):
        got.update(batch)
    assert distance(got.covariance(), torch.cov(rows.T)) < 1e-12


def test_a_reader_keeps_what_it_read():
    got = Moments(3).update(torch.eye(3))
    copy, mean, scatter, covariance = got.copy(), got.mean, got.scatter, got.covariance()
    kept = [mean.clone(), scatter.clone(), covariance.clone()]
    other = Moments(3).update(torch.ones(2, 3))
    other_scatter = other.scatter
    got.update(torch.full((4, 3), 7.0)).merge(other)
    scatter.add_(100.0)
    assert torch.equal(mean, kept[0])
    assert torch.equal(covariance, kept[2])
    assert copy.count == 3
    assert torch.equal(copy.scatter, kept[1])
    assert other.count == 2
    assert torch.equal(other.scatter, other_scatter)
    assert float(got.scatter.max()) < 100.0


def test_sums_that_are_merged_do_not_alias_the_other():
    empty, other = Moments(3), Moments(3).update(torch.eye(3))
    empty.merge(other).update(torch.ones(5, 3))
    assert other.count == 3
    torch.testing.assert_close(other.mean, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_from_sums_is_the_inverse_of_reading():
    first = Moments(6).update(rows_of(30, 6))
    again = Moments.from_sums(first.count, first.mean, first.scatter)
    torch.testing.assert_close(again.covariance(), first.covariance(), rtol=1e-14, atol=0)
    merged = again + Moments(6).update(rows_of(10, 6, 3))
    expected = torch.cov(torch.cat([rows_of(30, 6), rows_of(10, 6, 3)]).T)
    assert distance(merged.covariance(), expected) < 1e-12
    assert not Moments.from_sums(2, None, torch.eye(6)).is_centred


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_rows_have_no_variance(dtype):
    row = torch.tensor([0.1, 3000.0, -7.3, 1e-3], dtype=dtype)
    got = Moments(4).update(row.expand(1000, 4)).update(row.expand(77, 4))
    assert got.is_constant
    assert not got.covariance().any()
    assert not got.update(row[None] * 1.001).is_constant


def test_numpy_integers_and_gradients_are_rows_too():
    array = np.arange(12).reshape(4, 3)
    tracked = torch.from_numpy(array).double().requires_grad_()
    got = Moments(3).update(array).update(tracked)
    assert not got.scatter.requires_grad
    np.testing.assert_allclose(got.covariance(), np.cov(np.concatenate([array, array]).T))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("start", [Moments, Moments.uncentred])
def test_rows_that_are_not_finite_are_refused_and_not_added(bad, start):
    got = start(3).update(torch.eye(3))
    before = got.scatter
    rows = torch.zeros(6000, 3)
    rows[5000, 1] = bad
    with pytest.raises(UndefinedMeasureError, match="1 of 6000 rows"):
        got.update(rows)
    assert got.count == 3
    assert torch.equal(got.scatter, before)


def test_misuse_is_named():
    with pytest.raises(TlAnisoError, match="n x 3"):
        Moments(3).update(torch.zeros(5, 4))
    with pytest.raises(TlAnisoError, match="n x 3"):
        Moments(3).update(torch.zeros(3))
    with pytest.raises(TlAnisoError, match="cannot merge"):
        Moments(3).merge(Moments(4))
    with pytest.raises(TlAnisoError, match="cannot merge"):
        Moments(3).merge(Moments.uncentred(3))
    with pytest.raises(TlAnisoError, match="at least 1"):
        Moments(0)
    with pytest.raises(TlAnisoError, match="not symmetric"):
        Moments.from_sums(3, None, torch.arange(4.0).reshape(2, 2))
    with pytest.raises(UndefinedMeasureError, match="no rows"):
        _ = Moments(2).mean
    with pytest.raises(UndefinedMeasureError, match="two rows"):
        Moments(2).update(torch.zeros(1, 2)).covariance()


split_points = st.lists(st.integers(0, 30), max_size=5).map(sorted)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), splits=split_points, shift=st.sampled_from([0.0, 1.0, 1e4]))
def test_adding_is_associative_commutative_and_has_a_zero(seed, splits, shift):
    rows = rows_of(30, 4, seed) + shift
    parts = [Moments(4).update(part) for part in np.split(rows.numpy(), splits)]
    forward, backward = Moments(4), Moments(4)
    for part in parts:
        forward = forward + part
    for part in reversed(parts):
        backward = part + backward
    whole = Moments(4).update(rows)
    scale = float(whole.scatter.norm()) * 1e-11 + 1e-9 * (shift / 1e4) ** 2
    for merged in (forward, backward):
        assert merged.count == 30
        assert float((merged.scatter - whole.scatter).norm()) < scale
        torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-8, 0.3, 1e5]))
def test_scaling_rows_scales_the_scatter_and_shifting_them_does_not(seed, scale):
    rows = rows_of(20, 5, seed)
    one, scaled, shifted = (Moments(5).update(r) for r in (rows, scale * rows, rows + 5.0))
    assert distance(scaled.scatter / scale**2, one.scatter) < 1e-12
    assert distance(shifted.scatter, one.scatter) < 1e-11
