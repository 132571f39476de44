"""What a frame says, in words: computed from its numbers, and saying so where a claim does not hold."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz.cautions import cautions
from tl_aniso.viz.style import control_name, number, step_text
from tl_aniso.viz.tables import averaged, controls_of, energy_values, isotropy_values, panels_of, steps_of
from tl_aniso.viz.wording import capital, joined, ranges

__all__ = ["Finding", "Reading", "Verdict", "key_steps", "main_panel", "read_frame", "read_values"]

Verdict = Literal["holds", "does not hold", "mixed", "unclear", "not known"]

# Within this factor of 1 an excess is called near 1 where no interval is known.
_NEAR = 1.1
# A claim about many sites holds if it does at this share of them; at fewer it is mixed.
_MOST = 0.9
_GRADIENT_PANELS = ("readers", "writers", "unembedding", "embedding", "activation gradients")


@dataclass(frozen=True)
class Finding:
    """One claim and what the numbers say about it.

    Attributes:
        claim: A sentence that could be true or false.
        verdict: Whether the frame bears it out.
        text: The numbers behind the verdict, in plain language.
    """

    claim: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Reading:
    """The reading of a frame.

    Attributes:
        summary: Two or three sentences to begin with.
        findings: One claim each.
        cautions: What the numbers do not mean, general ones and those of this very frame.
    """

    summary: str
    findings: tuple[Finding, ...]
    cautions: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.summary, ""]
        lines += [f"* {f.claim} -- {f.verdict.upper()}. {f.text}" for f in self.findings]
        return "\n".join([*lines, "", "What the numbers do not mean:", *(f"* {c}" for c in self.cautions)])


def read_frame(frame: Any) -> Reading:
    """Read a frame of one or several checkpoints.

    Args:
        frame: as `TangentEnergy.frame` or `AblationIsotropy.frame` holds it, or both concatenated.

    Returns:
        Findings about R, its course over training, its controls, and isotropy after ablation; those that the frame
        has no numbers for are left out.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`.
        UndefinedMeasureError: the frame holds neither energies nor isotropy.
    """
    return read_values(frame, _or_none(energy_values, frame), _or_none(isotropy_values, frame))


def read_values(frame: Any, energy: Any, isotropy: Any) -> Reading:
    """`read_frame` for callers that have the numbers already: making them is what takes long for a large frame.

    Args:
        frame: as of `read_frame`.
        energy: of `energy_values`, or None if it has none.
        isotropy: of `isotropy_values`, or None.

    Raises:
        UndefinedMeasureError: neither is there.
    """
    if energy is None and isotropy is None:
        raise UndefinedMeasureError("the frame holds neither gradient energies nor isotropy; there is nothing to read")
    findings: list[Finding] = []
    summary = []
    if energy is not None:
        panel, steps = main_panel(energy), key_steps(energy)
        means = averaged(energy[energy["panel"] == panel], "step")
        findings.append(_concentration(means, panel, steps))
        summary.append(findings[0].text)
        if len(steps) > 1:
            findings.append(_course(means, steps, _last_early(frame)))
        beyond = [_beyond(means, panel, step, name) for name, step in _judged_steps(means, steps)]
        findings += [finding for finding, _ in beyond]
        summary.append(beyond[0][1])
    if isotropy is not None:
        removed = [_removal(isotropy, panel) for panel in panels_of(isotropy)[::-1]]
        findings += removed
        better, partly = (
            [
                panel
                for panel, finding in zip(panels_of(isotropy)[::-1], removed, strict=True)
                if finding.verdict == verdict
            ]
            for verdict in ("holds", "mixed")
        )
        summary.append(
            "Removing the tangent plane raises IsoScore* more than removing a normal plane does for "
            + (joined(better) if better else "none of the groups measured")
            + (" only" if better and len(better) < len(removed) else "")
            + (f"; in part for {joined(partly)}." if partly else ".")
        )
    return Reading(" ".join(summary), tuple(findings), cautions(frame, energy, isotropy))


def main_panel(values: Any) -> str:
    """The panel that a reading is about: readers where measured, else the next group of gradients."""
    found = panels_of(values)
    return next((panel for panel in _GRADIENT_PANELS if panel in found), found[0])


def key_steps(values: Any) -> dict[str, float]:
    """First, peak and last step, the peak being that of the main panel's mean R; one entry for one checkpoint.

    Returns:
        Steps by "first", "peak" and "last", in the order of training; a peak at an end is not repeated. A single
        checkpoint is called "only".
    """
    steps = steps_of(values)
    if len(steps) == 1:
        return {"only": steps[0]}
    means = averaged(values[values["panel"] == main_panel(values)], "step")
    peak = _peak(means)
    named = {"first": steps[0], "peak": peak, "last": steps[-1]}
    if np.isnan(peak) or peak == steps[0]:
        named.pop("peak")
    elif peak == steps[-1]:
        return {"first": steps[0], "last": peak}
    return named


def _peak(means: Any) -> float:
    rows = means[(means["quantity"] == "R") & (means["control"] == "none")].dropna(subset=["value"])
    return float(rows.loc[rows["value"].idxmax(), "step"]) if len(rows) else float("nan")


def _at(means: Any, step: float, quantity: str, control: str) -> Any:
    same = means["step"].isna() if np.isnan(step) else means["step"] == step
    rows = means[same & (means["quantity"] == quantity) & (means["control"] == control)]
    return rows.iloc[0] if len(rows) else None


def _number(row: Any) -> float:
    return float("nan") if row is None else float(row["value"])


def _judged_steps(means: Any, steps: dict[str, float]) -> list[tuple[str, float]]:
    """Where controls are weighed: at the peak, wherever it is, and at the end of training."""
    if "only" in steps:
        return [("only", steps["only"])]
    peak = _peak(means)
    return [("peak", peak)] * (not np.isnan(peak)) + [("last", steps["last"])] * (peak != steps["last"])


def _concentration(means: Any, panel: str, steps: dict[str, float]) -> Finding:
    what = f"Energy of {panel}" if "gradients" in panel else f"Gradient energy of {panel}"
    claim = f"{what} concentrates in the tangent planes, against normal planes"
    rows = {step: _at(means, step, "R", "none") for step in steps.values()}
    parts = [
        f"{_show(rows[step])}{_where(name, step)} (E = {_show(_at(means, step, 'E', 'none'))})"
        for name, step in steps.items()
    ]
    text = f"R of {panel} is {joined(parts)}; normal planes of the same rank have 1."
    at, largest = max(rows.items(), key=lambda item: -np.inf if np.isnan(_number(item[1])) else _number(item[1]))
    if np.isnan(_number(largest)):
        return Finding(claim, "not known", text)
    n_known = _n_bounded(largest)
    if n_known:
        when = f" At step {step_text(at)}, where it is largest of these, its" if len(rows) > 1 else " Its"
        text += f"{when} interval is {_counted(largest)}."
    if _number(largest) <= 1 or (n_known and not largest["above"]):
        return Finding(claim, "does not hold", text)
    return Finding(claim, "mixed" if n_known and largest["above"] < _MOST * n_known else "holds", text)


def _last_early(frame: Any) -> float | None:
    """The last step that the frame itself calls early; None where it names no phases."""
    if "phase" not in frame or not frame["phase"].eq("late").any():
        return None
    early = frame.loc[frame["phase"] == "early", "step"]
    return float(early.max()) if len(early) else None


def _course(means: Any, steps: dict[str, float], last_early: float | None) -> Finding:
    until = "its first 30% of steps" if last_early is None else f"its early phase, up to step {step_text(last_early)}"
    claim = f"The concentration is strongest early in training ({until}) and weakens later"
    peak, last = _peak(means), steps["last"]
    if np.isnan(peak):
        return Finding(claim, "not known", "R is not known at any step.")
    at_peak, at_last = _at(means, peak, "R", "none"), _at(means, last, "R", "none")
    text = f"R is largest at step {step_text(peak)} ({_show(at_peak)})"
    text += f"; at the last, step {step_text(last)}, it is {_show(at_last)}."
    early = peak <= (0.3 * last if last_early is None else last_early)
    weaker = _number(at_last) < _number(at_peak)
    return Finding(claim, "holds" if early and weaker else "does not hold", text)


def _beyond(means: Any, panel: str, step: float, name: str) -> tuple[Finding, str]:
    """Whether R exceeds what every control gives at one step; the finding, and a sentence for the summary."""
    when = {
        "only": "The",
        "peak": f"At the peak (step {step_text(step)}) the",
        "last": f"At the end (step {step_text(step)}) the",
    }
    whose = panel if "gradients" in panel else f"gradients of {panel}"
    claim = f"{when[name]} {whose} prefer the tangent planes more than every control does"
    ratio = _number(_at(means, step, "R", "none"))
    is_high = ratio > _NEAR
    controls = [control for control in controls_of(means) if control not in ("none", "normal")]
    judged = {control: _judge(means, step, control, ratio) for control in controls}
    known = {control: verdict for control, verdict in judged.items() if verdict is not None}
    if not known:
        text = "No control has a value there." if controls else "No control but the normal planes was measured."
        return Finding(claim, "not known", text), text + (" So what a high R means here is open." if is_high else "")
    excesses = {control: _excess(means, step, control, ratio) for control in known}
    closest = min(excesses, key=lambda control: abs(np.log(excesses[control])))
    as_much = [control for control, verdict in known.items() if verdict != "above"]
    text = f"True R is {number(ratio)}. Alone, " + "; ".join(_told(means, step, *item) for item in known.items()) + ". "
    text += f"{capital(control_name(closest))} comes closest to the true gradient."
    missing = [control_name(control) for control in controls if control not in known]
    if missing:
        text += f" Missing: {joined(missing)}."
    place = {"only": "", "peak": "at the peak, ", "last": "at the end, "}[name]
    if as_much:
        give = "gives" if len(as_much) == 1 else "give"
        whole = "the one control" if len(known) == 1 else f"{len(as_much)} of {len(known)} controls"
        end = f"{whole} {give} about as much or more"
        best = f"{control_name(closest)}, R {_show(_at(means, step, 'R', closest))}"
        meaning = "R needs no preference of the gradients to be this high" if is_high else "R shows no preference"
        closing = f"{capital(place + end)} (closest: {best}): {meaning}."
        return Finding(claim, "does not hold", text), closing
    left = f"Over every control something is left: a factor of {number(min(excesses.values()))} or more in odds."
    clear = all(_is_clear(_at(means, step, "excess", control)) for control in known)
    verdict: Verdict = "mixed" if missing or not clear else "holds"
    return Finding(claim, verdict, f"{text} {left}"), capital(place + left[0].lower() + left[1:])


def _excess(means: Any, step: float, control: str, ratio: float) -> float:
    excess = _number(_at(means, step, "excess", control))
    return excess if np.isfinite(excess) else ratio / _number(_at(means, step, "R", control))


def _judge(means: Any, step: float, control: str, ratio: float) -> str | None:
    """Whether the true gradient is "above" a control, "around" or "below" it; None where one is missing."""
    excess = _excess(means, step, control, ratio)
    if not np.isfinite(excess):
        return None
    row = _at(means, step, "excess", control)
    n_known = _n_bounded(row)
    if n_known:
        if 2 * row["above"] > n_known and excess > 1:
            return "above"
        return "below" if 2 * row["below"] > n_known and excess < 1 else "around"
    return "above" if excess > _NEAR else "below" if excess < 1 / _NEAR else "around"


def _told(means: Any, step: float, control: str, verdict: str) -> str:
    row = _at(means, step, "excess", control)
    text = f"{control_name(control)} gives {_show(_at(means, step, 'R', control))}"
    if row is None:
        return text
    if not _n_bounded(row):
        return f"{text} (excess {_show(row)}, {'near' if verdict == 'around' else verdict} 1)"
    return f"{text} (excess {_show(row)}; interval {_counted(row)})"


def _counted(row: Any) -> str:
    """Where the intervals of a row's sites lie: the interval of a single site, else how many are where."""
    n_known = _n_bounded(row)
    if n_known == 1:
        place = next(name for name in ("above", "around", "below") if row[name])
        return f"{number(row['low'])} to {number(row['high'])}, {place} 1"
    counts = ", ".join(f"{name} 1 at {row[name]}" for name in ("above", "around", "below") if row[name])
    return f"{counts} of {n_known} sites"


def _is_clear(row: Any) -> bool:
    """Whether intervals lie above 1 at most sites, where intervals are known."""
    return row is None or not _n_bounded(row) or row["above"] >= _MOST * _n_bounded(row)


def _n_bounded(row: Any) -> int:
    return 0 if row is None else int(row["above"] + row["around"] + row["below"])


def _removal(isotropy: Any, panel: str) -> Finding:
    rows = isotropy[isotropy["panel"] == panel]
    wide = rows.pivot(index=["step", "site"], columns="series", values="value")
    tangent, normal = wide["without tangent"], wide["without normal"]
    known = (tangent - normal).dropna()
    claim = f"{capital(panel)}: removing the tangent plane raises IsoScore* more than removing a normal plane"
    if known.empty:
        return Finding(claim, "not known", "No site has both values.")
    high = rows[rows["series"] == "without normal"].set_index(["step", "site"])["high"].reindex(known.index)
    low = rows[rows["series"] == "without normal"].set_index(["step", "site"])["low"].reindex(known.index)
    outside = tangent.reindex(known.index)
    is_above = outside > high
    above, below = int(is_above.sum()), int((outside < low).sum())
    means = averaged(rows, "step").set_index("series")
    steps = steps_of(rows)
    parts = [
        (f"at step {step_text(step)}, " if len(steps) > 1 else "")
        + ", ".join(
            f"{name} {_show(_of_step(means.loc[[name]], step))}"
            for name in ("before", "without tangent", "without normal")
        )
        for step in (steps if len(steps) == 1 else [steps[0], steps[-1]])
    ]
    text = f"IsoScore*, means over sites: {'; '.join(parts)}. Without the tangent it lies "
    if len(known) == 1:
        text += f"{'above' if above else 'below' if below else 'inside'} the band of normal planes."
    else:
        what = "sites" if len(steps) == 1 else "pairs of site and step"
        text += f"above the band of normal planes at {above} and below it at {below} of {len(known)} {what}"
        text += f": {_course_of(is_above)}." if 0 < above < len(known) and len(steps) > 1 else "."
    if panel.startswith("activations") and above:
        text += (
            " (For activations in the text and at the steps the planes were fitted on, this is close to arithmetic.)"
        )
    verdict: Verdict = "mixed"
    if above >= _MOST * len(known):
        verdict = "holds"
    elif above == 0 or (known.mean() <= 0 and 2 * above <= len(known)):
        verdict = "does not hold"
    return Finding(claim, verdict, text)


def _course_of(is_above: Any) -> str:
    """At which steps something is so at all sites, at some and at none, neighbouring steps as ranges."""
    shares = is_above.groupby(level="step").mean()
    kinds = {"above at all sites": shares == 1, "at some": (shares > 0) & (shares < 1), "at none": shares == 0}
    if is_above.index.get_level_values("site").nunique() == 1:
        kinds = {"above": shares == 1, "not": shares == 0}
    return "; ".join(f"{name} {ranges(chosen)}" for name, chosen in kinds.items() if chosen.any())


def _of_step(rows: Any, step: float) -> Any:
    return rows[rows["step"].isna() if np.isnan(step) else rows["step"] == step].iloc[0]


def _or_none(read: Any, frame: Any) -> Any:
    try:
        return read(frame)
    except UndefinedMeasureError:
        return None


def _where(name: str, step: float) -> str:
    return {"only": "", "peak": " at its peak, "}.get(name, " at ") + (
        "" if name == "only" else f"step {step_text(step)}"
    )


def _show(row: Any) -> str:
    value = _number(row)
    return "missing" if np.isnan(value) else number(value)
