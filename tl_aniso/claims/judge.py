"""Hold a frame of results against the rules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from tl_aniso.claims.cells import Cells, gather
from tl_aniso.claims.contrast import UNMEASURED, contrast_models, contrast_pair, kinds_of
from tl_aniso.claims.estimates import Estimate, Untestable
from tl_aniso.claims.observations import NORMAL, lacking_of, observations
from tl_aniso.claims.outcomes import ALL, OFTEN, Key, Outcome, outcome_of, over_models, over_runs
from tl_aniso.claims.paired import Paired, checked_pairs
from tl_aniso.claims.rules import ClaimRule, Rules, load_rules
from tl_aniso.claims.single import LEVEL, parts_of
from tl_aniso.claims.table import COLUMNS, CONTROL_COLUMNS, ClaimsTable, rules_notes
from tl_aniso.claims.verdict_rows import adjusted, verdict_rows
from tl_aniso.errors import TlAnisoError

__all__ = ["judge"]


def judge(
    frame: Any,
    rules: Rules | None = None,
    *,
    differences: Sequence[Paired] = (),
    runs: str | None = None,
    contrasts: Sequence[tuple[str, str]] | None = None,
) -> ClaimsTable:
    """Verdicts on the claims, each as stated (against a normal plane) and beyond controls (against all of them).

    ``docs/claims.md`` explains each rule; the claims are those of arXiv:2604.08764. Intervals are over runs where a
    model has several, else over documents (or planes drawn, or layers), and over models for the rows "all".

    Args:
        frame: of `TangentEnergy` and `AblationIsotropy`, concatenated: models, checkpoints, phases, one rank each.
        rules: as `load_rules` returns them; by default those of the library.
        differences: paired differences of energies, for claims about early against late and encoder against decoder;
            where a model has one run their intervals replace those that the frame alone can give, which are wider.
        runs: the column that tells trainings of one model apart, such as "seed" where each seed was trained anew.
        contrasts: pairs (encoder, decoder) that differ in objective and mask alone, each with a row of its own; by
            default the one encoder and the one decoder, where there is one of each.

    Returns:
        A `ClaimsTable`.

    Raises:
        TlAnisoError: no frame of results, several measurements of one place (ranks, seeds), one training handed over
            as two, differences or contrasts of models that the frame does not hold.

    Example:
        >>> import pandas as pd, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import tangent_energy
        >>> from tl_aniso.claims import judge
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> result = tangent_energy(LlamaForCausalLM(config), documents, progress=False)
        >>> table = judge(result.frame)
        >>> table.frame.query("claim == 'C3' and quantity == 'energy'")["verdict"].unique().tolist()
        ['not testable']
    """
    rules = load_rules() if rules is None else rules
    if not isinstance(rules, Rules):
        raise TlAnisoError(f"rules must be Rules, as load_rules returns them, got {type(rules).__name__}")
    seen = observations(frame, rules, runs)
    cells, lacking = gather(seen), lacking_of(frame, rules)
    models = [str(name) for name in dict.fromkeys(frame["model"])]
    encoders, decoders = kinds_of(frame)
    chosen = _contrasts(contrasts, encoders, decoders)
    pairs = checked_pairs(differences, rules, [*models, *(f"{e} - {d}" for e, d in chosen)])
    rows: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for rule in rules.claims.values():
        for quantity, gradients in rule.gradients.items():
            for gradient in gradients:
                mine = cells.get((quantity, gradient), {})
                why = {name: lacking.get((quantity, gradient, name), UNMEASURED) for name in models}
                if rule.test == "contrast":
                    found = _contrasted(mine, rule, gradient, rules, pairs, encoders, decoders, chosen, why)
                else:
                    found = _levels(mine, rule, quantity, gradient, rules, pairs, why)
                added = [
                    _verdicts(outcomes, model, rule, quantity, gradient, rules) for model, outcomes in found.items()
                ]
                rows += adjusted([row for verdicts, _ in added for row in verdicts], rules.level)
                beside += [row for _, tests in added for row in tests]
    return ClaimsTable(
        pd.DataFrame(rows, columns=list(COLUMNS)),
        pd.DataFrame(beside, columns=list(CONTROL_COLUMNS)),
        {name: rule.statement for name, rule in rules.claims.items()},
        tuple(_notes(seen, rules, runs)),
    )


def _contrasts(given: Any, encoders: Sequence[str], decoders: Sequence[str]) -> list[tuple[str, str]]:
    if given is None:
        return [(encoders[0], decoders[0])] if len(encoders) == len(decoders) == 1 else []
    found = []
    for pair in given:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TlAnisoError(f"contrasts must hold pairs (encoder, decoder), got {pair!r}")
        for name, among, what in zip(pair, (encoders, decoders), ("an encoder", "a decoder"), strict=True):
            if name not in among:
                raise TlAnisoError(
                    f"contrasts names {name!r}, which the frame does not hold as {what}; known are {', '.join(among)}"
                )
        found.append((str(pair[0]), str(pair[1])))
    return found


def _outcomes(estimates: Mapping[Key, Estimate | Untestable], rule: ClaimRule, quantity: str) -> dict[Key, Outcome]:
    return {key: outcome_of(found, key, rule, quantity) for key, found in estimates.items()}


def _levels(
    cells: Mapping[str, Sequence[Cells]],
    rule: ClaimRule,
    quantity: str,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
    lacking: Mapping[str, str],
) -> dict[str, dict[Key, Outcome]]:
    """Outcomes by model, and of all together where there are several; `lacking` is why one would have nothing."""
    estimates: dict[str, dict[Key, Estimate | Untestable]] = {}
    for model, why in lacking.items():
        mine = cells.get(model)
        if not mine:
            estimates[model] = {(part, NORMAL): Untestable(why) for part in parts_of(rule)}
        else:
            estimates[model] = over_runs(mine, rule, quantity, gradient, rules, pairs)
    found = {model: _outcomes(of, rule, quantity) for model, of in estimates.items()}
    if rule.often is not None:
        for outcomes in found.values():
            level = outcomes[LEVEL, NORMAL]
            if level.estimate is not None:
                threshold = math.log(rule.often.ratio)
                reached = level.estimate.value >= threshold
                outcomes[OFTEN, NORMAL] = replace(
                    level, part=OFTEN, threshold=threshold, passes=reached, decisive=False, reason="shown, not decisive"
                )
    if len(lacking) > 1:
        found[ALL] = over_models(estimates, rule, quantity, rules)
    return found


def _contrasted(
    cells: Mapping[str, Sequence[Cells]],
    rule: ClaimRule,
    gradient: str,
    rules: Rules,
    pairs: Sequence[Paired],
    encoders: Sequence[str],
    decoders: Sequence[str],
    chosen: Sequence[tuple[str, str]],
    why: Mapping[str, str],
) -> dict[str, dict[Key, Outcome]]:
    found = {
        f"{e} - {d}": _outcomes(contrast_pair(cells, e, d, rule, gradient, rules, pairs, why), rule, "energy")
        for e, d in chosen
    }
    if not encoders or not decoders:
        which = "encoder" if not encoders else "decoder"
        lacking = Untestable(f"no {which} was measured")
        found[ALL] = _outcomes({(part, NORMAL): lacking for part in parts_of(rule)}, rule, "energy")
    elif len(encoders) + len(decoders) > 2:
        found[ALL] = contrast_models(cells, encoders, decoders, rule, gradient, rules, why)
    return found


def _verdicts(
    outcomes: Mapping[Key, Outcome], model: str, rule: ClaimRule, quantity: str, gradient: str, rules: Rules
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    where = {"claim": rule.name, "quantity": quantity, "model": model, "gradient": gradient}
    everything = list(outcomes.values())
    stated = [outcome for outcome in everything if outcome.control == NORMAL]
    present = {outcome.control for outcome in everything}
    missing = [control for control in rules.controls[quantity] if control not in present]
    return verdict_rows(where, stated, everything, rules.needs[quantity].get(gradient, ()), missing)


def _notes(seen: pd.DataFrame, rules: Rules, runs: str | None) -> list[str]:
    notes = [*rules_notes(rules.source, rules.digest, rules.level)]
    if (seen["how"] == "planes drawn").any() and runs is None:
        notes.append("intervals of isotropy are bands over planes drawn: they say nothing of other text or trainings")
    if len(seen) and seen["phase"].isna().all():
        notes.append("no checkpoint has a phase, so nothing is said about early or late")
    return notes
