"""From the geometry frame to what its figures draw: the measure itself and the same measure under each control."""

from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz.plots.columns import need_columns

__all__ = ["UNMATCHED", "geometry_values"]

# The rows of this control hold as value what unequal sizes give; the matched sizes are the data of all others.
UNMATCHED = "size_matched"

_NEEDED = (
    "model",
    "step",
    "layer",
    "site",
    "gradient",
    "scope",
    "measure",
    "group",
    "value",
    "ci_low",
    "ci_high",
    "control",
    "control_value",
)
_OPTIONAL = ("control_low", "control_high", "radius", "variant")


def geometry_values(frame: Any, measures: tuple[str, ...], *, per_control: tuple[str, ...] = ()) -> pd.DataFrame:
    """Values by site of some measures, of the data (series "data") and of every control.

    Args:
        frame: the geometry frame, as a study keeps it in ``geometry.parquet``.
        measures: names of measures.
        per_control: of these, measures that compare with a control, so that ``value`` differs from control to control;
            their series are the controls.

    Returns:
        Columns model, step, gradient, variant, group, radius, layer, site, measure, series, value, low, high. Of the
        control "size_matched" the value is that of unequal sizes, since the data of all other rows are matched.

    Raises:
        TlAnisoError: columns are missing, or one place was measured twice with other numbers.
        UndefinedMeasureError: none of the measures is there with a layer.
    """
    need_columns(frame, _NEEDED, "the geometry frame of a study")
    rows = frame[frame["measure"].isin(measures) & (frame["scope"] == "within") & frame["layer"].notna()]
    if rows.empty:
        raise UndefinedMeasureError(f"the frame holds no {' or '.join(measures)} of any layer")
    for name in _OPTIONAL:
        if name not in rows:
            rows = rows.assign(**{name: np.nan})
    keys = ["model", "step", "gradient", "variant", "group", "radius", "layer", "site", "measure"]
    compared = rows["measure"].isin(per_control)
    plain_rows, pairs = rows[~compared & (rows["control"] != UNMATCHED)], rows[compared]
    unmatched = rows[~compared & (rows["control"] == UNMATCHED)]
    own = _series(plain_rows.assign(series="data"), keys, "value", "ci_low", "ci_high")
    others = plain_rows[plain_rows["control"] != "none"]
    beside = _series(others.assign(series=others["control"]), keys, "control_value", "control_low", "control_high")
    # Of a control that has no value of its own, such as a normal plane whose ratio is 1 by definition, nothing is
    # drawn.
    held = beside.groupby(["measure", "series"])["value"].transform("count") > 0
    ratios = _series(pairs.assign(series=pairs["control"]), keys, "value", "ci_low", "ci_high")
    unequal = _series(unmatched.assign(series=UNMATCHED), keys, "value", "ci_low", "ci_high")
    whole = pd.concat([_once(own, keys), beside[held], ratios, unequal], ignore_index=True)
    twice = whole.duplicated([*keys, "series"])
    if twice.any():
        row = whole[twice].iloc[0]
        raise TlAnisoError(
            f"{row['measure']} ({row['series']}) at {row['site']} comes twice; select one model and seed of the frame"
        )
    return whole


def _series(rows: Any, keys: list[str], value: str, low: str, high: str) -> pd.DataFrame:
    part = rows[[*keys, "series"]].copy()
    for name, column in (("value", value), ("low", low), ("high", high)):
        part[name] = rows[column].to_numpy(dtype=np.float64)
    return part


def _once(own: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The measure itself, which stands again beside every control; the row with an interval where one has it."""
    spread = own.groupby(keys, dropna=False)["value"].agg(["min", "max"])
    apart = spread[(spread["max"] - spread["min"]) > 1e-9 * spread["max"].abs().clip(lower=1e-12)]
    if len(apart):
        place = dict(zip(keys, apart.index[0], strict=True))
        raise TlAnisoError(
            f"{place['measure']} at {place['site']} has several values for one place; select one model and seed"
        )
    ranked = own.assign(rank=own["low"].isna().astype(int) + 2 * own["value"].isna().astype(int))
    return ranked.sort_values("rank", kind="stable").drop_duplicates(keys).drop(columns="rank")
