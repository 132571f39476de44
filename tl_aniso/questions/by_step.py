"""One line a step or a layer: the geometric mean of R over a group of sites, with every control beside it."""

import pandas as pd

from tl_aniso.results import geometric_mean, group_of

__all__ = ["energy_by_step"]


def energy_by_step(
    frame: pd.DataFrame, *, gradient: str = "weight", group: str = "readers", by: str = "step"
) -> pd.DataFrame:
    """E, R, R of each control and excess over each, by step or by layer.

    Args:
        frame: of `tangent_energy` results, several steps concatenated.
        gradient: "weight" or "activation".
        group: group of sites, see `tl_aniso.results.group_of`.
        by: "step", or "layer" (of a frame that holds one step).

    Returns:
        One row a step or layer: ``E`` (mean), ``R`` (geometric mean), ``R <control>`` (geometric mean of what the
        control alone gives) and ``excess <control>`` (geometric mean of odds ratios).

    Example:
        >>> import pandas as pd
        >>> rows = [{"step": 0, "site": f"blocks.{i}.attn.W_Q", "gradient": "weight", "measure": m, "control": "normal",
        ...          "value": v, "control_value": 1.0} for i, m, v in [(0, "r_energy", 2.0), (1, "r_energy", 8.0)]]
        >>> energy_by_step(pd.DataFrame(rows))["R"].tolist()
        [4.0]
    """
    rows = frame[(frame["gradient"] == gradient) & (frame["site"].map(group_of) == group)]
    table: dict[str, pd.Series] = {}

    def grouped(measure: str, control: str) -> "pd.core.groupby.DataFrameGroupBy":
        return rows[(rows["measure"] == measure) & (rows["control"] == control)].groupby(by, dropna=False)

    table["E"] = grouped("energy_share", "none")["value"].mean()
    table["R"] = grouped("r_energy", "normal")["value"].agg(geometric_mean)
    controls = [c for c in rows.loc[rows["measure"] == "r_energy", "control"].unique() if c != "normal"]
    for control in controls:
        table[f"R {control}"] = grouped("r_energy", control)["control_value"].agg(geometric_mean)
    for control in controls:
        table[f"excess {control}"] = grouped("excess", control)["value"].agg(geometric_mean)
    return pd.DataFrame(table).rename_axis(by).reset_index()
