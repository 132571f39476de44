"""Jackknife intervals against an explicit loop and their coverage; Holm by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.reference.slow_numerics import jackknife_logit
from tl_aniso.errors import TlAnisoError
from tl_aniso.multiple_testing import holm
from tl_aniso.statistics import (
    effective_shards,
    excess_contrast,
    mean_share_interval,
    odds_ratio_contrast,
    odds_ratio_interval,
    share_difference,
    share_interval,
)

SELECTED = [2.0, 3.1, 2.5, 3.6, 0.4, 9.0, 1.0, 2.2]
TOTAL = [10.0, 11.0, 9.0, 12.0, 2.0, 30.0, 8.0, 10.0]


def expit(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_share_interval_is_the_loop(level):
    centre, error, freedom = jackknife_logit(SELECTED, TOTAL)
    assert 3 < freedom < len(SELECTED) - 1
    reach = stats.t.ppf((1 + level) / 2, freedom) * error
    low, high = share_interval(SELECTED, TOTAL, level=level)
    assert low == pytest.approx(expit(centre - reach), rel=1e-12)
    assert high == pytest.approx(expit(centre + reach), rel=1e-12)
    assert low < sum(SELECTED) / sum(TOTAL) < high


def test_shards_without_energy_are_left_out():
    assert share_interval([0.0, *SELECTED, 0.0], [0.0, *TOTAL, 0.0]) == share_interval(SELECTED, TOTAL)


def test_too_few_shards_give_no_interval():
    assert all(math.isnan(end) for end in share_interval(SELECTED[:3], TOTAL[:3]))
    assert all(math.isnan(end) for end in share_interval([1.0, 2, 3, 0], [2.0, 4, 5, 0]))
    assert not math.isnan(share_interval(SELECTED[:4], TOTAL[:4]).low)
    assert math.isnan(odds_ratio_interval(SELECTED[:3], TOTAL[:3], SELECTED[:3], TOTAL[:3]).high)


def test_shares_of_none_and_all_have_no_logit():
    for selected in ([0.0] * 5, [1.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0]):
        assert all(math.isnan(end) for end in share_interval(selected, [1.0] * 5))


def test_equal_shards_leave_no_doubt():
    low, high = share_interval([1.0] * 6, [4.0] * 6)
    assert (low, high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_pairing_cancels_what_documents_share():
    # Odds that differ by a constant factor in every shard, though they vary widely between shards.
    odds_b = np.array([0.1, 0.5, 2.0, 0.9, 0.3, 4.0])
    total = np.array([5.0, 9.0, 4.0, 7.0, 6.0, 5.0])
    b = total * odds_b / (1 + odds_b)
    a = total * 2 * odds_b / (1 + 2 * odds_b)
    paired = odds_ratio_interval(a, total, b, total)
    alone = share_interval(a, total)
    width = math.log(paired.high / paired.low)
    unpaired = math.log(alone.high / (1 - alone.high) / (alone.low / (1 - alone.low)))
    assert width < unpaired / 3
    same = odds_ratio_interval(b, total, b, total)
    assert same == (1.0, 1.0)


def test_odds_ratio_interval_is_the_loop():
    other = [1.0, 2.0, 2.2, 1.6, 0.3, 5.0, 0.9, 2.0]
    n = len(SELECTED)

    def log_ratio(keep):
        a = sum(SELECTED[i] for i in keep) / sum(TOTAL[i] for i in keep)
        b = sum(other[i] for i in keep) / sum(TOTAL[i] for i in keep)
        return math.log(a / (1 - a) / (b / (1 - b)))

    deleted = [log_ratio([j for j in range(n) if j != i]) for i in range(n)]
    error = math.sqrt((n - 1) / n * sum((v - sum(deleted) / n) ** 2 for v in deleted))
    reach = stats.t.ppf(0.975, sum(TOTAL) ** 2 / sum(t * t for t in TOTAL) - 1) * error
    low, high = odds_ratio_interval(SELECTED, TOTAL, other, TOTAL)
    assert math.log(low) == pytest.approx(log_ratio(range(n)) - reach, rel=1e-10)
    assert math.log(high) == pytest.approx(log_ratio(range(n)) + reach, rel=1e-10)
    swapped = odds_ratio_interval(other, TOTAL, SELECTED, TOTAL)
    assert (swapped.low, swapped.high) == (pytest.approx(1 / high), pytest.approx(1 / low))


def test_an_empty_shard_of_either_is_left_out_of_both():
    dropped = odds_ratio_interval(SELECTED, TOTAL, [*SELECTED[:-1], 0.0], [*TOTAL[:-1], 0.0])
    assert dropped == odds_ratio_interval(SELECTED[:-1], TOTAL[:-1], SELECTED[:-1], TOTAL[:-1])


def test_one_shard_with_nearly_all_energy_counts_as_one():
    selected, total = [2.0, 3, 2.5, 3.5, 2.2, 300], [10.0, 10, 10, 10, 10, 1000]
    _, error, _ = jackknife_logit(selected, total)
    low, high = share_interval(selected, total)
    assert math.log(high / (1 - high)) - math.log(low / (1 - low)) == pytest.approx(2 * stats.t.ppf(0.975, 1) * error)


OTHER = [1.0, 2.0, 2.2, 1.6, 0.3, 5.0, 0.9, 2.0]


def test_contrasts_are_the_loop():
    n, total = len(SELECTED), TOTAL
    late = [12.0, 10.0, 9.5, 12.0, 2.0, 27.0, 8.0, 11.0]
    third = [0.5, 0.4, 0.6, 0.7, 0.1, 2.0, 0.3, 0.4]

    def pooled(part, whole, keep):
        return sum(part[i] for i in keep) / sum(whole[i] for i in keep)

    def log_odds(part, whole, keep):
        share = pooled(part, whole, keep)
        return math.log(share / (1 - share))

    def excess(keep):
        a = log_odds(SELECTED, total, keep) - log_odds(OTHER, total, keep)
        return a - (log_odds(OTHER, late, keep) - log_odds(third, late, keep))

    def difference(keep):
        return pooled(SELECTED, total, keep) - pooled(OTHER, late, keep)

    freedom = min(sum(w) ** 2 / sum(x * x for x in w) - 1 for w in (total, late))
    a, b = ((SELECTED, total), (OTHER, total)), ((OTHER, late), (third, late))
    for slow, found, back, to, fro in (
        (difference, share_difference(*a[0], *b[0]), share_difference(*b[0], *a[0]), math.atanh, math.tanh),
        (excess, excess_contrast(*a, *b), excess_contrast(*b, *a), float, float),
    ):
        deleted = [to(slow([j for j in range(n) if j != i])) for i in range(n)]
        error = math.sqrt((n - 1) / n * sum((v - sum(deleted) / n) ** 2 for v in deleted))
        value, reach = to(slow(range(n))), stats.t.ppf(0.975, freedom) * error
        assert found[:3] == pytest.approx((fro(value), fro(value - reach), fro(value + reach)))
        assert found.p_value == pytest.approx(2 * stats.t.sf(abs(value) / error, freedom))
        assert back == pytest.approx((-found.value, -found.high, -found.low, found.p_value))


def test_a_difference_of_shares_stays_in_range_where_one_shard_holds_nearly_all():
    # One shard decides and the rest say the opposite: on the shares themselves the interval left -1 ... 1.
    total = [1.0] * 7 + [1000.0]
    a, b = [0.9] * 7 + [300.0], [0.1] * 7 + [900.0]
    found = share_difference(a, total, b, total)
    assert -1 <= found.low < found.value < 0 < found.high <= 1
    assert found.value == pytest.approx(-594.4 / 1007)
    assert found.p_value > 0.05
    assert effective_shards(total) == pytest.approx(1007**2 / (1e6 + 7))
    assert effective_shards([1.0] * 8, total) == effective_shards(total)
    mean = mean_share_interval([(a, total), (b, total)])
    assert 0 < mean.low < 600.0 / 1007 + 7 / 2014 < mean.high < 1


def test_p_values_and_intervals_agree():
    for other in (OTHER, [s * 0.93 for s in SELECTED], [s * 1.1 for s in SELECTED]):
        for level in (0.5, 0.9, 0.99):
            found = odds_ratio_contrast(SELECTED, TOTAL, other, TOTAL, level=level)
            assert (found.low <= 0 <= found.high) == (found.p_value >= 1 - level)
    assert share_difference(SELECTED, TOTAL, SELECTED, TOTAL) == (0.0, 0.0, 0.0, 1.0)
    unknown = share_difference(SELECTED[:3], TOTAL[:3], OTHER[:3], TOTAL[:3])
    assert unknown.value == pytest.approx(7.6 / 30 - 5.2 / 30)
    assert all(math.isnan(v) for v in unknown[1:])


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.2, 0.001, 0.5, 0.9]), [0.6, 0.004, 1.0, 1.0])
    np.testing.assert_allclose(holm([0.01, math.nan, 0.04, 0.03]), [0.03, math.nan, 0.06, 0.06])
    assert holm([]).size == 0
    assert np.isnan(holm([math.nan])).all()


def test_misuse_is_named():
    with pytest.raises(TlAnisoError, match="one number per shard"):
        share_interval([1.0, 2.0], [1.0])
    for wrong in ([-1.0, 1, 1, 1], [3.0, 1, 1, 1]):
        with pytest.raises(TlAnisoError, match="between 0 and total"):
            share_interval(wrong, [2.0] * 4)
    with pytest.raises(TlAnisoError, match="finite"):
        share_interval([math.nan] * 4, [1.0] * 4)
    with pytest.raises(TlAnisoError, match="same shards"):
        odds_ratio_interval([1.0] * 4, [2.0] * 4, [1.0] * 5, [2.0] * 5)
    with pytest.raises(TlAnisoError, match="level"):
        share_interval(SELECTED, TOTAL, level=95)
    with pytest.raises(TlAnisoError, match="between 0 and 1"):
        holm([1.2])
