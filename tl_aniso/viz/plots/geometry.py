"""Local geometry by layer: curvature of activations, and gradient energy in local tangent planes."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.viz.axes import listed, log_axis, ordered, with_place
from tl_aniso.viz.colours import COLOURS, MISSING
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.curves import area
from tl_aniso.viz.plots.geometry_values import UNMATCHED, geometry_values
from tl_aniso.viz.style import control_name, finish, line_style, missing_note, plain, step_text

__all__ = ["curvature_by_layer", "local_energy_by_layer"]

_GRADIENTS = {"activation": "activation gradients", "weight": "weight gradients"}


def curvature_by_layer(frame: Any) -> go.Figure:
    """How curved activations are where they are dense: slope and visible share by layer, beside every control.

    Read off whether the slope of log normal on log tangent amplitude is nearer to 2 (a curved surface) or to 1 (flat
    noise) than that of the control, and how much of the local energy stands off the tangent plane.

    Args:
        frame: the geometry frame of a study (``geometry.parquet``).

    Returns:
        Two panels; a list chooses model, step and group of tokens. Curves are means over the sites of a layer, with
        the mean of their intervals as a band. Lines at 2 and 1 mark what theory has for a curved and a flat surface.

    Raises:
        TlAnisoError: columns are missing, or one place was measured several times.
        UndefinedMeasureError: the frame holds neither measure.
    """
    values = geometry_values(frame, ("curvature_slope", "visible_share"))
    figure = _by_layer(values, (("curvature_slope", "slope", False), ("visible_share", "visible share", False)))
    rows = [name for name in ("curvature_slope", "visible_share") if name in set(values["measure"])]
    if "curvature_slope" in rows:
        for y, text in ((2.0, "curved: 2"), (1.0, "flat: 1")):
            figure.add_hline(
                y=y,
                line={"color": MISSING, "width": 1, "dash": "dot"},
                annotation={"text": text, "font": {"size": 11}},
                annotation_position="bottom right",
                row=1,
                col=1,
            )
    if "visible_share" in rows:
        figure.update_yaxes(rangemode="tozero", row=rows.index("visible_share") + 1, col=1)
    return figure


def local_energy_by_layer(frame: Any) -> go.Figure:
    """Gradient energy in the tangent plane of each neighbourhood, by layer, beside every control.

    Args:
        frame: the geometry frame of a study (``geometry.parquet``).

    Returns:
        Up to three panels: the share of energy, its ratio to a normal plane of equal rank, and the excess over each
        control, ratios on logarithmic axes; a list chooses model, step, kind of gradient and group.

    Raises:
        TlAnisoError: columns are missing, or one place was measured several times.
        UndefinedMeasureError: the frame holds no such measure.
    """
    measures = ("local_energy_share", "local_r", "local_excess")
    values = geometry_values(frame, measures, per_control=("local_excess",))
    figure = _by_layer(
        values,
        (
            ("local_energy_share", "share", False),
            ("local_r", "local R (log)", True),
            ("local_excess", "excess (log)", True),
        ),
    )
    for row, name in enumerate([name for name in measures if name in set(values["measure"])], start=1):
        if name == "local_energy_share":
            figure.update_yaxes(rangemode="tozero", row=row, col=1)
        else:
            figure.add_hline(y=1, line={"color": MISSING, "width": 1, "dash": "dot"}, row=row, col=1)
    return figure


def _by_layer(values: pd.DataFrame, panels: tuple[tuple[str, str, bool], ...]) -> go.Figure:
    values = with_place(values)
    shown = [panel for panel in panels if panel[0] in set(values["measure"])]
    names = ["data", *[str(s) for s in values["series"].unique() if s not in ("data", "none")]]
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.07)
    groups: list[str] = []
    owners: list[int] = []
    for key, rows in values.groupby(
        ["model", "step", "gradient", "variant", "group", "radius"], sort=False, dropna=False
    ):
        groups.append(_label(key, values))
        named: set[str] = set()
        for row, (measure, _, _) in enumerate(shown, start=1):
            for trace in _traces(rows[rows["measure"] == measure], rows, names, named):
                figure.add_trace(trace, row=row, col=1)
                owners.append(len(groups) - 1)
    finish(figure, height=130 + 220 * len(shown))
    places = [plain(place) for place in ordered(values["place"])]
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=places, tickangle=0)
    figure.update_xaxes(title_text="layer", row=len(shown), col=1)
    for row, (measure, title, is_ratio) in enumerate(shown, start=1):
        numbers = values.loc[values["measure"] == measure, ["value", "low", "high"]]
        figure.update_yaxes(title_text=title, row=row, col=1, **(log_axis(numbers) if is_ratio else {}))
    add_choice(figure, groups, owners)
    return figure


def _label(key: tuple[Any, ...], values: pd.DataFrame) -> str:
    """What tells one group from the others; what all have in common stays out, but for the model."""
    model, step, gradient, variant, group, radius = key
    parts = [str(model)]
    if values["step"].nunique() > 1:
        parts.append(f"step {step_text(step)}")
    if gradient in _GRADIENTS:
        parts.append(_GRADIENTS[gradient])
    if isinstance(group, str) and group:
        parts.append({"all": "all tokens"}.get(group, group))
    if isinstance(variant, str) and values["variant"].nunique() > 1:
        parts.append(variant.replace("_", " "))
    if values["radius"].nunique() > 1:
        parts.append(f"radius {radius:.3g}")
    return " · ".join(parts)


def _traces(rows: pd.DataFrame, group: pd.DataFrame, names: list[str], named: set[str]) -> list[go.Scatter]:
    bands, curves = [], []
    for index, name in enumerate(names):
        part = rows[rows["series"] == name]
        if part.empty:
            continue
        means = part.groupby("place")[["value", "low", "high"]].mean()
        counts = part.groupby("place")["value"].agg(["count", "size"])
        order = ordered(means.index)
        means, counts = means.loc[order], counts.loc[order]
        x = [plain(place) for place in order]
        if np.isfinite(means["low"]).any():
            colour = COLOURS[index % len(COLOURS)]
            bands.append(
                area(
                    x,
                    means["low"],
                    means["high"],
                    colour,
                    is_main=index == 0,
                    legendgroup=plain(name),
                    showlegend=False,
                    name=plain(f"band of {name}"),
                )
            )
        mine = group[group["series"] == name]
        label = {"data": "data", UNMATCHED: "unequal sizes"}.get(name, control_name(name))
        curves.append(
            go.Scatter(
                x=x,
                y=listed(means["value"].to_numpy(dtype=np.float64)),
                customdata=listed(counts.to_numpy(dtype=np.float64)),
                name=plain(label + missing_note(int(mine["value"].isna().sum()), len(mine))),
                legendgroup=plain(name),
                showlegend=name not in named,
                mode="lines+markers",
                connectgaps=False,
                hovertemplate=(
                    f"{plain(label).replace('%{', '%&#123;')}: %{{y:.3g}} (%{{customdata[0]}} of %{{customdata[1]}} "
                    "sites)<extra>layer %{x}</extra>"
                ),
                **line_style(index),
            )
        )
        named.add(name)
    return [*bands, *curves]
