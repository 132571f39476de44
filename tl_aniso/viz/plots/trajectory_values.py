"""What trajectories draw: means over sites by step, each with the ends of its band."""

from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.axes import need_steps
from tl_aniso.viz.tables import averaged, energy_values, panel_of

__all__ = ["NULL_REACH", "trajectory_values"]

# Deviations of the exact null to either side: 95% of a normal distribution.
NULL_REACH = 1.96
_KEYS = ["model", "panel", "step", "quantity", "control"]


def trajectory_values(frame: Any) -> pd.DataFrame:
    """Means of E, R and excess by model, group of sites and step, with bands.

    Args:
        frame: frames of `TangentEnergy` of several checkpoints, and of several models if so wished, concatenated.

    Returns:
        Columns model, panel, step, quantity, control, value, low, high, n_known, n_sites, n_bounded. ``low`` and
        ``high`` are, of the true gradient and of every excess, the means of the sites' jackknife intervals; of the
        normal plane the mean of its exact null, 1.96 deviations to either side; of the R and E of another control
        the lowest and highest mean of a layer. ``n_bounded`` counts the sites (or layers) with known ends.

    Raises:
        TlAnisoError: a frame that does not fit `energy_values`, or without steps.
        UndefinedMeasureError: the frame holds no energies.
    """
    if "model" not in getattr(frame, "columns", ()):
        raise TlAnisoError("the frame lacks the column model; pass .frame of a result")
    parts = []
    for model in dict.fromkeys(frame["model"]):
        own = frame[frame["model"] == model] if model == model else frame[frame["model"].isna()]
        values = _with_null(energy_values(own), own)
        need_steps(values, "energy_by_layer")
        means = averaged(values, "panel", "step")
        bounded = np.isfinite(values["low"]) & np.isfinite(values["high"])
        by = ["panel", "step", "quantity", "control"]
        counts = values.assign(n_bounded=bounded.astype(int)).groupby(by)["n_bounded"].sum().reset_index()
        means = means.merge(counts, on=by, how="left")
        parts.append(_with_spread(means, values).assign(model=str(model)))
    return pd.concat(parts, ignore_index=True)[[*_KEYS, "value", "low", "high", "n_known", "n_sites", "n_bounded"]]


def _with_null(values: Any, frame: Any) -> Any:
    """The ends of the exact null beside the E of the normal plane."""
    rows = frame[(frame["measure"] == "energy_share") & (frame["control"] == "none")]
    if "null_std" not in rows or rows.empty:
        return values
    highest = rows.groupby(["step", "site", "gradient"])["rank"].transform("max")
    rows = rows[rows["rank"] == highest]
    stds = pd.DataFrame(
        {
            "step": rows["step"].to_numpy(),
            "site": rows["site"].to_numpy(),
            "panel": [panel_of(g, s) for g, s in zip(rows["gradient"], rows["site"], strict=True)],
            "null_std": rows["null_std"].to_numpy(dtype=np.float64),
        }
    )
    merged = values.merge(stds, on=["step", "site", "panel"], how="left")
    is_null = (merged["quantity"] == "E") & (merged["control"] == "normal")
    reach = NULL_REACH * merged["null_std"]
    merged["low"] = merged["low"].where(~is_null, merged["value"] - reach)
    merged["high"] = merged["high"].where(~is_null, merged["value"] + reach)
    return merged.drop(columns="null_std")


def _with_spread(means: Any, values: Any) -> Any:
    """Of controls that have no interval of their own: from the lowest to the highest mean of a layer."""
    others = values[~values["control"].isin(("none", "normal")) & (values["quantity"] != "excess")]
    others = others[others["layer"].notna()]
    if others.empty:
        return means
    by = ["panel", "step", "quantity", "control"]
    layers = averaged(others, "panel", "step", "layer")
    spread = layers.groupby(by)["value"].agg(["min", "max", "count"]).reset_index()
    merged = means.merge(spread, on=by, how="left")
    is_other = ~merged["control"].isin(("none", "normal")) & (merged["quantity"] != "excess")
    several = is_other & (merged["count"] > 1)
    merged["low"] = merged["low"].where(~is_other, merged["min"].where(several))
    merged["high"] = merged["high"].where(~is_other, merged["max"].where(several))
    merged["n_bounded"] = merged["n_bounded"].where(~is_other, merged["count"].where(several, 0))
    return merged.drop(columns=["min", "max", "count"])
