"""Checks of single values of a config. Each takes what a user wrote and returns what the library works with.

What cannot be used is a `TlAnisoError` that says what is expected; whoever asked adds the place in the file.
"""

import math
from collections.abc import Callable
from typing import Any

from tl_aniso.checks import as_integer, as_names
from tl_aniso.errors import TlAnisoError
from tl_aniso.study.fields import near

__all__ = ["count", "flag", "fraction", "one_of", "optional", "ranks", "sites", "some_of", "string"]


def string(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise TlAnisoError(f"must be a text that is not empty, got {value!r}")
    return value


def count(value: Any) -> int:
    """An integer of at least 1."""
    return as_integer("it", value, least=1)


def optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """None, or what `check` takes."""
    return lambda value: None if value is None else check(value)


def fraction(value: Any) -> float:
    """A number between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TlAnisoError(f"must be a number, got {value!r}")
    if not 0 < value < 1:
        raise TlAnisoError(f"must lie between 0 and 1, got {value!r}")
    return float(value)


def one_of(known: tuple[str, ...]) -> Callable[[Any], str]:
    """One of the known names."""

    def check(value: Any) -> str:
        if value not in known:
            raise TlAnisoError(f"must be one of {', '.join(known)}, got {value!r}")
        return str(value)

    return check


def some_of(known: tuple[str, ...], *, least: int = 0) -> Callable[[Any], tuple[str, ...]]:
    """Some of the known names, in their order."""

    def check(value: Any) -> tuple[str, ...]:
        names = as_names("it", [] if value is None else value)
        for name in names:
            if name not in known:
                raise TlAnisoError(f"holds {name!r}{near(name, known)}; known are {', '.join(known)}")
        if len(names) < least:
            raise TlAnisoError(f"is empty; choose from {', '.join(known)}")
        return tuple(name for name in known if name in names)

    return check


def ranks(value: Any) -> tuple[int, ...]:
    """One rank or several, sorted."""
    several = [value] if not isinstance(value, list | tuple) else value
    if not several:
        raise TlAnisoError("is an empty list; leave it out for min(16, d // 4)")
    return tuple(sorted({count(rank) for rank in several}))


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise TlAnisoError(f"must be true or false, got {value!r}")
    return value


def sites(value: Any) -> tuple[str, ...]:
    """Names or patterns, at least one."""
    names = as_names("it", value)
    if not names:
        raise TlAnisoError("is empty; leave it out for every site")
    return names
