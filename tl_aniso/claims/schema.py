"""Read a YAML mapping key by key, naming the place of whatever is wrong."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tl_aniso.checks import as_path
from tl_aniso.errors import TlAnisoError
from tl_aniso.strict_yaml import load_yaml

__all__ = ["Reader", "read_rules", "read_yaml"]


@lru_cache(maxsize=4)  # the library's rules are asked for again and again; readers do not change what they read
def read_yaml(text: str, source: str) -> Any:
    """The data of a YAML text: plain values alone, no tags of Python.

    Raises:
        TlAnisoError: no YAML, or a key twice.
    """
    try:
        return load_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TlAnisoError(f"{source} cannot be read as YAML: {error}") from error


def read_rules(path: Any, name: str) -> tuple["Reader", str]:
    """A file of rules and the SHA-256 of its text; without a path, the library's file `name`.

    Raises:
        TlAnisoError: a file that cannot be read or is no mapping in YAML.
    """
    if path is None:
        source, text = _shipped(name)
    else:
        source = str(as_path("path", path))
        try:
            text = Path(source).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TlAnisoError(f"the rules {source} cannot be read: {error}") from error
    return Reader(source, "", read_yaml(text, source)), hashlib.sha256(text.encode()).hexdigest()


def _shipped(name: str) -> tuple[str, str]:
    """The library's rules: a wheel holds them beside this module, a checkout in its ``data`` directory."""
    installed = files("tl_aniso.claims").joinpath(name)
    if installed.is_file():
        return name, installed.read_text("utf-8")
    checkout = Path(__file__).resolve().parents[2] / "data" / name
    if checkout.is_file():
        return f"data/{name}", checkout.read_text("utf-8")
    raise TlAnisoError(f"the rules of claims are missing from this installation: neither {installed} nor {checkout}")


class Reader:
    """One mapping of a file; every message says where in the file it stands."""

    def __init__(self, source: str, where: str, data: Any) -> None:
        self.source, self._where = source, where
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise TlAnisoError(f"{source}: {where or 'the file'} must be a mapping of names, got {data!r:.80}")
        self._data = data

    @property
    def given(self) -> tuple[str, ...]:
        """The keys, in the order of the file."""
        return tuple(self._data)

    def keys(self, *required: str, optional: Sequence[str] = ()) -> None:
        """Refuse keys that are missing or unknown."""
        missing = [key for key in required if key not in self._data]
        unknown = [key for key in self._data if key not in (*required, *optional)]
        if missing:
            raise TlAnisoError(f"{self.source}: {self._path(missing[0])} is missing")
        if unknown:
            known = ", ".join((*required, *optional))
            raise TlAnisoError(f"{self.source}: {self._path(unknown[0])} is unknown; known are {known}")

    def wrong(self, key: str, what: str) -> TlAnisoError:
        """The error about one key."""
        return TlAnisoError(f"{self.source}: {self._path(key)} {what}")

    def value(self, key: str) -> Any:
        """Whatever stands there."""
        return self._data[key]

    def inner(self, key: str) -> "Reader":
        """The mapping under a key."""
        return Reader(self.source, self._path(key), self._data[key])

    def number(self, key: str, low: float = -math.inf, high: float = math.inf, *, open_ends: bool = False) -> float:
        """A finite number within bounds."""
        value = self._data[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, f"must be a number, got {value!r}")
        if not low <= value <= high or (open_ends and value in (low, high)):
            raise self.wrong(key, f"must lie between {low:g} and {high:g}, got {value:g}")
        return float(value)

    def integer(self, key: str, least: int) -> int:
        """An integer of at least so much."""
        value = self._data[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"must be an integer of at least {least}, got {value!r}")
        return value

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self._data[key]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"must be a text, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._data[key]
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, got {value!r}")
        return value

    def choice(self, key: str, among: Sequence[str]) -> str:
        """One of several names."""
        value = self._data[key]
        if value not in among:
            raise self.wrong(key, f"must be one of {', '.join(among)}, got {value!r}")
        return str(value)

    def names(self, key: str, *, among: Sequence[str] | None = None, empty: bool = False) -> tuple[str, ...]:
        """A list of names, none of them twice; without any only where that has a meaning."""
        value = self._data[key]
        if not isinstance(value, list) or not (value or empty) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, f"must be a list of names, got {value!r}")
        unknown = [name for name in value if among is not None and name not in among]
        if unknown:
            raise self.wrong(key, f"holds {unknown[0]!r}; known are {', '.join(among or ())}")
        if len(set(value)) < len(value):
            raise self.wrong(key, f"holds a name twice: {', '.join(value)}")
        return tuple(value)

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key
