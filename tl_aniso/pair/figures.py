"""Figures of a pair: losses against unigram entropy; E and excess of both, by step and by progress."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.pair.compare import GROUPS
from tl_aniso.pair.run import KINDS, PairResult, Run
from tl_aniso.viz.axes import listed, log_axis
from tl_aniso.viz.style import COLOURS, control_name, finish, panel_menu, plain
from tl_aniso.viz.tables import averaged, controls_of, energy_values

__all__ = ["losses_against_unigram", "pair_by", "pair_values"]

_SYMBOLS = {"decoder": "circle", "encoder": "square"}
_DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
# Losses of single batches jump; a curve is the mean of so many.
_SMOOTH = 25


def losses_against_unigram(result: PairResult) -> go.Figure:
    """Training loss (means of 25 steps) and held-out loss of both, by step, with the unigram entropy of the targets.

    The unigram entropies differ a little, for each is of its own objective's targets.
    """
    figure = go.Figure()
    for run in result.runs:
        colour, dash = _look(result, run)
        steps, means = _smoothed(run.losses)
        name = f"{run.kind}, seed {run.seed}"
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=means,
                mode="lines",
                name=plain(f"{name}: training"),
                legendgroup=name,
                line={"color": colour, "width": 1.5, "dash": dash},
                hovertemplate=plain(name) + ", step %{x}: %{y:.3f}<extra></extra>",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[float(step) for step in run.held],
                y=listed(np.array(list(run.held.values()))),
                mode="markers",
                name=plain(f"{name}: held out"),
                legendgroup=name,
                marker={
                    "color": colour,
                    "size": 8,
                    "symbol": _SYMBOLS[run.kind] + ("" if dash == "solid" else "-open"),
                },
                hovertemplate=plain(name) + ", held out, step %{x}: %{y:.3f}<extra></extra>",
            )
        )
    unigrams = [result.run(result.seeds[0], kind) for kind in KINDS]
    for index, run in enumerate(unigrams):
        is_upper = run.unigram == max(other.unigram for other in unigrams)
        figure.add_hline(
            y=run.unigram,
            line={"color": COLOURS[index], "width": 1.5, "dash": "dash"},
            annotation={"text": f"unigram entropy, {run.kind}'s targets: {run.unigram:.2f}", "font": {"size": 12}},
            annotation_position="top right" if is_upper else "bottom right",
        )
    finish(figure, height=460)
    figure.update_xaxes(title_text="training step")
    figure.update_yaxes(title_text="loss (nats a predicted token)")
    return figure


def pair_values(result: PairResult) -> pd.DataFrame:
    """E and excess of every run and step, means over sites (geometric for excess), with the progress of each.

    Returns:
        Columns kind, seed, step, progress, panel, quantity, control, value.
    """
    parts = []
    for run in result.runs:
        means = averaged(energy_values(run.frame), "step", "panel")
        means = means[means["quantity"].isin(("E", "excess")) & means["panel"].isin(GROUPS)]
        means = means[(means["quantity"] == "excess") | (means["control"] == "none")]
        progress = means["step"].astype(int).map(run.progress)
        parts.append(means.assign(kind=run.kind, seed=run.seed, progress=progress))
    whole = pd.concat(parts, ignore_index=True)
    return whole[["kind", "seed", "step", "progress", "panel", "quantity", "control", "value"]]


def pair_by(result: PairResult, x: str) -> go.Figure:
    """E and the excess over every control of both models, by step (equal tokens) or by progress (equal learning).

    Args:
        result: of `run_pair`.
        x: "step" or "progress". By progress, checkpoints that have not learned word frequencies yet (progress below 0)
            are left out, and each curve runs in the order of training.

    Returns:
        Bars are 95% intervals over text, where the step is compared. One panel for E and one for each control; a list
        chooses between groups of matrices. Excess is on logarithmic
        axes with a line at 1, where the control explains all.
    """
    values = pair_values(result)
    if x == "progress":
        values = values[values["progress"] >= 0]
    controls = [control for control in controls_of(values) if control != "none"]
    quantities = [("E", "none"), *(("excess", control) for control in controls)]
    titles = ["E, share of gradient energy in the tangent plane"]
    titles += [f"excess over {control_name(control)}" for control in controls]
    figure = make_subplots(len(quantities), 1, shared_xaxes=True, vertical_spacing=0.045, subplot_titles=titles)
    owners = []
    for panel in GROUPS:
        for row, (quantity, control) in enumerate(quantities, start=1):
            for run in result.runs:
                colour, dash = _look(result, run)
                part = values[
                    (values["panel"] == panel)
                    & (values["quantity"] == quantity)
                    & (values["control"] == control)
                    & (values["kind"] == run.kind)
                    & (values["seed"] == run.seed)
                ].sort_values("step")
                name = f"{run.kind}, seed {run.seed}"
                low, high = _ends(result, run, panel, control, part["step"])
                value = part["value"].to_numpy(dtype=np.float64)
                figure.add_trace(
                    go.Scatter(
                        x=listed(part[x].to_numpy()),
                        y=listed(part["value"].to_numpy()),
                        customdata=listed(part[["step", "progress"]].to_numpy()),
                        error_y={
                            "type": "data",
                            "symmetric": False,
                            "array": np.nan_to_num(np.maximum(high - value, 0)).tolist(),
                            "arrayminus": np.nan_to_num(np.maximum(value - low, 0)).tolist(),
                            "width": 3,
                            "thickness": 1,
                        },
                        mode="lines+markers",
                        name=plain(name),
                        legendgroup=name,
                        showlegend=row == 1,
                        visible=panel == GROUPS[0],
                        line={"color": colour, "width": 2.5, "dash": dash},
                        marker={"color": colour, "size": 7, "symbol": _SYMBOLS[run.kind]},
                        hovertemplate=plain(name)
                        + ": %{y:.3g} (step %{customdata[0]}, progress %{customdata[1]:.3f})<extra></extra>",
                    ),
                    row=row,
                    col=1,
                )
                owners.append(panel)
    finish(figure, height=190 * len(quantities) + 120)
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    name = "training step (equal tokens)" if x == "step" else "progress: 1 - held-out loss / unigram entropy"
    figure.update_xaxes(title_text=name, row=len(quantities), col=1)
    for row, (quantity, control) in enumerate(quantities, start=1):
        rows = values[(values["quantity"] == quantity) & (values["control"] == control)]
        if quantity == "E":
            figure.update_yaxes(title_text="E", rangemode="tozero", row=row, col=1)
        else:
            figure.update_yaxes(title_text="excess (log)", **log_axis(rows[["value"]]), row=row, col=1)
            figure.add_hline(y=1, line={"color": "#808080", "width": 1, "dash": "dot"}, row=row, col=1)
    updates = [[{"visible": [owner == panel for owner in owners]}, {}] for panel in GROUPS]
    figure.update_layout(updatemenus=panel_menu(list(GROUPS), updates))
    return figure


def _look(result: PairResult, run: Run) -> tuple[str, str]:
    """Colour by kind, dash by seed."""
    return COLOURS[KINDS.index(run.kind)], _DASHES[result.seeds.index(run.seed) % len(_DASHES)]


def _ends(result: PairResult, run: Run, panel: str, control: str, steps: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the run's own interval at each step, NaN at steps that no comparison holds."""
    rows = result.differences
    rows = rows[(rows["seed"] == run.seed) & (rows["group"] == panel) & (rows["control"] == control)]
    rows = rows[rows[f"{run.kind}_step"].notna()].drop_duplicates(f"{run.kind}_step").set_index(f"{run.kind}_step")
    found = rows.reindex(np.asarray(steps, dtype=np.float64))
    low, high = (found[f"{run.kind}_{end}"].to_numpy(dtype=np.float64) for end in ("low", "high"))
    return low, high


def _smoothed(losses: Any) -> tuple[list[float], list[Any]]:
    numbers = np.array([loss for _, loss in losses], dtype=np.float64)
    width = max(1, min(_SMOOTH, len(numbers)))
    starts = range(0, len(numbers), width)
    steps = [float(np.mean([step for step, _ in losses[start : start + width]])) for start in starts]
    return steps, listed(np.array([numbers[start : start + width].mean() for start in starts]))
