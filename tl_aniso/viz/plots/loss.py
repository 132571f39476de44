"""Training loss."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from tl_aniso.viz.axes import listed
from tl_aniso.viz.style import COLOURS, finish, missing_note

__all__ = ["loss_by_step"]


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
