"""Names of published checkpoints: what they say of stage, step and tokens, and which step is nearest to one asked for.

Families name their branches differently. `parse_revision` reads them all; what it does not read names no checkpoint.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError

__all__ = ["MAIN", "Nearest", "Revision", "nearest", "parse_revision"]

MAIN = "main"

# ASCII alone: among letters without case there are others that read as "s" or "k", and digits of many scripts.
_NAME = re.compile(
    r"(?:stage(?P<stage>[0-9]{1,4})-)?(?:ingredient(?P<ingredient>[0-9]{1,4})-)?"
    r"(?:step-?|checkpoint-)(?P<step>[0-9]{1,15})(?:-tokens(?P<tokens>[0-9]{1,15}(?:\.[0-9]{1,12})?)(?P<unit>[KMBT]?))?",
    re.ASCII | re.IGNORECASE,
)
_UNITS = {"T": 10**12, "B": 10**9, "M": 10**6, "K": 10**3, "": 1}


@dataclass(frozen=True)
class Revision:
    """What the name of a checkpoint says. Sorted by stage, ingredient and step; `main` comes last.

    Attributes:
        name: as published.
        step: optimiser steps, counted from the start of the stage; None for `main`, which does not say.
        stage: of staged training; None where the name has none.
        ingredient: one of several runs of a stage, later averaged; None where the name has none.
        tokens: tokens seen, as rounded in the name; None where the name has none.

    Example:
        >>> [r.name for r in sorted(map(parse_revision, ["main", "step1000", "step512", "step0"]))]
        ['step0', 'step512', 'step1000', 'main']
    """

    name: str
    step: int | None = None
    stage: int | None = None
    ingredient: int | None = None
    tokens: int | None = None

    def __lt__(self, other: "Revision") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[bool, int, int, int, str]:
        parts = (-1 if part is None else part for part in (self.stage, self.ingredient, self.step))
        return (self.step is None, *parts, self.name)  # type: ignore[return-value]  # three parts

    @property
    def canonical(self) -> str:
        """The same facts spelled one way: `stage2-ingredient2-step23852-tokens50B`.

        Example:
            >>> parse_revision("Step-160000").canonical, parse_revision("step1-tokens4096k").canonical
            ('step160000', 'step1-tokens4096K')
        """
        if self.step is None:
            return MAIN
        parts = [f"stage{self.stage}"] if self.stage is not None else []
        parts += [f"ingredient{self.ingredient}"] if self.ingredient is not None else []
        parts.append(f"step{self.step}")
        if self.tokens is not None:
            unit, size = next((unit, size) for unit, size in _UNITS.items() if self.tokens % size == 0)
            parts.append(f"tokens{self.tokens // size}{unit}" if self.tokens else "tokens0B")
        return "-".join(parts)


def parse_revision(name: Any) -> Revision | None:
    """Read the name of a branch, tag or directory.

    Known are `step512`, `step1000-tokens4B`, `step-160000`, `stage1-step140000-tokens294B`,
    `stage2-ingredient2-step23852-tokens50B`, in any case, with tokens in K, M, B or T, `checkpoint-500` as Hugging
    Face's Trainer names its directories, and `main`.

    Args:
        name: anything; only a string can be a name.

    Returns:
        What the name says, or None where it is not a checkpoint's: another branch, a pull request, or junk.

    Example:
        >>> parse_revision("stage2-ingredient2-step23852-tokens50B").tokens
        50000000000
        >>> parse_revision("step512\\n") is None, parse_revision("refs/pr/1") is None
        (True, True)
    """
    if not isinstance(name, str):
        return None
    if name == MAIN:
        return Revision(MAIN)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    tokens = None
    if match["tokens"] is not None:
        exact = Fraction(match["tokens"]) * _UNITS[match["unit"].upper()]
        if exact.denominator != 1:  # no count of tokens: 0.5, or 1.0001K
            return None
        tokens = int(exact)
    return Revision(
        name,
        step=int(match["step"]),
        stage=_integer(match["stage"]),
        ingredient=_integer(match["ingredient"]),
        tokens=tokens,
    )


class _Stepped(Protocol):
    @property
    def step(self) -> int | None: ...
    @property
    def stage(self) -> int | None: ...
    @property
    def ingredient(self) -> int | None: ...


Stepped = TypeVar("Stepped", bound=_Stepped)


@dataclass(frozen=True)
class Nearest:
    """The published checkpoint nearest to a step asked for.

    Attributes:
        found: the checkpoint, of the kind that was handed over.
        gap: its step less the step asked for; 0 where that very step is published.
    """

    found: Any
    gap: int


def nearest(
    published: Iterable[Stepped], step: int, *, stage: int | None = None, ingredient: int | None = None
) -> Nearest:
    """The published step nearest to `step`, of two equally near the earlier, and how far off it is.

    Steps count from the start of a stage, so they are compared within one stage and ingredient.

    Args:
        published: revisions or listed checkpoints; those without a step (`main`) are left aside.
        step: optimiser steps, at least 0.
        stage: which stage; the first of those published where not given.
        ingredient: which run of the stage; the first of those published where not given.

    Raises:
        TlAnisoError: `step` is no such number, or nothing of that stage and ingredient is published.

    Example:
        >>> nearest(map(parse_revision, ["step512", "step1000", "main"]), 900)
        Nearest(found=Revision(name='step1000', step=1000, stage=None, ingredient=None, tokens=None), gap=100)
    """
    step = as_integer("step", step, least=0)
    candidates = [one for one in published if one.step is not None]
    candidates = _of("stage", stage, candidates)
    candidates = _of("ingredient", ingredient, candidates)
    steps = [one.step for one in candidates if one.step is not None]
    best = min(steps, key=lambda published_step: (abs(published_step - step), published_step))
    return Nearest(candidates[steps.index(best)], best - step)


def _of(what: str, wanted: int | None, candidates: list[Stepped]) -> list[Stepped]:
    """Those of one stage or ingredient, by default the first."""
    found = {getattr(one, what) for one in candidates}
    if not found:
        raise TlAnisoError("no checkpoint with a step in its name is published: there is none to be near to")
    if wanted is None:
        wanted = None if None in found else min(found)
    elif wanted not in found:
        names = ", ".join(str(value) for value in sorted(found - {None})) or f"names without {what}s"
        raise TlAnisoError(f"no checkpoint of {what} {wanted} is published; there is {names}")
    return [one for one in candidates if getattr(one, what) == wanted]


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)
