"""Notes on the text a capture read, and an error that says so where a text is too short for a measure to exist."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tl_aniso.errors import ShortTextError, UndefinedMeasureError
from tl_aniso.pca import default_rank

__all__ = ["short_text", "text_notes"]


def text_notes(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Padding read as text, special tokens written in it, and what masks are made of.

    Example:
        >>> given = {"n_given": 9, "padded": {"0": 8}, "written": {}}
        >>> text_notes({"options": {}, "text": {"given": given}})[0][:68]
        '8 of 9 documents begin or end with the pad token 0 and are read with'
    """
    options, given = metadata["options"], metadata["text"].get("given")
    return (*_given(given), *_masks(options)) if given is not None else tuple(_masks(options))


def _given(given: Mapping[str, Any]) -> Iterator[str]:
    n = given["n_given"]
    for token, count in given["padded"].items():
        if count:
            yield (
                f"{count} of {n} documents begin or end with the pad token {token} and are read with it, as text: what "
                "is padded needs its attention_mask, e.g. {'input_ids': ..., 'attention_mask': ...}"
            )
    if given["written"]:
        found = ", ".join(f"{name} in {count} of {n} documents" for name, count in given["written"].items())
        yield f"special tokens stand written in the text ({found}) and are read as such, not as words"


def _masks(options: Mapping[str, Any]) -> Iterator[str]:
    masking = options.get("masking")
    if masking is None:
        return
    if options.get("mask_remark"):
        yield options["mask_remark"]
    if options["tokenizer"] == "ids":
        drawn = ""
        if masking["replacement"] == "bert":
            drawn = (
                f", and random replacements are drawn from all {masking['n_tokens']} ids of the model, also from those "
            )
            drawn += "that no text can hold"
        yield (
            "ids came without a tokenizer: special tokens are those that the model's config names "
            f"({', '.join(map(str, options['special']))}), others can be masked and predicted{drawn}; pass "
            "tokenizer=..."
        )


@contextmanager
def short_text(
    positions: Mapping[str, Mapping[str, int]] | None, exclude: Any, rank: int | None, d: int
) -> Iterator[None]:
    """Say that the text is too short, where a measure has no value on it and few rows are left of a half.

    Args:
        positions: half -> kind of position -> how many; None where it is not known.
        exclude: the row filters.
        rank: of the planes; None for the default.
        d: width of the model.

    Raises:
        ShortTextError: in the place of an `UndefinedMeasureError`, where a half has fewer rows than directions and one.
    """
    try:
        yield
    except ShortTextError:
        raise
    except UndefinedMeasureError as error:
        held = [half for half in (positions or {}).values() if any(half.values())]
        rows = [sum(count for kind, count in half.items() if kind not in exclude) for half in held]
        least = (default_rank(d) if rank is None else rank) + 2
        if not rows or min(rows) >= least:
            raise
        ordinary = sum(half["masked"] + half["unmasked"] for half in held)
        special = sum(half["special"] for half in held)
        apart = f"; its halves have {' and '.join(map(str, rows))} tokens to measure" if len(rows) > 1 else ""
        raise ShortTextError(
            f"the text has {ordinary} ordinary token{'' if ordinary == 1 else 's'} beside {special} special "
            f"ones{apart}, too few to measure planes of {least - 2} directions; give more text, "
            f"about 10 documents or more ({error})"
        ) from error
