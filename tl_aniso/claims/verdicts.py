"""From outcomes to a verdict, and the verdict in words."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.outcomes import OFTEN, Outcome
from tl_aniso.claims.single import DEPTH, EXISTS, FALLS, LEVEL, STAYS

__all__ = ["DOES_NOT_HOLD", "HOLDS", "NOT_TESTABLE", "Decision", "decide", "named", "worst_p_value"]

HOLDS, DOES_NOT_HOLD, NOT_TESTABLE = "holds", "does not hold", "not testable"


class Decision(NamedTuple):
    """A verdict, the outcome that it hangs on, and why."""

    verdict: str
    outcome: Outcome | None
    reason: str


def decide(outcomes: Sequence[Outcome], needs: Sequence[str], unmeasured: Sequence[str] = ()) -> Decision:
    """Every decisive test must be passed; one that fails is enough against, one that cannot be said against saying so.

    Args:
        outcomes: of the tests of one verdict.
        needs: controls that must be among them.
        unmeasured: controls that are not, for the reason.
    """
    decisive = [outcome for outcome in outcomes if outcome.decisive]
    failed = [o for o in decisive if o.passes is False]
    if failed:
        worst = min(failed, key=_margin)
        more = f"; of {len(decisive)} tests {len(failed)} fail" if len(decisive) > 1 else ""
        return Decision(DOES_NOT_HOLD, worst, f"{_sentence(worst)}{more}")
    open_ = [o for o in decisive if o.passes is None]
    if open_ or not decisive:
        first = open_[0] if open_ else None
        return Decision(NOT_TESTABLE, first, f"{named(first)}: {first.reason}" if first else "nothing was measured")
    lacking = [name for name in needs if name not in {o.control for o in decisive}]
    # What the claim says, rather than what it presupposes; an effect, rather than a count of models.
    shown = [o for o in decisive if o.part not in (STAYS, EXISTS)] or decisive
    closest = min([o for o in shown if o.scale != "share of models"] or shown, key=_margin)
    if lacking:
        return Decision(NOT_TESTABLE, closest, f"controls that the rules need were not measured: {', '.join(lacking)}")
    reason = _sentence(closest)
    if len({o.control for o in decisive}) > 1:
        reason = f"closest of {len(decisive)} tests: {reason}"
    if unmeasured:
        reason += f"; not measured: {', '.join(unmeasured)}"
    return Decision(HOLDS, closest, reason)


def named(outcome: Outcome) -> str:
    """What an outcome is of, in words."""
    if outcome.words:
        return outcome.words
    over = "" if outcome.control == NORMAL else f" over {outcome.control}"
    energy = "R" if outcome.control == NORMAL else "excess"
    if outcome.part == OFTEN and outcome.scale == "share of models":
        return "share of models in which R is as large as claimed"
    if outcome.scale == "share of models":
        return f"share of models in which R is {'late still ' if outcome.part == STAYS else ''}above 1, by its interval"
    effect = f"{energy}{over}" if outcome.scale == "ratio" else f"delta IsoScore*{_removed(outcome.control)}"
    if outcome.part == DEPTH:
        return f"rank correlation with depth (control {outcome.control})"
    if outcome.part in (LEVEL, OFTEN):
        return effect
    if outcome.part == EXISTS:
        return f"{effect} (which must exist)"
    if outcome.part in (FALLS, STAYS):
        if outcome.part == STAYS:
            return f"late {effect}"
        return f"{effect}, early {'over' if outcome.scale == 'ratio' else 'less'} late"
    what = "odds of E" if outcome.control == NORMAL else effect
    return f"{what}, encoder over decoder at equal {outcome.part}"


def _removed(control: str) -> str:
    return "" if control == NORMAL else f" against removing {control}"


def _margin(outcome: Outcome) -> float:
    """How far beyond the threshold, on the claimed side; the nearest decides what is shown."""
    if outcome.estimate is None or not math.isfinite(outcome.estimate.value):
        return math.inf
    margin = outcome.estimate.value - outcome.threshold
    return margin if outcome.side == "above" else -margin


def _sentence(outcome: Outcome) -> str:
    estimate = outcome.estimate
    if estimate is None:
        return f"{named(outcome)}: {outcome.reason}"
    value, threshold = outcome.natural(estimate.value), outcome.natural(outcome.threshold)
    if outcome.scale == "share of models":
        passed = round(value * estimate.n)  # "1 of 2" alone would read as one model of two
        return f"{named(outcome)} is {value:.2g} ({passed} of {estimate.n} models), {threshold:g} claimed"
    low, high = outcome.natural(estimate.low), outcome.natural(estimate.high)
    if math.isnan(estimate.low) and math.isfinite(estimate.p_value):
        side = "on the claimed side" if (value > threshold) == (outcome.side == "above") else "on the other side"
        return f"{named(outcome)} is {value:.3g}, {side} of {threshold:g}, p = {estimate.p_value:.2g}"
    text = f"{named(outcome)} is {value:.3g} (interval {low:.3g} to {high:.3g} over {estimate.how})"
    if outcome.passes:
        return f"{text}, {outcome.side} {threshold:g}"
    opposite = estimate.high <= outcome.threshold if outcome.side == "above" else estimate.low >= outcome.threshold
    if opposite:
        return f"{text}, on the other side of {threshold:g} than claimed"
    return f"{text}, which contains {threshold:g}"


def worst_p_value(outcomes: Sequence[Outcome]) -> float:
    """p of a verdict that needs every test: the largest of theirs; NaN unless each has one."""
    found = [math.nan if o.estimate is None else o.estimate.p_value for o in outcomes if o.decisive]
    return max(found) if found and all(math.isfinite(p) for p in found) else math.nan
