"""The coloured tokens of circuitsvis, for short texts in a notebook, with its script inlined.

What circuitsvis renders by itself asks the network: it calls a search engine to learn whether there is one, and then
loads its script from a content delivery network. It also takes the text of tokens for HTML, and puts props into the
page without escaping. So its script, which the package has in a file, is used directly, with texts escaped here.
"""

import itertools
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.token_views.parts import embedded
from tl_aniso.viz.token_views.text import shown

__all__ = ["MOST_TOKENS", "circuits_script", "circuits_tokens"]

# It draws every token anew at each change: of 2,000 this takes seconds, of 200 about a tenth of one.
MOST_TOKENS = 200
_numbers = itertools.count(1)


@cache
def circuits_script() -> Markup:
    """The script of circuitsvis (MIT licence), 1.3 MB, to stand inside one ``<script>`` of a page.

    Raises:
        TlAnisoError: the package holds no script of its own.
    """
    spec = find_spec("circuitsvis")  # without importing it
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    file = next((path for place in places if (path := Path(place) / "dist" / "cdn" / "iife.js").is_file()), None)
    if file is None:
        raise TlAnisoError("the script of circuitsvis was not found in its package; install circuitsvis==1.43.3 again")
    source = file.read_text(encoding="utf-8").replace("</script", "<\\/script")
    return Markup(f"{source}\nglobalThis.CircuitsVis = CircuitsVis;")


class _Html(str):
    """Markup that a notebook shows."""

    def _repr_html_(self) -> str:
        return str(self)


def circuits_tokens(
    tokens: Sequence[str], values: Float[np.ndarray, " tokens"], *, highest: float = 1.0, script: bool = True
) -> _Html:
    """A short text coloured from white to blue by circuitsvis' own component, without any network.

    `TokenView` has layers, both labels, a legend and a readout; this is for one set of values at a time, beside other
    views of circuitsvis. It draws a missing value as white text without a ground, so that those are refused.

    Args:
        tokens: their texts, at most `MOST_TOKENS`; any text is shown as text.
        values: one a token, from 0 to `highest`.
        highest: value of the strongest colour.
        script: whether the script comes along: once a page is enough.

    Raises:
        TlAnisoError: lengths that differ, no or too many tokens, values that are missing.

    Example:
        >>> import numpy as np
        >>> html = circuits_tokens(["<b>", "x"], np.array([0.25, 0.5]), script=False)
        >>> "<b>" in html, "https:" in html, "ColoredTokens" in html
        (False, False, True)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != (len(tokens),):
        raise TlAnisoError(f"values have shape {numbers.shape}, and there are {len(tokens)} tokens")
    if not 0 < len(tokens) <= MOST_TOKENS:
        raise TlAnisoError(
            f"circuitsvis is shown {len(tokens)} tokens; it takes 1 to {MOST_TOKENS}. TokenView shows longer texts"
        )
    missing = int((~np.isfinite(numbers)).sum())
    if missing:
        raise TlAnisoError(
            f"{missing} of {len(tokens)} values are missing, which circuitsvis cannot show; TokenView can, or leave "
            "their tokens out"
        )
    name = f"tl-circuits-{next(_numbers)}"
    props = json.dumps(
        {
            "tokens": [escape(shown(token)) for token in tokens],
            "values": [round(value, 6) for value in numbers.tolist()],
            "minValue": -highest,
            "maxValue": highest,
        }
    )
    start = f"<script>{circuits_script()}</script>" if script else ""
    call = f'CircuitsVis.render("{name}", CircuitsVis.ColoredTokens, {embedded(props)});'
    return _Html(f'{start}<div id="{name}"></div><script>{call}</script>')
