"""From geometry frames to the numbers of one test: sites by checkpoints, of one run of one model."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from tl_aniso.claims.alike import refuse_unlike_runs
from tl_aniso.claims.estimates import Untestable
from tl_aniso.claims.geometry_rules import GeometryRules, Part, Quantity
from tl_aniso.errors import TlAnisoError

__all__ = ["EFFECT", "Numbers", "checked_rows", "numbers_of", "rows_of", "untrained_of"]

EFFECT = "effect"

_TEXT = ("model", "revision", "site", "gradient", "scope", "measure", "variant", "group", "control", "notes")
_NUMBERS = (
    *("step", "value", "ci_low", "ci_high", "p_value", "control_value", "control_low", "control_high"),
    *("difference", "difference_low", "difference_high", "n_types"),
)
_PLACE = ["model", "run", "checkpoint", "site", "gradient", "scope", "measure", "variant", "group", "control"]
# A row that names no variant or group is of the plain one.
_PLAIN = {"variant": "raw", "group": "all"}
_ENDS = {
    EFFECT: ("value", "ci_low", "ci_high"),
    "value": ("value", "ci_low", "ci_high"),
    "control": ("control_value", "control_low", "control_high"),
    "difference": ("difference", "difference_low", "difference_high"),
}


@dataclass(frozen=True, eq=False)
class Numbers:
    """What one test looks at: value and ends by site and checkpoint, on an additive scale; NaN where there is none.

    Attributes:
        way: "effect", or how a control is to be passed.
        value: of the effect, the control, or their difference.
        low: lower end of its interval.
        high: upper end.
        p_value: where the way is "p_value".
    """

    way: str
    value: Float[np.ndarray, "sites checkpoints"]
    low: Float[np.ndarray, "sites checkpoints"]
    high: Float[np.ndarray, "sites checkpoints"]
    p_value: Float[np.ndarray, "sites checkpoints"]


def checked_rows(frame: Any, rules: GeometryRules, runs: str | None) -> pd.DataFrame:
    """The rows that rules may look at, with the columns ``run`` and ``checkpoint``.

    Raises:
        TlAnisoError: no frame of geometry, several measurements of one place, one training as several runs.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TlAnisoError(f"claims are judged from a frame (a pandas DataFrame), got {type(frame).__name__}")
    missing = [name for name in (*_TEXT, *_NUMBERS) if name not in frame.columns]
    if missing:
        raise TlAnisoError(
            f"the frame has no column {missing[0]!r}; hand over the .frame of frequency_variance and local_geometry, "
            "concatenated"
        )
    if runs is not None and runs not in frame.columns:
        raise TlAnisoError(f"runs names the column {runs!r}, which the frame does not have")
    rows = frame.copy().reset_index(drop=True)
    rows["run"] = "" if runs is None else rows[runs].map(str)
    for name in _TEXT:
        plain = _PLAIN.get(name, "")
        rows[name] = [value if isinstance(value, str) and value else plain for value in rows[name]]
    for name in _NUMBERS:
        rows[name] = pd.to_numeric(rows[name]).astype("float64")
    rows["checkpoint"] = [
        f"step {step:g}" if step == step else f"revision {revision}"
        for step, revision in zip(rows["step"], rows["revision"], strict=True)
    ]
    parts = [part for claim in rules.claims.values() for part in claim.parts.values()]
    measures = {name for part in parts for name in (part.measure, part.controls_measure)}
    rows = rows[rows["measure"].isin(measures) & (rows["step"].isna() | (rows["step"] > rules.after_step))]
    _refuse_several(rows)
    refuse_unlike_runs(rows)
    _refuse_copies(rows)
    return rows.reset_index(drop=True)


def untrained_of(frame: pd.DataFrame, rules: GeometryRules) -> pd.DataFrame:
    """The rows of checkpoints that are no training, which do not enter."""
    rows = frame.dropna(subset=["model", "site"])
    return rows[pd.to_numeric(rows["step"]).astype("float64") <= rules.after_step]


def _refuse_several(rows: pd.DataFrame) -> None:
    """One measure of one place twice is two answers; which of them the rules mean, only the user knows."""
    twice = rows[rows.duplicated(_PLACE, keep=False)]
    if twice.empty:
        return
    row = twice.iloc[0]
    same = twice[(twice[_PLACE] == row[_PLACE]).all(axis=1)]
    known = [name for name in ("seed", "rank", "radius", "n_types", "n_rows", "phase") if name in same]
    telling = [name for name in known if len({repr(value) for value in same[name]}) > 1]
    differ = f"they differ in {', '.join(telling)}. Hand over one of them" if telling else "hand over each result once"
    if "seed" in telling:
        differ += ", or judge_geometry(..., runs='seed') where each seed is a training of its own"
    raise TlAnisoError(
        f"the frame holds {row['measure']} ({row['variant']}, {row['group']}, {row['control']}) of {row['model']} at "
        f"{row['site']} ({row['gradient']}, {row['scope']}), {row['checkpoint']}, {len(same)} times: {differ}"
    )


