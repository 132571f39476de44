"""From the tidy frame to the numbers that figures, tables and the reading share, missing ones counted."""

from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.results import group_of

__all__ = [
    "PANELS",
    "QUANTITIES",
    "averaged",
    "controls_of",
    "energy_values",
    "isotropy_values",
    "panel_of",
    "panels_of",
    "steps_of",
]

QUANTITIES = ("R", "E", "excess")

_NEEDED = ("model", "step", "layer", "site", "gradient", "rank", "measure", "control", "value", "control_value")
_INTERVALS = ("null_mean", "null_std", "ci_low", "ci_high", "z")
# Stands for an unknown step or layer while tables are joined: NaN does not equal itself.
_UNKNOWN = -1.0
_KEY = ["step", "site", "gradient", "rank", "measure", "control"]
# Groups of weights, gradients and activations, in the order in which they are shown.
PANELS = (
    "readers",
    "writers",
    "readers by head",
    "writers by head",
    "unembedding",
    "embedding",
    "activation gradients",
    "activations",
)


def panel_of(gradient: str, site: str) -> str:
    """What one curve or one table is about: a group of weights, activation gradients, or activations.

    Example:
        >>> panel_of("weight", "blocks.0.attn.W_Q"), panel_of("none", "blocks.0.hook_resid_pre")
        ('readers', 'activations')
    """
    group = group_of(site)
    if gradient == "weight":
        return group
    what = "activations" if gradient == "none" else f"{gradient} gradients"
    return what if group == "residual stream" else f"{what} ({group})"


def panels_of(values: Any) -> list[str]:
    """The panels of a table of values, in the order in which they are shown."""
    found = [str(name) for name in values["panel"].unique()]
    return sorted(found, key=lambda name: (PANELS.index(name) if name in PANELS else len(PANELS), name))


def controls_of(values: Any) -> list[str]:
    """The controls of a table of values, the true gradient ("none") and the normal control first."""
    found = [str(name) for name in values["control"].unique()]
    first = [name for name in ("none", "normal") if name in found]
    return first + [name for name in found if name not in first]


def steps_of(values: Any) -> list[float]:
    """The training steps of a table of values, in order; a single NaN where the step is not known.

    Raises:
        TlAnisoError: some steps are known and others are not, so they have no order.
    """
    steps = values["step"].unique()
    known = sorted(float(step) for step in steps if not np.isnan(step))
    if known and len(known) < len(steps):
        raise TlAnisoError(
            "some rows of the frame have no step and others have one; set the column step in all of them"
        )
    return known or [float("nan")]


def energy_values(frame: Any) -> Any:
    """R, E and excess of every site and step, of the true gradient (control "none") and of every control.

    Args:
        frame: as `TangentEnergy.frame` holds it; frames of several steps may be concatenated.

    Returns:
        Columns step, panel, site, layer, quantity, control, value, low, high. A value that the frame lacks for a
        site and step, though it has it elsewhere in the panel, is there as NaN.

    Raises:
        TlAnisoError: columns are missing, a row comes twice, or several models are mixed.
        UndefinedMeasureError: the frame holds no energies.
    """
    rows = _checked(frame)
    share, ratio, excess = (rows[rows["measure"] == name] for name in ("energy_share", "r_energy", "excess"))
    none, normal = share["control"] == "none", ratio["control"] == "normal"
    parts = [
        _part(ratio[normal], "R", "value", control="none", interval=True),
        _part(ratio[normal], "R", "control_value"),
        _part(ratio[~normal], "R", "control_value"),
        _part(share[none], "E", "value", interval=True),
        _part(share[none], "E", "null_mean", control="normal"),
        _part(share[~none], "E", "control_value"),
        _part(excess, "excess", "value", interval=True),
    ]
    values = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if values.empty:
        raise UndefinedMeasureError("the frame holds no gradient energies")
    return _completed(values, ["quantity", "control"])


def isotropy_values(frame: Any) -> Any:
    """IsoScore* of every site and step: before, without the tangent plane, and without normal planes.

    Returns:
        Columns step, panel, site, layer, series ("before", "without tangent", "without normal"), value, low, high;
        low and high are two standard deviations over the drawn normal planes, for "without normal" only.

    Raises:
        TlAnisoError: as `energy_values`.
        UndefinedMeasureError: the frame holds no isotropy.
    """
    rows = _checked(frame)
    rows = rows[rows["measure"] == "isoscore_star"].assign(quantity="IsoScore*")
    normal = rows[rows["control"] == "normal"].copy()
    normal["ci_low"] = normal["control_value"] - 2 * normal["null_std"]
    normal["ci_high"] = normal["control_value"] + 2 * normal["null_std"]
    parts = [
        _part(rows[rows["control"] == "none"], "IsoScore*", "value", control="before"),
        _part(normal, "IsoScore*", "value", control="without tangent"),
        _part(normal, "IsoScore*", "control_value", control="without normal", interval=True),
    ]
    values = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if values.empty:
        raise UndefinedMeasureError("the frame holds no IsoScore*")
    return _completed(values, ["quantity", "control"]).rename(columns={"control": "series"}).drop(columns="quantity")


