"""The table of verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from tl_aniso.errors import TlAnisoError

__all__ = ["COLUMNS", "CONTROL_COLUMNS", "ClaimsTable", "counted", "reader_notes", "rules_notes", "scale_words"]

_WHERE = ("claim", "quantity", "model", "gradient")
_NUMBERS = ("part", "control", "effect", "ci_low", "ci_high", "threshold", "scale", "interval", "n", "share")
COLUMNS = (*_WHERE, "kind", "verdict", *_NUMBERS, "p_value", "p_holm", "reason")
CONTROL_COLUMNS = (*_WHERE, *_NUMBERS, "p_value", "passes", "decisive", "reason")
_RULES = "judged by "
_SHORT = ("as stated", "effect", "scale", "beyond controls", "control", "its effect", "its scale")
_SCALES = {"difference": "difference of IsoScore*", "correlation": "correlation with layer"}
# What `n` counts: ends of intervals over documents, planes drawn or types are averaged over sites.
_COUNTED = {
    **dict.fromkeys(("documents", "planes drawn", "types"), "site"),
    "documents, paired": "pair",
    "count of models": "model",
}


def scale_words(scale: object) -> str:
    """What an effect is, for a reader; the scales of `judge_geometry` are said in words already.

    Example:
        >>> scale_words("difference"), scale_words("slope"), scale_words(None)
        ('difference of IsoScore*', 'slope', '')
    """
    return _SCALES.get(scale, scale) if isinstance(scale, str) else ""


def counted(interval: object, n: float) -> str:
    """What an interval is over, and how many of what stand behind the number: never a sample size of documents.

    Example:
        >>> counted("documents", 21), counted("runs", 3), counted("documents, paired", 1), counted("", 1)
        ('documents; mean of 21 sites', '3 runs', 'documents, paired; mean of 1 pair', '')
    """
    if not isinstance(interval, str) or not interval:
        return ""
    if interval not in _COUNTED:  # runs, models, layers: these themselves are counted
        return f"{n:.0f} {interval}"
    of = f"{n:.0f} {_COUNTED[interval]}{'' if n == 1 else 's'}"
    return of if interval == "count of models" else f"{interval}; mean of {of}"


def rules_notes(source: str, digest: str, level: float) -> tuple[str, ...]:
    """By which rules a table was judged, and at which level."""
    return f"{_RULES}{source}, SHA-256 {digest[:12]}", f"intervals at {level:.0%}"


def reader_notes(table: "ClaimsTable") -> tuple[str, ...]:
    """The notes without the rules, for whoever cites these in full."""
    return tuple(note for note in table.notes if not note.startswith(_RULES))


@dataclass(frozen=True, eq=False, repr=False)
class ClaimsTable:
    """Verdicts on claims, with every control beside them.

    ``frame`` has one row per (claim, quantity, model, gradient, kind of verdict); ``controls`` one per test behind
    them, that is per control and, of claims made of several statements, per statement.

    Columns of ``frame``:

    * ``claim``; ``quantity``: "energy" or "isotropy", or what `judge_geometry` tells apart; ``model``: a model,
      "all", or "encoder - decoder"; ``gradient``.
    * ``kind``: "as_stated" or "beyond_controls"; ``verdict``: "holds", "does not hold" or "not testable".
    * ``part``, ``control``: the test that the verdict hangs on, which the numbers are of: the first to fail by the
      widest margin, or, of a claim that holds, the one that comes nearest to failing.
    * ``effect``, ``ci_low``, ``ci_high``, ``threshold``, on ``scale``: "ratio" (R, excess, or their ratios),
      "difference" (of IsoScore*), "correlation" (with depth), "share of models", or what `judge_geometry` writes out.
    * ``interval``: over what; ``n``: over how many runs, models or layers; of intervals over documents, planes drawn or
      types the number of sites that are averaged, of paired ones that of pairs.
    * ``share``: the E behind an energy, since R says little without it; a difference of E behind a difference.
    * ``p_value``, ``p_holm``: where an interval over runs, models or layers gives one; Holm over models.
    * ``reason``: the verdict in words.

    ``controls`` also says for each test whether it ``passes`` (None where it cannot be said) and is ``decisive``.

    Attributes:
        statements: what is claimed, by claim.
        notes: by which rules it was judged, and what a reader must know before reading verdicts.
    """

    _frame: pd.DataFrame
    _controls: pd.DataFrame
    statements: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())

    @property
    def frame(self) -> pd.DataFrame:
        """One row per verdict; a copy."""
        return self._frame.copy()

    @property
    def controls(self) -> pd.DataFrame:
        """One row per test; a copy."""
        return self._controls.copy()

    def joined(self, other: "ClaimsTable") -> "ClaimsTable":
        """Both tables as one, such as that of `judge` and that of `judge_geometry`.

        Raises:
            TlAnisoError: a claim that both have.
        """
        if not isinstance(other, ClaimsTable):
            raise TlAnisoError(f"a ClaimsTable can be joined, got {type(other).__name__}")
        twice = [name for name in self.statements if name in other.statements]
        if twice:
            raise TlAnisoError(f"both tables judge {twice[0]}, and two answers are none; join tables of other claims")
        return ClaimsTable(
            _stacked(self._frame, other._frame),
            _stacked(self._controls, other._controls),
            {**self.statements, **other.statements},
            tuple(dict.fromkeys((*self.notes, *other.notes))),
        )

    def table(self) -> pd.DataFrame:
        """One row per (claim, quantity, model, gradient): both verdicts, and what each hangs on."""
        keys = list(_WHERE)
        kinds = {kind: rows.set_index(keys) for kind, rows in self._frame.groupby("kind", sort=False)}
        if not kinds:
            return pd.DataFrame(columns=[*keys, *_SHORT])
        stated, beyond = kinds["as_stated"], kinds["beyond_controls"]
        table = pd.DataFrame(index=stated.index)
        table["as stated"] = stated["verdict"]
        table["effect"] = _with_ends(stated)
        table["scale"] = stated["scale"].map(scale_words)
        table["beyond controls"] = beyond["verdict"]
        table["control"] = beyond["control"].fillna("")
        table["its effect"] = _with_ends(beyond)
        table["its scale"] = beyond["scale"].map(scale_words)
        return table.reset_index()

    def summary(self) -> str:
        """The claims, the short table and the notes, as plain text."""
        claims = [f"{name}: {text}" for name, text in self.statements.items()]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([*claims, self.table().to_string(index=False), *notes])

    def to_latex(self) -> str:
        """The short table as a LaTeX tabular."""
        return self.table().to_latex(index=False, escape=True)

    def __repr__(self) -> str:
        return f"ClaimsTable({len(self._frame)} verdicts)\n{self.summary()}"

    def _repr_html_(self) -> str:
        from html import escape

        claims = "".join(f"<li>{escape(name)}: {escape(text)}</li>" for name, text in self.statements.items())
        reasons = self._frame[["claim", "quantity", "model", "gradient", "kind", "reason"]]
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        return (
            f"<ul>{claims}</ul>{self.table().to_html(index=False, escape=True)}"
            f"<details><summary>Reasons</summary>{reasons.to_html(index=False, escape=True)}</details>"
            f"<details><summary>Every control</summary>{self._controls.to_html(index=False, escape=True)}</details>"
            f"{notes}"
        )


def _stacked(*frames: pd.DataFrame) -> pd.DataFrame:
    """One below the other; a table without rows says nothing of types."""
    held = [frame for frame in frames if len(frame)]
    return pd.concat(held, ignore_index=True) if held else frames[0].copy()


def _with_ends(rows: pd.DataFrame) -> pd.Series:
    def text(value: float, low: float, high: float) -> str:
        if value != value:
            return ""
        return f"{value:.3g}" + (f" ({low:.3g} to {high:.3g})" if low == low and high == high else "")

    return pd.Series(
        [text(*ends) for ends in zip(rows["effect"], rows["ci_low"], rows["ci_high"], strict=True)],
        index=rows.index,
        dtype=object,
    )
