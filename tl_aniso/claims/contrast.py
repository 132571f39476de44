"""Encoders less decoders, at equal k/d and at matched checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from tl_aniso.claims.cells import Cells
from tl_aniso.claims.estimates import Estimate, Untestable, crossed, difference, mean_of
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.outcomes import Key, Outcome, estimate_of_model, outcome_of, over_models, threshold_of
from tl_aniso.claims.paired import Paired, paired_estimate
from tl_aniso.claims.rules import ClaimRule, Rules
from tl_aniso.claims.single import EXISTS, parts_of, pooled

__all__ = ["UNMEASURED", "contrast_models", "contrast_pair", "kinds_of", "matched"]

UNMEASURED = "it was not measured"
_COLUMN = {"tokens": "tokens_seen", "progress": "progress"}


def kinds_of(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Models trained as encoders (masked LM) and as decoders (causal LM), by the objective they were measured with."""
    objective = rows.drop_duplicates("model").set_index("model")["objective"].map(str)
    encoders = [str(m) for m in objective.index[objective.str.startswith("masked")]]
    return encoders, [str(m) for m in objective.index[objective == "causal"]]


def matched(one: Cells, other: Cells, alignment: str, rules: Rules) -> list[tuple[int, int]]:
    """Checkpoints of two runs that are alike in tokens seen or in progress: nearest first, each used once.

    Returns:
        Their positions in the two runs.

    Raises:
        Untestable: unknown in one of them, or none within the tolerance.
    """
    tolerance = rules.alike.tokens if alignment == "tokens" else rules.alike.progress
    for cells in (one, other):
        if not np.isfinite(cells.places[alignment]).any():
            raise Untestable(f"{_COLUMN[alignment]} is not known of {cells.model}")
    near = []
    for i, x in enumerate(one.places[alignment]):
        for j, y in enumerate(other.places[alignment]):
            gap = abs(x - y) / max(x, y) if alignment == "tokens" and max(x, y) > 0 else abs(x - y)
            if gap <= tolerance + 1e-12:
                near.append((float(gap), i, j))
    found: list[tuple[int, int]] = []
    for _, i, j in sorted(near):
        if all(i != a and j != b for a, b in found):
            found.append((i, j))
    if len(found) < rules.enough.steps:
        raise Untestable(f"no checkpoints of the two have equal {_COLUMN[alignment]} (within {tolerance:g})")
    return found


def contrast_pair(
    cells: Mapping[str, Sequence[Cells]],
    encoder: str,
    decoder: str,
    rule: ClaimRule,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
    why: Mapping[str, str],
) -> dict[Key, Estimate | Untestable]:
    """Estimates of one encoder less one decoder, for every alignment and control that both have.

    `why` says, by model, why nothing of it enters where that is so.
    """
    mine, theirs = cells.get(encoder, ()), cells.get(decoder, ())
    found: dict[Key, Estimate | Untestable] = {}
    for part in parts_of(rule):
        for control in _shared_controls(mine, theirs, rules):
            try:
                absent = [name for name in (encoder, decoder) if not cells.get(name)]
                if absent:
                    raise Untestable("; ".join(f"{name}: {why.get(name, UNMEASURED)}" for name in absent))
                if part == EXISTS:
                    found[part, control] = estimate_of_model(theirs, rule, part, control, gradient, rules, ())
                else:
                    found[part, control] = _pair(mine, theirs, rule, part, control, gradient, rules, pairs)
            except Untestable as lacking:
                found[part, control] = lacking
    return found


def contrast_models(
    cells: Mapping[str, Sequence[Cells]],
    encoders: Sequence[str],
    decoders: Sequence[str],
    rule: ClaimRule,
    gradient: str,
    rules: Rules,
    why: Mapping[str, str],
) -> dict[Key, Outcome]:
    """Outcomes of encoders less decoders, every one with every other; both kinds of model are samples."""
    each = {(e, d): contrast_pair(cells, e, d, rule, gradient, rules, (), why) for e in encoders for d in decoders}
    found: dict[Key, Outcome] = {}
    for key in dict.fromkeys(key for estimates in each.values() for key in estimates if key[0] != EXISTS):
        grid = [[each[e, d].get(key) for d in decoders] for e in encoders]
        if any(cell is None for line in grid for cell in line):
            continue  # a control that some of them lack was not measured for all together
        lacking = [str(cell) for line in grid for cell in line if isinstance(cell, Untestable)]
        values = [[cell.value for cell in line if isinstance(cell, Estimate)] for line in grid]
        if min(len(encoders), len(decoders)) < rules.enough.models:
            few = f"{len(encoders)} encoders and {len(decoders)} decoders: {rules.enough.models} needed of each"
            pooled_over: Estimate | Untestable = Untestable(few)
        elif any(len(line) < len(decoders) for line in values):
            pooled_over = Untestable(f"not every encoder can be held against every decoder: {lacking[0]}")
        else:
            null = threshold_of(rule, key[0], "energy")
            pooled_over = crossed(np.array(values), "models", rules.level, null)
        found[key] = outcome_of(pooled_over, key, rule, "energy")
    # Whether decoders show it at all is a statement about decoders alone.
    common = {control for _, control in found}
    exists = {d: {k: e for k, e in each[encoders[0], d].items() if k[0] == EXISTS and k[1] in common} for d in decoders}
    return {**found, **over_models(exists, rule, "energy", rules)}


def _shared_controls(mine: Sequence[Cells], theirs: Sequence[Cells], rules: Rules) -> list[str]:
    held = [{control for run in runs for control in run.ends} for runs in (mine, theirs)]
    return [NORMAL, *(control for control in rules.controls["energy"] if all(control in names for names in held))]


def _pair(
    mine: Sequence[Cells],
    theirs: Sequence[Cells],
    rule: ClaimRule,
    alignment: str,
    control: str,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
) -> Estimate:
    first, second = ({run.run: run for run in runs} for runs in (mine, theirs))
    null = threshold_of(rule, alignment, "energy")
    if len(first) == len(second) == 1:
        found = _difference(mine[0], theirs[0], alignment, control, rules)
        name = f"{mine[0].model} - {theirs[0].model}"
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


def _difference(one: Cells, other: Cells, alignment: str, control: str, rules: Rules) -> Estimate:
    """Of one run and another: log odds of E (control ``normal``), or log excess; sites need not have equal names."""
    pairs = matched(one, other, alignment, rules)
    chosen = []
    for cells, positions in zip((one, other), zip(*pairs, strict=True), strict=True):
        keep = np.zeros(len(cells.checkpoints), dtype=bool)
        keep[list(positions)] = True
        chosen.append(cells.at(keep))
    for name in ("seq_len", "unit"):
        if chosen[0].occurring(name) != chosen[1].occurring(name):
            raise Untestable(f"the two differ in {name}, on which gradient energy depends")
    _refuse_unequal([cells.facts["rank_ratio"] for cells in chosen], rules)
    return difference(*(pooled(cells.as_odds(), control, rules) for cells in chosen))


def _refuse_unequal(ratios: Sequence[Float[np.ndarray, "sites checkpoints"]], rules: Rules) -> None:
    known = [table[np.isfinite(table)] for table in ratios]
    if not all(len(values) for values in known):
        raise Untestable("k/d is not known (energy_share rows with null_mean are missing)")
    every = np.concatenate(known)
    if every.max() > every.min() * (1 + rules.alike.rank_ratio):
        raise Untestable(f"k/d differs (from {every.min():.3g} to {every.max():.3g}): measure both at equal k/d")