def averaged(values: Any, *keys: str) -> Any:
    """Averages over sites: geometric for R and excess, so that R over a control's R is the excess; else arithmetic.

    Args:
        values: of `energy_values` or `isotropy_values`.
        *keys: what to keep apart, such as "step", "panel".

    Returns:
        The keys, quantity and control (or series), value, low, high (plain means of the sites' own bounds), n_known,
        n_sites, and how many sites have an interval ``above``, ``around`` and ``below`` 1. Values that are not
        finite, and 0 under a geometric mean, are left out and missing from n_known; NaN where nothing is left.
    """
    by = [*keys, *(["series"] if "series" in values else ["quantity", "control"])]
    numbers, low, high = (values[name].to_numpy(dtype=np.float64) for name in ("value", "low", "high"))
    is_ratio = (values["quantity"] != "E").to_numpy() if "quantity" in values else np.zeros(len(values), dtype=bool)
    known = np.isfinite(numbers) & ((numbers > 0) | ~is_ratio)
    bounded = known & np.isfinite(low) & np.isfinite(high)
    added = np.where(known, numbers, np.nan)
    added[is_ratio] = np.log(added[is_ratio])
    work = values[by].assign(
        value=added,
        low=np.where(bounded, low, np.nan),
        high=np.where(bounded, high, np.nan),
        n_known=known.astype(int),
        n_sites=1,
        above=(bounded & (low > 1)).astype(int),
        around=(bounded & (low <= 1) & (high >= 1)).astype(int),
        below=(bounded & (high < 1)).astype(int),
    )
    counts = ("n_known", "n_sites", "above", "around", "below")
    how = {"value": "mean", "low": "mean", "high": "mean", **dict.fromkeys(counts, "sum")}
    means = work.groupby(by, sort=False, dropna=False).agg(how).reset_index()
    if "quantity" in means:
        means["value"] = means["value"].where(means["quantity"] == "E", np.exp(means["value"]))
    return means


def _checked(frame: Any) -> Any:
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise TlAnisoError(f"the frame lacks the columns {', '.join(missing)}; pass .frame of a result")
    models = sorted({str(name) for name in frame["model"].dropna().unique()})
    if len(models) > 1:
        raise TlAnisoError(f"the frame mixes {len(models)} models ({_listed(models)}); select one, R does not compare")
    twice = frame[frame.duplicated(_KEY)]
    if len(twice):
        row = twice.iloc[0]
        raise TlAnisoError(
            f"{len(twice)} rows of the frame come twice, first {row['measure']} against {row['control']} at "
            f"{row['site']}, step {row['step']}; set the column step before joining frames"
        )
    # Of millions of rows there are a few hundred sites: each is named once.
    kinds = pd.MultiIndex.from_arrays([frame["gradient"], frame["site"]])
    codes, found = kinds.factorize()
    rows = frame.assign(panel=np.array([panel_of(g, s) for g, s in found], dtype=object)[codes])
    for name in _INTERVALS:
        if name not in rows:
            rows[name] = np.nan
    # A rank shrinks where rows span fewer dimensions, so the highest rank is taken site by site.
    highest = rows.groupby(["step", "site", "gradient"], dropna=False)["rank"].transform("max")
    return rows[rows["rank"] == highest]


def _part(rows: Any, quantity: str, column: str, *, control: str | None = None, interval: bool = False) -> Any:
    part = rows[["step", "panel", "site", "layer"]].copy()
    part["quantity"] = quantity
    part["control"] = rows["control"] if control is None else control
    part["value"] = rows[column]
    part["low"] = rows["ci_low"] if interval else np.nan
    part["high"] = rows["ci_high"] if interval else np.nan
    return part


def _completed(values: Any, names: list[str]) -> Any:
    """Every step and site of a panel for everything that the panel holds anywhere, NaN where there is no row."""
    steps = pd.DataFrame({"step": steps_of(values)}).fillna(_UNKNOWN)
    values = values.fillna({"step": _UNKNOWN, "layer": _UNKNOWN})
    parts = []
    for panel in panels_of(values):
        rows = values[values["panel"] == panel]
        sites, held = rows[["panel", "site", "layer"]].drop_duplicates(), rows[names].drop_duplicates()
        every = steps.merge(sites, how="cross").merge(held, how="cross")
        parts.append(every.merge(rows, how="left", on=["step", "panel", "site", "layer", *names]))
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(**{name: whole[name].where(whole[name] != _UNKNOWN) for name in ("step", "layer")})


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
