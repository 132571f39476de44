"""The figure of paired differences: every site with its interval, by layer."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz.axes import log_axis, ordered, with_place, x_axis
from tl_aniso.viz.style import COLOURS, control_name, finish, missing_note, panel_menu, plain
from tl_aniso.viz.tables import panel_of, panels_of

__all__ = ["differences_by_layer"]

_PANELS = (("energy_share", "E: difference"), ("r_energy", "R: ratio (log)"), ("excess", "excess: ratio (log)"))


def differences_by_layer(frame: Any, names: tuple[str, str] = ("a", "b")) -> go.Figure:
    """Difference of E and ratios of R and of excess by layer, every site with its 95% interval.

    Args:
        frame: as `tl_aniso.difference.Difference.frame` holds it.
        names: what was subtracted from what, for the title.

    Returns:
        Three panels; a list chooses between groups of weights and activation gradients. What is missing is left out
        and counted in the legend.

    Raises:
        UndefinedMeasureError: no value is known.
    """
    highest = frame.groupby(["site", "gradient"])["rank"].transform("max")
    rows = frame[
        (frame["rank"] == highest) & ~((frame["measure"] != "excess") & ~frame["control"].isin(("none", "normal")))
    ]
    if rows["value"].isna().all():
        raise UndefinedMeasureError("the frame holds no known differences")
    rows = with_place(rows.assign(panel=[panel_of(g, s) for g, s in zip(rows["gradient"], rows["site"], strict=True)]))
    figure = make_subplots(rows=1, cols=3, subplot_titles=[title for _, title in _PANELS])
    panels = panels_of(rows)
    owners: list[str] = []
    for panel in panels:
        of_panel = rows[rows["panel"] == panel]
        for column, (measure, _) in enumerate(_PANELS, start=1):
            part = of_panel[of_panel["measure"] == measure]
            for index, control in enumerate(part["control"].unique()):
                label = control_name(control) if measure == "excess" else "true gradient"
                trace = _trace(part[part["control"] == control], measure != "energy_share", label, index)
                trace.update(visible=panel == panels[0], showlegend=measure == "excess" or column == 1)
                figure.add_trace(trace, row=1, col=column)
                owners.append(panel)
    finish(figure, height=420)
    updates = [[{"visible": [owner == panel for owner in owners]}] for panel in panels]
    figure.update_layout(
        title={"text": plain(f"{names[0]} less {names[1]}"), "font": {"size": 14}},
        updatemenus=panel_menu(panels, updates),
        margin={"t": 110},
    )
    figure.update_xaxes(title_text="layer", **x_axis(rows, "place"))
    for column, (measure, _) in enumerate(_PANELS, start=1):
        numbers = rows.loc[rows["measure"] == measure, ["value", "ci_low", "ci_high"]].to_numpy(dtype=np.float64)
        if measure != "energy_share":
            figure.update_yaxes(row=1, col=column, **log_axis(np.exp(np.clip(numbers, -20, 20))))
        figure.add_hline(
            y=0 if measure == "energy_share" else 1, line={"color": "#808080", "width": 1}, row=1, col=column
        )
    return figure


def _trace(part: Any, is_ratio: bool, label: str, index: int) -> go.Scatter:
    known = part[np.isfinite(part["value"])]
    places = ordered(known["place"])
    known = known.assign(position=[places.index(place) for place in known["place"]]).sort_values("position")
    value, low, high = (known[name].to_numpy(dtype=np.float64) for name in ("value", "ci_low", "ci_high"))
    if is_ratio:
        value, low, high = np.exp(value), np.exp(low), np.exp(high)
    return go.Scatter(
        x=[plain(place) for place in known["place"]],
        y=value.tolist(),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.nan_to_num(high - value).tolist(),
            "arrayminus": np.nan_to_num(value - low).tolist(),
            "width": 2,
        },
        mode="markers",
        marker={"color": COLOURS[index % len(COLOURS)], "size": 7},
        name=plain(label + missing_note(len(part) - len(known), len(part))),
        text=[plain(site) for site in known["site"]],
        hovertemplate="%{text}: %{y:.3g}<extra></extra>",
        legendgroup=label,
    )
