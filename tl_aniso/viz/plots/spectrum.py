"""Spectra before and after a plane is taken out."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.spectra import SPECTRA
from tl_aniso.viz.axes import listed
from tl_aniso.viz.colours import COLOURS
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.columns import need_columns
from tl_aniso.viz.plots.curves import area
from tl_aniso.viz.style import finish, line_style, missing_note

__all__ = ["ablation_spectrum"]

_STYLES = {"full": 5, "without tangent": 0, "without normal": 1}
_GRADIENTS = {"none": "activations", "activation": "activation gradients", "weight": "weight gradients"}


def ablation_spectrum(frame: Any) -> go.Figure:
    """Eigenvalues in falling order: of all directions, without the tangent plane, without normal planes.

    Read off how many directions carry the variance, and whether the tangent plane held just those: then its removal
    takes the head of the spectrum away and that of a normal plane leaves it where it was.

    Args:
        frame: of `tl_aniso.ablation_spectra`; those of several sites concatenated.

    Returns:
        One panel, both axes logarithmic; a list chooses the site. The band of "without normal" reaches from the
        smallest to the largest eigenvalue of that index over the drawn planes. Eigenvalues that are rounding are
        left out and counted.

    Raises:
        TlAnisoError: columns are missing, or a series is not as long as its removal leaves.
        UndefinedMeasureError: no row.

    Example:
        >>> import torch
        >>> from tl_aniso.spectra import spectra_without
        >>> table = spectra_without(torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0])), torch.eye(4)[:, :1])
        >>> figure = ablation_spectrum(table.assign(site="a site", gradient="none"))
        >>> [trace.name for trace in figure.data]
        ['band over 20 normal planes', 'full', 'without tangent', 'without normal']
    """
    need_columns(frame, ("site", "gradient", "series", "index", "value", "low", "high", "rank", "d", "n_planes"))
    if frame.empty:
        raise UndefinedMeasureError("the frame holds no spectrum")
    figure = go.Figure()
    labels: list[str] = []
    owners: list[int] = []
    for (site, gradient), rows in frame.groupby(["site", "gradient"], sort=False):
        rank, d = int(rows["rank"].iloc[0]), int(rows["d"].iloc[0])
        labels.append(f"{site}, {_GRADIENTS.get(str(gradient), gradient)}: {rank} of {d} directions removed")
        for trace in _traces(rows, rank, d):
            figure.add_trace(trace)
            owners.append(len(labels) - 1)
    finish(figure, height=460)
    add_choice(figure, labels, owners)
    figure.update_xaxes(title_text="index of the eigenvalue (log)", **_index_axis(int(frame["d"].max())))
    figure.update_yaxes(title_text="share of the variance (log)", type="log", dtick=1, exponentformat="power")
    return figure


def _index_axis(d: int) -> dict[str, Any]:
    """A logarithmic axis from 1 to d."""
    ticks = [digit * 10**power for power in range(len(str(d))) for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "range": [-0.05, math.log10(d) + 0.05]}


def _traces(rows: Any, rank: int, d: int) -> list[go.Scatter]:
    bands, curves = [], []
    for series in SPECTRA:
        part = rows[rows["series"] == series].sort_values("index")
        if part.empty:
            continue
        expected = d if series == "full" else d - rank
        if len(part) != expected:
            raise TlAnisoError(
                f"the spectrum {series!r} at {rows['site'].iloc[0]} has {len(part)} eigenvalues where rank {rank} of "
                f"{d} leaves {expected}; pass the whole frame of one ablation_spectra for each site"
            )
        numbers = part["value"].to_numpy(dtype=np.float64)
        numbers = np.where(numbers > 0, numbers, np.nan)
        at = [int(index) for index in part["index"]]
        style = line_style(_STYLES[series])
        curves.append(
            go.Scatter(
                x=at,
                y=listed(numbers),
                name=series + missing_note(int(np.isnan(numbers).sum()), len(numbers)),
                legendgroup=series,
                mode="lines",
                connectgaps=False,
                hovertemplate=f"{series}, %{{x}}: %{{y:.3g}}<extra></extra>",
                line=style["line"],
            )
        )
        if series == "without normal" and np.isfinite(part["low"]).any():
            low = part["low"].where(part["low"] > 0)
            name = f"band over {int(part['n_planes'].iloc[0])} normal planes"
            bands.append(area(at, low, part["high"], COLOURS[1], legendgroup=series, showlegend=False, name=name))
    return [*bands, *curves]
