"""Whether two runs can be trainings of one model: of other architectures or objectives a mean would mean nothing."""

from itertools import pairwise

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError

__all__ = ["refuse_unlike_runs", "unlike"]

_SAME = ("family", "objective")
_NEAR = 0.02  # d is known from numbers in tables, of 32 bits at worst


def unlike(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """In what the rows of two runs differ that trainings of one model have in common; empty where in nothing.

    Family, objective, sites (and so depth), and width where rows say it. What a frame does not hold is not compared.

    Args:
        one: rows of one run, of results or of geometry.
        other: of the other.

    Example:
        >>> rows = pd.DataFrame({"family": ["llama"], "site": ["blocks.0.attn.W_Q"], "layer": [0]})
        >>> unlike(rows, rows), unlike(rows, rows.assign(family="bert"))
        ('', 'family (llama, bert)')
    """
    found = []
    for name in _SAME:
        values = [_values(rows, name) for rows in (one, other)]
        if all(values) and values[0] != values[1]:
            found.append(f"{name} ({', '.join('/'.join(sorted(v)) for v in values)})")
    widths = [_width(rows) for rows in (one, other)]
    if all(np.isfinite(widths)) and max(widths) > min(widths) * (1 + _NEAR):
        found.append(f"width ({widths[0]:.0f}, {widths[1]:.0f})")
    sites = [_values(rows, "site") for rows in (one, other)]
    if all(sites) and sites[0] != sites[1]:
        depths = [len(_values(rows, "layer")) for rows in (one, other)]
        apart = sorted(sites[0] ^ sites[1])
        what = f"layers measured ({depths[0]}, {depths[1]})" if depths[0] != depths[1] else "sites"
        found.append(f"{what}, since {apart[0]} is of one alone")
    return " and ".join(found)


def refuse_unlike_runs(rows: pd.DataFrame) -> None:
    """Refuse runs of one model that differ in what trainings of one model have in common.

    Args:
        rows: with the columns ``model`` and ``run``.

    Raises:
        TlAnisoError: two of them, named.
    """
    for model, group in rows.groupby("model", sort=False):
        runs = list(group.groupby("run", sort=False))
        for (one, first), (other, second) in pairwise(runs):
            what = unlike(first, second)
            if what:
                raise TlAnisoError(
                    f"the runs {one} and {other} of {model} are no trainings of one model: they differ in {what}; "
                    "give each a name of its own"
                )


def _values(rows: pd.DataFrame, name: str) -> set[str]:
    return {str(value) for value in rows[name].dropna() if str(value)} if name in rows else set()


def _width(rows: pd.DataFrame) -> float:
    """d, by what the mean normal plane holds of the energy, k (1 - E) / (d - k); NaN where no row says it."""
    if not {"measure", "control", "null_mean", "rank", "value"} <= set(rows.columns):
        return float("nan")
    shares = rows[(rows["measure"] == "energy_share") & (rows["control"] == "none") & (rows["null_mean"] > 0)]
    widths = shares["rank"] * (1 + (1 - shares["value"]) / shares["null_mean"])
    return float(widths.median())
