"""From frames of results to one observation per run, checkpoint, site and control, on an additive scale."""

import math
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.claims.alike import refuse_unlike_runs
from tl_aniso.claims.rules import Rules
from tl_aniso.errors import TlAnisoError

__all__ = ["NORMAL", "lacking_of", "observations"]

NORMAL = "normal"

_NEEDED = (
    "model",
    "objective",
    "step",
    "phase",
    "layer",
    "site",
    "gradient",
    "held_out",
    "rank",
    "proxy_id",
    "measure",
    "value",
    "control",
    "null_mean",
    "null_std",
    "ci_low",
    "ci_high",
    "seq_len",
    "unit",
    "n_rows",
    "tokens_seen",
    "revision",
)
_ENERGY = ("energy_share", "r_energy", "excess")
_ISOTROPY = ("isoscore_star", "delta_isoscore_star")
# What tells one measurement at one place from another; several of them are several answers.
_PLACE = ["model", "run", "checkpoint", "gradient", "site"]
_KEEP = (
    "model",
    "run",
    "checkpoint",
    "step",
    "tokens_seen",
    "progress",
    "phase",
    "objective",
    "layer",
    "site",
    "gradient",
    "held_out",
    "rank",
    "proxy_id",
    "seq_len",
    "unit",
    "n_rows",
    "control",
)


def observations(frame: Any, rules: Rules, runs: str | None) -> pd.DataFrame:
    """One row per (model, run, checkpoint, gradient, site, quantity, control) that the rules look at.

    Beside the columns that say where, ``value``, ``low`` and ``high``: log R (control ``normal``) and log excess for
    the quantity ``energy``, delta IsoScore* for ``isotropy``; ``share`` is E, ``rank_ratio`` k/d, ``how`` what the
    interval is over.

    Raises:
        TlAnisoError: no frame of results, an unknown phase, several measurements of one place, runs of different
            architectures.
    """
    rows = _checked(frame, runs)
    rows = rows[rows["measure"].isin((*_ENERGY, *_ISOTROPY))]
    rows = rows[~_untrained(rows, rules) & _at_sites(rows, rules)]
    _refuse_several(rows)
    refuse_unlike_runs(rows)
    found = pd.concat([_energy(rows), _isotropy(rows, rules.level)], ignore_index=True)
    _refuse_copies(found)
    known = {quantity: (NORMAL, *names) for quantity, names in rules.controls.items()}
    # As an array: of no rows a bare list would choose no columns.
    enters = np.array([c in known[q] for q, c in zip(found["quantity"], found["control"], strict=True)], dtype=bool)
    return found[enters].reset_index(drop=True)


def lacking_of(frame: pd.DataFrame, rules: Rules) -> dict[tuple[str, str, str], str]:
    """Why nothing of a (quantity, gradient, model) enters although it was measured, for those that may lack it."""
    found: dict[tuple[str, str, str], str] = {}
    for quantity, measures in (("energy", _ENERGY), ("isotropy", _ISOTROPY)):
        rows = frame[frame["measure"].isin(measures)]
        untrained, enter = _untrained(rows, rules), _at_sites(rows, rules)
        at = [rows["gradient"], rows["model"]]
        for (gradient, model), places in pd.Series(enter, index=rows.index).groupby(at, sort=False):
            key = (quantity, str(gradient), str(model))
            if not places.any():
                endings = ", ".join(rules.sites.get(str(gradient), ()))
                found[key] = f"of the sites that enter ({endings or 'none'}, of blocks) none was measured"
            elif untrained[places[places].index].all():
                found[key] = f"step {rules.after_step:g} alone was measured, which is initialisation and does not count"
    return found


def _untrained(rows: pd.DataFrame, rules: Rules) -> "pd.Series[bool]":
    step = rows["step"].astype("float64")
    return step.notna() & (step <= rules.after_step)


def _at_sites(rows: pd.DataFrame, rules: Rules) -> np.ndarray:
    """Whether a row is of a site that enters."""
    wanted = [
        isinstance(site, str) and site.startswith("blocks.") and site.endswith(tuple(f".{e}" for e in endings))
        for site, endings in zip(rows["site"], (rules.sites.get(kind, ()) for kind in rows["gradient"]), strict=True)
    ]
    return np.array(wanted, dtype=bool)


def _checked(frame: Any, runs: str | None) -> pd.DataFrame:
    if not isinstance(frame, pd.DataFrame):
        raise TlAnisoError(
            f"claims are judged from a frame of results (a pandas DataFrame), got {type(frame).__name__}"
        )
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise TlAnisoError(
            f"the frame has no column {missing[0]!r}; hand over the .frame of results, several concatenated"
        )
    if runs is not None and runs not in frame.columns:
        raise TlAnisoError(f"runs names the column {runs!r}, which the frame does not have")
    rows = frame.copy().reset_index(drop=True)
    rows["run"] = "" if runs is None else rows[runs].map(str)
    if "progress" not in rows:
        rows["progress"] = math.nan
    phases = sorted({str(p) for p in rows["phase"].dropna()} - {"early", "late"})
    if phases:
        raise TlAnisoError(f"the frame holds the phase {phases[0]!r}; phases are 'early' and 'late', NaN where unknown")
    rows["checkpoint"] = [
        f"step {step:g}" if step == step else f"revision {revision}"
        for step, revision in zip(rows["step"].astype("float64"), rows["revision"], strict=True)
    ]
    return rows


