"""Encoders less decoders, at equal k/d and at matched checkpoints."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tl_aniso.claims.estimates import Estimate, Untestable, crossed, difference, mean_of
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.outcomes import Key, Outcome, estimate_of_model, outcome_of, over_models, threshold_of
from tl_aniso.claims.paired import Paired, paired_estimate
from tl_aniso.claims.rules import ClaimRule, Rules
from tl_aniso.claims.single import EXISTS, parts_of, pooled

__all__ = ["contrast_models", "contrast_pair", "kinds_of", "matched"]

_COLUMN = {"tokens": "tokens_seen", "progress": "progress"}


def kinds_of(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Models trained as encoders (masked LM) and as decoders (causal LM), by the objective they were measured with."""
    objective = rows.drop_duplicates("model").set_index("model")["objective"].map(str)
    encoders = [str(m) for m in objective.index[objective.str.startswith("masked")]]
    return encoders, [str(m) for m in objective.index[objective == "causal"]]


def matched(one: pd.DataFrame, other: pd.DataFrame, alignment: str, rules: Rules) -> list[tuple[str, str]]:
    """Checkpoints of two runs that are alike in tokens seen or in progress: nearest first, each used once.

    Raises:
        Untestable: unknown in one of them, or none within the tolerance.
    """
    column = _COLUMN[alignment]
    places = [
        rows.drop_duplicates("checkpoint").set_index("checkpoint")[column].astype("float64").dropna()
        for rows in (one, other)
    ]
    for rows, known in zip((one, other), places, strict=True):
        if known.empty:
            raise Untestable(f"{column} is not known of {rows['model'].iloc[0]}")
    tolerance = rules.alike.tokens if alignment == "tokens" else rules.alike.progress
    near = []
    for mine, x in places[0].items():
        for theirs, y in places[1].items():
            gap = abs(x - y) / max(x, y) if alignment == "tokens" and max(x, y) > 0 else abs(x - y)
            if gap <= tolerance + 1e-12:
                near.append((gap, str(mine), str(theirs)))
    found: list[tuple[str, str]] = []
    for _, mine, theirs in sorted(near):
        if all(mine != a and theirs != b for a, b in found):
            found.append((mine, theirs))
    if len(found) < rules.enough.steps:
        raise Untestable(f"no checkpoints of the two have equal {column} (within {tolerance:g})")
    return found


def contrast_pair(
    rows: pd.DataFrame,
    encoder: str,
    decoder: str,
    rule: ClaimRule,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
) -> dict[Key, Estimate | Untestable]:
    """Estimates of one encoder less one decoder, for every alignment and control that both have."""
    mine, theirs = rows[rows["model"] == encoder], rows[rows["model"] == decoder]
    found: dict[Key, Estimate | Untestable] = {}
    for part in parts_of(rule):
        for control in _shared_controls(mine, theirs, rules):
            try:
                if mine.empty or theirs.empty:
                    raise Untestable("it was not measured in both")
                if part == EXISTS:
                    found[part, control] = estimate_of_model(theirs, rule, part, control, "energy", gradient, rules, ())
                else:
                    found[part, control] = _pair(mine, theirs, rule, part, control, gradient, rules, pairs)
            except Untestable as lacking:
                found[part, control] = lacking
    return found


def contrast_models(
    rows: pd.DataFrame, encoders: Sequence[str], decoders: Sequence[str], rule: ClaimRule, gradient: str, rules: Rules
) -> dict[Key, Outcome]:
    """Outcomes of encoders less decoders, every one with every other; both kinds of model are samples."""
    each = {(e, d): contrast_pair(rows, e, d, rule, gradient, rules, ()) for e in encoders for d in decoders}
    found: dict[Key, Outcome] = {}
    # Whether decoders show it at all is a statement about decoders alone.
    exists = {d: {key: e for key, e in each[encoders[0], d].items() if key[0] == EXISTS} for d in decoders}
    for key in dict.fromkeys(key for estimates in each.values() for key in estimates if key[0] != EXISTS):
        cells = [[each[e, d].get(key) for d in decoders] for e in encoders]
        lacking = [str(cell) for line in cells for cell in line if isinstance(cell, Untestable)]
        values = [[cell.value for cell in line if isinstance(cell, Estimate)] for line in cells]
        if min(len(encoders), len(decoders)) < rules.enough.models:
            why = f"{len(encoders)} encoders and {len(decoders)} decoders are too few: {rules.enough.models} needed of each"
            pooled_over: Estimate | Untestable = Untestable(why)
        elif any(len(line) < len(decoders) for line in values):
            why = lacking[0] if lacking else f"not all of them have the control {key[1]}"
            pooled_over = Untestable(f"not every encoder can be held against every decoder: {why}")
        else:
            null = threshold_of(rule, key[0], "energy")
            pooled_over = crossed(np.array(values), "models", rules.level, null)
        found[key] = outcome_of(pooled_over, key, rule, "energy")
    return {**found, **over_models(exists, rule, "energy", rules)}


