"""A study's table as a page holds it: every number once, what follows from others as a rule that was checked."""

from dataclasses import dataclass
from typing import Any, NamedTuple

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
_TEXT = ("model", "revision", "phase", "gradient", "unit", "site", "measure", "control")
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
            Packed arrays are numbered model by model.
        texts: the packed arrays of each model, so that a page need not unpack all before it shows one.
    """

    header: dict[str, Any]
    texts: tuple[str, ...]


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
    text = {name: _codes(frame, name) for name in _TEXT}
    numbers = {name: _column(frame, name) for name in ("step", "layer", "rank", "tokens_seen", *FIELDS)}
    texts: list[str] = []
    models: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for model, name in enumerate(text["model"].names):
        of_model = np.flatnonzero(text["model"].codes == model)
        points, checkpoints = _checkpoints(text, numbers, of_model)
        packer = Packer()
        kinds = text["gradient"].codes[of_model] * len(text["unit"].names) + text["unit"].codes[of_model]
        for kind in pd.unique(kinds):
            chosen = kinds == kind
            gradient = text["gradient"].names[int(kind) // len(text["unit"].names)]
            unit = text["unit"].names[int(kind) % len(text["unit"].names)]
            rows = _Rows(text, numbers, of_model[chosen], points[chosen], len(checkpoints))
            block = {"model": model, "gradient": visible(gradient), "unit": visible(unit)}
            blocks.append({**block, **_block(rows, gradient, packer)})
        models.append({"name": visible(name), "checkpoints": checkpoints, "arrays": packer.index})
        texts.append(packer.text())
    return Embedded({"models": models, "blocks": blocks}, tuple(texts))


class _Codes(NamedTuple):
    """A column of text as numbers of names."""

    codes: Any
    names: list[str]


class _Rows(NamedTuple):
    """The rows of one block: where they are in the table, and at which checkpoint."""

    text: dict[str, _Codes]
    numbers: dict[str, Any]
    at: Any
    points: Any
    n_points: int

    def codes(self, name: str) -> Any:
        return self.text[name].codes[self.at]

    def values(self, name: str) -> Any:
        return self.numbers[name][self.at]


def _codes(frame: pd.DataFrame, name: str) -> _Codes:
    if name not in frame:
        return _Codes(np.zeros(len(frame), dtype=np.int64), [""])
    codes, names = pd.factorize(frame[name], use_na_sentinel=True)
    named = [str(value) for value in names]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(named), codes)
        named.append("")
    return _Codes(codes.astype(np.int64), named)


def _column(frame: pd.DataFrame, name: str) -> Any:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)


def _checkpoints(text: dict[str, _Codes], numbers: dict[str, Any], at: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The checkpoints of a model in the order of their steps, and which of them each row is of."""
    table = pd.DataFrame({"revision": text["revision"].codes[at], "step": numbers["step"][at], "at": at})
    points = table.drop_duplicates(["revision", "step"]).sort_values("step", kind="stable").reset_index(drop=True)
    keys = table.fillna({"step": -1.0}).merge(
        points.fillna({"step": -1.0}).assign(point=range(len(points)))[["revision", "step", "point"]], how="left"
    )
    found = []
    for row in points["at"]:
        known = {name: numbers[name][row] for name in ("step", "tokens_seen")}
        plain = {name: None if np.isnan(value) else float(value) for name, value in known.items()}
        names = {name: visible(text[name].names[text[name].codes[row]]) for name in ("revision", "phase")}
        found.append({**plain, **names})
    return keys["point"].to_numpy(), found


def _slots(cells: Any, ranks: Any) -> Any:
    """Ranks of a site at a checkpoint, counted from the highest: a rank shrinks where rows span fewer dimensions."""
    top = int(ranks.max()) + 1
    pairs, inverse = np.unique(cells * top + (top - 1 - ranks.astype(np.int64)), return_inverse=True)
    cell = pairs // top
    is_first = np.r_[True, cell[1:] != cell[:-1]]
    count = np.arange(len(pairs))
    return (count - np.maximum.accumulate(np.where(is_first, count, 0)))[inverse]


