"""Isotropy without the planes of controls, beside isotropy without the tangent plane."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.ablation import ablate
from tl_aniso.capturing import Capture
from tl_aniso.controls.planes import columns_of
from tl_aniso.questions.frame import Row, to_frame
from tl_aniso.study.work import Planes

__all__ = ["control_removals"]

_SCORES = {"isoscore": "raw_without_tangent", "isoscore_star": "without_tangent"}
_DELTA = "delta_isoscore_star"
# What the rows against normal planes say of these planes alone.
_OF_NORMAL = ("null_mean", "null_std", "z", "p_value", "p_holm", "ci_low", "ci_high")


def control_removals(frame: pd.DataFrame, held: Capture, planes: Planes) -> pd.DataFrame:
    """Rows as those against normal planes, for each control that has planes of its own.

    ``isoscore`` and ``isoscore_star``: ``value`` without the tangent plane, ``control_value`` without the control's
    (``covariance_drawn``: the mean over its planes, with their deviation in ``null_std``). ``delta_isoscore_star``: the
    difference of the two, whose null is 0.

    Args:
        frame: of `ablation_isotropy`, in the frozen planes.
        held: the capture that it was asked of.
        planes: frozen ones, and those of controls.
    """
    normal = frame[(frame["control"] == "normal") & frame["measure"].isin((*_SCORES, _DELTA))]
    rows: list[Row] = []
    for (site, gradient, rank), group in normal.groupby(["site", "gradient", "rank"], sort=False):
        templates = {row["measure"]: dict(row) for row in group.to_dict("records")}
        matrix = None
        for control, several in _planes(held, planes, str(site), int(rank)):
            matrix = _matrix(held, str(site), str(gradient)) if matrix is None else matrix
            removed = [ablate(matrix, plane, n_controls=1) for plane in several]
            for measure, name in _SCORES.items():
                scores = np.array([getattr(one, name) for one in removed])
                mean = float(scores.mean())
                spread = float(scores.std(ddof=1)) if len(scores) > 1 else float("nan")
                blank = {**templates[measure], **dict.fromkeys(_OF_NORMAL, float("nan")), "control": control}
                rows.append({**blank, "control_value": mean, "null_mean": mean, "null_std": spread})
                if measure == "isoscore_star":
                    rows.append({**blank, "measure": _DELTA, "value": blank["value"] - mean, "control_value": 0.0})
    return to_frame(rows)


def _planes(
    held: Capture, planes: Planes, site: str, rank: int
) -> Iterator[tuple[str, Sequence[Float64[Tensor, "d k"]]]]:
    proxy = planes.early[site] if site in planes.early else planes.early[held.canonical(site)]
    for control in planes.controls:
        columns = planes.controls.at(control, proxy.site)
        if columns is None:
            continue
        several = [columns[:, part] for part in columns_of(control, rank, columns.shape[1])]
        if several:
            yield control, several


def _matrix(held: Capture, site: str, gradient: str) -> Any:
    if gradient == "weight":
        return held.weight_gradients[site].second_moment()
    return (held.activation_gradients if gradient == "activation" else held.activations)[site].covariance()
