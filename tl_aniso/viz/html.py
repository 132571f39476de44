"""What all pages share: their templates, strings shown as text whatever they hold, data inside script elements."""

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from tl_aniso.viz.plotly_script import plotly_script
from tl_aniso.viz.style import visible

__all__ = ["embedded", "embedded_json", "environment", "plotly_deflated", "source"]

_TEMPLATES = Path(__file__).parent / "templates"


def environment(*rooms: Path) -> jinja2.Environment:
    """Templates of these folders and of this one, in which every string is text and none reorders what is around it.

    Args:
        rooms: folders that are looked through first.
    """
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*rooms, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Nothing that a page holds may reorder what stands around it: values are shown, never obeyed.
    found.finalize = lambda value: visible(value) if type(value) is str else value
    found.globals["source"] = source
    return found


def source(*names: str) -> Markup:
    """Scripts of the templates' folder as they are: to a template engine they would look like templates."""
    return Markup("\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def embedded(text: str) -> Markup:
    """JSON that can stand inside a script element: no character in it can end the element or open a comment.

    Example:
        >>> embedded('"</script><!--"')
        Markup('"\\\\u003c/script\\\\u003e\\\\u003c!--"')
    """
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def embedded_json(value: Any) -> Markup:
    """A plain value as `embedded` JSON."""
    return embedded(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


@cache
def plotly_deflated(*kinds: str) -> Markup:
    """The script that draws, deflated and in base64: 2 MB for 5.

    Args:
        *kinds: of traces beside scatter, as of `tl_aniso.viz.plotly_script.plotly_script`.
    """
    script = plotly_script(*kinds).encode("utf-8")
    return Markup(base64.b64encode(zlib.compress(script, 9)).decode("ascii"))