def _block(rows: _Rows, gradient: str, packer: Packer) -> dict[str, Any]:
    n_points, sites = rows.n_points, rows.codes("site")
    slots = _slots(sites * n_points + rows.points, rows.values("rank"))
    # One row of the block for each site and slot, slots apart, sites in the order of the table.
    heads = pd.DataFrame({"site": sites, "slot": slots, "layer": rows.values("layer"), "rank": rows.values("rank")})
    heads = heads.drop_duplicates(["site", "slot"]).sort_values("slot", kind="stable").reset_index(drop=True)
    n_sites = len(rows.text["site"].names)
    number = np.full(n_sites * (int(slots.max()) + 1), -1)
    number[heads["slot"].to_numpy() * n_sites + heads["site"].to_numpy()] = np.arange(len(heads))
    row = number[slots * n_sites + sites]
    cells = row * n_points + rows.points
    names = [rows.text["site"].names[site] for site in heads["site"]]
    groups = [panel_of(gradient, name) for name in names]
    named = list(dict.fromkeys(groups))
    of_row = np.array([named.index(group) for group in groups])
    measures, controls = rows.text["measure"].names, rows.text["control"].names
    kinds = rows.codes("measure") * len(controls) + rows.codes("control")
    dense: dict[_Key, Any] = {}
    held: dict[tuple[str, str], list[int]] = {}
    for kind in pd.unique(kinds):
        measure, control = measures[kind // len(controls)], controls[kind % len(controls)]
        chosen = np.flatnonzero(kinds == kind)
        if len(np.unique(cells[chosen])) < len(chosen):
            raise TlAnisoError(
                f"rows of the frame come twice: {measure} against {control} of one site, rank and checkpoint, "
                f"first among {names[row[chosen[0]]]}"
            )
        held[measure, control] = [int(at) for at in np.unique(of_row[row[chosen]])]
        for column, field in FIELDS.items():
            given = rows.values(column)[chosen]
            if field == "value" or not np.isnan(given).all():
                dense[measure, control, field] = values = np.full(len(heads) * n_points, np.nan)
                values[cells[chosen]] = given
    rules = _Rules(dense, np.repeat(_odds(dense, len(heads), n_points), n_points), packer)
    series: dict[str, dict[str, dict[str, Any]]] = {}
    for (measure, control), found in held.items():
        fields = [field for field in FIELDS.values() if (measure, control, field) in dense]
        entry = {field: rules.of((measure, control, field))[0] for field in fields}
        series.setdefault(visible(measure), {})[visible(control)] = {"groups": found, **entry}
    return {
        "sites": [visible(name) for name in names],
        "layers": [None if np.isnan(layer) else float(layer) for layer in heads["layer"]],
        "ranks": [int(rank) for rank in heads["rank"]],
        "slots": [int(slot) for slot in heads["slot"]],
        "groups": [visible(group) for group in named],
        "group": of_row.tolist(),
        "odds": [None if np.isnan(c) else float(c) for c in rules.odds[::n_points]],
        "series": series,
    }


def _odds(dense: dict[_Key, Any], n_rows: int, n_points: int) -> Any:
    """Odds of k/d by row: odds of E over R, which is the same at every checkpoint."""
    share = dense.get(("energy_share", "none", "value"))
    ratio = dense.get(("r_energy", "normal", "value"))
    if share is None or ratio is None:
        return np.full(n_rows, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (share / (1 - share) / ratio).reshape(n_rows, n_points)
    found[~np.isfinite(found)] = np.nan
    is_known = np.isfinite(found).any(axis=1)
    odds = np.full(n_rows, np.nan)
    odds[is_known] = np.nanmedian(found[is_known], axis=1)
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
