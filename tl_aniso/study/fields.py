"""Keys of a mapping that a user wrote, and messages that say where in it something is wrong."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from tl_aniso.errors import ConfigError, TlAnisoError

__all__ = ["Fields", "near"]

T = TypeVar("T")


class Fields:
    """One level of a config.

    Args:
        given: its keys and values.
        where: how messages name the place; empty for a level whose outer one names it.

    Example:
        >>> Fields({"rank": "x"}, "study.yaml").checked("rank", int)
        Traceback (most recent call last):
        tl_aniso.errors.ConfigError: study.yaml: rank: invalid literal for int() with base 10: 'x'
    """

    def __init__(self, given: Mapping[Any, Any], where: str) -> None:
        self._given = given
        self._where = where

    def refuse_unknown(self, known: tuple[str, ...]) -> None:
        """ConfigError for the first key that is not among `known`, with its near matches."""
        for key in self._given:
            if key not in known:
                hint = near(str(key), known) or f"; known are {', '.join(known)}"
                raise self._error(f"unknown key {key!r}{hint}")

    def required(self, key: str, check: Callable[[Any], T], what: str) -> T:
        """The checked value of a key that must be there."""
        if self._given.get(key) is None:
            raise self._error(f"{key} is missing; give {what}")
        return self.checked(key, check)

    def checked(self, key: str, check: Callable[[Any], T]) -> T:
        """The value of a key as `check` returns it; what `check` raises becomes a ConfigError that names the key."""
        try:
            return check(self._given[key])
        except (TlAnisoError, ValueError) as error:
            text = str(error).removeprefix("it ")
            raise self._error(f"{key}{text}" if text.startswith("[") else f"{key}: {text}") from error

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._where}: {text}" if self._where else text)


def near(name: str, known: tuple[str, ...]) -> str:
    """A hint at names that look like `name`; empty where none does.

    Example:
        >>> near("earlyfraction", ("early_fraction", "early_unit", "seed"))
        '; did you mean early_fraction?'
    """
    found = get_close_matches(name, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""
