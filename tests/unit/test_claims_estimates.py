"""Intervals behind verdicts: against scipy, against slow references, and by how often they hold the truth."""

import math
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from tl_aniso import fit_tangent_proxies, tangent_energy
from tl_aniso.capturing import capture
from tl_aniso.claims import Paired, judge
from tl_aniso.claims.estimates import Estimate, correlation, crossed, difference, mean_of
from tl_aniso.results import geometric_mean


def test_t_interval_is_that_of_scipy():
    values = [0.3, 0.9, 0.5, 1.4]
    found = mean_of(values, "runs", 0.9, null=0.2)
    low, high = stats.t.interval(0.9, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p_value == pytest.approx(stats.ttest_1samp(values, 0.2).pvalue)
    assert math.isnan(mean_of([1.0], "runs", 0.95).low)


def test_equal_values_have_no_spread():
    found = mean_of([1.0, 1.0], "runs", 0.95)
    assert (found.low, found.high, found.p_value) == (1.0, 1.0, 0.0)
    assert mean_of([0.0, 0.0], "runs", 0.95).p_value == 1.0


@pytest.mark.parametrize("n", [5, 6, 9])
def test_rank_correlation_is_that_of_scipy(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        values = rng.integers(0, 5, n).astype(float)  # with ties
        if len(set(values)) > 1:
            found = correlation(range(n), list(values), 0.95, 5)
            assert found.value == pytest.approx(stats.spearmanr(range(n), values).statistic)
            assert found.low <= found.value <= found.high


def test_rounding_ties():
    assert correlation(range(6), [0.1 + 1e-13 * (-1) ** i for i in range(6)], 0.95, 5).value == 0.0


@pytest.mark.parametrize("n", [5, 6, pytest.param(7, marks=pytest.mark.slow)])
def test_no_order_at_random_is_called_a_course_too_often(n):
    """Over all orders of n layers, at most 5% (two-sided) have an interval without 0."""
    found = [correlation(range(n), list(order), 0.95, 5) for order in permutations(range(n))]
    assert np.mean([f.low > 0 or f.high < 0 for f in found]) <= 0.05
    assert found[0].low > 0  # the perfect order is


def test_a_perfect_order_of_four_layers_shows_nothing():
    """Two of 24 orders are perfect: p = 0.083."""
    assert math.isnan(correlation(range(4), [4.0, 3.0, 2.0, 1.0], 0.95, 5).high)


def test_difference_is_wide_enough_whatever_the_correlation():
    """Of averages whose errors go together, against each other, or their own ways."""
    rng = np.random.default_rng(0)
    n, quantile = 2000, stats.norm.ppf(0.975)
    for rho in (-1.0, 0.0, 0.9):
        one = rng.normal(size=n)
        other = rho * one + math.sqrt(1 - rho**2) * rng.normal(size=n)
        held = 0
        for a, b in zip(one, other, strict=True):
            found = difference(Estimate(a, a - quantile, a + quantile), Estimate(b, b - quantile, b + quantile))
            held += found.low <= 0 <= found.high
        assert held / n >= 0.94


def test_crossed_intervals_hold_the_truth():
    """Encoders and decoders are both samples: averaging over one side alone would be too sure."""
    rng = np.random.default_rng(1)
    held, naive = 0, 0
    for _ in range(400):
        table = rng.normal(size=4)[:, None] - rng.normal(size=5)[None] + 0.3 * rng.normal(size=(4, 5))
        found = crossed(table, "models", 0.95)
        held += found.low <= 0 <= found.high
        alone = mean_of(list(table.ravel()), "models", 0.95)
        naive += alone.low <= 0 <= alone.high
    assert held / 400 >= 0.93
    assert naive / 400 < 0.8


def test_measured_results_and_their_difference():
    """Two checkpoints of a small model, from capture to verdicts; the paired interval is the narrower one."""
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=5, num_attention_heads=2
    )
    documents = torch.randint(3, 40, (60, 16), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    proxies = fit_tangent_proxies([capture(model, documents, gradients=(), progress=False)], rank=2)
    results = []
    for step, phase in ((10, "early"), (100, "late")):
        found = tangent_energy(model, documents, proxies=proxies, progress=False, n_controls=0)
        results.append((found, found.frame.assign(step=float(step), phase=phase, model="small")))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step)))
    frame = pd.concat([frame for _, frame in results], ignore_index=True)
    alone = judge(frame).controls
    paired = judge(frame, differences=[Paired("C3", "small", results[0][0] - results[1][0])]).controls
    early = frame[(frame["phase"] == "early") & (frame["measure"] == "r_energy") & (frame["control"] == "normal")]
    early = early[early["site"].str.startswith("blocks.")]
    rows = [
        table[(table["claim"] == "C3") & (table["part"] == "falls") & (table["control"] == "input_energy")].iloc[0]
        for table in (alone, paired)
    ]
    assert rows[0]["effect"] == pytest.approx(rows[1]["effect"])
    assert [r["interval"] for r in rows] == ["documents", "documents, paired"]
    assert rows[0]["ci_low"] < rows[1]["ci_low"] < rows[1]["ci_high"] < rows[0]["ci_high"]
    level = alone[(alone["claim"] == "C1") & (alone["part"] == "level") & (alone["control"] == "normal")]
    assert level["effect"].iloc[0] == pytest.approx(geometric_mean(early["value"]))


def test_equal_ranks_over_runs_are_no_certainty():
    """Over three runs of four layers, each in perfect order: correlations lie 0.2 apart, so each is known to 0.1."""
    single = correlation([0, 1, 2, 3], [4.0, 3.0, 2.0, 1.0], 0.95, 5)
    assert single.grain == pytest.approx(0.2)
    found = mean_of([single.value] * 3, "runs", 0.95, grain=single.grain)
    reach = 4.302653 * 0.2 / 12**0.5 / 3**0.5
    assert (found.low, found.high) == (pytest.approx(-1 - reach), pytest.approx(-1 + reach))
    assert 0 < found.p_value < 0.01
    # Where runs differ by more than the grain, it changes nothing.
    assert mean_of([-1.0, 0.2, 0.6], "runs", 0.95, grain=0.2).low == mean_of([-1.0, 0.2, 0.6], "runs", 0.95).low
