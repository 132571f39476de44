"""What a pair says about C5, in words: computed from its numbers, as it came out."""

from typing import Any

import numpy as np

from tl_aniso.pair.compare import WINDOWS
from tl_aniso.pair.figures import pair_values
from tl_aniso.pair.run import CONTROLS, KINDS, PairResult
from tl_aniso.pair.verdict import Judged, PairVerdict, combined, judge
from tl_aniso.results import group_of
from tl_aniso.viz.reading import Finding, Reading
from tl_aniso.viz.style import control_name, number
from tl_aniso.viz.wording import joined

__all__ = ["LEFT_THE_PLATEAU", "isotropy_deltas", "read_pair"]

# The encoder counts as having left the plateau of word frequencies from here on, in nats under unigram entropy.
LEFT_THE_PLATEAU = 0.5


def read_pair(result: PairResult) -> Reading:
    """C5 as stated and beyond controls, window by window, the losses behind it, and what it does not mean."""
    judged = judge(result.differences)
    stated = {j.window: j for j in judged if j.control == "none"}
    beyond = {window: [j for j in judged if j.window == window and j.control != "none"] for window in WINDOWS}
    findings = [_plateau(result)]
    for window in WINDOWS:
        findings.append(_stated(window, stated.get(window), result))
    for window in WINDOWS:
        findings.append(_beyond(window, beyond[window]))
    findings.append(_isotropy(result))
    verdicts = {window: stated[window].verdict if window in stated else "not known" for window in WINDOWS}
    further = {window: combined([j.verdict for j in beyond[window]]) for window in WINDOWS}
    summary = (
        f"{findings[0].text} C5, that the concentration is weaker in encoders than in decoders: as stated, by E at "
        f"equal k/d, it {_listed(verdicts)}. Beyond controls, by the excess over each of "
        f"{joined([control_name(control) for control in CONTROLS])}, it {_listed(further)}. "
        f"(Readers, {_seeds(result)}; holds: every seed's interval of the difference lies above 0; does not hold: "
        "every seed's lies below; unclear: all else.)"
    )
    return Reading(summary, tuple(findings), _cautions(result))


def isotropy_deltas(result: PairResult) -> dict[tuple[str, int, str], float]:
    """Mean gain in IsoScore* by removing the tangent plane rather than a normal one, after step 0.

    Returns:
        By kind, seed and "weight gradients of readers" or "activation gradients": means over steps and sites.
    """
    found: dict[tuple[str, int, str], float] = {}
    for run in result.runs:
        rows = run.frame[(run.frame["measure"] == "delta_isoscore_star") & (run.frame["step"] > 0)]
        weight = rows[(rows["gradient"] == "weight") & (rows["site"].map(group_of) == "readers")]
        activation = rows[(rows["gradient"] == "activation") & rows["site"].str.contains(".hook_resid_", regex=False)]
        found[run.kind, run.seed, "weight gradients of readers"] = float(weight["value"].mean())
        found[run.kind, run.seed, "activation gradients"] = float(activation["value"].mean())
    return found


def _plateau(result: PairResult) -> Finding:
    under = {
        kind: [run.unigram - list(run.held.values())[-1] for run in result.runs if run.kind == kind] for kind in KINDS
    }
    own = {kind: result.run(result.seeds[0], kind).unigram for kind in KINDS}
    text = (
        f"At the end the encoder's held-out loss is {_each(under['encoder'])} nats below the unigram entropy of its "
        f"targets ({own['encoder']:.2f}), the decoder's {_each(under['decoder'])} below that of its own "
        f"({own['decoder']:.2f})."
    )
    claim = f"The encoder left the plateau of word frequencies by {LEFT_THE_PLATEAU} nats or more"
    return Finding(claim, "holds" if min(under["encoder"]) >= LEFT_THE_PLATEAU else "does not hold", text)


def _stated(window: str, judged: Judged | None, result: PairResult) -> Finding:
    claim = f"C5 as stated, {window}: the decoder's readers hold more of their gradient energy in the tangent planes"
    if judged is None:
        return Finding(claim, "not known", _nothing(window))
    parts = [
        f"seed {row['seed']}: E {row['decoder']:.3f} and {row['encoder']:.3f}, difference {_signed(row)}"
        for row in judged.rows.to_dict("records")
    ]
    text = f"Decoder and encoder, means over sites and checkpoints: {'; '.join(parts)}. {_agree(judged)}"
    if window == WINDOWS[-1]:
        text += f" {_matched(result)}"
    return Finding(claim, judged.verdict, text)


def _beyond(window: str, judged: list[Judged]) -> Finding:
    claim = f"C5 beyond controls, {window}: the decoder's excess is the larger over every control"
    if not judged:
        return Finding(claim, "not known", _nothing(window))
    parts = []
    for one in judged:
        ratios = joined([_ratio(row) for row in one.rows.to_dict("records")])
        parts.append(f"{control_name(one.control)} {ratios}: {one.verdict}")
    text = f"Excess of the decoder over that of the encoder, seed by seed: {'; '.join(parts)}."
    no_more = [control_name(one.control) for one in judged if (one.rows[["decoder", "encoder"]].to_numpy() <= 1).all()]
    if no_more:
        text += (
            f" Over {joined(no_more)} neither has any excess (1 or less in every seed): what is compared there is by "
            "how much the control exceeds the gradient, not a preference of gradients."
        )
    return Finding(claim, combined([one.verdict for one in judged]), text)


