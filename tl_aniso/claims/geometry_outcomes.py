"""Tests of frequency and local geometry: estimates over sites, runs and models, held against the rules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tl_aniso.claims.estimates import Estimate, Untestable, mean_of
from tl_aniso.claims.geometry_rows import EFFECT, Numbers, numbers_of
from tl_aniso.claims.geometry_rules import GeometryRules, Part, Quantity
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.outcomes import Key, Outcome, counted

__all__ = ["Found", "of_model", "of_models", "outcomes_of"]

# How a test was made, and what came out.
Found = tuple[str, Estimate | Untestable]
_P_VALUE = "p_value"
_OVER = "types"  # what the intervals of one run are over
# What a table calls a scale, of an effect and of its difference from a control; C1 to C5 have others of these kinds.
_SCALES = {
    "correlation": ("correlation with frequency", "difference of correlations"),
    "slope": ("slope", "difference of slopes"),
    "difference": ("difference of groups", "difference of groups"),
    "ratio": ("ratio", "ratio"),
}


def of_model(rows: pd.DataFrame, quantity: Quantity, parts: Sequence[Part], rules: GeometryRules) -> dict[Key, Found]:
    """Estimates of one model: over its runs where there are several, else of the one run.

    Args:
        rows: of the model, of one quantity and gradient; none where it was not measured.
        quantity: what is judged.
        parts: its parts.
        rules: all rules.
    """
    found: dict[Key, Found] = {}
    for part in parts:
        needed = quantity.parts[part.name]
        measured = set(rows.loc[rows["measure"] == part.controls_measure, "control"])
        wanted = [control for control in part.controls if control in needed or control in measured]
        for control in (part.control, *wanted):
            try:
                found[part.name, control] = _estimate(rows, part, control, rules)
            except Untestable as lacking:
                # A control that nobody needs and that has nothing to say for this part was not measured.
                if control == part.control or control in needed:
                    found[part.name, control] = EFFECT, lacking
    return found


def _estimate(rows: pd.DataFrame, part: Part, control: str, rules: GeometryRules) -> Found:
    runs = list(dict.fromkeys(rows["run"])) or [""]
    each = []
    for run in runs:
        try:
            numbers = numbers_of(rows[rows["run"] == run], part, control, rules)
            each.append((numbers.way, _pooled(numbers, control, part, rules)))
        except Untestable as lacking:
            raise Untestable(f"{lacking} (run {run})" if run else str(lacking)) from None
    ways = {way for way, _ in each}
    if len(ways) > 1:
        raise Untestable(f"{control} was measured in different ways in different runs ({', '.join(sorted(ways))})")
    way = each[0][0]
    if len(each) == 1:
        return each[0]
    if len(each) < rules.enough.runs:
        raise Untestable(f"{len(each)} runs were measured, {rules.enough.runs} needed")
    # Over runs there is an interval of the effect less the control, and no need of p-values.
    over = mean_of([e.value for _, e in each], "runs", rules.level, _null(part, way))
    return ("difference" if way == _P_VALUE else way), over


def _pooled(found: Numbers, control: str, part: Part, rules: GeometryRules) -> Estimate:
    """Mean over sites and checkpoints, ends of intervals too: wide enough however these depend on each other."""
    whole = np.isfinite(found.value).all(axis=1)
    if found.way == _P_VALUE:
        whole &= np.isfinite(found.p_value).all(axis=1)
    if whole.mean() < rules.enough.sites:
        raise Untestable(f"{control} has values at {int(whole.sum())} of {len(whole)} sites only")
    if found.way == _P_VALUE:
        p_values = found.p_value[whole]
        p = float(p_values.mean()) * (2 if p_values.size > 1 else 1)
        return Estimate(float(found.value[whole].mean()), p_value=min(p, 1.0), how=_OVER, n=int(whole.sum()))
    with_ends = whole & np.isfinite(found.low).all(axis=1) & np.isfinite(found.high).all(axis=1)
    bounded = bool(with_ends.mean() >= rules.enough.sites)
    sites = with_ends if bounded else whole
    return Estimate(
        float(found.value[sites].mean()),
        float(found.low[sites].mean()) if bounded else math.nan,
        float(found.high[sites].mean()) if bounded else math.nan,
        how=_OVER,
        n=int(sites.sum()),
        why_none="" if bounded else f"the frame has no interval over {_OVER}, and there is one run",
    )


def of_models(
    found: Mapping[str, Mapping[Key, Found]], parts: Mapping[str, Part], rules: GeometryRules
) -> dict[Key, Outcome]:
    """Outcomes of all models together: t over their effects, and shares of models for R, which grows with width."""
    together: dict[Key, Outcome] = {}
    for key in dict.fromkeys(key for estimates in found.values() for key in estimates):
        part = parts[key[0]]
        if key[1] != part.control and sum(key in of for of in found.values()) < rules.enough.models:
            continue  # measured in a single model, which has its own row: of all of them it is not measured
        entries = [of[key] for of in found.values() if key in of]
        known = [(way, e) for way, e in entries if isinstance(e, Estimate) and math.isfinite(e.value)]
        way = known[0][0] if known else EFFECT
        if len(known) < rules.enough.models:
            lacking = next((f" ({e})" for _, e in entries if isinstance(e, Untestable)), "")
            why = f"{len(known)} models have a value, {rules.enough.models} needed{lacking}"
            together[key] = _outcome(key, part, EFFECT, Untestable(why), rules)
        elif part.scale == "ratio" and key[1] == part.control:
            each = [_outcome(key, part, way, estimate, rules) for way, estimate in known]
            share = counted([o.passes for o in each], key, rules.enough.share_of_models, rules.enough.models)
            said = f"share of models in which {_label(part, key[1], way)} is beyond {part.threshold:g}"
            together[key] = replace(share, words=said, decisive=part.verdict != "shown")
        else:
            null = _null(part, way)
            over = mean_of([estimate.value for _, estimate in known], "models", rules.level, null)
            together[key] = _outcome(key, part, "difference" if way == _P_VALUE else way, over, rules)
    return together


def outcomes_of(found: Mapping[Key, Found], parts: Mapping[str, Part], rules: GeometryRules) -> dict[Key, Outcome]:
    """Each estimate held against its threshold, and beside it what the paper or theory says."""
    outcomes: dict[Key, Outcome] = {}
    for key, (way, estimate) in found.items():
        part = parts[key[0]]
        outcome = outcomes[key] = _outcome(key, part, way, estimate, rules)
        if key[1] == part.control and part.beside is not None and outcome.estimate is not None:
            beside = math.log(part.beside) if part.scale == "ratio" else part.beside
            end = outcome.estimate.high if part.side == "above" else outcome.estimate.low
            reached = None if not math.isfinite(end) else end >= beside if part.side == "above" else end <= beside
            name = f"{part.name} ({part.beside:g})"
            outcomes[name, key[1]] = replace(
                outcome, part=name, threshold=beside, passes=reached, decisive=False, reason="shown, not decisive"
            )
    return outcomes


def _null(part: Part, way: str) -> float:
    """The threshold on the additive scale; a difference from a control is held against 0."""
    if way in ("difference", _P_VALUE):
        return 0.0
    return math.log(part.threshold) if part.scale == "ratio" else part.threshold


def _outcome(key: Key, part: Part, way: str, found: Estimate | Untestable, rules: GeometryRules) -> Outcome:
    """Held against the threshold: the whole interval decides, never the estimate alone."""
    null = _null(part, way)
    bare = Outcome(
        *key,
        scale=_SCALES[part.scale][way in ("difference", _P_VALUE)],
        threshold=null,
        side=part.side,
        estimate=None,
        passes=None,
        decisive=part.verdict != "shown",
        words=_label(part, key[1], way),
    )
    if isinstance(found, Untestable):
        return replace(bare, reason=str(found))
    if way == _P_VALUE:
        beyond = found.value > 0 if part.side == "above" else found.value < 0
        return replace(bare, estimate=found, passes=beyond and found.p_value <= 1 - rules.level)
    if not (math.isfinite(found.value) and math.isfinite(found.low) and math.isfinite(found.high)):
        return replace(bare, estimate=found, reason=found.why_none or "the interval is not finite")
    passes = found.low > null if part.side == "above" else found.high < null
    return replace(bare, estimate=found, passes=passes)


_WORDS = {
    "frequency_pearson": "Pearson's correlation of log frequency with distance to the centroid",
    "frequency_spearman": "Spearman's correlation of frequency with distance to the centroid",
    "curvature_slope": "slope of log normal on log tangent amplitude",
    "visible_share": "visible normal share",
    "curvature_energy": "curvature energy",
    "local_r": "local R",
    "local_excess": "local excess",
}


def _label(part: Part, control: str, way: str) -> str:
    measure = part.measure if control == part.control else part.controls_measure
    of = "" if part.variant == "raw" else f", {part.variant.replace('_', ' ')}"
    of += "" if part.group == "all" else f", {part.group}"
    name = f"{_WORDS.get(measure, measure)}{of}"
    if control == part.control:
        return name if control in ("none", NORMAL) else f"{name}, over {control}"
    if way == "control":
        return f"{name}, under {control}"
    return f"{name}, over {control}" if way == "value" else f"{name}, less that of {control}"
