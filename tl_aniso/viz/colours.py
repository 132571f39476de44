"""Colours of curves and of maps, chosen so that readers who do not see red or green can tell them apart."""

from typing import Any

import numpy as np

__all__ = ["COLOURS", "DIVERGING", "MISSING", "SEQUENTIAL", "SOFT", "faint", "map_colours"]

# Found by a search from the colours of Okabe and Ito: a contrast of 3 or more on white as well as on near-black, any
# two at least 13 apart (CIE 1976) as deuteranopes and protanopes see them, the first six 19. Hue alone never
# carries a meaning: every curve has a marker and a dash of its own.
COLOURS = (
    *("#1591f6", "#f55900", "#2a734d", "#ce57b6", "#985622", "#9e8c8a", "#119ed1", "#82578c"),
    *("#614de4", "#0da95c", "#5aa00f"),
)

# Lightness rises or falls all the way, so that both print in grey; the second is light at its middle.
SEQUENTIAL, DIVERGING = "Cividis", "PuOr"

# What stands behind data: axes, thresholds, marks of what is missing. 3 or more on white and on near-black.
MISSING, SOFT = "#808080", "rgba(128,128,128,0.25)"


def faint(colour: str, share: float = 0.18) -> str:
    """A colour of `COLOURS` as the fill of a band.

    Example:
        >>> faint("#ff8000", 0.5)
        'rgba(255,128,0,0.5)'
    """
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},{share:g})"


def map_colours(kind: str, numbers: Any, title: str) -> dict[str, Any]:
    """What a plotly heat map needs to colour these numbers.

    Args:
        kind: "share" (0 to 1), "ratio" (logarithmic), "about one" (logarithmic, the middle at 1) or "about zero"
            (linear, the middle at 0). Colours of ratios are of their decimal logarithm.
        numbers: all that the map shows, missing ones NaN.
        title: of the colour bar.
    """
    bar: dict[str, Any] = {"title": {"text": title, "side": "top"}, "thickness": 12, "len": 1.05}
    if kind == "share":
        return {"colorscale": SEQUENTIAL, "zmin": 0.0, "zmax": 1.0, "colorbar": bar}
    known = np.asarray(numbers, dtype=np.float64)
    if kind != "about zero":
        with np.errstate(divide="ignore", invalid="ignore"):
            known = np.log10(known)
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    if kind in ("about one", "about zero"):
        high = max(abs(low), abs(high), 0.05 if kind == "about one" else 1e-6)
        low = -high
    elif high - low < 0.1:
        low, high = low - 0.05, high + 0.05
    at = np.linspace(low, high, 5)
    bar["tickvals"] = at.tolist()
    bar["ticktext"] = [f"{a:.2g}" if kind == "about zero" else f"{10**a:.3g}" for a in at]
    return {
        "colorscale": SEQUENTIAL if kind == "ratio" else DIVERGING,
        "zmin": low,
        "zmax": high,
        "colorbar": bar,
    }
