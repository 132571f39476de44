"""Hold a geometry frame against the rules of C6 to C8."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from tl_aniso.claims.contrast import UNMEASURED
from tl_aniso.claims.estimates import Untestable
from tl_aniso.claims.geometry_outcomes import Found, of_model, of_models, outcomes_of
from tl_aniso.claims.geometry_rows import EFFECT, checked_rows, rows_of, untrained_of
from tl_aniso.claims.geometry_rules import GeometryClaim, GeometryRules, Quantity, load_geometry_rules
from tl_aniso.claims.outcomes import ALL, Key, Outcome
from tl_aniso.claims.table import COLUMNS, CONTROL_COLUMNS, ClaimsTable, rules_notes
from tl_aniso.claims.verdict_rows import adjusted, verdict_rows
from tl_aniso.errors import TlAnisoError

__all__ = ["judge_geometry"]

_INITIAL = "which is initialisation and does not count"


def judge_geometry(
    frame: Any, rules: GeometryRules | None = None, *, runs: str | None = None, models: Sequence[str] = ()
) -> ClaimsTable:
    """Verdicts on C6 to C8, each as stated and beyond controls, from the geometry frame.

    ``docs/claims.md`` explains each rule; the claims are those of arXiv:2604.08764. Intervals are over runs where a
    model has several, else those of the frame, and over models for the rows "all".

    Args:
        frame: of `frequency_variance` and `local_geometry`, concatenated: models and checkpoints.
        rules: as `load_geometry_rules` returns them; by default those of the library.
        runs: the column that tells trainings of one model apart, such as "seed" where each seed was trained anew.
        models: that have verdicts though the frame may hold no row of them.

    Returns:
        A `ClaimsTable`; ``quantity`` says what was judged: "input embedding", "output embedding", "contextual mean"
        and "contextual variance" of C6, "local geometry" of C7, "local energy" (of single tokens) and "local energy of
        sums" (weights) of C8.

    Raises:
        TlAnisoError: no geometry frame, several measurements of one place (ranks, seeds), one training handed over as
            two.

    Example:
        >>> import pandas as pd
        >>> from tl_aniso.claims import judge_geometry
        >>> text = dict.fromkeys(("revision", "variant", "group", "notes"), "")
        >>> numbers = ("step", "p_value", "control_value", "control_low", "control_high", "difference",
        ...            "difference_low", "difference_high", "n_types")
        >>> row = {"model": "tiny", "site": "blocks.0.hook_resid_pre", "gradient": "activation", "scope": "within",
        ...        "measure": "local_r", "control": "normal", "value": 3.0, "ci_low": 2.0, "ci_high": 4.5, **text,
        ...        **dict.fromkeys(numbers, float("nan"))}
        >>> found = judge_geometry(pd.DataFrame([row])).frame.query("claim == 'C8' and gradient == 'activation'")
        >>> found["verdict"].tolist()
        ['holds', 'not testable']
    """
    rules = load_geometry_rules() if rules is None else rules
    if not isinstance(rules, GeometryRules):
        raise TlAnisoError(
            f"rules must be GeometryRules, as load_geometry_rules returns them, got {type(rules).__name__}"
        )
    seen = checked_rows(frame, rules, runs)
    untrained = untrained_of(frame, rules)
    models = list(dict.fromkeys((*(str(name) for name in frame["model"].dropna()), *models)))
    # Of one table for both there are rows of the input embedding alone.
    inputs = seen[seen["site"] == "embed.W_E"]
    tied = {model for model, notes in zip(inputs["model"], inputs["notes"], strict=True) if "tied" in notes}
    rows: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for claim in rules.claims.values():
        for quantity in claim.quantities.values():
            for gradient in quantity.sites:
                why = dict.fromkeys(models, UNMEASURED)
                only = set(rows_of(untrained, quantity, gradient)["model"])
                why |= dict.fromkeys(only, f"step {rules.after_step:g} alone was measured, {_INITIAL}")
                if "unembed.W_U" in quantity.sites[gradient]:
                    why |= dict.fromkeys(tied, "input and output embedding are tied")
                found = _by_model(rows_of(seen, quantity, gradient), claim, quantity, why, rules)
                added = [_verdicts(outcomes, model, claim, quantity, gradient) for model, outcomes in found.items()]
                rows += adjusted([row for verdicts, _ in added for row in verdicts], rules.level)
                beside += [row for _, tests in added for row in tests]
    return ClaimsTable(
        pd.DataFrame(rows, columns=list(COLUMNS)),
        pd.DataFrame(beside, columns=list(CONTROL_COLUMNS)),
        {name: claim.statement for name, claim in rules.claims.items()},
        rules_notes(rules.source, rules.digest, rules.level),
    )


def _by_model(
    rows: pd.DataFrame,
    claim: GeometryClaim,
    quantity: Quantity,
    why: dict[str, str],
    rules: GeometryRules,
) -> dict[str, dict[Key, Outcome]]:
    """Outcomes by model, and of all together where there are several; `why` is what a model without rows lacks."""
    parts = [claim.parts[name] for name in quantity.parts]
    estimates: dict[str, dict[Key, Found]] = {}
    for model, reason in why.items():
        mine = rows[rows["model"] == model]
        if mine.empty:
            lacking = Untestable(reason)
            # What is shown beside a verdict is nothing to miss.
            wanted = [part for part in parts if part.verdict != "shown"]
            estimates[model] = {(part.name, part.control): (EFFECT, lacking) for part in wanted}
        else:
            estimates[model] = of_model(mine, quantity, parts, rules)
    found = {model: outcomes_of(of, claim.parts, rules) for model, of in estimates.items()}
    if len(why) > 1:
        found[ALL] = of_models(estimates, claim.parts, rules)
    return found


def _verdicts(
    outcomes: dict[Key, Outcome], model: str, claim: GeometryClaim, quantity: Quantity, gradient: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    where = {"claim": claim.name, "quantity": quantity.name, "model": model, "gradient": gradient}
    stated = [
        outcome
        for (name, control), outcome in outcomes.items()
        if name in claim.parts and claim.parts[name].verdict == "as_stated" and control == claim.parts[name].control
    ]
    several = sum(claim.parts[name].verdict != "shown" for name in quantity.parts) > 1
    missing = [
        f"{control} of {name}" if several else control
        for name in quantity.parts
        for control in claim.parts[name].controls
        if (name, control) not in outcomes
    ]
    return verdict_rows(where, stated, list(outcomes.values()), (), missing)
