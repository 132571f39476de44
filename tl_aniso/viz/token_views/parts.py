"""The pieces of a token view that a page puts together: markup, data, one script, one style sheet."""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from tl_aniso.token_views.shares import TokenShares
from tl_aniso.viz.style import visible
from tl_aniso.viz.token_views.colours import palette
from tl_aniso.viz.token_views.encode import encoded

__all__ = ["TokenViewParts", "token_view_parts"]

_TEMPLATES = Path(__file__).parent.parent / "templates"
_numbers = itertools.count(1)


class TokenViewParts(NamedTuple):
    """Everything is `Markup`: safe to stand in a page as it is.

    Attributes:
        fragment: the view's elements, with its data in a ``<script type="application/json">``.
        data_json: the same data as JSON in which no character can end a script element, for pages that keep their data
            elsewhere.
        script: of all views of a page; goes into one ``<script>`` after the last view, once. It looks for elements with
            the class ``tl-tokens`` that it has not drawn yet; a second copy of it does no harm.
        css: of all views, once. Class names begin with ``tl-``; nothing outside a view is styled.
    """

    fragment: Markup
    data_json: Markup
    script: Markup
    css: Markup


def token_view_parts(shares: TokenShares, *, label: str = "Tokens", name: str | None = None) -> TokenViewParts:
    """A token view as parts of a larger page.

    A page with several views writes `script` and `css` once (they are the same for all views) and each `fragment` where
    it belongs. Nothing is fetched; it runs under ``script-src 'unsafe-inline'`` and needs no ``eval``.

    Args:
        shares: as `tl_aniso.token_views.token_shares` measures them.
        label: what a screen reader calls the view; any text.
        name: prefix of the ids of its elements, letters, digits and hyphens; by default a running number.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.token_views import ShareSeries, TokenShares
        >>> values = {"true": np.array([[0.5, np.nan]], dtype=np.float32)}
        >>> series = ShareSeries("activation", "hook_resid_pre", ("blocks.0.hook_resid_pre",), (0,), (2,), 8, values,
        ...                      values, np.zeros((1, 2), dtype=bool))
        >>> two, no = np.arange(2), np.zeros(2, dtype=bool)
        >>> shares = TokenShares(("</script>", "b"), two, two, 0 * two, two, ("ab",), no, no, (series,))
        >>> parts = token_view_parts(shares)
        >>> "</script>" in parts.data_json, "<script>" in parts.script
        (False, False)
    """
    name = f"tl-tokens-{next(_numbers)}" if name is None else name
    data = embedded(json.dumps(encoded(shares), ensure_ascii=True, separators=(",", ":"), allow_nan=False))
    fragment = Markup(
        '<section class="tl-tokens" id="{0}" aria-label="{1}">'
        '<noscript><p class="tl-note">The coloured text needs JavaScript; the result has its numbers in a table.</p>'
        '</noscript><script type="application/json" class="tl-data">{2}</script></section>'
    ).format(name, visible(label), data)
    return TokenViewParts(fragment, data, _script(), _css())


def embedded(text: str) -> Markup:
    """JSON that can stand inside a script element: no character in it can end the element or open a comment.

    Example:
        >>> str(embedded('["</script>"]'))
        '["\\\\u003c/script\\\\u003e"]'
    """
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _script() -> Markup:
    return Markup((_TEMPLATES / "tokens.js").read_text(encoding="utf-8"))


@cache
def _css() -> Markup:
    steps = "\n".join(
        f".tl-tokens .q{step} {{ background: {background}; color: {ink}; }}"
        for step, (background, ink) in enumerate(palette())
    )
    stops = ", ".join(background for background, _ in palette())
    bar = f".tl-tokens .tl-bar {{ background: linear-gradient(to right, {stops}); }}"
    return Markup(f"{(_TEMPLATES / 'tokens.css').read_text(encoding='utf-8')}\n{steps}\n{bar}\n")
