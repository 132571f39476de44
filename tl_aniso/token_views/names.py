"""What tokens are called: their text as a reader sees it in context, whatever it holds."""

from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import Any

import pandas as pd

from tl_aniso.errors import TlAnisoError

__all__ = ["as_html", "token_texts"]


def token_texts(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """The text of each id, with the space that a sentence piece stands for; without a tokenizer, the id in brackets.

    An id beyond the tokenizer's vocabulary (models' are often padded) is called "id 1234".

    Raises:
        TlAnisoError: a tokenizer that cannot decode.

    Example:
        >>> token_texts(None, [5, 7])
        ('[5]', '[7]')
    """
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise TlAnisoError(f"tokenizer must be a tokenizer with a method decode, or None, got {tokenizer!r}")
    known: dict[int, str] = {}
    found = []
    for value in ids:
        if value not in known:
            known[value] = f"[{value}]" if tokenizer is None else _text(tokenizer, value)
        found.append(known[value])
    return tuple(found)


def _text(tokenizer: Any, value: int) -> str:
    try:
        beyond = value >= len(tokenizer)
    except TypeError:  # no length
        beyond = False
    if beyond:
        return f"id {value}"
    text = str(tokenizer.decode([value], clean_up_tokenization_spaces=False))
    pieces = getattr(tokenizer, "convert_ids_to_tokens", None)
    piece = None if pieces is None else pieces(value)
    # SentencePiece drops the space at the start of what it decodes, and a lone token always is the start.
    if isinstance(piece, str) and piece.startswith("\u2581") and not text.startswith(" "):
        text = f" {text}"
    return text if text or piece is None else str(piece)


def as_html(frame: pd.DataFrame, notes: Iterable[str]) -> str:
    """A frame as a table in which tokens are text, whatever they hold, with notes below it.

    Example:
        >>> "&lt;b&gt;" in as_html(pd.DataFrame({"token": ["<b>"]}), ())
        True
    """
    visible = import_module("tl_aniso.viz.style").visible  # figures build on results, not the other way round
    shown = frame.map(lambda value: visible(value) if isinstance(value, str) else value)
    table = shown.to_html(index=False, float_format=lambda v: f"{v:.3g}", na_rep="–", escape=True)
    return table + "".join(f"<p>note: {escape(visible(note))}</p>" for note in notes)
