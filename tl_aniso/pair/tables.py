"""The pair's tables: for a terminal as frames, for the page as captions, headings and cells."""

from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.pair.run import KINDS, PairResult
from tl_aniso.pair.verdict import judge
from tl_aniso.viz.report_tables import Cell, Row, Table
from tl_aniso.viz.style import control_name, number, step_text
from tl_aniso.viz.tables import averaged, isotropy_values, panels_of

__all__ = [
    "c5_frame",
    "c5_table",
    "isotropy_of_both",
    "learning_frame",
    "matches_table",
    "progress_frame",
    "progress_table",
]

_ISOTROPY_OF = ("activations", "activation gradients", "readers", "writers")
_COLUMNS = ("decoder", "encoder", "difference")


def c5_frame(result: PairResult, group: str = "readers") -> pd.DataFrame:
    """One line a window and quantity: both models and their difference in every seed, and the verdict."""
    lines: list[dict[str, Any]] = []
    for one in judge(result.differences, group):
        line: dict[str, Any] = {"checkpoints": one.window, "of": _quantity(one.control)}
        for row in one.rows.to_dict("records"):
            seed = row["seed"]
            line[f"dec {seed}"], line[f"enc {seed}"] = f"{row['decoder']:.3g}", f"{row['encoder']:.3g}"
            cell = _difference(one.control, row)
            line[f"difference {seed}"] = _worded(cell)
        lines.append({**line, "C5": one.verdict})
    return pd.DataFrame(lines)


def c5_table(result: PairResult, group: str = "readers") -> Table:
    """The same for the page."""
    rows = []
    for one in judge(result.differences, group):
        of_seed = {row["seed"]: row for row in one.rows.to_dict("records")}
        cells: list[Cell] = []
        for seed in result.seeds:
            row = of_seed.get(seed)
            if row is None:
                cells += [Cell("–")] * len(_COLUMNS)
            else:
                cells += [Cell(number(row["decoder"])), Cell(number(row["encoder"])), _difference(one.control, row)]
        rows.append(Row((one.window, _quantity(one.control), one.verdict), tuple(cells), one.control == "none"))
    return Table(
        f"C5 on the pair, {group}: E at equal k/d, and the excess over every control, means over sites and checkpoints "
        "(geometric for excess). The difference is that of E, or the ratio of the excesses, decoder over encoder, with "
        "its 95% interval over text. C5 holds where every seed's interval says that the decoder's is larger, and does "
        "not where every seed's says that the encoder's is; an excess holds only where the decoder's is above 1.",
        ("checkpoints", "of", "C5"),
        tuple(f"seed {seed}" for seed in result.seeds),
        _COLUMNS,
        tuple(rows),
    )


def matches_table(result: PairResult) -> Table:
    """Every match, with E and the excess over every control, readers."""
    single = result.differences[result.differences["decoder_step"].notna() & (result.differences["group"] == "readers")]
    controls = list(dict.fromkeys(single["control"]))
    rows = []
    keys = ["seed", "window", "decoder_step", "encoder_step"]
    for key, part in single.groupby(keys, sort=False):
        seed, window, decoder, encoder = key
        first = part.iloc[0]
        found = {row["control"]: row for row in part.to_dict("records")}
        cells = [
            cell
            for control in controls
            for cell in (
                Cell(number(found[control]["decoder"])),
                Cell(number(found[control]["encoder"])),
                _difference(control, found[control]),
            )
        ]
        at = (
            f"{step_text(decoder)} ({first['decoder_progress']:.3f})",
            f"{step_text(encoder)} ({first['encoder_progress']:.3f})",
        )
        rows.append(Row((str(seed), str(window), *at), tuple(cells)))
    return Table(
        "Every comparison: steps of decoder and encoder with their progress, readers. Differences of E, ratios of "
        "excess, with 95% intervals over text.",
        ("seed", "checkpoints", "decoder's step", "encoder's step"),
        tuple(_quantity(control) for control in controls),
        _COLUMNS,
        tuple(rows),
    )