def _shared_controls(mine: pd.DataFrame, theirs: pd.DataFrame, rules: Rules) -> list[str]:
    both = set(mine["control"]) & set(theirs["control"])
    return [NORMAL, *(control for control in rules.controls["energy"] if control in both)]


def _pair(
    mine: pd.DataFrame,
    theirs: pd.DataFrame,
    rule: ClaimRule,
    alignment: str,
    control: str,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
) -> Estimate:
    first, second = (dict(list(rows.groupby("run", sort=True))) for rows in (mine, theirs))
    null = threshold_of(rule, alignment, "energy")
    if len(first) == len(second) == 1:
        found = _difference(next(iter(first.values())), next(iter(second.values())), alignment, control, rules)
        name = f"{mine['model'].iloc[0]} - {theirs['model'].iloc[0]}"
        better = paired_estimate(pairs, rule, name, gradient, control, alignment, rules)
        return found if better is None else replace(better, share=found.share)
    shared = [run for run in first if run in second]
    if len(shared) >= rules.enough.runs:
        each = [_difference(first[run], second[run], alignment, control, rules) for run in shared]
        share = float(np.mean([e.share for e in each]))
        return replace(mean_of([e.value for e in each], "runs", rules.level, null), share=share)
    table = np.array(
        [[_difference(a, b, alignment, control, rules).value for b in second.values()] for a in first.values()]
    )
    return crossed(table, "runs", rules.level, null)


def _difference(one: pd.DataFrame, other: pd.DataFrame, alignment: str, control: str, rules: Rules) -> Estimate:
    """Of one run and another: log odds of E (control ``normal``), or log excess; sites need not have equal names."""
    pairs = matched(one, other, alignment, rules)
    chosen = [
        rows[rows["checkpoint"].isin(names)] for rows, names in zip((one, other), zip(*pairs, strict=True), strict=True)
    ]
    effects = [rows[rows["control"] == NORMAL] for rows in chosen]
    for name in ("seq_len", "unit"):
        if set(effects[0][name].dropna()) != set(effects[1][name].dropna()):
            raise Untestable(f"the two differ in {name}, on which gradient energy depends")
    _equal_ratios(effects[0]["rank_ratio"], effects[1]["rank_ratio"], rules)
    return difference(*(pooled(_odds(rows), _odds(e), control, rules) for rows, e in zip(chosen, effects, strict=True)))


def _equal_ratios(one: pd.Series, other: pd.Series, rules: Rules) -> None:
    ratios = pd.concat([one, other]).dropna()
    if ratios.empty or one.dropna().empty or other.dropna().empty:
        raise Untestable("k/d is not known (energy_share rows with null_mean are missing)")
    if ratios.max() > ratios.min() * (1 + rules.alike.rank_ratio):
        raise Untestable(
            f"k/d differs (from {ratios.min():.3g} to {ratios.max():.3g}): measure both at ranks of equal k/d"
        )


def _odds(rows: pd.DataFrame) -> pd.DataFrame:
    """log R turned into log odds of E, which needs no normal plane and so no width."""
    moved = rows.copy()
    ratio = moved["rank_ratio"].to_numpy(dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(moved["control"] == NORMAL, np.log(ratio) - np.log1p(-ratio), 0.0)
    for name in ("value", "low", "high"):
        moved[name] = moved[name] + shift
    return moved
