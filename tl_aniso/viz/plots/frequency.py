"""Distance of token types to their centroid by frequency, as it is and with the drift removed."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from scipy.stats import pearsonr, rankdata

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz.axes import listed
from tl_aniso.viz.colours import COLOURS
from tl_aniso.viz.plots.choice import add_choice
from tl_aniso.viz.plots.columns import need_columns
from tl_aniso.viz.plots.token_text import token_text
from tl_aniso.viz.style import finish, missing_note, plain, step_text

__all__ = ["frequency_scatter"]

_PANELS = (("distance_raw", "raw"), ("distance_drift_removed", "drift removed"))
# Above this many marks they are drawn by WebGL, without which a browser no longer scrolls smoothly.
_MANY = 20_000


def frequency_scatter(frame: Any) -> go.Figure:
    """One mark a token type: its distance to the centroid against the logarithm of its frequency.

    Read off whether rare types lie farther out, and whether that is left when the direction that all types drifted in
    is removed. Pearson's r and Spearman's rho stand above each panel, beside what shuffled frequencies would
    give: 0 with a standard deviation of 1 / sqrt(n - 1), exactly, for both.

    Args:
        frame: columns site, table, token, count, log_frequency, distance_raw, distance_drift_removed; one row a
            token type and table. With a column step, of several checkpoints.

    Returns:
        Two panels, raw beside drift removed; a list chooses the table. Types without a finite log frequency (such as
        those that never came) or distance are left out and counted.

    Raises:
        TlAnisoError: columns are missing, or hold something else than numbers.
        UndefinedMeasureError: no row.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"site": "embed.W_E", "table": "W_E", "token": ["a", "b", "c"], "count": [9, 3, 1],
        ...     "log_frequency": [2.2, 1.1, 0.0], "distance_raw": [1.0, 2.0, 3.0],
        ...     "distance_drift_removed": [1.0, 1.0, 2.0]})
        >>> list(frequency_scatter(frame).data[0].y)
        [1.0, 2.0, 3.0]
    """
    needed = ("site", "table", "token", "count", "log_frequency", "distance_raw", "distance_drift_removed")
    need_columns(frame, needed)
    if frame.empty:
        raise UndefinedMeasureError("the frame holds no token types")
    keys = ["site", "table", *(name for name in ("scope", "step") if name in frame.columns)]
    tables = list(frame.groupby(keys, sort=False, dropna=False))
    has_steps = "step" in keys and frame["step"].nunique(dropna=False) > 1
    figure = make_subplots(rows=1, cols=2, subplot_titles=[" ", " "], horizontal_spacing=0.1)
    labels: list[str] = []
    titles: list[list[str]] = []
    for (site, table, *at), rows in tables:
        label = str(table) if table == site else f"{table} · {site}"
        if has_steps:
            label += f" · step {step_text(at[-1])}" if at[-1] == at[-1] else " · over checkpoints"
        labels.append(label)
        titles.append([])
        for column, (name, words) in enumerate(_PANELS, start=1):
            trace, note = _marks(rows, name, column)
            titles[-1].append(plain(f"{words}: ") + note)
            figure.add_trace(trace, row=1, col=column)
    finish(figure, height=430)
    for at, text in enumerate(titles[0]):
        figure.layout.annotations[at].update(text=text, font={"size": 12})
    add_choice(figure, labels, [at for at in range(len(tables)) for _ in _PANELS], texts=titles)
    figure.update_layout(margin={"t": 110})
    figure.update_xaxes(title_text="log frequency")
    figure.update_yaxes(title_text="distance to the centroid", rangemode="tozero")
    return figure


def correlations(x: Any, y: Any) -> tuple[float, float]:
    """Pearson's r and Spearman's rho (ranks averaged over ties); NaN where fewer than three or either is constant."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan
    return float(pearsonr(x, y)[0]), float(pearsonr(rankdata(x), rankdata(y))[0])


def _numbers(rows: Any, name: str) -> Any:
    try:
        return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TlAnisoError(f"column {name} must hold numbers: {error}") from None


def _marks(rows: Any, name: str, column: int) -> tuple[go.Scatter | go.Scattergl, str]:
    x, y = (_numbers(rows, key) for key in ("log_frequency", name))
    known = np.isfinite(x) & np.isfinite(y)
    r, rho = correlations(x[known], y[known])
    n = int(known.sum())
    if math.isnan(r):
        note = f"no correlation, {n} types"
    else:
        note = f"r {r:.2f}, rho {rho:.2f}<br>shuffled 0 ± {1 / math.sqrt(n - 1):.2g}, {n:,} types"
    kind = go.Scattergl if n > _MANY else go.Scatter
    trace = kind(
        x=listed(x[known]),
        y=listed(y[known]),
        customdata=[
            [token_text(token), count] for token, count in zip(rows["token"][known], rows["count"][known], strict=True)
        ],
        name=name,
        mode="markers",
        showlegend=False,
        marker={
            "size": 5,
            "opacity": 0.55,
            "color": COLOURS[column - 1],
            "symbol": "circle" if column == 1 else "diamond",
        },
        hovertemplate="%{customdata[0]}, %{customdata[1]} times: %{y:.3g}<extra></extra>",
    )
    return trace, note + missing_note(len(x) - n, len(x))
