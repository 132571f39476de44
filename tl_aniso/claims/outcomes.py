"""One outcome per (part, control): an estimate against a threshold, over runs of a model and over models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tl_aniso.claims.cells import Cells
from tl_aniso.claims.estimates import Estimate, Untestable, mean_of
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.paired import Paired, paired_estimate
from tl_aniso.claims.rules import ClaimRule, Rules
from tl_aniso.claims.single import EXISTS, FALLS, LEVEL, STAYS, estimate_of_run, parts_of

__all__ = [
    "ALL",
    "OFTEN",
    "Key",
    "Outcome",
    "counted",
    "estimate_of_model",
    "outcome_of",
    "over_models",
    "over_runs",
    "threshold_of",
]

ALL, OFTEN = "all", "often"

Key: TypeAlias = tuple[str, str]  # part, control


@dataclass(frozen=True)
class Outcome:
    """A test and how it came out.

    Attributes:
        part: the statement tested, one of several that a claim may be made of.
        control: against which control.
        scale: "ratio" (the estimate holds logarithms), "difference", "correlation" or "share of models".
        threshold: on the estimate's additive scale.
        side: "above" or "below".
        estimate: None where there is none.
        passes: None where it cannot be said.
        decisive: whether the verdict depends on it.
        reason: why it cannot be said.
        words: what it is of, in words; empty where part, control and scale say it.
    """

    part: str
    control: str
    scale: str
    threshold: float
    side: str
    estimate: Estimate | None
    passes: bool | None
    decisive: bool = True
    reason: str = field(default="")
    words: str = field(default="")

    def natural(self, value: float) -> float:
        """A value as a reader wants it: ratios instead of their logarithms."""
        if self.scale != "ratio" or not math.isfinite(value):
            return value
        return math.exp(value) if value < 700 else math.inf


def threshold_of(rule: ClaimRule, part: str, quantity: str) -> float:
    """The threshold on the additive scale; what stays or exists is held against the null of the effect itself."""
    if part in (STAYS, EXISTS):
        return 0.0
    value = rule.threshold[quantity]
    return math.log(value) if quantity == "energy" and rule.test != "depth" else value


def outcome_of(found: Estimate | Untestable, key: Key, rule: ClaimRule, quantity: str) -> Outcome:
    """Held against the threshold: the whole interval decides, never the estimate alone."""
    part, control = key
    is_effect = part in (STAYS, EXISTS)
    scale = "ratio" if quantity == "energy" else "difference"
    if rule.test == "depth" and not is_effect:
        scale = "correlation"
    side = "above" if is_effect else rule.side
    bare = Outcome(part, control, scale, threshold_of(rule, part, quantity), side, None, None)
    if isinstance(found, Untestable):
        return replace(bare, reason=str(found))
    if not (math.isfinite(found.value) and math.isfinite(found.low) and math.isfinite(found.high)):
        return replace(bare, estimate=found, reason=found.why_none or "the interval is not finite")
    passes = found.low > bare.threshold if side == "above" else found.high < bare.threshold
    return replace(bare, estimate=found, passes=passes)


def over_runs(
    cells: Sequence[Cells], rule: ClaimRule, quantity: str, gradient: str, rules: Rules, pairs: Sequence[Paired]
) -> dict[Key, Estimate | Untestable]:
    """Estimates of one model: over its runs where there are several, else of the one run.

    Args:
        cells: runs of one model, of one quantity and gradient.
        rule: of the claim.
        quantity: "energy" or "isotropy".
        gradient: kind of gradient.
        rules: all rules.
        pairs: paired differences, used where there is one run.
    """
    controls = dict.fromkeys([NORMAL, *(c for c in rules.controls[quantity] if any(c in run.ends for run in cells))])
    found: dict[Key, Estimate | Untestable] = {}
    for part in parts_of(rule):
        for control in controls:
            try:
                found[part, control] = estimate_of_model(cells, rule, part, control, gradient, rules, pairs)
            except Untestable as lacking:
                found[part, control] = lacking
    return found


def estimate_of_model(
    cells: Sequence[Cells],
    rule: ClaimRule,
    part: str,
    control: str,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
) -> Estimate:
    """One part against one control, over the runs of one model where there are several.

    Raises:
        Untestable: in one of its runs, or fewer runs than the rules ask for.
    """
    quantity = cells[0].quantity
    null = threshold_of(rule, part, quantity)
    each = []
    for run in cells:
        try:
            each.append(estimate_of_run(run, rule, part, control, rules, null))
        except Untestable as lacking:
            raise Untestable(f"{lacking} (run {run.run})" if run.run else str(lacking)) from None
    if len(each) >= rules.enough.runs:
        shares = float(np.mean([e.share for e in each]))
        grain = max(e.grain for e in each)
        return replace(mean_of([e.value for e in each], "runs", rules.level, null, grain), share=shares)
    if len(each) > 1:
        raise Untestable(f"{len(each)} runs were measured, {rules.enough.runs} needed")
    if part == FALLS and quantity == "energy":
        better = paired_estimate(pairs, rule, cells[0].model, gradient, control, "", rules)
        if better is not None:
            return replace(better, share=each[0].share)
    return each[0]


def over_models(
    found: Mapping[str, Mapping[Key, Estimate | Untestable]], rule: ClaimRule, quantity: str, rules: Rules
) -> dict[Key, Outcome]:
    """Outcomes of all models together: t over their effects, and shares of models for R, which grows with width."""
    keys = dict.fromkeys(key for estimates in found.values() for key in estimates)
    together: dict[Key, Outcome] = {}
    for key in keys:
        if key[1] != NORMAL and sum(key in of for of in found.values()) < rules.enough.models:
            continue  # measured in a single model, which has its own row: of all of them it is not measured
        known = [e for of in found.values() if isinstance(e := of.get(key), Estimate) and math.isfinite(e.value)]
        if len(known) < rules.enough.models:
            lacking = next((str(of[key]) for of in found.values() if isinstance(of.get(key), Untestable)), "")
            why = f"{len(known)} models have a value, {rules.enough.models} needed" + (
                f" ({lacking})" if lacking else ""
            )
            together[key] = outcome_of(Untestable(why), key, rule, quantity)
        elif quantity == "energy" and key[1] == NORMAL and key[0] in (LEVEL, STAYS, EXISTS):
            outcomes = [outcome_of(estimate, key, rule, quantity) for estimate in known]
            together[key] = counted(
                [o.passes for o in outcomes], key, rules.enough.share_of_models, rules.enough.models
            )
        else:
            null = threshold_of(rule, key[0], quantity)
            grain = max(estimate.grain for estimate in known)
            pooled = mean_of([estimate.value for estimate in known], "models", rules.level, null, grain)
            together[key] = outcome_of(pooled, key, rule, quantity)
    if rule.often is not None and (LEVEL, NORMAL) in keys:
        ratios = [e.value for of in found.values() if isinstance(e := of.get((LEVEL, NORMAL)), Estimate)]
        reached = [ratio >= math.log(rule.often.ratio) for ratio in ratios if math.isfinite(ratio)]
        together[OFTEN, NORMAL] = counted(reached, (OFTEN, NORMAL), rule.often.share_of_models, rules.enough.models)
    return together


def counted(passed: Sequence[bool | None], key: Key, threshold: float, least: int) -> Outcome:
    """Whether a share of models passes, of at least `least` of which it can be said."""
    known = [entry for entry in passed if entry is not None]
    bare = Outcome(*key, "share of models", threshold, "above", None, None)
    if len(known) < least:
        return replace(bare, reason=f"of {len(known)} models it can be said, {least} needed")
    share = sum(known) / len(known)
    # Rounding must not turn eight of ten into less than 0.8.
    return replace(
        bare, estimate=Estimate(share, how="count of models", n=len(known)), passes=share >= threshold - 1e-9
    )
