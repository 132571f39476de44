"""Turn a user's arguments into what the library works with, or say which argument is wrong."""

import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tl_aniso.errors import TlAnisoError

__all__ = ["MOST_SEED", "as_integer", "as_label", "as_list", "as_names", "as_path", "known_options"]

# What random generators of torch and numpy take alike.
MOST_SEED = 2**63 - 1


def as_integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """`value` as an int within its bounds.

    Args:
        name: the argument's, for the message.
        value: an int or a numpy integer; not a bool, a float or a string.
        least: smallest allowed value.
        most: largest allowed value.

    Raises:
        TlAnisoError: not an integer, or out of bounds.

    Example:
        >>> as_integer("batch_size", 8, least=1)
        8
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TlAnisoError(f"{name} must be an integer, got {value!r}") from None
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"between {least} and {most}"
        raise TlAnisoError(f"{name} must be {bounds}, got {number}")
    return number


def as_names(name: str, values: Any) -> tuple[str, ...]:
    """One name or several, as a tuple.

    Raises:
        TlAnisoError: anything but a string or an iterable of strings.

    Example:
        >>> as_names("sites", "embed.W_E"), as_names("sites", ["a", "b"])
        (('embed.W_E',), ('a', 'b'))
    """
    if isinstance(values, str):
        return (values,)
    found = as_list(values)
    if found is not None and all(isinstance(entry, str) for entry in found):
        return tuple(found)
    raise TlAnisoError(f"{name} must be a name or a list of names, got {values!r}")


def as_list(values: Any) -> list[Any] | None:
    """The entries of an iterable; None where it is none, as a tensor without dimensions is in fact.

    Example:
        >>> as_list((1, 2)), as_list(3)
        ([1, 2], None)
    """
    if not isinstance(values, Iterable):
        return None
    try:
        return list(values)
    except TypeError:  # tensors and arrays have __iter__ whatever their dimensions
        return None


def as_path(name: str, value: Any) -> Path:
    """`value` as a path that a file system could take.

    Raises:
        TlAnisoError: neither a string nor a path, or a null byte in it.

    Example:
        >>> as_path("directory", "results").name
        'results'
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TlAnisoError(f"{name} must be a path, got {value!r}")
    if "\0" in os.fspath(value):
        raise TlAnisoError(f"{name} holds a null byte, which no path can: {os.fspath(value)!r}")
    return Path(value)


def as_label(name: str, value: Any) -> Any:
    """A field of a checkpoint's label as JSON has it; ``step`` and ``tokens_seen`` are numbers or None.

    Raises:
        TlAnisoError: a step or a number of tokens that is no finite number.

    Example:
        >>> as_label("step", 512), as_label("step", None), as_label("family", "pythia")
        (512, None, 'pythia')
    """
    if name not in ("step", "tokens_seen") or value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise TlAnisoError(f"{name} must be a number or None, got {value!r}")
    return int(value) if isinstance(value, Integral) else float(value)


def known_options(caller: str, options: Mapping[str, Any], function: Callable[..., Any], taken: Iterable[str]) -> None:
    """Refuse options that `function`, which they are passed on to, does not take from `caller`.

    Args:
        caller: name of the function that the user called.
        options: what it passes on.
        function: which takes them by name.
        taken: those that the caller gives itself.

    Raises:
        TlAnisoError: names an unknown option and lists those there are.

    Example:
        >>> known_options("f", {"least": 1}, as_integer, taken=("most",))
    """
    named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known = sorted(set(named) - set(taken))
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TlAnisoError(f"{caller} has no option {', '.join(unknown)}; further options are {', '.join(known)}")