def _isotropy(result: PairResult) -> Finding:
    deltas = isotropy_deltas(result)
    kinds = ("weight gradients of readers", "activation gradients")
    claim = "Removing the tangent plane rather than a normal one raises IsoScore* more in the decoder"
    parts, signs = [], []
    for kind in kinds:
        seeds = []
        for seed in result.seeds:
            one, other = deltas["decoder", seed, kind], deltas["encoder", seed, kind]
            seeds.append(f"seed {seed} {one:+.3f} and {other:+.3f}")
            signs.append(one - other)
        parts.append(f"{kind}: {', '.join(seeds)}")
    text = (
        f"Decoder and encoder, means over sites and all checkpoints after the first: {'; '.join(parts)}. "
        "Isotropy is not kept by document, so there is no interval; by sign alone."
    )
    verdict: PairVerdict = "unclear"
    if not np.isfinite(signs).all():
        verdict = "not known"
    elif all(sign > 0 for sign in signs):
        verdict = "holds"
    elif all(sign <= 0 for sign in signs):
        verdict = "does not hold"
    return Finding(claim, verdict, text)


def _cautions(result: PairResult) -> tuple[str, ...]:
    recipe = result.recipe
    early = [
        run.progress[max(step for step in run.progress if step <= 0.3 * recipe.n_steps)]
        for run in result.runs
        if run.kind == "encoder"
    ]
    values = pair_values(result)
    first = values[(values["step"] == 0) & (values["panel"] == "readers") & (values["quantity"] == "E")]
    start = {kind: [f"{value:.2f}" for value in first.loc[first["kind"] == kind, "value"]] for kind in KINDS}
    return (
        f"At step 0, with equal weights, E of readers is {joined(start['decoder'])} in the decoder and "
        f"{joined(start['encoder'])} in the encoder: so far E differs by what is fed, predicted and attended to, "
        "in planes fitted later, without any learning.",
        f"Intervals are over text, for one training each; over {_seeds(result)} there are both values and no interval.",
        f"The encoder's gradient sums the losses of the tokens it must predict, {recipe.mask_rate:.0%} of them; the "
        "decoder's sums those of all but the first, each predicted "
        "from the ones before it. E grows with the terms in a sum; controls are made from the very "
        "same positions, so excess feels this less.",
        f"{recipe.mask_rate:.0%} of what the encoder reads is masked, most of it one and the same mask token. That is "
        "part of the objective, and of the activations that its planes are fitted on.",
        "Planes are each model's own, of its own first 30% of steps; there the encoder's progress ends at "
        f"{joined([f'{value:.3f}' for value in early])}, so part of that time is its plateau.",
        "Equal progress compares a decoder of few steps with an encoder of many: learning rate and weight norms differ "
        "with the step.",
        "R is not compared: at equal k/d it is a function of E. Two small models on documentation of software say "
        "little about large ones.",
    )


def _nothing(window: str) -> str:
    return f"No two checkpoints to compare ({window})."


def _matched(result: PairResult) -> str:
    parts = []
    for seed in result.seeds:
        found = result.matches[seed, "equal progress"]
        steps = ", ".join(f"{m.decoder} with {m.encoder}" for m in found) or "none"
        gap = max((abs(m.gap) for m in found), default=float("nan"))
        parts.append(f"seed {seed}: {steps} (largest gap in progress {gap:.3f})" if found else f"seed {seed}: none")
    return f"Matched steps of decoder and encoder, {'; '.join(parts)}."


def _agree(judged: Judged) -> str:
    if len(judged.rows) < 2:
        return "One seed alone."
    return "The sign agrees over seeds." if judged.signs_agree else "The sign does not agree over seeds."


def _listed(verdicts: dict[str, PairVerdict]) -> str:
    if len(set(verdicts.values())) == 1:
        return f"{_verb(next(iter(verdicts.values())))} at {joined(list(verdicts))}"
    return joined([f"{_verb(verdict)} at {window}" for window, verdict in verdicts.items()])


def _verb(verdict: PairVerdict) -> str:
    return {"holds": "holds", "does not hold": "does not hold"}.get(verdict, f"is {verdict}")


def _signed(row: Any) -> str:
    return f"{row['value']:+.3f} ({row['ci_low']:+.3f} to {row['ci_high']:+.3f})"


def _ratio(row: Any) -> str:
    value, low, high = (number(float(np.exp(row[name]))) for name in ("value", "ci_low", "ci_high"))
    return f"{value} ({low} to {high})"


def _each(values: list[float]) -> str:
    return joined([f"{value:.2f}" for value in values])


def _seeds(result: PairResult) -> str:
    return "one seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
