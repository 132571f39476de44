"""How planes turn over training: overlaps of every two steps, and angles to one of them."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.results import group_of
from tl_aniso.viz.axes import listed, x_axis
from tl_aniso.viz.colours import COLOURS, MISSING
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.columns import need_columns
from tl_aniso.viz.plots.curves import area
from tl_aniso.viz.plots.grids import Grid, draw_grids
from tl_aniso.viz.style import finish, line_style, missing_note, plain, step_text

__all__ = ["angles_by_step", "overlap_heat_map"]

_SOURCE = "the frame of tl_aniso.subspace.compare_over_steps"
_NULL_REACH = 1.96


def overlap_heat_map(frame: Any) -> go.Figure:
    """Overlap of the planes of every two steps, 0 for orthogonal planes and 1 for the same.

    Read off when planes stop turning: from there on the map is bright off its diagonal. The overlap that random
    planes would have stands beside the name of the site.

    Args:
        frame: of `tl_aniso.subspace.compare_over_steps`, of every two steps.

    Returns:
        One map, step by step; a list chooses the site. Pairs without a plane are crossed out and counted.

    Raises:
        TlAnisoError: columns are missing, or a pair of steps comes twice.
        UndefinedMeasureError: no row.
    """
    need_columns(frame, ("site", "step_a", "step_b", "kernel", "null_mean"), _SOURCE)
    if frame.empty:
        raise UndefinedMeasureError("the frame holds no overlaps")
    if frame.duplicated(["site", "step_a", "step_b"]).any():
        raise TlAnisoError("a pair of steps comes twice at one site; pass frames of one model")
    steps = sorted({float(step) for name in ("step_a", "step_b") for step in frame[name]})
    names = [step_text(step) for step in steps]
    grids = []
    for site, rows in frame.groupby("site", sort=False):
        table = rows.pivot(index="step_a", columns="step_b", values="kernel").reindex(index=steps, columns=steps)
        null = rows["null_mean"].dropna()
        beside = "" if null.empty else f" (random planes: {null.mean():.3g})"
        grids.append(Grid(f"{site}{beside}", names, names, table.to_numpy(dtype=np.float64), "share", "overlap"))
    return draw_grids(grids, x_title="training step", y_title="training step", hover="steps %{y} and %{x}")


def angles_by_step(frame: Any, reference: float | None = None) -> go.Figure:
    """Angles between the planes of one step and those of every other, beside the angle to random planes.

    Args:
        frame: of `tl_aniso.subspace.compare_over_steps`.
        reference: the step compared with, such as that of frozen planes; by default the first.

    Returns:
        One panel; a list chooses between groups of sites. Thin lines are single sites: the angle whose squared
        cosine is the mean squared cosine of the principal angles. Thick ones are means over sites, of that angle and
        of the smallest and largest. The band is where planes drawn at random would lie, 1.96 deviations of the
        overlap to either side.

    Raises:
        TlAnisoError: columns are missing, or `reference` is none of the steps.
        UndefinedMeasureError: no row.
    """
    needed = (
        "site",
        "step_a",
        "step_b",
        "kernel",
        "null_mean",
        "null_std",
        "smallest_angle",
        "mean_angle",
        "largest_angle",
    )
    need_columns(frame, needed, _SOURCE)
    if frame.empty:
        raise UndefinedMeasureError("the frame holds no angles")
    first = float(frame["step_a"].min() if reference is None else reference)
    rows = frame[frame["step_a"] == first]
    if rows.empty:
        raise TlAnisoError(f"reference is {first:g}, with which the frame compares nothing")
    rows = rows.assign(group=[group_of(str(site)) for site in rows["site"]])
    figure = go.Figure()
    groups = [str(group) for group in rows["group"].unique()]
    owners: list[int] = []
    for index, group in enumerate(groups):
        for trace in _traces(rows[rows["group"] == group].sort_values("step_b")):
            figure.add_trace(trace)
            owners.append(index)
    finish(figure, height=430)
    titles = [f"{group}: angle to the planes of step {step_text(first)}" for group in groups]
    add_choice(figure, groups, owners, titles=titles)
    figure.update_xaxes(title_text="training step", **x_axis(rows.assign(step=rows["step_b"]), "step"))
    figure.update_yaxes(title_text="angle (degrees)", range=[-3, 93], tickvals=[0, 15, 30, 45, 60, 75, 90])
    return figure


def _traces(rows: Any) -> list[go.Scatter]:
    means = rows.groupby("step_b")[["mean_angle", "smallest_angle", "largest_angle", "null_mean", "null_std"]].mean()
    steps = [float(step) for step in means.index]
    mean, std = means["null_mean"].to_numpy(), means["null_std"].to_numpy()
    low, high = _angle(mean + _NULL_REACH * std), _angle(mean - _NULL_REACH * std)
    traces = [area(steps, low, high, COLOURS[1], legendgroup="random", name="band of random planes", showlegend=False)]
    traces += [
        go.Scatter(
            x=[float(step) for step in part["step_b"]],
            y=listed(part["mean_angle"].to_numpy(dtype=np.float64)),
            name="single sites",
            legendgroup="single sites",
            showlegend=index == 0,
            mode="lines",
            connectgaps=False,
            line={"color": MISSING, "width": 1},
            text=[plain(site)] * len(part),
            customdata=listed(part[["smallest_angle", "largest_angle"]].to_numpy(dtype=np.float64)),
            hovertemplate="%{text}: %{y:.1f}° (%{customdata[0]:.1f}° to %{customdata[1]:.1f}°)<extra>step %{x}</extra>",
        )
        for index, (site, part) in enumerate(rows.groupby("site", sort=False))
    ]
    missing = missing_note(int(rows["mean_angle"].isna().sum()), len(rows))
    for name, label, style in (
        ("mean_angle", "mean" + missing, 0),
        ("smallest_angle", "smallest", 2),
        ("largest_angle", "largest", 3),
    ):
        traces.append(_line(steps, means[name].to_numpy(dtype=np.float64), label, style))
    traces.append(_line(steps, _angle(mean), "random planes", 1, legendgroup="random"))
    return traces


def _line(x: list[float], y: Any, name: str, style: int, **options: Any) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=listed(y),
        name=name,
        mode="lines+markers",
        connectgaps=False,
        hovertemplate=f"{name}: %{{y:.1f}}°<extra>step %{{x}}</extra>",
        **line_style(style),
        **options,
    )


def _angle(kernel: Any) -> Any:
    """The angle of a mean squared cosine, in degrees."""
    return np.arccos(np.sqrt(np.clip(kernel, 0.0, 1.0))) * 180 / math.pi
