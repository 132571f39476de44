"""Layer by step: R, E and excess, and what a removal does to IsoScore*."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz.axes import ordered, with_place
from tl_aniso.viz.plots.grids import Grid, draw_grids
from tl_aniso.viz.style import control_name, step_text
from tl_aniso.viz.tables import QUANTITIES, averaged, controls_of, energy_values, isotropy_values, panels_of, steps_of

__all__ = ["energy_heat_map", "isotropy_heat_map"]

_KINDS = {"R": "ratio", "E": "share", "excess": "about one"}


def energy_heat_map(frame: Any) -> go.Figure:
    """R, E or excess by layer and step; a list chooses the quantity, the control and the group of weights.

    Args:
        frame: as for `energy_by_step`.

    Returns:
        One map. Colours of R and excess are of their decimal logarithm, and those of excess turn at 1; the numbers
        themselves are in ``customdata``. Cells without data are crossed out and counted in the title.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`.
        UndefinedMeasureError: the frame holds no energies with a layer.
    """
    values = energy_values(frame)
    if values["layer"].isna().all():
        raise UndefinedMeasureError("the frame holds no gradient energy of any layer")
    values = with_place(values[values["layer"].notna()])
    means = averaged(values, "step", "panel", "place")
    grids = []
    for panel in panels_of(means):
        for quantity in QUANTITIES:
            rows = means[(means["panel"] == panel) & (means["quantity"] == quantity)]
            for control in controls_of(rows):
                if (quantity, control) == ("R", "normal"):
                    continue
                against = "over " + control_name(control) if quantity == "excess" else control_name(control)
                part = rows[rows["control"] == control]
                grids.append(
                    _grid(f"{panel} · {quantity}, {against}", part, steps_of(values), _KINDS[quantity], quantity)
                )
    return draw_grids(grids, x_title="training step", y_title="layer", hover="step %{x}, layer %{y}")


def isotropy_heat_map(frame: Any) -> go.Figure:
    """delta IsoScore* by layer and step: without the tangent plane less without normal planes of the same rank.

    Args:
        frame: as for `isotropy_by_step`.

    Returns:
        One map, of colours that turn at 0; a list chooses between activations and groups of gradients, and between
        delta, delta in standard deviations over the drawn normal planes (where a control beyond about 2 is rare),
        and the three scores behind it. Cells without data are crossed out and counted in the title.

    Raises:
        TlAnisoError: a frame that does not fit `isotropy_values`.
        UndefinedMeasureError: the frame holds no IsoScore* with a layer.

    Example:
        >>> import pandas as pd
        >>> common = {"model": "m", "layer": 0.0, "site": "blocks.0.hook_resid_pre", "gradient": "none", "rank": 2,
        ...           "measure": "isoscore_star", "control": "normal", "null_std": 0.01}
        >>> frame = pd.DataFrame([{**common, "step": 0.0, "value": 0.3, "control_value": 0.2}])
        >>> round(isotropy_heat_map(frame).data[0].z[0][0], 3)
        0.1
    """
    values = isotropy_values(frame)
    if values["layer"].isna().all():
        raise UndefinedMeasureError("the frame holds no IsoScore* of any layer")
    values = with_place(values[values["layer"].notna()])
    keys = ["step", "panel", "place", "site"]
    known = {name: rows.set_index(keys) for name, rows in values.groupby("series")}
    grids = []
    for panel in reversed(panels_of(values)):
        parts = {name: rows[rows.index.get_level_values("panel") == panel] for name, rows in known.items()}
        if "without tangent" in parts and "without normal" in parts:
            normal = parts["without normal"]
            delta = parts["without tangent"]["value"] - normal["value"]
            # Two deviations each way, as `isotropy_values` has them.
            deviations = delta / ((normal["high"] - normal["low"]) / 4).replace(0.0, np.nan)
            for what, numbers, title in (
                ("delta IsoScore*", delta, "delta"),
                ("delta in deviations over normal planes", deviations, "z"),
            ):
                if np.isfinite(numbers).any():
                    grids.append(_grid(f"{panel} · {what}", _means(numbers), steps_of(values), "about zero", title))
        for name, rows in parts.items():
            part = _means(rows["value"])
            grids.append(_grid(f"{panel} · IsoScore*, {name}", part, steps_of(values), "share", "IsoScore*"))
    return draw_grids(grids, x_title="training step", y_title="layer", hover="step %{x}, layer %{y}")


def _means(numbers: Any) -> Any:
    """Over the sites of a layer, NaN left out."""
    return numbers.rename("value").groupby(level=["step", "place"]).mean().reset_index()


def _grid(label: str, rows: Any, steps: list[float], kind: str, title: str) -> Grid:
    places = ordered(rows["place"])
    table = rows.pivot(index="place", columns="step", values="value").reindex(index=places, columns=steps)
    return Grid(label, [step_text(step) for step in steps], places, table.to_numpy(dtype=np.float64), kind, title)
