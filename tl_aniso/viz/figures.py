"""Interactive plotly figures of tidy frames; what is missing is left out of a curve and counted, never drawn as 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz.axes import listed, log_axis, need_steps, only_step, order, ordered, with_place, x_axis, xs
from tl_aniso.viz.style import COLOURS, control_name, finish, line_style, missing_note, panel_menu, plain, step_text
from tl_aniso.viz.tables import (
    QUANTITIES,
    averaged,
    controls_of,
    energy_values,
    isotropy_values,
    panels_of,
    steps_of,
)

__all__ = [
    "energy_by_layer",
    "energy_by_step",
    "energy_heat_map",
    "isotropy_by_layer",
    "isotropy_by_step",
    "loss_by_step",
]

_AXIS_NAMES = {"R": "R (log)", "E": "E", "excess": "excess (log)"}
_SERIES = ("before", "without tangent", "without normal")
_SERIES_STYLES = (5, 0, 1)


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


def energy_heat_map(frame: Any) -> go.Figure:
    """R, E or excess by layer and step; a list chooses the quantity, the control and the group of weights.

    Args:
        frame: as for `energy_by_step`.

    Returns:
        One map. Colours of R and excess are of their decimal logarithm, and those of excess turn at 1; the numbers
        themselves are in ``customdata``. Cells without data stay empty and are counted in the title.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`.
        UndefinedMeasureError: the frame holds no energies with a layer.
    """
    values = energy_values(frame)
    if values["layer"].isna().all():
        raise UndefinedMeasureError("the frame holds no gradient energy of any layer")
    values = with_place(values[values["layer"].notna()])
    steps = steps_of(values)
    means = averaged(values, "step", "panel", "place")
    figure = go.Figure()
    labels: list[str] = []
    updates: list[list[dict[str, Any]]] = []
    chosen = [
        (panel, quantity, control)
        for panel in panels_of(means)
        for quantity in QUANTITIES
        for control in controls_of(means[(means["panel"] == panel) & (means["quantity"] == quantity)])
        if (quantity, control) != ("R", "normal")
    ]
    for index, (panel, quantity, control) in enumerate(chosen):
        rows = means[(means["panel"] == panel) & (means["quantity"] == quantity) & (means["control"] == control)]
        places = ordered(rows["place"])
        grid = rows.pivot(index="place", columns="step", values="value").reindex(index=places, columns=steps)
        numbers = grid.to_numpy(dtype=np.float64)
        note = missing_note(int(np.isnan(numbers).sum()), numbers.size)
        figure.add_trace(
            go.Heatmap(
                x=[step_text(step) for step in steps],
                y=[plain(place) for place in places],
                z=listed(numbers if quantity == "E" else np.log10(numbers)),
                customdata=listed(numbers),
                visible=index == 0,
                hovertemplate="step %{x}, layer %{y}: %{customdata:.3g}<extra></extra>",
                **_heat_colours(quantity, numbers),
            )
        )
        against = "over " + control_name(control) if quantity == "excess" else control_name(control)
        labels.append(f"{panel} · {quantity}, {against}{note}")
        seen = [other == index for other in range(len(chosen))]
        updates.append([{"visible": seen}, {"title.text": plain(labels[-1])}])
    finish(figure, height=max(300, 110 + 26 * values["place"].nunique()))
    figure.update_layout(
        title={"text": plain(labels[0]), "font": {"size": 14}}, updatemenus=panel_menu(labels, updates)
    )
    figure.update_xaxes(title_text="training step", type="category", showgrid=False)
    figure.update_yaxes(title_text="layer", type="category", showgrid=False)
    return figure


def isotropy_by_layer(frame: Any) -> go.Figure:
    """IsoScore* by layer: before, without the tangent plane, and without normal planes with their band.

    Args:
        frame: as `AblationIsotropy.frame` holds it, of one checkpoint.

    Returns:
        One panel for activations, activation gradients and each group of weight gradients; means over a layer's
        sites. The band is two standard deviations over the drawn normal planes, averaged over sites.

    Raises:
        TlAnisoError: frames of several steps, or a frame that does not fit `isotropy_values`.
        UndefinedMeasureError: the frame holds no IsoScore*.
    """
    values = isotropy_values(frame)
    only_step(values, "isotropy_by_step")
    return _isotropy(with_place(values), "place", "layer")


def isotropy_by_step(frame: Any) -> go.Figure:
    """IsoScore* by training step: before, without the tangent plane, and without normal planes with their band.

    Args:
        frame: frames of `AblationIsotropy` of several checkpoints, concatenated, their column ``step`` set.

    Returns:
        Panels as those of `isotropy_by_layer`; means over all layers and sites.

    Raises:
        TlAnisoError: a frame that does not fit `isotropy_values`.
        UndefinedMeasureError: the frame holds no IsoScore*.
    """
    values = isotropy_values(frame)
    need_steps(values, "isotropy_by_layer")
    return _isotropy(values, "step", "training step")


def loss_by_step(loss: Sequence[tuple[float, float]]) -> go.Figure:
    """Training loss by step.

    Args:
        loss: pairs of step and loss (nats a token).

    Returns:
        One curve, gaps where the loss is not finite.

    Example:
        >>> loss_by_step([(0, 7.6), (1, float("nan"))]).data[0].name
        'loss (1 of 2 missing)'
    """
    numbers = np.asarray([value for _, value in loss], dtype=np.float64)
    n_missing = int((~np.isfinite(numbers)).sum())
    figure = go.Figure(
        go.Scatter(
            x=[float(step) for step, _ in loss],
            y=listed(numbers),
            mode="lines",
            name="loss" + missing_note(n_missing, len(numbers)),
            showlegend=n_missing > 0,
            line={"color": COLOURS[0], "width": 2},
            hovertemplate="step %{x}: %{y:.3f}<extra></extra>",
        )
    )
    finish(figure, height=300)
    figure.update_xaxes(title_text="training step")
    figure.update_yaxes(title_text="loss (nats a token)")
    return figure


def _energy(values: Any, x: str, x_name: str, *, sites: bool) -> go.Figure:
    means = averaged(values, "panel", x)
    panels, controls = panels_of(values), controls_of(values)
    shown = [name for name in QUANTITIES if name in set(values["quantity"])]
    heights = [0.5, 0.25, 0.25] if len(shown) == 3 else None
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.05, row_heights=heights)
    owners = []
    for panel in panels:
        for row, quantity in enumerate(shown, start=1):
            for index, control in enumerate(controls):
                part = means[
                    (means["panel"] == panel) & (means["quantity"] == quantity) & (means["control"] == control)
                ]
                if len(part):
                    note = _most_missing(means[(means["panel"] == panel) & (means["control"] == control)])
                    figure.add_trace(
                        _curve(part, x, control, line_style(index), note, panel == panels[0], row == 1), row=row, col=1
                    )
                    owners.append(panel)
            if sites and quantity == "R":
                own = values[(values["panel"] == panel) & (values["quantity"] == "R") & (values["control"] == "none")]
                figure.add_trace(_sites(own, x, panel == panels[0]), row=row, col=1)
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
    updates = [[{"visible": [owner == panel for owner in owners]}, {}] for panel in panels]
    figure.update_layout(updatemenus=panel_menu(panels, updates))
    return figure


def _most_missing(means: Any) -> str:
    """A note of the quantity or series that lacks most values: one place in a legend stands for all of them."""
    by = "quantity" if "quantity" in means else "series"
    counts = [
        (int((rows["n_sites"] - rows["n_known"]).sum()), int(rows["n_sites"].sum())) for _, rows in means.groupby(by)
    ]
    return missing_note(*max(counts))


def _curve(
    part: Any, x: str, control: str, style: dict[str, Any], note: str, visible: bool, in_legend: bool
) -> go.Scatter:
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


def _sites(part: Any, x: str, visible: bool) -> go.Scatter:
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


def _isotropy(values: Any, x: str, x_name: str) -> go.Figure:
    means = averaged(values, "panel", x)
    panels = panels_of(values)[::-1]
    titles = [plain(panel + _most_missing(means[means["panel"] == panel])) for panel in panels]
    figure = make_subplots(
        len(panels),
        1,
        shared_xaxes=True,
        vertical_spacing=0.22 / len(panels),
        subplot_titles=titles,
    )
    for row, panel in enumerate(panels, start=1):
        for series, index in zip(_SERIES, _SERIES_STYLES, strict=True):
            part = means[(means["panel"] == panel) & (means["series"] == series)]
            if part.empty:
                continue
            part = part.iloc[order(part[x])]
            if series == "without normal" and np.isfinite(part["low"]).any():
                for trace in _band(part, x):
                    figure.add_trace(trace, row=row, col=1)
            style = line_style(index)
            curve = _curve(part, x, series, style, "", True, row == 1)
            figure.add_trace(curve, row=row, col=1)
    finish(figure, height=120 + 190 * len(panels))
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_xaxes(**x_axis(values, x))
    figure.update_xaxes(title_text=x_name, row=len(panels), col=1)
    figure.update_yaxes(title_text="IsoScore*", rangemode="tozero")
    return figure


def _band(part: Any, x: str) -> list[go.Scatter]:
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
            fillcolor="rgba(213,94,0,0.22)",
            **common,
        ),
    ]


def _heat_colours(quantity: str, numbers: Any) -> dict[str, Any]:
    if quantity == "E":
        return {"colorscale": "Cividis", "zmin": 0.0, "zmax": 1.0, "colorbar": {"title": "E", "thickness": 12}}
    known = np.log10(numbers[np.isfinite(numbers)])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    if quantity == "excess":
        high = max(abs(low), abs(high), 0.05)
        low = -high
    elif high - low < 0.1:
        low, high = low - 0.05, high + 0.05
    at = np.linspace(low, high, 5)
    bar = {"title": quantity, "thickness": 12, "tickvals": listed(at), "ticktext": [f"{10**a:.3g}" for a in at]}
    colours = "PuOr" if quantity == "excess" else "Cividis"
    return {"colorscale": colours, "zmin": low, "zmax": high, "colorbar": bar}
