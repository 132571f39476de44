"""The claims of a page: both verdicts on each, and every control beside the effect."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from tl_aniso.claims import ClaimsTable
from tl_aniso.claims.table import counted, scale_words
from tl_aniso.viz.forest import Axis, Mark, axis_of
from tl_aniso.viz.style import control_name

__all__ = ["Claim", "ClaimRow", "ClaimTest", "late_rows", "read_claims"]

_GRADIENTS = {"weight": "weight gradients", "activation": "activation gradients", "none": "activations"}
# Colours of tests are those of verdicts.
_COLOURS = {"passed": "holds", "not passed": "does not hold", "cannot be said": "not testable"}
_QUANTITIES = {"energy": "energy of the", "isotropy": "IsoScore* of the"}
_KEYS = ["claim", "quantity", "model", "gradient"]


@dataclass(frozen=True)
class ClaimTest:
    """One control beside the effect: `effect` is against the normal plane, the others against controls."""

    part: str
    control: str
    effect: str
    threshold: str
    interval: str
    outcome: str
    reason: str
    is_effect: bool
    mark: Mark | None


@dataclass(frozen=True)
class ClaimRow:
    """One claim about one model and kind of gradient."""

    model: str
    about: str
    stated: str
    stated_reason: str
    beyond: str
    beyond_reason: str
    effect: str
    small: str
    marks: tuple[Mark | None, Mark | None]
    tests: tuple[ClaimTest, ...]


@dataclass(frozen=True)
class Claim:
    """One claim, its verdicts by model and kind of gradient, and the axes that its effects are drawn on."""

    name: str
    statement: str
    counts: str
    rows: tuple[ClaimRow, ...]
    scales: str


def read_claims(table: ClaimsTable) -> list[Claim]:
    """The claims with both verdicts, and every control beside the effect, as a page shows them."""
    frame, controls = table.frame, table.controls
    tests = dict(iter(controls.groupby(_KEYS, sort=False, dropna=False)))
    found = []
    for name, statement in table.statements.items():
        axes = _axes(pd.concat([frame[frame["claim"] == name], controls[controls["claim"] == name]]))
        rows = []
        for key, pair in frame[frame["claim"] == name].groupby(_KEYS, sort=False, dropna=False):
            rows.append(_row(key, pair.set_index("kind"), tests.get(key), axes))
        counts = frame[frame["claim"] == name].groupby(["kind", "verdict"], sort=False).size()
        words = [
            f"{label} " + ", ".join(f"{n} × {verdict}" for verdict, n in counts[kind].items())
            for kind, label in (("as_stated", "as stated"), ("beyond_controls", "beyond controls"))
            if kind in counts.index.get_level_values(0)
        ]
        scales = "; ".join(str(axis) for axis in axes.values())
        found.append(Claim(name, statement, "; ".join(words), tuple(rows), scales))
    return found


def _axes(rows: pd.DataFrame) -> dict[str, Axis]:
    """An axis for each scale: ratios, differences and correlations do not share one."""
    found = {}
    for scale, part in rows.dropna(subset=["scale"]).groupby("scale", sort=False):
        values = part[["effect", "ci_low", "ci_high", "threshold"]].to_numpy(dtype=float).ravel()
        axis = axis_of(scale_words(scale), values, is_log=scale == "ratio")
        if axis is not None:
            found[scale] = axis
    return found


def _mark(row: Any, axes: dict[str, Axis], verdict: str, square: bool) -> Mark | None:
    axis = None if pd.isna(row["scale"]) else axes.get(row["scale"])
    if axis is None:
        return None
    effect, low, high, threshold = (float(row[name]) for name in ("effect", "ci_low", "ci_high", "threshold"))
    return axis.mark(effect, low, high, threshold, verdict.replace(" ", "-"), square)


def _row(key: tuple[Any, ...], pair: pd.DataFrame, tests: pd.DataFrame | None, axes: dict[str, Axis]) -> ClaimRow:
    _, quantity, model, gradient = key
    stated, beyond = pair.loc["as_stated"], pair.loc["beyond_controls"]
    effect = _QUANTITIES.get(str(quantity), f"{str(quantity).replace('_', ' ')} of the")
    return ClaimRow(
        model=str(model),
        about=_about(effect, str(quantity), _GRADIENTS.get(str(gradient), str(gradient))),
        stated=str(stated["verdict"]),
        stated_reason=str(stated["reason"]),
        beyond=str(beyond["verdict"]),
        beyond_reason=str(beyond["reason"]),
        effect=_with_ends(stated),
        small=_small(stated),
        marks=(
            _mark(stated, axes, str(stated["verdict"]), False),
            _mark(beyond, axes, str(beyond["verdict"]), True),
        ),
        tests=() if tests is None else tuple(_test(row, axes) for _, row in tests.iterrows()),
    )


def _about(effect: str, quantity: str, gradients: str) -> str:
    """What is judged; the quantities of C6 to C8 are said in words already."""
    if quantity in ("energy", "isotropy"):
        return f"{effect} {gradients}"
    return quantity if gradients == _GRADIENTS["none"] else f"{quantity} of {gradients}"


# Of these the share beside an energy is a difference of E; of the others it is E itself.
_DIFFERENCES = ("falls", "tokens", "progress")


def _small(row: Any) -> str:
    """What the effect is, and the E behind it."""
    parts = [scale_words(row["scale"])]
    if not pd.isna(row["share"]):
        parts.append(f"{'difference of E' if row['part'] in _DIFFERENCES else 'E'} {_number(row['share'])}")
    return "; ".join(part for part in parts if part)


def _test(row: Any, axes: dict[str, Axis]) -> ClaimTest:
    passes = row["passes"]
    outcome = "cannot be said" if pd.isna(passes) else "passed" if passes else "not passed"
    return ClaimTest(
        part=str(row["part"] or ""),
        control="the effect itself" if row["control"] == "none" else control_name(str(row["control"])),
        effect=_with_ends(row),
        threshold=_number(row["threshold"]),
        interval=counted(row["interval"], row["n"]),
        outcome=outcome,
        reason=str(row["reason"] or ("" if row["decisive"] else "not decisive")),
        is_effect=row["control"] in ("normal", "none"),
        mark=_mark(row, axes, _COLOURS[outcome], row["control"] != "normal"),
    )


def _with_ends(row: Any) -> str:
    if pd.isna(row["effect"]):
        return "not measured"
    ends = "" if pd.isna(row["ci_low"]) else f" ({_number(row['ci_low'])} to {_number(row['ci_high'])})"
    return f"{_number(row['effect'])}{ends}"


def _number(value: float) -> str:
    """Three significant digits; powers of ten only where zeros would be many.

    Example:
        >>> _number(0.0123456), _number(12345.6), _number(float("nan"))
        ('0.0123', '12,346', '')
    """
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def late_rows(late: pd.DataFrame) -> list[tuple[str, ...]]:
    """Early planes against late-fitted ones as cells of text, of `tl_aniso.study.claims.late_fitted_table`."""
    return [
        (str(row["model"]), _GRADIENTS[row["gradient"]], str(row["phase"]), *map(_number, row.iloc[3:]))
        for _, row in late.iterrows()
    ]
