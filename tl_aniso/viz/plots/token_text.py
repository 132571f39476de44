"""A token as text that shows all of it, whatever it holds, and cannot act on the page around it."""

import re

from tl_aniso.viz.style import plain

__all__ = ["token_text"]

# Controls, which SVG and JSON readers refuse or swallow, lone surrogates, and line separators.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200d\u2028\u2029\u2060\ud800-\udfff\ufeff\ufffe\uffff]")


def token_text(token: object, longest: int = 60) -> str:
    r"""A token in quotation marks: markup as text, unseen characters as code points, a long one cut with its length.

    Args:
        token: of any kind; what is no string is shown as Python prints it.
        longest: characters that are kept.

    Example:
        >>> token_text(" the"), token_text("</script>"), token_text("a\x00b")
        ('“ the”', '“&lt;/script&gt;”', '“a[U+0000]b”')
        >>> token_text("x" * 10_000, longest=3)
        '“xxx…” (10,000 characters)'
    """
    text = str(token)
    cut = text[:longest]
    seen = plain(_UNSEEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", cut))
    return f"“{seen}”" if cut == text else f"“{seen}…” ({len(text):,} characters)"
