"""Heat maps of which one is shown at a time; cells without a value are marked and counted, never coloured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.axes import listed
from tl_aniso.viz.colours import MISSING, map_colours
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.style import finish, missing_note, plain

__all__ = ["Grid", "draw_grids"]


@dataclass(frozen=True)
class Grid:
    """One map.

    Attributes:
        label: what it shows, for the list and the title.
        x: names of columns.
        y: names of rows, from the bottom.
        numbers: one row per name of `y`; missing ones NaN.
        kind: of colours, as `tl_aniso.viz.colours.map_colours` has them.
        title: of the colour bar.
    """

    label: str
    x: Sequence[str]
    y: Sequence[str]
    numbers: Any
    kind: str
    title: str


def draw_grids(grids: Sequence[Grid], *, x_title: str, y_title: str, hover: str) -> go.Figure:
    """A figure with a list that chooses the map.

    Args:
        grids: at least one.
        x_title: of the horizontal axis.
        y_title: of the vertical axis.
        hover: text at a cell, with plotly's ``%{x}`` and ``%{y}``; the number follows.

    Returns:
        As many heat maps as `grids`, then as many traces of crosses, one at every missing cell. ``z`` has what is
        coloured, ``customdata`` the numbers themselves.

    Raises:
        TlAnisoError: a grid whose numbers do not fit its names.
    """
    figure = go.Figure()
    labels = []
    for grid in grids:
        numbers = np.asarray(grid.numbers, dtype=np.float64)
        if numbers.shape != (len(grid.y), len(grid.x)):
            raise TlAnisoError(
                f"the map {grid.label!r} has {len(grid.y)} rows and {len(grid.x)} columns, but numbers of shape "
                f"{numbers.shape}"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            coloured = np.log10(numbers) if grid.kind in ("ratio", "about one") else numbers
        labels.append(grid.label + missing_note(int((~np.isfinite(coloured)).sum()), coloured.size))
        figure.add_trace(
            go.Heatmap(
                x=[plain(name) for name in grid.x],
                y=[plain(name) for name in grid.y],
                z=listed(coloured),
                customdata=listed(numbers),
                xgap=1,
                ygap=1,
                hovertemplate=f"{hover}: %{{customdata:.3g}}<extra></extra>",
                **map_colours(grid.kind, numbers, grid.title),
            )
        )
    for index, grid in enumerate(grids):
        figure.add_trace(_crosses(grid, np.asarray(figure.data[index].z, dtype=np.float64)))
    finish(figure, height=max(300, 130 + 26 * max(len(grid.y) for grid in grids)))
    add_choice(figure, labels, [*range(len(grids))] * 2)
    figure.update_xaxes(title_text=x_title, type="category", showgrid=False, tickangle=0)
    figure.update_yaxes(title_text=y_title, type="category", showgrid=False)
    return figure


def _crosses(grid: Grid, coloured: Any) -> go.Scatter:
    missing = np.argwhere(~np.isfinite(coloured))
    return go.Scatter(
        x=[plain(grid.x[column]) for _, column in missing],
        y=[plain(grid.y[row]) for row, _ in missing],
        name="missing",
        mode="markers",
        marker={"symbol": "x-thin", "size": 8, "line": {"color": MISSING, "width": 1.5}},
        showlegend=False,
        hovertemplate="missing<extra></extra>",
    )
