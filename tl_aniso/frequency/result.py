"""The result of `frequency_variance`: a tidy table, a table of types, a reading in words, a figure."""

from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any

import pandas as pd

__all__ = ["FrequencyVariance"]


@dataclass(frozen=True, eq=False, repr=False)
class FrequencyVariance:
    """Whether frequent token types vary less, with controls.

    Rows of the frame, by measure (``gradient`` is ``none``; ``scope`` is ``over_checkpoints`` or ``within`` one):

    * ``frequency_pearson`` and ``frequency_spearman``: correlation over types of log frequency with the root mean
      square distance to the centroid, ``raw`` or with the common drift of all types removed. Control ``none`` has
      the interval over types; against another control, ``control_value`` is the correlation under it, with its band
      (``shuffled_frequencies``, ``gaussian_surrogate``) or interval (``size_matched``), and ``difference`` the
      measured less it, with an interval over the same types.
    * ``norm_pearson`` and ``norm_spearman``: of log frequency with the root mean square norm.

    Attributes:
        notes: what a reader must know before reading the numbers.
    """

    _frame: pd.DataFrame
    _types: pd.DataFrame
    notes: tuple[str, ...] = field(default=())

    @property
    def frame(self) -> pd.DataFrame:
        """The tidy table, one row per (scope, checkpoint, site, measure, variant, control); a copy."""
        return self._frame.copy()

    @property
    def types(self) -> pd.DataFrame:
        """One row per type and place: count, log frequency, distances, norm; a copy.

        ``distance_matched`` is of the size-matched sample, NaN where that is not complete; tables that are
        equal are one, ``tied``.
        """
        return self._types.copy()

    def table(self) -> pd.DataFrame:
        """The short table that `summary` prints: Pearson's and Spearman's correlation beside what controls give."""
        rows = self._frame[self._frame["measure"].str.startswith("frequency_")]
        keys = ["scope", "step", "site", "variant", "measure"]
        plain = rows[rows["control"] == "none"]
        table = plain[[*keys, "value", "ci_low", "ci_high", "p_value", "n_types"]].copy()
        for control in ("size_matched", "gaussian_surrogate"):
            beside = rows[rows["control"] == control][[*keys, "control_value"]]
            table = table.merge(beside.rename(columns={"control_value": control}), how="left", on=keys)
        table["measure"] = table["measure"].str.removeprefix("frequency_")
        table["n_types"] = table["n_types"].astype(int)
        return table if table["step"].notna().any() else table.drop(columns="step")

    def summary(self) -> str:
        """The short table and the notes, as plain text."""
        text = self.table().to_string(index=False, float_format=lambda v: f"{v:.3g}", na_rep="-")
        return "\n".join((text, *(f"note: {note}" for note in self.notes)))

    def to_latex(self) -> str:
        """The short table as a LaTeX tabular."""
        return self.table().to_latex(index=False, float_format="%.3g", na_rep="--", escape=True)

    def plot(self) -> Any:
        """Distance against frequency, one mark a type, raw beside drift removed: over checkpoints where there are some,
        else within the one."""
        plots = import_module("tl_aniso.viz.plots")  # figures build on results, not the other way round
        over = self._types[self._types["scope"] == "over_checkpoints"]
        return plots.frequency_scatter((over if len(over) else self._types).reset_index(drop=True))

    def __repr__(self) -> str:
        return f"FrequencyVariance({len(self._frame)} rows, {self._frame['site'].nunique()} sites)\n{self.summary()}"

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        return self.table().to_html(index=False, float_format=lambda v: f"{v:.3g}", na_rep="–", escape=True) + notes
