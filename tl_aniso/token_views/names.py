"""What tokens are called: their text as a reader sees it in context, whatever it holds."""

from collections.abc import Iterable
from typing import Any

__all__ = ["token_texts"]


def token_texts(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """The text of each id, with the space that a sentence piece stands for; without a tokenizer, the id in brackets.

    Example:
        >>> token_texts(None, [5, 7])
        ('[5]', '[7]')
    """
    known: dict[int, str] = {}
    found = []
    for value in ids:
        if value not in known:
            known[value] = f"[{value}]" if tokenizer is None else _text(tokenizer, value)
        found.append(known[value])
    return tuple(found)


def _text(tokenizer: Any, value: int) -> str:
    text = str(tokenizer.decode([value], clean_up_tokenization_spaces=False))
    pieces = getattr(tokenizer, "convert_ids_to_tokens", None)
    piece = None if pieces is None else pieces(value)
    # SentencePiece drops the space at the start of what it decodes, and a lone token always is the start.
    if isinstance(piece, str) and piece.startswith("\u2581") and not text.startswith(" "):
        text = f" {text}"
    return text if text or piece is None else str(piece)
