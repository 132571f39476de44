"""The tables of a report as captions, headings and cells of text, before any markup."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tl_aniso.viz.reading import key_steps, main_panel
from tl_aniso.viz.style import control_name, number, step_text
from tl_aniso.viz.tables import QUANTITIES, averaged, controls_of, panels_of, steps_of
from tl_aniso.viz.wording import capital

__all__ = ["Cell", "Row", "Table", "energy_tables", "full_table", "isotropy_table"]

_MISSING = "no data"


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and small print below it."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One row: headings first, then cells; `is_effect` marks the true gradient."""

    headings: tuple[str, ...]
    cells: tuple[Cell, ...]
    is_effect: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: What its numbers are.
        stubs: Headings of the columns that hold headings of rows.
        groups: Headings that each stand over `columns`.
        columns: Headings under every group.
        rows: With as many headings as stubs and len(groups) * len(columns) cells.
    """

    caption: str
    stubs: tuple[str, ...]
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def energy_tables(energy: Any) -> tuple[Table, ...]:
    """True R, E and excess beside every control: at first, peak and last step one table a panel, else one for all.

    Args:
        energy: of `energy_values`.

    Returns:
        The table of the main panel first.
    """
    controls = controls_of(energy)
    means = _lookup(averaged(energy, "step", "panel"))
    steps = key_steps(energy)
    if "only" in steps:
        panels = panels_of(energy)
        groups = tuple(f"{panel} ({_n_sites(energy, panel)})" for panel in panels)
        rows = tuple(
            Row(
                (control_name(c),),
                tuple(cell for p in panels for cell in _cells(means, steps["only"], p, c)),
                c == "none",
            )
            for c in controls
        )
        caption = "R, E and excess of the true gradient beside every control, by group of sites. " + _how(energy)
        return (Table(caption, ("gradient or control",), groups, QUANTITIES, rows),)
    first = main_panel(energy)
    held = {panel: set(energy.loc[energy["panel"] == panel, "control"]) for panel in panels_of(energy)}
    return tuple(
        Table(
            f"{capital(panel)} ({_n_sites(energy, panel)}): R, E and excess of the true gradient beside every "
            f"control, at the first step, the step where mean R of {first} is largest, and the last step. "
            + _how(energy),
            ("gradient or control",),
            tuple(f"{name}: step {step_text(step)}" for name, step in steps.items()),
            QUANTITIES,
            tuple(
                Row(
                    (control_name(c),),
                    tuple(cell for s in steps.values() for cell in _cells(means, s, panel, c)),
                    c == "none",
                )
                for c in controls
                if c in held[panel]
            ),
        )
        for panel in [first, *(other for other in panels_of(energy) if other != first)]
    )


def full_table(energy: Any) -> Table:
    """Every step and panel of several checkpoints, or every site of one."""
    controls = [control for control in controls_of(energy) if control != "normal"]
    several = len(steps_of(energy)) > 1
    keys = ["step", "panel"] if several else ["panel", "site"]
    means = averaged(energy, *keys)
    lookup = {(*(row[k] for k in keys), row["quantity"], row["control"]): row for row in means.to_dict("records")}
    entries = list(dict.fromkeys(tuple(row[k] for k in keys) for row in means.to_dict("records")))
    ranks = {panel: index for index, panel in enumerate(panels_of(energy))}
    entries.sort(key=lambda entry: (ranks[entry[keys.index("panel")]], entry[0] if several else 0))
    rows = tuple(
        Row(
            tuple(step_text(part) if key == "step" else str(part) for key, part in zip(keys, entry, strict=True)),
            tuple(
                _cell(lookup.get((*entry, q, c))) if (q, c) != ("excess", "none") else Cell("–")
                for c in controls
                for q in QUANTITIES
            ),
        )
        for entry in entries
    )
    groups = tuple(control_name(control) for control in controls)
    what = "every step and group of sites, means over sites" if several else "every site"
    return Table(f"R, E and excess of {what}. {_how(energy)}", tuple(keys), groups, QUANTITIES, rows)


def isotropy_table(isotropy: Any) -> Table:
    """IsoScore* before, without tangent and without normal, at the first and last step or at the only one."""
    steps = steps_of(isotropy)
    shown = steps if len(steps) == 1 else [steps[0], steps[-1]]
    means = _lookup(averaged(isotropy, "step", "panel"))
    series = ("before", "without tangent", "without normal")
    rows = []
    for panel in panels_of(isotropy)[::-1]:
        cells: list[Cell] = []
        for step in shown:
            found = [_find(means, step, panel, name) for name in series]
            cells += [_cell(row) for row in found]
            cells.append(_signed(_value(found[1]) - _value(found[2])))
        rows.append(Row((f"{panel} ({_n_sites(isotropy, panel)})",), tuple(cells)))
    return Table(
        "IsoScore* (0 to 1, 1 being isotropic), means over sites: before any removal, without the tangent plane, "
        "without normal planes of the same rank, and the difference of the last two.",
        ("of",),
        ("",)
        if len(steps) == 1
        else tuple(f"{name}: step {step_text(s)}" for name, s in zip(("first", "last"), shown, strict=True)),
        (*series, "delta"),
        tuple(rows),
    )


def _cells(means: dict[Any, Any], step: float, panel: str, control: str) -> tuple[Cell, ...]:
    return tuple(
        Cell("–")
        if (quantity, control) in (("excess", "none"), ("excess", "normal"))
        else _cell(_find(means, step, panel, control, quantity))
        for quantity in QUANTITIES
    )


def _find(lookup: dict[Any, Any], step: float, panel: str, name: str, quantity: str | None = None) -> Any:
    return lookup.get((step_text(step), panel, quantity, name))


def _lookup(means: Any) -> dict[Any, Any]:
    """Rows of a table of means by step (as text: NaN does not equal itself), panel, quantity, and control or series."""
    rows = means.to_dict("records")
    return {(step_text(r["step"]), r["panel"], r.get("quantity"), r.get("control", r.get("series"))): r for r in rows}


def _cell(row: Any) -> Cell:
    if row is None:
        return Cell("–")
    notes = []
    if row["n_known"] < row["n_sites"]:
        notes.append(f"{row['n_sites'] - row['n_known']} of {row['n_sites']} missing")
    n_bounded = row["above"] + row["around"] + row["below"]
    if row.get("quantity") == "excess" and n_bounded == 1:
        notes.append(f"{number(row['low'])} to {number(row['high'])}")
    elif row.get("quantity") == "excess" and n_bounded:
        counts = (("above", ">"), ("around", "≈"), ("below", "<"))
        notes.append(",\n".join(f"{row[name]}\u00a0{sign}\u00a01" for name, sign in counts if row[name]))
    return Cell(_MISSING if np.isnan(row["value"]) else number(row["value"]), "; ".join(notes))


def _signed(value: float) -> Cell:
    return Cell(_MISSING if np.isnan(value) else ("+" if value > 0 else "") + number(value))


def _value(row: Any) -> float:
    return float("nan") if row is None else float(row["value"])


def _n_sites(values: Any, panel: str) -> str:
    n = values.loc[values["panel"] == panel, "site"].nunique()
    return f"{n} site" if n == 1 else f"{n} sites"


def _how(energy: Any) -> str:
    text = "Means over sites are geometric for R and excess, arithmetic for E."
    excess = energy[energy["quantity"] == "excess"]
    if excess["low"].notna().any():
        text += (
            " Below an excess: at how many sites its 95% interval lies above (>), around (≈) and below (<) 1; "
            "for one site, the interval."
        )
    return text
