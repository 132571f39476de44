"""Names, colours and layout that all figures share."""

import re
from html import escape
from typing import Any

import plotly.graph_objects as go

from tl_aniso.viz.colours import COLOURS, SOFT

__all__ = [
    "COLOURS",
    "control_name",
    "finish",
    "line_style",
    "missing_note",
    "number",
    "panel_menu",
    "plain",
    "step_text",
    "visible",
]

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "x",
    "triangle-down",
    "star",
    "cross",
    "pentagon",
    "hexagon",
    "hourglass",
)
_NAMES = {
    "none": "true gradient",
    "normal": "normal plane",
    "shuffled_g": "shuffled g",
    "untrained": "untrained model",
    "covariance_drawn": "covariance draws",
    "next_k": "next k directions",
    "late_fitted": "late-fitted planes",
}


def plain(text: object) -> str:
    """Text for a figure that plotly shows as it is: it takes a few tags and entities of HTML for markup.

    Example:
        >>> plain("<a href='x'>W_Q & W_K</a>")
        "&lt;a href='x'&gt;W_Q &amp; W_K&lt;/a&gt;"
    """
    return escape(visible(text), quote=False)


# Marks, embeddings, overrides and isolates: they reorder what stands around them, out of sight.
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: object) -> str:
    r"""Text with characters that only set the direction of writing shown as their code points.

    Example:
        >>> visible("a\u202eb")
        'a[U+202E]b'
    """
    return _DIRECTION.sub(lambda found: f"[U+{ord(found.group()):04X}]", str(text))


def control_name(control: str) -> str:
    """A control as a reader calls it; "none" is the true gradient.

    Example:
        >>> control_name("none"), control_name("input_energy")
        ('true gradient', 'input energy')
    """
    return _NAMES.get(control, str(control).replace("_", " "))


def step_text(step: float) -> str:
    """A training step as a label.

    Example:
        >>> step_text(500.0), step_text(float("nan"))
        ('500', 'unknown')
    """
    return "unknown" if step != step else f"{step:g}" if step < 1e5 else f"{step:.0f}"


def number(value: float) -> str:
    """A number to three digits, trailing zeros kept so that columns compare.

    Example:
        >>> number(0.8), number(17.0), number(46.94), number(3120.4), number(0.00012)
        ('0.800', '17.0', '46.9', '3,120', '0.000120')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and marker of the curve of that index; the first is the thickest."""
    colour = COLOURS[index % len(COLOURS)]
    return {
        "line": {"color": colour, "width": 3.5 if index == 0 else 2, "dash": _DASHES[index % len(_DASHES)]},
        "marker": {"color": colour, "size": 8 if index == 0 else 7, "symbol": _SYMBOLS[index % len(_SYMBOLS)]},
    }


def missing_note(n_missing: int, n_all: int) -> str:
    """How many values are missing, for a legend; empty if none."""
    return f" ({n_missing} of {n_all} missing)" if n_missing else ""


def panel_menu(labels: list[str], updates: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A drop-down list that chooses between what a figure can show; none where there is no choice."""
    if len(labels) < 2:
        return []
    buttons = [
        {"label": plain(label), "method": "update", "args": args} for label, args in zip(labels, updates, strict=True)
    ]
    return [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "active": 0}]


def finish(figure: go.Figure, *, height: int) -> go.Figure:
    """Margins, legend and fonts; backgrounds stay clear, so that a figure fits a light and a dark page."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 48, "b": 72},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
        hoverlabel={"align": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#808080", "activecolor": COLOURS[0]},
    )
    grid = {"gridcolor": SOFT, "zeroline": False, "automargin": True, "linecolor": "#808080"}
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    return figure
