"""R, E and excess by layer and by step, the true gradient beside every control."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.viz.axes import log_axis, need_steps, only_step, with_place, x_axis
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.curves import curve, most_missing, single_sites
from tl_aniso.viz.style import finish, line_style
from tl_aniso.viz.tables import QUANTITIES, averaged, controls_of, energy_values, panels_of

__all__ = ["energy_by_layer", "energy_by_step"]

_AXIS_NAMES = {"R": "R (log)", "E": "E", "excess": "excess (log)"}


def energy_by_layer(frame: Any) -> go.Figure:
    """R, E and excess by layer, true beside every control, with every site of the true gradient as a small marker.

    Args:
        frame: as `TangentEnergy.frame` holds it, of one checkpoint.

    Returns:
        Three panels, R and excess on logarithmic axes; a list chooses between groups of weights and activation
        gradients. Curves are means over a layer's sites (geometric for R and excess).

    Raises:
        TlAnisoError: frames of several steps, or a frame that does not fit `energy_values`.
        UndefinedMeasureError: the frame holds no energies.
    """
    values = energy_values(frame)
    only_step(values, "energy_by_step")
    return _energy(with_place(values), "place", "layer", sites=True)


def energy_by_step(frame: Any) -> go.Figure:
    """R, E and excess by training step, the true gradient beside every control.

    Args:
        frame: frames of `TangentEnergy` of several checkpoints, concatenated, their column ``step`` set.

    Returns:
        Three panels, R and excess on logarithmic axes: geometric means over layers and matrices, arithmetic for E.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`.
        UndefinedMeasureError: the frame holds no energies.
    """
    values = energy_values(frame)
    need_steps(values, "energy_by_layer")
    return _energy(values, "step", "training step", sites=False)


def _energy(values: Any, x: str, x_name: str, *, sites: bool) -> go.Figure:
    means = averaged(values, "panel", x)
    panels, controls = panels_of(values), controls_of(values)
    shown = [name for name in QUANTITIES if name in set(values["quantity"])]
    heights = [0.5, 0.25, 0.25] if len(shown) == 3 else None
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.05, row_heights=heights)
    owners: list[str] = []
    for panel in panels:
        for row, quantity in enumerate(shown, start=1):
            for index, control in enumerate(controls):
                part = means[
                    (means["panel"] == panel) & (means["quantity"] == quantity) & (means["control"] == control)
                ]
                if len(part):
                    note = most_missing(means[(means["panel"] == panel) & (means["control"] == control)])
                    figure.add_trace(
                        curve(part, x, control, line_style(index), note, panel == panels[0], row == 1), row=row, col=1
                    )
                    owners.append(panel)
            if sites and quantity == "R":
                own = values[(values["panel"] == panel) & (values["quantity"] == "R") & (values["control"] == "none")]
                figure.add_trace(single_sites(own, x, panel == panels[0]), row=row, col=1)
                owners.append(panel)
    finish(figure, height=260 + 170 * len(shown))
    # Each panel brings its own places, in their order: an axis of all would leave room for what is not shown.
    figure.update_xaxes(**(x_axis(values, x) if x == "step" else {"type": "category", "tickangle": 0}))
    figure.update_xaxes(title_text=x_name, row=len(shown), col=1)
    for row, quantity in enumerate(shown, start=1):
        figure.update_yaxes(title_text=_AXIS_NAMES[quantity], row=row, col=1)
        if quantity == "E":
            figure.update_yaxes(range=[0, 1], row=row, col=1)
        else:
            rows = values[values["quantity"] == quantity]
            # Intervals of single sites are drawn in the panel of R alone.
            drawn = ["value", "low", "high"] if sites and quantity == "R" else ["value"]
            figure.update_yaxes(**log_axis(rows[drawn]), row=row, col=1)
            figure.add_hline(y=1, line={"color": "#808080", "width": 1, "dash": "dot"}, row=row, col=1)
    add_choice(figure, panels, [panels.index(owner) for owner in owners])
    return figure
