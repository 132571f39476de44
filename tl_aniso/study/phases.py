"""Which checkpoints are measured, and which of them are early."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tl_aniso.errors import ConfigError
from tl_aniso.study.checkpoints import Checkpoint
from tl_aniso.study.config import Checkpoints, EarlyUnit

__all__ = ["Chosen", "Phase", "choose", "phases_of"]

Phase = Literal["early", "late"]


@dataclass(frozen=True)
class Chosen:
    """A checkpoint that is measured; `phase` is None where it is its model's only one."""

    checkpoint: Checkpoint
    phase: Phase | None


def phases_of(checkpoints: Sequence[Checkpoint], fraction: float, unit: EarlyUnit) -> list[Phase | None]:
    """Early up to `fraction` of the last step (or token, or place in the list, counted from 0), else late.

    All that were published count, whether measured or not: 30% of the steps is 30% of the training.

    Args:
        checkpoints: of one model, in the order of training.
        fraction: between 0 and 1.
        unit: steps, tokens or checkpoints.

    Returns:
        A phase each; None for a lone checkpoint, which is neither.

    Raises:
        ConfigError: a checkpoint whose step or tokens are not known.

    Example:
        >>> made = [Checkpoint(f"step{s}", s, None, str(s), lambda: None) for s in (0, 1, 2, 4, 300, 1000)]
        >>> phases_of(made, 0.3, "steps"), phases_of(made, 0.3, "checkpoints")
        (['early', 'early', 'early', 'early', 'early', 'late'], ['early', 'early', 'late', 'late', 'late', 'late'])
    """
    if len(checkpoints) < 2:
        return [None] * len(checkpoints)
    progress = [_progress(checkpoint, place, unit) for place, checkpoint in enumerate(checkpoints)]
    limit = Fraction(str(fraction)) * max(progress)  # as written: 0.3 of 10 is 3, and 3 is early
    return ["early" if at <= limit else "late" for at in progress]


def _progress(checkpoint: Checkpoint, place: int, unit: EarlyUnit) -> int:
    if unit == "checkpoints":
        return place
    found = checkpoint.step if unit == "steps" else checkpoint.tokens_seen
    if found is None:
        remedy = "give tokens_per_step, or early_unit: " if unit == "tokens" else "use early_unit: "
        raise ConfigError(
            f"early_unit: {unit}, and the {unit} of the checkpoint {checkpoint.name} are not known; {remedy}"
            f"{'steps' if unit == 'tokens' and checkpoint.step is not None else 'checkpoints'}"
        )
    return found


def choose(
    checkpoints: Sequence[Checkpoint], wanted: Checkpoints, *, fraction: float, unit: EarlyUnit, model: str
) -> tuple[Chosen, ...]:
    """The checkpoints to measure, in the order of training, with their phases.

    Raises:
        ConfigError: a step that was not published, naming the nearest that was and its gap; or none that is early.
    """
    found = [Chosen(c, phase) for c, phase in zip(checkpoints, phases_of(checkpoints, fraction, unit), strict=True)]
    places = range(len(found))
    if wanted.steps is not None:
        picked = [_place(checkpoints, step, model) for step in wanted.steps]
    elif wanted.log_spaced is not None:
        picked = _spaced(places, _steps(checkpoints, model), wanted.log_spaced, log=True)
    elif wanted.early is not None and wanted.late is not None and len(found) > 1:
        steps = _steps(checkpoints, model)
        early, late = ([i for i in places if found[i].phase == phase] for phase in ("early", "late"))
        picked = [*_spaced(early, steps, wanted.early, log=True), *_spaced(late, steps, wanted.late, log=False)]
    else:
        picked = list(places)
    chosen = tuple(found[place] for place in sorted(set(picked)))
    if len(found) > 1 and not any(c.phase == "early" for c in chosen):
        raise ConfigError(
            f"checkpoints: none of the {len(chosen)} chosen of {model} lies in the first {fraction:.0%} of the {unit} "
            f"(the first is {chosen[0].checkpoint.name}, the last published {checkpoints[-1].name}), so there is "
            "nothing to fit planes on; choose an earlier one, or a larger early_fraction"
        )
    return chosen


def _place(checkpoints: Sequence[Checkpoint], step: int, model: str) -> int:
    known = _steps(checkpoints, model)
    if step in known:
        return known.index(step)
    nearest = min(known, key=lambda other: (abs(other - step), other))
    raise ConfigError(
        f"checkpoints: {model} has no step {step}; the nearest published is {nearest}, {abs(nearest - step)} steps "
        f"{'before' if nearest < step else 'after'} it"
    )


def _steps(checkpoints: Sequence[Checkpoint], model: str) -> list[int]:
    found = [checkpoint.step for checkpoint in checkpoints]
    unknown = [c.name for c in checkpoints if c.step is None]
    if unknown:
        raise ConfigError(f"checkpoints: the step of {model}'s {unknown[0]} is not known; use checkpoints: all")
    return [step for step in found if step is not None]


def _spaced(places: Sequence[int], steps: Sequence[int], n: int, *, log: bool) -> list[int]:
    """At most n of the places, the first and last among them, each the nearest to an even grid that is still free."""
    if n >= len(places):
        return list(places)
    at = {place: math.log1p(steps[place]) if log else float(steps[place]) for place in places}
    first, last = at[places[0]], at[places[-1]]
    free, picked = list(places), []
    for i in range(n):
        target = first + (last - first) * (i / (n - 1) if n > 1 else 0.0)
        best = min(free, key=lambda place: (abs(at[place] - target), place))
        free.remove(best)
        picked.append(best)
    return picked
