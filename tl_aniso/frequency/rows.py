"""From distances of types to rows of the geometry frame: correlations, controls, differences, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int64

from tl_aniso.frequency.correlation import (
    FEWEST_TYPES,
    Correlation,
    Kind,
    correlate,
    difference_interval,
    interval,
    permuted,
)
from tl_aniso.geometry_frame import COLUMNS

__all__ = ["COLUMNS", "Place", "place_rows", "to_frame"]

_TEXT = ("model", "family", "objective", "revision", "site", "gradient", "scope", "measure", "variant", "group")
_KINDS: tuple[Kind, ...] = ("pearson", "spearman")


@dataclass(frozen=True, eq=False)
class Place:
    """Types measured at one site, over checkpoints or within one.

    Attributes:
        site: where.
        table: "input", "output", "tied" or "contextual".
        scope: "over_checkpoints" or "within".
        types: ids of the types.
        counts: their occurrences in the text.
        rows: their rows behind the measure: at each site, those that the filters leave.
        log_frequency: natural logarithm of the share of the text that a type makes up.
        distances: variant -> distance of each type.
        norm: of each type.
        in_matched: types that the size-matched sample has in full; None where there is nothing to match.
        matched: variant -> distance of those in the size-matched sample.
        surrogate: variant -> distances drawn where all types have one covariance.
        fields: what is the same in all rows: model, step and so on.
        notes: for the reader.
    """

    site: str
    table: str
    scope: str
    types: Int64[np.ndarray, " n"]
    counts: Int64[np.ndarray, " n"]
    rows: Int64[np.ndarray, " n"]
    log_frequency: Float[np.ndarray, " n"]
    distances: Mapping[str, Float[np.ndarray, " n"]]
    norm: Float[np.ndarray, " n"]
    in_matched: Bool[np.ndarray, " n"] | None
    matched: Mapping[str, Float[np.ndarray, " m"]]
    surrogate: Mapping[str, Float[np.ndarray, "draws n"]]
    fields: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """For messages."""
        step = self.fields.get("step", math.nan)
        return self.site if self.scope != "within" or step != step else f"{self.site} (step {step:g})"


def place_rows(place: Place, *, n_controls: int, level: float, seed: int) -> list[dict[str, Any]]:
    """The rows of one place: each variant by each correlation, alone and beside each control; and of norms."""
    x = place.log_frequency
    found: list[dict[str, Any]] = []
    if not place.distances and not len(place.norm):
        return found
    measured = {("frequency", variant): values for variant, values in place.distances.items()}
    measured["norm", "raw"] = place.norm
    known = len(x) >= FEWEST_TYPES
    stacked = np.stack(list(measured.values()))
    null = permuted(x, stacked, n_draws=n_controls, seed=seed) if known else {}
    for number, ((what, variant), y) in enumerate(measured.items()):
        for kind in _KINDS:
            mine = correlate(x, y, kind)
            shuffled = null[kind][:, number] if known and mine.value == mine.value else np.full(1, math.nan)
            base = {**place.fields, "site": place.site, "scope": place.scope, "variant": variant, "group": "all"}
            base |= {"measure": f"{what}_{kind}", "n_types": len(x), "n_rows": int(place.rows.sum()), "seed": seed}
            base |= {"gradient": "none", "notes": "; ".join(place.notes), "value": mine.value}
            base |= dict(zip(("ci_low", "ci_high"), interval(mine, level=level), strict=True))
            p_value = _p_value(mine.value, shuffled)
            found.append({**base, "control": "none", "p_value": p_value})
            if what == "norm":
                continue
            found.append({**base, **_shuffled(mine, shuffled, level), "p_value": p_value})
            if place.in_matched is not None and variant in place.matched:
                twin = (place.in_matched, place.matched[variant])
                found.append({**base, **_matched(mine, x, *twin, kind, level)})
            if variant in place.surrogate:
                found.append({**base, **_surrogate(mine, x, place.surrogate[variant], kind, level)})
    return found


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame with all of `COLUMNS`, in order; numbers that a row does not say are NaN, texts empty."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    for name in COLUMNS:
        if name in (*_TEXT, "control", "notes", "phase"):
            frame[name] = frame[name].astype(object)
        else:
            frame[name] = frame[name].astype("float64")
    for name in (*_TEXT, "control", "notes"):
        frame[name] = frame[name].where(frame[name].notna(), "")
    return frame


def _band(values: np.ndarray, level: float) -> tuple[float, float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(values.mean()), float(low), float(high)


def _p_value(value: float, null: np.ndarray, centre: float = 0.0) -> float:
    """Two-sided, with the measured value as one of the draws."""
    if not (value == value and np.isfinite(null).all()):
        return math.nan
    # Permutations of few or tied frequencies repeat the value itself up to rounding.
    return (1 + int((np.abs(null - centre) >= abs(value - centre) - 1e-12).sum())) / (1 + len(null))


def _control(name: str, value: float, low: float, high: float) -> dict[str, Any]:
    return {"control": name, "control_value": value, "control_low": low, "control_high": high}


def _less(mine: Correlation, other: Correlation, level: float) -> dict[str, float]:
    apart = difference_interval(mine, other, level=level)
    return {"difference": mine.value - other.value, "difference_low": apart.low, "difference_high": apart.high}


def _shuffled(mine: Correlation, null: np.ndarray, level: float) -> dict[str, Any]:
    value, low, high = _band(null, level)
    return _control("shuffled_frequencies", value, low, high) | _less(mine, _always(value, mine), level)


def _matched(
    mine: Correlation, x: np.ndarray, chosen: np.ndarray, values: np.ndarray, kind: Kind, level: float
) -> dict[str, Any]:
    other = correlate(x[chosen], values, kind)
    without = np.full(len(x), other.value)
    without[chosen] = other.without
    row = _control("size_matched", other.value, *interval(other, level=level))
    return row | _less(mine, Correlation(other.value, without), level)


def _surrogate(mine: Correlation, x: np.ndarray, drawn: np.ndarray, kind: Kind, level: float) -> dict[str, Any]:
    found = [correlate(x, y, kind) for y in drawn]
    values = np.array([one.value for one in found])
    if not len(values) or not np.isfinite(values).all():
        return _control("gaussian_surrogate", math.nan, math.nan, math.nan)
    value, low, high = _band(values, level)
    mean = Correlation(value, np.mean([one.without for one in found], axis=0))
    row = _control("gaussian_surrogate", value, low, high) | _less(mine, mean, level)
    return row | {"p_value": _p_value(mine.value, values, value)}


def _always(value: float, like: Correlation) -> Correlation:
    return Correlation(value, np.full(len(like.without), value))
