"""Local geometry and frequency (C6 to C8) on a study's page: packed rows, and a table that needs no script."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.packing import Packer
from tl_aniso.viz.report_tables import Cell, Row, Table
from tl_aniso.viz.style import control_name, number, visible
from tl_aniso.viz.wording import MEASURES

__all__ = ["GeometryNumbers", "embed_geometry", "geometry_table"]

_KEYS = ("model", "revision", "site", "gradient", "scope", "measure", "variant", "group", "control")
_NUMBERS = ("step", "layer", "value", "ci_low", "ci_high", "control_value", "difference")
_GRADIENTS = {"none": "activations", "activation": "activation gradients", "weight": "weight gradients"}


@dataclass(frozen=True)
class GeometryNumbers:
    """Rows of a geometry frame, packed.

    Attributes:
        header: columns of text as a list of values and, packed, the place of each row's value in it; columns of
            numbers as packed arrays.
        text: the packed arrays.
    """

    header: dict[str, Any]
    text: str


def embed_geometry(frame: pd.DataFrame) -> GeometryNumbers:
    """Pack a geometry frame; numbers are rounded to 32 bits.

    Raises:
        TlAnisoError: columns are missing.
    """
    _check(frame)
    packer = Packer()
    text, numbers = {}, {}
    for name in _KEYS:
        codes, values = pd.factorize(frame[name].fillna("").astype(str))
        text[name] = {"values": [visible(value) for value in values], "codes": packer.add(codes.astype(np.float64))}
    for name in _NUMBERS:
        numbers[name] = packer.add(frame[name].to_numpy(dtype=np.float64))
    names = {visible(name): visible(control_name(name)) for name in frame["control"].dropna().unique()}
    header = {"n": len(frame), "text": text, "numbers": numbers, "arrays": packer.index, "controls": names}
    return GeometryNumbers(header, packer.text())


def geometry_table(frame: pd.DataFrame) -> Table:
    """Medians over sites and checkpoints by model, measure, group and control; what is missing is counted."""
    _check(frame)
    keys = ["model", "gradient", "measure", "variant", "group", "control"]
    rows = []
    for key, part in frame.fillna(dict.fromkeys(keys, "")).groupby(keys, sort=False):
        model, gradient, measure, variant, group, control = (str(name) for name in key)
        what = ", ".join(name for name in (variant, group) if name)
        headings = (model, _GRADIENTS.get(gradient, gradient), MEASURES.get(measure, measure), what)
        cells = (
            Cell(control_name(control) if control != "none" else "–"),
            *(_median(part[name]) for name in ("value", "control_value", "difference")),
            Cell(str(len(part))),
        )
        rows.append(Row(headings, cells, control == "none"))
    return Table(
        "Medians over sites and checkpoints. Intervals and single rows are in the figure and in geometry.parquet.",
        ("model", "of", "measure", "variant, group"),
        ("",),
        ("control", "value", "of the control", "difference", "rows"),
        tuple(rows),
    )


def _median(values: Any) -> Cell:
    known = values[np.isfinite(values.to_numpy(dtype=np.float64))]
    if not len(known):
        return Cell("–")
    missing = len(values) - len(known)
    return Cell(number(float(known.median())), f"{missing} of {len(values)} missing" if missing else "")


def _check(frame: pd.DataFrame) -> None:
    missing = [name for name in (*_KEYS, *_NUMBERS) if name not in frame.columns]
    if missing:
        raise TlAnisoError(f"the geometry frame lacks the columns {', '.join(missing)}")
