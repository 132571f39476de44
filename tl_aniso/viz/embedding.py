"""A study's table as a page holds it: every number once, what follows from others as a rule that was checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.packing import Packer
from tl_aniso.viz.style import visible
from tl_aniso.viz.tables import panel_of

__all__ = ["FIELDS", "TOLERANCE", "Embedded", "embed"]

# Columns of a study's table and their names in the page.
FIELDS = {
    "value": "value",
    "control_value": "control",
    "ci_low": "low",
    "ci_high": "high",
    "null_mean": "mean",
    "null_std": "sd",
}
# What is computed in the page from 32-bit floats may differ by this much, relatively; else the numbers are kept.
TOLERANCE = 3e-7
_NEEDED = ("model", "step", "layer", "site", "gradient", "rank", "measure", "control", "value", "control_value")
# Measure, control and field.
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Embedded:
    """A table as a page holds it.

    Attributes:
        header: plain values for JSON: models with their checkpoints, and blocks, one for each model, kind of gradient
            and unit. A block holds for each measure, control and field (`FIELDS`) where its numbers are: the number of
            a packed array of (row, checkpoint), or a rule, ``["div", a, b]``, ``["mirror", value, high]`` (value
            squared over high) or ``["share", a]`` (c a / (1 + c a), c of the row). A row is a site at one rank.
        text: the packed arrays.
    """

    header: dict[str, Any]
    text: str


def embed(frame: pd.DataFrame) -> Embedded:
    """Pack a table; numbers are rounded to 32 bits, and whatever follows from others to `TOLERANCE` is a rule.

    Args:
        frame: as a study's ``results.parquet`` has it, without checkpoints that are another's.

    Raises:
        TlAnisoError: columns are missing, a row comes twice, or there are no rows.
    """
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing:
        raise TlAnisoError(f"the frame lacks the columns {', '.join(missing)}; pass the table of a study")
    if frame.empty:
        raise TlAnisoError("the frame has no rows; there is nothing to show")
    rows = _prepared(frame)
    packer = Packer()
    models: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for name, of_model in rows.groupby("model", sort=False):
        points = of_model[["revision", "step", "phase", "tokens_seen"]].drop_duplicates(["revision", "step"])
        points = points.sort_values("step", kind="stable").reset_index(drop=True)
        place = {key: at for at, key in enumerate(zip(points["revision"], points["step"].fillna(-1), strict=True))}
        keys = zip(of_model["revision"], of_model["step"].fillna(-1), strict=True)
        of_model = of_model.assign(_point=[place[key] for key in keys])
        models.append({"name": visible(name), "checkpoints": [_point(row) for row in points.to_dict("records")]})
        for (gradient, unit), part in of_model.groupby(["gradient", "unit"], sort=False):
            block = {"model": len(models) - 1, "gradient": visible(gradient), "unit": visible(unit)}
            blocks.append({**block, **_block(part, len(points), packer)})
    return Embedded({"models": models, "blocks": blocks, "arrays": packer.index}, packer.text())


def _prepared(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame.copy()
    for name, instead in (("revision", ""), ("unit", ""), ("phase", ""), ("tokens_seen", np.nan)):
        rows[name] = rows[name].astype(object).fillna(instead) if name in rows and instead == "" else rows.get(name)
        if rows[name].isna().all():
            rows[name] = instead
    for name in FIELDS:
        if name not in rows:
            rows[name] = np.nan
    # A rank shrinks where rows span fewer dimensions, so ranks are counted from the highest, site by site.
    ranks = rows.groupby(["model", "revision", "step", "site", "gradient"], dropna=False, sort=False)["rank"]
    return rows.assign(_slot=ranks.rank(method="dense", ascending=False).astype(int) - 1)


def _point(row: dict[str, Any]) -> dict[str, Any]:
    number = {name: None if pd.isna(row[name]) else float(row[name]) for name in ("step", "tokens_seen")}
    return {**number, "revision": visible(row["revision"]), "phase": visible(row["phase"])}


def _block(part: pd.DataFrame, n_points: int, packer: Packer) -> dict[str, Any]:
    heads = part[["site", "layer", "_slot", "rank", "gradient"]].drop_duplicates(["site", "_slot"])
    heads = heads.sort_values(["_slot"], kind="stable").reset_index(drop=True)
    place = {key: at for at, key in enumerate(zip(heads["site"], heads["_slot"], strict=True))}
    part = part.assign(_row=[place[key] for key in zip(part["site"], part["_slot"], strict=True)])
    cells = part["_row"].to_numpy() * n_points + part["_point"].to_numpy()
    twice = part.assign(_cell=cells).duplicated(["_cell", "measure", "control"])
    if twice.any():
        row = part[twice.to_numpy()].iloc[0]
        raise TlAnisoError(
            f"{int(twice.sum())} rows of the frame come twice, first {row['measure']} against {row['control']} at "
            f"{row['site']}, step {row['step']}"
        )
    groups = [panel_of(str(g), str(s)) for g, s in zip(heads["gradient"], heads["site"], strict=True)]
    named = list(dict.fromkeys(groups))
    number = {group: at for at, group in enumerate(named)}
    size = len(heads) * n_points
    dense: dict[_Key, Any] = {}
    held: dict[tuple[str, str], list[int]] = {}
    of_row = np.array([number[group] for group in groups])
    part = part.assign(_cell=cells)
    for (measure, control), rows in part.groupby(["measure", "control"], sort=False):
        held[measure, control] = [int(at) for at in np.unique(of_row[rows["_row"].to_numpy()])]
        for column, field in FIELDS.items():
            values = np.full(size, np.nan)
            values[rows["_cell"].to_numpy()] = rows[column].to_numpy(dtype=np.float64)
            if not np.isnan(values).all() or field == "value":
                dense[measure, control, field] = values
    rules = _Rules(dense, np.repeat(_odds(dense, len(heads), n_points), n_points), packer)
    series: dict[str, dict[str, dict[str, Any]]] = {}
    for (measure, control), found in held.items():
        fields = [field for m, c, field in dense if (m, c) == (measure, control)]
        entry = {field: rules.of((measure, control, field))[0] for field in fields}
        series.setdefault(visible(measure), {})[visible(control)] = {"groups": found, **entry}
    return {
        "sites": [visible(site) for site in heads["site"]],
        "layers": [None if pd.isna(layer) else float(layer) for layer in heads["layer"]],
        "ranks": [int(rank) for rank in heads["rank"]],
        "slots": [int(slot) for slot in heads["_slot"]],
        "groups": [visible(group) for group in named],
        "group": of_row.tolist(),
        "odds": [None if np.isnan(c) else float(c) for c in rules.odds[::n_points]],
        "series": series,
    }


def _odds(dense: dict[Any, Any], n_rows: int, n_points: int) -> Any:
    """Odds of k/d by row: odds of E over R, which is the same at every checkpoint."""
    share = dense.get(("energy_share", "none", "value"))
    ratio = dense.get(("r_energy", "normal", "value"))
    if share is None or ratio is None:
        return np.full(n_rows, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (share / (1 - share) / ratio).reshape(n_rows, n_points)
    found[~np.isfinite(found)] = np.nan
    counts = np.isfinite(found).sum(axis=1)
    found[counts == 0] = 1.0
    odds = np.nanmedian(found, axis=1)
    odds[counts == 0] = np.nan
    return odds


class _Rules:
    """How each array of a block is kept: packed, or computed from others, if that gives it at every cell."""

    def __init__(self, dense: dict[_Key, Any], odds: Any, packer: Packer) -> None:
        self.odds = odds
        self._dense, self._packer = dense, packer
        self._known: dict[_Key, tuple[Any, Any]] = {}

    def of(self, key: _Key) -> tuple[Any, Any]:
        """The rule of an array, and the numbers that it gives."""
        if key not in self._known:
            self._known[key] = self._of(key)
        return self._known[key]

    def _of(self, key: _Key) -> tuple[Any, Any]:
        wanted = self._dense[key]
        for kind, keys in _candidates(*key):
            if np.isfinite(wanted).any() and all(other in self._dense for other in keys):
                parts = [self.of(other) for other in keys]
                given = self._computed(kind, [numbers for _, numbers in parts])
                if np.allclose(given, wanted, rtol=TOLERANCE, atol=0, equal_nan=True):
                    return [kind, *(rule for rule, _ in parts)], given
        with np.errstate(over="ignore"):
            return self._packer.add(wanted), wanted.astype(np.float32).astype(np.float64)

    def _computed(self, kind: str, parts: list[Any]) -> Any:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if kind == "div":
                return parts[0] / parts[1]
            if kind == "mirror":
                return parts[0] * parts[0] / parts[1]
            scaled = parts[0] * self.odds
            return scaled / (1 + scaled)


def _candidates(measure: str, control: str, field: str) -> list[tuple[str, list[_Key]]]:
    if measure == "excess" and field == "value":
        return [("div", [("r_energy", control, "value"), ("r_energy", control, "control")])]
    if measure in ("excess", "r_energy") and field == "low":
        return [("mirror", [(measure, control, "value"), (measure, control, "high")])]
    if measure == "energy_share" and field in ("value", "control", "low", "high"):
        return [("share", [("r_energy", "normal" if control == "none" else control, field)])]
    return []
