"""The lists of facts at the end of a report: how the frame was measured, and where it came from."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["methods_of", "spelled"]

_NAMES = {
    "model": "model",
    "family": "family",
    "objective": "objective",
    "revision": "revision",
    "rank": "rank of the planes",
    "basis": "bases of the planes",
    "centred": "planes fitted about the mean",
    "held_out": "measured on documents that planes were not fitted on",
    "unit": "one row is",
    "n_documents": "documents measured",
    "n_sequences": "sequences measured",
    "seq_len": "tokens a sequence, at most",
    "exclude": "tokens left out",
    "seed": "seed",
}
# Columns whose values go by kind of gradient: the same word would mislead without it.
_BY_KIND = ("unit", "exclude")
_KINDS = {"none": "activations", "activation": "activation gradients", "weight": "weight gradients"}
_WORDS = {
    "objective": {"causal": "next-token cross-entropy"},
    "basis": {"own": "each matrix on the side of the residual stream that it reads or writes"},
    "unit": {"token": "one token", "sequence": "the gradient of one sequence"},
}
_MASKED = re.compile(r"masked(\(rate=(?P<rate>[\d.e-]+), replacement=(?P<replacement>bert|mask)\))?")
_FILTERS = {
    "special": "special tokens",
    "masked": "masked tokens",
    "unmasked": "tokens that were not masked",
    "sink": "attention sinks (norm above 10 times the sequence's median)",
    "nothing": "none",
}


def methods_of(frame: Any) -> list[tuple[str, str]]:
    """What the frame says about how it was measured, where its rows agree; else all that they say.

    Args:
        frame: as `TangentEnergy.frame` or `AblationIsotropy.frame` holds it.

    Returns:
        Pairs of name and text, for people.

    Example:
        >>> import pandas as pd
        >>> methods_of(pd.DataFrame({"gradient": ["weight", "activation"], "unit": ["sequence", "token"]}))
        [('one row is', 'weight gradients: the gradient of one sequence; activation gradients: one token')]
    """
    found = []
    for column, name in _NAMES.items():
        if column not in frame or frame[column].isna().all():
            continue
        kinds = frame["gradient"].fillna("none") if column in _BY_KIND and "gradient" in frame else None
        if kinds is None or frame[column].nunique() == 1:
            found.append((name, _values(column, frame[column])))
        else:
            parts = [(kind, _values(column, frame.loc[kinds == kind, column])) for kind in kinds.unique()]
            found.append((name, "; ".join(f"{_KINDS.get(kind, kind)}: {text}" for kind, text in parts if text)))
    return found


def spelled(value: Any) -> str:
    """A value of any kind as words: nested mappings and sequences are spelled out.

    Example:
        >>> spelled({"dropped": {"short_tail": 1}, "held out": True, "revision": None})
        'dropped: short_tail: 1; held out: yes; revision: unknown'
    """
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {spelled(part)}" for name, part in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(spelled(part) for part in value) or "none"
    if value is True or value is False:
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _objective(name: str) -> str:
    """A masked objective in words, as its name has it."""
    found = _MASKED.fullmatch(name)
    if found is None:
        return _WORDS["objective"].get(name, name)
    rate, replacement = float(found["rate"] or 0.3), found["replacement"] or "bert"
    how = {
        "bert": "80% of them as the mask token, 10% as a random one, 10% as they are",
        "mask": "each as the mask token",
    }
    return f"cross-entropy of masked tokens ({100 * rate:g}% of all but special ones, {how[replacement]})"


def _values(column: str, values: Any) -> str:
    found = list(values.dropna().unique())
    return ", ".join(_value(column, value) for value in found[:6]) + (", ..." if len(found) > 6 else "")


def _value(column: str, value: Any) -> str:
    if column == "exclude":
        return " and ".join(_FILTERS.get(part, part) for part in str(value).split("+"))
    if column == "objective":
        return _objective(str(value))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _WORDS.get(column, {}).get(str(value)) or spelled(value)