def _refuse_copies(rows: pd.DataFrame) -> None:
    """The same weights measured twice would pass for two trainings, with no spread between them at all."""
    index = [name for name in _PLACE if name not in ("model", "run")]
    for model, group in rows.groupby("model", sort=False):
        table = group.pivot(index=index, columns="run", values="value").dropna()
        names = list(table.columns)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                if len(table) and (table[one] == table[other]).all():
                    raise TlAnisoError(
                        f"the runs {one} and {other} of {model} have equal values everywhere: they are one training "
                        "measured twice, and an interval over them would mean nothing; hand over one of them"
                    )


def rows_of(rows: pd.DataFrame, quantity: Quantity, gradient: str) -> pd.DataFrame:
    """Those of one quantity and kind of gradient: its scope, and the sites of its rule."""
    endings = quantity.sites[gradient]
    inside = tuple(f".{ending}" for ending in endings)
    chosen = [site in endings or (site.startswith("blocks.") and site.endswith(inside)) for site in rows["site"]]
    return rows[np.array(chosen, dtype=bool) & (rows["scope"] == quantity.scope) & (rows["gradient"] == gradient)]


def numbers_of(run: pd.DataFrame, part: Part, control: str, rules: GeometryRules) -> Numbers:
    """What a test of one run looks at, of the effect itself or against a control.

    Raises:
        Untestable: nothing of it was measured, or too few types are behind a correlation.
    """
    mine = run[(run["variant"] == part.variant) & (run["group"] == part.group)]
    effect = mine[(mine["measure"] == part.measure) & (mine["control"] == part.control)]
    if effect.empty:
        raise Untestable("it was not measured")
    if part.scale == "correlation" and not effect["n_types"].min() >= rules.enough.types:
        counts = effect["n_types"].dropna()
        known = f"{counts.min():.0f} token types have enough occurrences" if len(counts) else "types were not counted"
        raise Untestable(f"{known}, {rules.enough.types} needed")
    sites, checkpoints = list(dict.fromkeys(effect["site"])), list(dict.fromkeys(effect["checkpoint"]))
    if len(checkpoints) < rules.enough.steps:
        raise Untestable(f"{len(checkpoints)} checkpoints were measured, {rules.enough.steps} needed")

    def grid(of: pd.DataFrame, values: "pd.Series[float]") -> Float[np.ndarray, "sites checkpoints"]:
        keyed = pd.Series(values.to_numpy(dtype=np.float64), index=pd.MultiIndex.from_frame(of[["site", "checkpoint"]]))
        wanted = pd.MultiIndex.from_product([sites, checkpoints])
        return keyed.reindex(wanted).to_numpy(dtype=np.float64).reshape(len(sites), len(checkpoints))

    empty = np.full((len(sites), len(checkpoints)), math.nan)

    def numbers(way: str, of: pd.DataFrame) -> Numbers:
        value, low, high = (grid(of, of[name]) for name in _ENDS[way])
        return _on_scale(Numbers(way, value, low, high, empty), part)

    if control == part.control:
        return numbers(EFFECT, effect)
    found = mine[(mine["measure"] == part.controls_measure) & (mine["control"] == control)]
    for way in part.controls[control]:
        if way == "p_value" and np.isfinite(found["p_value"]).any():
            # Of ratios the frame's difference is the logarithm.
            apart = found["difference"] if part.scale == "ratio" else found["value"] - found["control_value"]
            return Numbers(way, grid(found, apart), empty, empty, grid(found, found["p_value"]))
        if way != "p_value" and np.isfinite(found[_ENDS[way][0]]).any():
            return numbers(way, found)
    raise Untestable("it was not measured")


def _on_scale(found: Numbers, part: Part) -> Numbers:
    """Logarithms of ratios; differences of ratios are logarithms already. What has none that is finite is NaN."""
    if part.scale != "ratio" or found.way == "difference":
        return found
    return replace(found, value=_log(found.value), low=_log(found.low), high=_log(found.high))


def _log(values: Float[np.ndarray, "sites checkpoints"]) -> Float[np.ndarray, "sites checkpoints"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs), logs, math.nan)
