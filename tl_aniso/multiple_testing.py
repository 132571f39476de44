"""P-values adjusted for many sites."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tl_aniso.errors import TlAnisoError

__all__ = ["holm", "holm_over_sites"]


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm-adjusted p-values (family-wise, valid under any dependence); NaN stays NaN and counts for nothing.

    Raises:
        TlAnisoError: a p-value outside 0 ... 1.

    Example:
        >>> from tl_aniso.multiple_testing import holm
        >>> holm([0.01, float("nan"), 0.04, 0.03]).tolist()
        [0.03, nan, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(values)
    present = values[known]
    if values.ndim != 1 or ((present < 0) | (present > 1)).any():
        raise TlAnisoError("p-values must be one list of numbers between 0 and 1")
    order = np.argsort(present, kind="stable")
    steps = present[order] * np.arange(present.size, 0, -1)
    adjusted = np.empty_like(present)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    result = np.full_like(values, np.nan)
    result[known] = adjusted
    return result


def holm_over_sites(frame: Any) -> Any:
    """A result's frame with ``p_holm`` filled in: Holm over sites, within each (gradient, rank, measure, control).

    Example:
        >>> import pandas as pd
        >>> from tl_aniso.multiple_testing import holm_over_sites
        >>> keys = {"gradient": "weight", "rank": 4, "measure": "energy_share", "control": "none"}
        >>> frame = pd.DataFrame([{**keys, "p_value": p} for p in (0.01, 0.04)]).assign(p_holm=float("nan"))
        >>> holm_over_sites(frame)["p_holm"].tolist()
        [0.02, 0.04]
    """
    keys = ["gradient", "rank", "measure", "control"]
    adjusted = frame.copy()
    for _, rows in adjusted.groupby(keys, dropna=False).groups.items():
        adjusted.loc[rows, "p_holm"] = holm(adjusted.loc[rows, "p_value"].to_numpy())
    return adjusted
