"""The text of a token as a page shows it: every character visible, none obeyed."""

import re
import unicodedata

from tl_aniso.viz.style import visible

__all__ = ["shown"]

_MOST = 80
_MARKS = {"\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff\u200b\u2060]")
# Joiners belong to emoji and to several scripts; alone they are not seen.
_JOINERS = re.compile("[\u200c\u200d\ufe00-\ufe0f]+")


def shown(text: str, *, most: int | None = _MOST) -> str:
    r"""Text with controls, invisible characters, direction marks and lone surrogates spelled out, and cut if long.

    Args:
        text: of a token.
        most: characters to keep; None for all.

    Example:
        >>> shown("a\n\x00\u202eb"), shown("", most=3), shown("abcdef", most=3)
        ('a↵[U+0000][U+202E]b', '[empty]', 'abc… (6 characters)')
    """
    if not text:
        return "[empty]"
    kept = text if most is None or len(text) <= most else text[:most]
    spelled = _HIDDEN.sub(lambda m: _MARKS.get(m.group(), f"[U+{ord(m.group()):04X}]"), visible(kept))
    if _JOINERS.fullmatch(spelled):
        spelled = "".join(f"[U+{ord(character):04X}]" for character in spelled)
    # A combining mark would join the token before it.
    if unicodedata.combining(spelled[0]):
        spelled = f"\u25cc{spelled}"
    return spelled if kept == text else f"{spelled}\u2026 ({len(text):,} characters)"
