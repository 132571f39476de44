"""The page of claims: both verdicts on each, and every control beside the effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from tl_aniso.claims import ClaimsTable
from tl_aniso.viz.report_facts import spelled
from tl_aniso.viz.style import control_name
from tl_aniso.viz.wording import control_words

__all__ = ["claims_page"]

_GRADIENTS = {"weight": "weight gradients", "activation": "activation gradients", "none": "activations"}
_KEYS = ["claim", "quantity", "model", "gradient"]


@dataclass(frozen=True)
class _Test:
    """One control beside the effect: `effect` is against the normal plane, the others against controls."""

    part: str
    control: str
    effect: str
    threshold: str
    interval: str
    outcome: str
    reason: str
    is_effect: bool


@dataclass(frozen=True)
class _Row:
    """One claim about one model and kind of gradient."""

    model: str
    about: str
    stated: str
    stated_reason: str
    beyond: str
    beyond_reason: str
    effect: str
    small: str
    tests: tuple[_Test, ...]


@dataclass(frozen=True)
class _Claim:
    name: str
    statement: str
    counts: str
    rows: tuple[_Row, ...]


def claims_page(
    claims: ClaimsTable | str,
    late: pd.DataFrame,
    *,
    rules: str,
    models: Sequence[tuple[str, str, Sequence[str]]],
    facts: Mapping[str, Any],
) -> str:
    """One self-contained page, which fetches nothing and needs no script.

    Args:
        claims: verdicts; or why there are none.
        late: early planes against late-fitted ones, as `tl_aniso.study.claims.late_fitted_table` has them.
        rules: by which rules it was judged.
        models: name, file of its page, and what is wrong with its checkpoints.
        facts: what was measured, name by name.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = isinstance(claims, ClaimsTable)
    found = _claims(claims) if isinstance(claims, ClaimsTable) else []
    named = dict.fromkeys(claims.controls["control"].dropna()) if isinstance(claims, ClaimsTable) else {}
    return environment.get_template("study.html").render(
        claims=found,
        fault="" if known else str(claims),
        notes=claims.notes if isinstance(claims, ClaimsTable) else (),
        late=[
            (row["model"], _GRADIENTS[row["gradient"]], row["phase"], *map(_number, row.iloc[3:]))
            for _, row in late.iterrows()
        ],
        rules=rules,
        models=models,
        facts=[(name, spelled(value)) for name, value in facts.items()],
        controls=[(control_name(control), control_words(control)) for control in named if control_words(control)],
    )


def _claims(table: ClaimsTable) -> list[_Claim]:
    frame, controls = table.frame, table.controls
    tests = dict(iter(controls.groupby(_KEYS, sort=False, dropna=False)))
    found = []
    for name, statement in table.statements.items():
        rows = []
        for key, pair in frame[frame["claim"] == name].groupby(_KEYS, sort=False, dropna=False):
            rows.append(_row(key, pair.set_index("kind"), tests.get(key)))
        counts = frame[frame["claim"] == name].groupby(["kind", "verdict"], sort=False).size()
        words = [
            f"{label} " + ", ".join(f"{n} × {verdict}" for verdict, n in counts[kind].items())
            for kind, label in (("as_stated", "as stated"), ("beyond_controls", "beyond controls"))
            if kind in counts.index.get_level_values(0)
        ]
        found.append(_Claim(name, statement, "; ".join(words), tuple(rows)))
    return found


def _row(key: tuple[Any, ...], pair: pd.DataFrame, tests: pd.DataFrame | None) -> _Row:
    _, quantity, model, gradient = key
    stated, beyond = pair.loc["as_stated"], pair.loc["beyond_controls"]
    effect = "energy of the" if quantity == "energy" else "IsoScore* of the"
    return _Row(
        model=str(model),
        about=_about(effect, str(quantity), _GRADIENTS[str(gradient)]),
        stated=str(stated["verdict"]),
        stated_reason=str(stated["reason"]),
        beyond=str(beyond["verdict"]),
        beyond_reason=str(beyond["reason"]),
        effect=_with_ends(stated),
        small=_small(stated),
        tests=() if tests is None else tuple(_test(row) for _, row in tests.iterrows()),
    )


def _about(effect: str, quantity: str, gradients: str) -> str:
    """What is judged; the quantities of C6 to C8 are said in words already."""
    if quantity in ("energy", "isotropy"):
        return f"{effect} {gradients}"
    return quantity if gradients == _GRADIENTS["none"] else f"{quantity} of {gradients}"


# Of these the share beside an energy is a difference of E; of the others it is E itself.
_DIFFERENCES = ("falls", "tokens", "progress")
_SCALES = {"ratio": "ratio", "difference": "difference of IsoScore*", "correlation": "correlation with layer"}


def _small(row: Any) -> str:
    """What the effect is, and the E behind it."""
    parts = [_SCALES.get(str(row["scale"]), str(row["scale"] or ""))]
    if not pd.isna(row["share"]):
        parts.append(f"{'difference of E' if row['part'] in _DIFFERENCES else 'E'} {_number(row['share'])}")
    return "; ".join(part for part in parts if part and part != "nan")


def _test(row: Any) -> _Test:
    passes = row["passes"]
    outcome = "cannot be said" if pd.isna(passes) else "passed" if passes else "not passed"
    return _Test(
        part=str(row["part"] or ""),
        control="the effect itself" if row["control"] == "none" else control_name(str(row["control"])),
        effect=_with_ends(row),
        threshold=_number(row["threshold"]),
        interval=f"{row['interval']}, n = {row['n']:.0f}" if row["interval"] else "",
        outcome=outcome,
        reason=str(row["reason"] or ("" if row["decisive"] else "not decisive")),
        is_effect=row["control"] == "normal",
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