def _refuse_several(rows: pd.DataFrame) -> None:
    """One measure and control of one place twice is two answers; which of them the rules mean, only the user knows."""
    keys = [*_PLACE, "measure", "control"]
    twice = rows[rows.duplicated(keys, keep=False)]
    if twice.empty:
        return
    first = twice.groupby(keys, dropna=False, sort=False).get_group(
        next(iter(twice.groupby(keys, dropna=False, sort=False).groups))
    )
    names = [c for c in first.columns if c not in keys and len({repr(v) for v in first[c]}) > 1]
    telling = [
        c
        for c in ("seed", "rank", "proxy_id", "unit", "basis", "centred", "exclude", "seq_len", "revision")
        if c in names
    ]
    row = first.iloc[0]
    differ = f"they differ in {', '.join(telling)}. Hand over one of them" if telling else "hand over each result once"
    if "seed" in telling:
        differ += ", or judge(..., runs='seed') where each seed is a training of its own"
    raise TlAnisoError(
        f"the frame holds {row['measure']} ({row['control']}) of {row['model']} at {row['site']} ({row['gradient']}), "
        f"{row['checkpoint']}, {len(first)} times: {differ}"
    )


def _refuse_copies(found: pd.DataFrame) -> None:
    """The same weights measured twice would pass for two trainings, with no spread between them at all."""
    rows = found[(found["quantity"] == "energy") & (found["control"] == NORMAL)]
    for model, group in rows.groupby("model", sort=False):
        table = group.pivot(index=["checkpoint", "gradient", "site"], columns="run", values="share").dropna()
        names = list(table.columns)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                if len(table) and (table[one] == table[other]).all():
                    raise TlAnisoError(
                        f"the runs {one} and {other} of {model} have equal energies at every site: they are one "
                        "training measured twice, and an interval over them would mean nothing; hand over one of them"
                    )


def _energy(rows: pd.DataFrame) -> pd.DataFrame:
    of = {measure: rows[rows["measure"] == measure] for measure in _ENERGY}
    shares = of["energy_share"]
    shares = shares[shares["control"] == "none"].set_index(_PLACE)
    ratio, excess = of["r_energy"], of["excess"]
    found = pd.concat([ratio[ratio["control"] == NORMAL], excess], ignore_index=True)
    kept = found[list(_KEEP)].copy()
    for name, source in (("value", "value"), ("low", "ci_low"), ("high", "ci_high")):
        kept[name] = _log(found[source])
    places = pd.MultiIndex.from_frame(found[_PLACE])
    share = shares["value"].reindex(places).to_numpy(dtype=np.float64)
    mean = shares["null_mean"].reindex(places).to_numpy(dtype=np.float64)
    kept["share"] = share
    # The mean normal plane holds k (1 - E) / (d - k), which is all that a frame says of the width.
    with np.errstate(divide="ignore", invalid="ignore"):
        kept["rank_ratio"] = mean / (mean + 1 - share)
    kept["quantity"], kept["how"] = "energy", "documents"
    return kept


def _isotropy(rows: pd.DataFrame, level: float) -> pd.DataFrame:
    from tl_aniso.claims.estimates import t_quantile

    found = rows[rows["measure"] == "delta_isoscore_star"]
    scores = rows[(rows["measure"] == "isoscore_star") & (rows["control"] != "none")]
    keys = [*_PLACE, "control"]
    places = pd.MultiIndex.from_frame(found[keys])
    spread = scores.set_index(keys)["null_std"].reindex(places).to_numpy(dtype=np.float64)
    kept = found[list(_KEEP)].copy().reset_index(drop=True)
    value, low, high = (found[name].to_numpy(dtype=np.float64) for name in ("value", "ci_low", "ci_high"))
    over_text = np.isfinite(low) & np.isfinite(high)
    # The band in which single planes drawn lie, not the error of their mean: the claim is about the tangent plane.
    reach = t_quantile(level, math.inf) * spread
    kept["value"] = value
    kept["low"] = np.where(over_text, low, value - reach)
    kept["high"] = np.where(over_text, high, value + reach)
    kept["share"] = math.nan
    kept["rank_ratio"] = math.nan
    kept["quantity"], kept["how"] = "isotropy", np.where(over_text, "documents", "planes drawn")
    return kept


def _log(values: pd.Series) -> np.ndarray:
    """Natural logarithms; what has none that is finite is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values.to_numpy(dtype=np.float64))
    return np.where(np.isfinite(logs), logs, math.nan)
