"""Rows of the table of verdicts, from the outcomes of tests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tl_aniso.claims.estimates import Estimate
from tl_aniso.claims.outcomes import ALL, Outcome
from tl_aniso.claims.verdicts import DOES_NOT_HOLD, HOLDS, decide, worst_p_value
from tl_aniso.multiple_testing import holm

__all__ = ["AS_STATED", "BEYOND", "adjusted", "verdict_rows"]

AS_STATED, BEYOND = "as_stated", "beyond_controls"


def verdict_rows(
    where: Mapping[str, str],
    stated: Sequence[Outcome],
    everything: Sequence[Outcome],
    needs: Sequence[str],
    missing: Sequence[str],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both verdicts, and one row for every test behind them.

    Args:
        where: claim, quantity, model and gradient.
        stated: what the verdict as stated looks at.
        everything: what is looked at beyond controls.
        needs: controls without which nothing is said beyond controls.
        missing: controls that were not measured.
    """
    rows = []
    for kind, chosen, needed, unmeasured in ((AS_STATED, stated, (), ()), (BEYOND, everything, needs, missing)):
        verdict, shown, reason = decide(chosen, needed, unmeasured)
        rows.append(
            {
                **where,
                "kind": kind,
                "verdict": verdict,
                **_numbers(shown),
                "p_value": worst_p_value(chosen),
                "p_holm": math.nan,
                "reason": reason,
            }
        )
    tests = [
        {
            **where,
            **_numbers(outcome),
            "p_value": math.nan if outcome.estimate is None else outcome.estimate.p_value,
            "passes": outcome.passes,
            "decisive": outcome.decisive,
            "reason": outcome.reason,
        }
        for outcome in everything
    ]
    return rows, tests


def _numbers(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {}
    estimate = outcome.estimate or Estimate(math.nan, n=0)
    return {
        "part": outcome.part,
        "control": outcome.control,
        "effect": outcome.natural(estimate.value),
        "ci_low": outcome.natural(estimate.low),
        "ci_high": outcome.natural(estimate.high),
        "threshold": outcome.natural(outcome.threshold),
        "scale": outcome.scale,
        # Without ends there is no interval to name.
        "interval": estimate.how if math.isfinite(estimate.low) or outcome.scale == "share of models" else "",
        "n": estimate.n,
        "share": estimate.share,
    }


def adjusted(rows: list[dict[str, Any]], level: float) -> list[dict[str, Any]]:
    """Holm over models, within one claim, quantity, gradient and kind of verdict; the row "all" is no member."""
    for kind in (AS_STATED, BEYOND):
        family = [row for row in rows if row["kind"] == kind and row["model"] != ALL]
        p_values = holm([row["p_value"] for row in family])
        n = sum(not math.isnan(row["p_value"]) for row in family)
        for row, p in zip(family, p_values, strict=True):
            row["p_holm"] = float(p)
            if row["verdict"] == HOLDS and p > 1 - level:
                row["verdict"] = DOES_NOT_HOLD
                row["reason"] += f"; but among {n} models that were tested p is {p:.2g} (Holm)"
    return rows
