"""Curves, markers and bands that figures of energies and of isotropy share."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.axes import listed, order, xs
from tl_aniso.viz.colours import COLOURS, faint
from tl_aniso.viz.style import control_name, missing_note, plain

__all__ = ["area", "band", "curve", "most_missing", "single_sites"]


def most_missing(means: Any) -> str:
    """A note of the quantity or series that lacks most values: one place in a legend stands for all of them."""
    by = "quantity" if "quantity" in means else "series"
    counts = [
        (int((rows["n_sites"] - rows["n_known"]).sum()), int(rows["n_sites"].sum())) for _, rows in means.groupby(by)
    ]
    return missing_note(*max(counts))


def curve(
    part: Any, x: str, control: str, style: dict[str, Any], note: str, visible: bool, in_legend: bool
) -> go.Scatter:
    """The curve of a table of means, with how many sites each point stands for."""
    part = part.iloc[order(part[x])]
    numbers = part["value"].to_numpy(dtype=np.float64)
    name = control_name(control)
    # A name that looks like one of plotly's own placeholders must not be filled in.
    label = plain(name).replace("%{", "%&#123;")
    return go.Scatter(
        x=xs(part[x]),
        y=listed(numbers),
        customdata=listed(part[["n_known", "n_sites"]].to_numpy()),
        name=plain(name + note),
        legendgroup=plain(control),
        showlegend=in_legend,
        visible=visible,
        mode="lines+markers",
        connectgaps=False,
        hovertemplate=f"{label}: %{{y:.3g}} (%{{customdata[0]}} of %{{customdata[1]}} sites)<extra>%{{x}}</extra>",
        **style,
    )


def single_sites(part: Any, x: str, visible: bool) -> go.Scatter:
    """Every site as a marker, with its interval where there is one."""
    part = part.iloc[order(part[x])]
    numbers, low, high = (part[name].to_numpy(dtype=np.float64) for name in ("value", "low", "high"))
    bounded = bool(np.isfinite(low).any())
    note = missing_note(int((~np.isfinite(numbers)).sum()), len(numbers))
    bars = {
        "error_y": {"array": listed(high - numbers), "arrayminus": listed(numbers - low), "thickness": 1, "width": 2}
    }
    return go.Scatter(
        x=xs(part[x]),
        y=listed(numbers),
        text=[plain(site) for site in part["site"]],
        name=("single sites, 95% interval" if bounded else "single sites") + note,
        visible=visible,
        mode="markers",
        marker={"size": 6, "symbol": "circle-open", "color": COLOURS[0]},
        hovertemplate="%{text}: %{y:.3g}<extra></extra>",
        **(bars if bounded else {}),
    )


def band(part: Any, x: str) -> list[go.Scatter]:
    """Two deviations over drawn normal planes, as two traces; none where they are not known everywhere."""
    low, high = (part[name].to_numpy(dtype=np.float64) for name in ("low", "high"))
    common = {"x": xs(part[x]), "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    name = "without normal, 2 s.d."
    # A fill bridges gaps, so a band with holes is left out rather than drawn where nothing is known.
    if not np.isfinite(low).all():
        return []
    return [
        go.Scatter(y=listed(low), legendgroup="without normal", name=name, **common),
        go.Scatter(
            y=listed(high),
            legendgroup="without normal",
            name=name,
            fill="tonexty",
            fillcolor=faint(COLOURS[1], 0.22),
            **common,
        ),
    ]


def area(x: list[Any], low: Any, high: Any, colour: str, *, is_main: bool = True, **options: Any) -> go.Scatter:
    """A band as one trace: a closed outline for every run of neighbours whose ends are known, with gaps between.

    A run of one point is a stroke from its lower to its upper end.

    Args:
        x: positions, in order.
        low: lower ends; not finite where unknown.
        high: upper ends.
        colour: one of `tl_aniso.viz.colours.COLOURS`.
        is_main: with an outline and a stronger fill; bands of many controls lie over each other and have neither.
        **options: of `plotly.graph_objects.Scatter`.

    Raises:
        TlAnisoError: lengths that differ.

    Example:
        >>> area([0, 1, 2, 3], [1, 1, float("nan"), 2], [2, 3, 2, 4], "#1591f6").x
        (0, 1, 1, 0, 0, None, 3, 3, 3)
    """
    lower, upper = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    if not len(x) == len(lower) == len(upper):
        raise TlAnisoError(
            f"a band needs equal lengths, got {len(x)} positions, {len(lower)} lower and {len(upper)} upper ends"
        )
    known = np.isfinite(lower) & np.isfinite(upper)
    across: list[Any] = []
    along: list[Any] = []
    start = 0
    while start < len(x):
        if not known[start]:
            start += 1
            continue
        end = start
        while end + 1 < len(x) and known[end + 1]:
            end += 1
        places = list(range(start, end + 1))
        if across:
            across.append(None)
            along.append(None)
        across += [x[i] for i in (*places, *reversed(places), start)]
        along += [*lower[places].tolist(), *upper[places[::-1]].tolist(), float(lower[start])]
        start = end + 1
    return go.Scatter(
        x=across,
        y=along,
        mode="lines",
        line={"color": faint(colour, 0.5 if is_main else 0.2), "width": 1},
        fill="toself",
        fillcolor=faint(colour, 0.25 if is_main else 0.1),
        hoverinfo="skip",
        **options,
    )