def progress_frame(result: PairResult) -> pd.DataFrame:
    """E of readers at every match of equal progress, one line each: how much of the mean rests on which match."""
    return pd.DataFrame(
        [
            {
                "seed": row["seed"],
                "decoder's step": step_text(row["decoder_step"]),
                "its progress": f"{row['decoder_progress']:.4f}",
                "encoder's step": step_text(row["encoder_step"]),
                "its  progress": f"{row['encoder_progress']:.4f}",
                "E dec": number(row["decoder"]),
                "E enc": number(row["encoder"]),
                "difference": _worded(_difference("none", row)),
            }
            for row in _equal_progress(result)
        ]
    )


def progress_table(result: PairResult) -> Table:
    """The same for the page."""
    rows = [
        Row(
            (
                str(row["seed"]),
                f"{step_text(row['decoder_step'])} ({row['decoder_progress']:.4f})",
                f"{step_text(row['encoder_step'])} ({row['encoder_progress']:.4f})",
            ),
            (Cell(number(row["decoder"])), Cell(number(row["encoder"])), _difference("none", row)),
        )
        for row in _equal_progress(result)
    ]
    return Table(
        "E at equal progress, match by match, readers: steps with their progress in brackets. The mean over so few "
        "matches may rest on one of them.",
        ("seed", "decoder's step", "encoder's step"),
        ("E",),
        _COLUMNS,
        tuple(rows),
    )


def _equal_progress(result: PairResult) -> list[dict[Any, Any]]:
    rows = result.differences
    rows = rows[rows["decoder_step"].notna() & (rows["window"] == "equal progress") & (rows["group"] == "readers")]
    return rows[rows["control"] == "none"].to_dict("records")


def _worded(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text


def isotropy_of_both(result: PairResult) -> Table:
    """IsoScore* of both models at the last step of the early ones and at the last."""
    rows = []
    last = max(result.runs[0].held)
    early = max(step for step in result.runs[0].held if step <= 0.3 * last)
    series = ("before", "without tangent", "without normal")
    for run in result.runs:
        means = averaged(isotropy_values(run.frame), "step", "panel")
        for panel in [name for name in panels_of(means)[::-1] if name in _ISOTROPY_OF]:
            cells: list[Cell] = []
            for step in (early, last):
                part = means[(means["panel"] == panel) & (means["step"] == step)].set_index("series")["value"]
                numbers = [float(part.get(name, np.nan)) for name in series]
                delta = numbers[1] - numbers[2]
                cells += [Cell(number(value)) if np.isfinite(value) else Cell("–") for value in numbers]
                cells.append(Cell(f"{delta:+.3f}") if np.isfinite(delta) else Cell("–"))
            rows.append(Row((f"{run.kind}, seed {run.seed}", panel), tuple(cells)))
    return Table(
        "IsoScore* (0 to 1, 1 being isotropic), means over sites: before any removal, without the tangent plane, "
        "without normal planes of the same rank, and the difference of the last two, at equal tokens.",
        ("model", "of"),
        (f"step {early}", f"step {last}"),
        (*series, "delta"),
        tuple(rows),
    )


def learning_frame(result: PairResult) -> pd.DataFrame:
    """How both learn: held-out loss and progress by step, means over seeds are not taken."""
    table: dict[str, Any] = {"step": list(result.runs[0].held)}
    for seed in result.seeds:
        for kind in KINDS:
            run = result.run(seed, kind)
            table[f"{kind} {seed} loss"] = [f"{loss:.3f}" for loss in run.held.values()]
            table[f"{kind} {seed} progress"] = [f"{progress:+.3f}" for progress in run.progress.values()]
    return pd.DataFrame(table)


def _quantity(control: str) -> str:
    return "E" if control == "none" else f"excess over {control_name(control)}"


def _difference(control: str, row: Any) -> Cell:
    value, low, high = (float(row[name]) for name in ("value", "ci_low", "ci_high"))
    if not np.isfinite(value):
        return Cell("no data")
    if control == "none":
        return Cell(f"{value:+.3f}", f"{low:+.3f} to {high:+.3f}" if np.isfinite(low) else "")
    ends = f"{number(float(np.exp(low)))} to {number(float(np.exp(high)))}" if np.isfinite(low) else ""
    return Cell(f"×{number(float(np.exp(value)))}", ends)
