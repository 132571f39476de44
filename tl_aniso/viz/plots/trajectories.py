"""E, R and excess over training with bands: intervals of the effect, the exact null, controls over layers."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.viz.axes import listed, log_axis, x_axis, xs
from tl_aniso.viz.colours import COLOURS, MISSING
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.curves import area
from tl_aniso.viz.plots.trajectory_values import trajectory_values
from tl_aniso.viz.style import control_name, finish, line_style, missing_note, plain
from tl_aniso.viz.tables import controls_of, panels_of

__all__ = ["energy_trajectories"]

_ROWS = (("E", "E"), ("R", "R (log)"), ("excess", "excess (log)"))


def energy_trajectories(frame: Any) -> go.Figure:
    """E, R and excess by training step, every curve with its band, of one model and group of sites at a time.

    Read off whether the band of the true gradient leaves those of the controls, and when.

    Args:
        frame: frames of `TangentEnergy` of several checkpoints, and of several models if so wished, concatenated.

    Returns:
        Three panels; a list chooses the model and the group. Curves are means over sites (geometric for R and
        excess). Bands, as `tl_aniso.viz.plots.trajectory_values.trajectory_values` has them: of the true gradient
        and of excess the mean jackknife interval of a site; of the normal plane its exact null, 1.96 deviations to
        either side; of another control from its lowest to its highest layer. Where ends are not known a band has a
        gap.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`, or without steps.
        UndefinedMeasureError: the frame holds no energies.
    """
    values = trajectory_values(frame)
    shown = [(name, title) for name, title in _ROWS if name in set(values["quantity"])]
    controls = controls_of(values)
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.06)
    several = values["model"].nunique() > 1
    groups: list[str] = []
    owners: list[int] = []
    for model in values["model"].unique():
        of_model = values[values["model"] == model]
        for panel in panels_of(of_model):
            rows = of_model[of_model["panel"] == panel]
            groups.append(f"{model} · {panel}" if several else panel)
            for trace, row in _traces(rows, [name for name, _ in shown], controls):
                figure.add_trace(trace, row=row, col=1)
                owners.append(len(groups) - 1)
    finish(figure, height=120 + 210 * len(shown))
    figure.update_xaxes(**x_axis(values, "step"))
    figure.update_xaxes(title_text="training step", row=len(shown), col=1)
    for row, (quantity, title) in enumerate(shown, start=1):
        figure.update_yaxes(title_text=title, row=row, col=1)
        if quantity == "E":
            figure.update_yaxes(rangemode="tozero", row=row, col=1)
        else:
            numbers = values.loc[values["quantity"] == quantity, ["value", "low", "high"]]
            figure.update_yaxes(**log_axis(numbers), row=row, col=1)
            figure.add_hline(y=1, line={"color": MISSING, "width": 1, "dash": "dot"}, row=row, col=1)
    add_choice(figure, groups, owners)
    return figure


def _traces(rows: Any, quantities: list[str], controls: list[str]) -> Any:
    """Bands first, so that no band lies over a curve; the note of a legend entry is of all its quantities."""
    named: set[str] = set()
    curves = []
    for row, quantity in enumerate(quantities, start=1):
        for index, control in enumerate(controls):
            part = rows[(rows["quantity"] == quantity) & (rows["control"] == control)].sort_values("step")
            if part.empty:
                continue
            mine = rows[rows["control"] == control]
            note = missing_note(int((mine["n_sites"] - mine["n_known"]).sum()), int(mine["n_sites"].sum()))
            colour = COLOURS[index % len(COLOURS)]
            if np.isfinite(part["low"]).any():
                is_main = control in ("none", "normal")
                options = {"legendgroup": plain(control), "showlegend": False, "name": plain(f"band of {control}")}
                yield area(xs(part["step"]), part["low"], part["high"], colour, is_main=is_main, **options), row
            curves.append((_curve(part, control, index, note, control not in named), row))
            named.add(control)
    yield from curves


def _curve(part: Any, control: str, index: int, note: str, in_legend: bool) -> go.Scatter:
    label = plain(control_name(control)).replace("%{", "%&#123;")
    ends = part[["low", "high", "n_known", "n_sites"]].to_numpy(dtype=np.float64)
    return go.Scatter(
        x=xs(part["step"]),
        y=listed(part["value"].to_numpy(dtype=np.float64)),
        customdata=listed(ends),
        name=plain(control_name(control) + note),
        legendgroup=plain(control),
        showlegend=in_legend,
        mode="lines+markers",
        connectgaps=False,
        hovertemplate=(
            f"{label}: %{{y:.3g}} (%{{customdata[0]:.3g}} to %{{customdata[1]:.3g}}; "
            "%{customdata[2]} of %{customdata[3]} sites)<extra>step %{x}</extra>"
        ),
        **line_style(index),
    )
