"""The tidy table of geometry: one row per (site, gradient, measure, variant, group, control)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tl_aniso.geometry_frame import COLUMNS

__all__ = ["COLUMNS", "to_geometry_frame"]

_NUMBERS = (
    "value",
    "ci_low",
    "ci_high",
    "p_value",
    "control_value",
    "control_low",
    "control_high",
    "difference",
    "difference_low",
    "difference_high",
    "rank",
    "radius",
)


def to_geometry_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame with all of `COLUMNS`, in order; numbers that a row does not have are NaN, and notes are empty.

    Example:
        >>> from tl_aniso.neighbourhoods.frame import to_geometry_frame
        >>> to_geometry_frame([{"site": "embed.W_E", "value": 1}])["difference"].isna().all()
        np.True_
    """
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    for name in ("step", "tokens_seen", "layer", *_NUMBERS):
        frame[name] = frame[name].astype("float64")
    frame["notes"] = frame["notes"].astype(object).where(frame["notes"].notna(), "").astype(str)
    return frame
