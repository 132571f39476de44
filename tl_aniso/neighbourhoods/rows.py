"""Rows of the geometry frame, from numbers by type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tl_aniso.neighbourhoods.energies import EnergyShares
from tl_aniso.neighbourhoods.estimate import Estimate
from tl_aniso.neighbourhoods.gradient_energy import normal_share
from tl_aniso.neighbourhoods.groups import GROUPS, Groups, shuffled

__all__ = ["Row", "curvature_rows", "energy_rows"]

Row: TypeAlias = dict[str, Any]
_Table: TypeAlias = Mapping[tuple[str, str], np.ndarray]
_BETWEEN = "rare - frequent"


def _numbers(value: Estimate, control: Estimate | None = None, difference: Estimate | None = None) -> Row:
    row = {"value": value.value, "ci_low": value.low, "ci_high": value.high}
    if control is not None:
        row |= {"control_value": control.value, "control_low": control.low, "control_high": control.high}
    if difference is not None:
        row |= {
            "difference": difference.value,
            "difference_low": difference.low,
            "difference_high": difference.high,
            "p_value": _p_value(difference),
        }
    return row


def _p_value(found: Estimate) -> float:
    """Two-sided, from the width of the interval: that of a normal statistic, near enough for tens of types."""
    if not found.std > 0:
        return math.nan
    return math.erfc(abs(found.value) / found.std / math.sqrt(2))


def curvature_rows(
    fixed: Row,
    names: Sequence[tuple[str, str]],
    groups: Groups,
    own: _Table,
    flat: _Table,
    unmatched: _Table | None,
    *,
    n_permutations: int,
    seed: int,
) -> list[Row]:
    """Of every measure and group: the value, and the value against flat rows, shuffled labels and unmatched sizes.

    Rows of the control ``size_matched`` have as `value` what all kept occurrences give, unequal in number, and as
    `control_value` what equal numbers give, which all other rows have as their value.
    """
    rows = []
    for name in names:
        for group in GROUPS:
            base = {**fixed, "measure": name[0], "variant": name[1], "group": group}
            values = own[name]
            base["n_types"] = groups.count(group, values)
            found = groups.of(group, values)
            rows.append({**base, "control": "none", **_numbers(found)})
            beside = groups.of(group, flat[name])
            less = groups.of(group, values - flat[name])
            rows.append({**base, "control": "gaussian_surrogate", **_numbers(found, beside, less)})
            if unmatched is not None:
                raw = groups.of(group, unmatched[name])
                effect = groups.of(group, unmatched[name] - values)
                rows.append({**base, "control": "size_matched", **_numbers(raw, found, effect)})
            if group == _BETWEEN:
                rows.append(
                    {**base, "control": "shuffled_frequencies"} | _shuffled(groups, values, found, n_permutations, seed)
                )
    return rows


def _shuffled(groups: Groups, values: np.ndarray, found: Estimate, n: int, seed: int) -> Row:
    """Difference of groups against that of permuted labels, whose mean is 0 and whose spread is chance."""
    p_value, draws = shuffled(groups, values, n=n, seed=seed)
    if not len(draws):
        return {**_numbers(found), "p_value": p_value}
    mean = float(draws.mean())
    low, high = (float(q) for q in np.quantile(draws, [0.025, 0.975]))
    control = Estimate(mean, low, high, float(draws.std()))
    less = Estimate(found.value - mean, found.low - mean, found.high - mean, found.std)
    return {**_numbers(found, control, less), "p_value": p_value}


def energy_rows(fixed: Row, groups: Groups, shares: Sequence[EnergyShares], rank: int, d: int) -> list[Row]:
    """Shares, R and excess of a gradient: of what an update sees (``raw``), and of the other way to sum.

    A weight's gradient is a sum over occurrences, so that is its ``raw`` and ``per_token`` the other; an activation's
    is one row a token, and ``summed`` the other.
    """
    rows = []
    usual = fixed["gradient"] == "weight"
    chance = math.log(rank / (d - rank))
    for entry in shares:
        variant = "raw" if entry.summed == usual else ("summed" if entry.summed else "per_token")
        own = _log_odds(entry.own)
        for group in GROUPS:
            base = {**fixed, "variant": variant, "group": group, "n_types": groups.count(group, own)}
            share, ratio = groups.of(group, entry.own), groups.of(group, own - chance)
            normal = normal_share(entry.own, rank, d)
            energy = {**base, "measure": "local_energy_share"}
            rows.append({**energy, "control": "none", **_numbers(share)})
            less = groups.of(group, entry.own - normal)
            rows.append({**energy, "control": "normal", **_numbers(share, groups.of(group, normal), less)})
            ratio_row = {**base, "measure": "local_r", "control": "normal"}
            rows.append(ratio_row | _ratios(ratio, Estimate(0.0, 0.0, 0.0, 0.0), ratio))
            for control, values in entry.controls.items():
                beside = groups.of(group, values)
                less = groups.of(group, entry.own - values)
                rows.append({**energy, "control": control, **_numbers(share, beside, less)})
                excess = groups.of(group, own - _log_odds(values))
                control_ratio = groups.of(group, _log_odds(values) - chance)
                excess_row = {**base, "measure": "local_excess", "control": control}
                rows.append(excess_row | _ratios(excess, control_ratio, excess))
    return rows


def _ratios(value: Estimate, control: Estimate, difference: Estimate) -> Row:
    """Ratios from logarithms; the difference stays one."""

    def grown(found: Estimate) -> Estimate:
        value, low, high = (math.exp(min(end, 700.0)) for end in found[:3])
        return Estimate(value, low, high, found.std)

    return _numbers(grown(value), grown(control), difference)


def _log_odds(share: np.ndarray) -> np.ndarray:
    """NaN at 0 and 1, which have none."""
    inside = np.where((share > 0) & (share < 1), share, np.nan)
    return np.log(inside) - np.log1p(-inside)
