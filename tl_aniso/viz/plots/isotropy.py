"""IsoScore* by layer and by step: before a removal, without the tangent plane, without normal planes."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.viz.axes import need_steps, only_step, order, with_place, x_axis
from tl_aniso.viz.plots.curves import band, curve, most_missing
from tl_aniso.viz.style import finish, line_style, plain
from tl_aniso.viz.tables import averaged, isotropy_values, panels_of

__all__ = ["isotropy_by_layer", "isotropy_by_step"]

_SERIES = ("before", "without tangent", "without normal")
_SERIES_STYLES = (5, 0, 1)


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


def _isotropy(values: Any, x: str, x_name: str) -> go.Figure:
    means = averaged(values, "panel", x)
    panels = panels_of(values)[::-1]
    titles = [plain(panel + most_missing(means[means["panel"] == panel])) for panel in panels]
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
                for trace in band(part, x):
                    figure.add_trace(trace, row=row, col=1)
            style = line_style(index)
            figure.add_trace(curve(part, x, series, style, "", True, row == 1), row=row, col=1)
    finish(figure, height=120 + 190 * len(panels))
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    figure.update_xaxes(**x_axis(values, x))
    figure.update_xaxes(title_text=x_name, row=len(panels), col=1)
    figure.update_yaxes(title_text="IsoScore*", rangemode="tozero")
    return figure
