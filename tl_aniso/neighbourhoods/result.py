"""The frozen result of `local_geometry`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pandas as pd

from tl_aniso.neighbourhoods.frame import to_geometry_frame
from tl_aniso.results import Result

__all__ = ["LocalGeometry"]


@dataclass(frozen=True, eq=False, repr=False)
class LocalGeometry(Result):
    """Local geometry by site, as means over token types with intervals over types.

    Rows of the frame, by measure; groups are ``all``, ``frequent``, ``rare`` and ``rare - frequent`` (of shares a
    difference, of ``local_r`` and ``local_excess`` a ratio):

    * ``curvature_slope``: of log normal against log tangent amplitude; variant ``without_floor`` does not take noise
      apart.
    * ``visible_share``: normal share of a cloud's energy about its mean; variant ``smooth`` has only what is a
      quadratic function of tangent coordinates, corrected for noise.
    * ``curvature_energy``: energy of that quadratic part over tangent energy, at one radius for all types of the site
      (column ``radius``), so that types that spread more do not seem more curved.
    * ``local_dimension``: participation ratio of the cloud's covariance; other variants by scikit-dimension.
    * ``local_energy_share``, ``local_r``, ``local_excess``: gradient energy over half B in the cloud's plane over half
      A; R is the odds ratio to rank / d, excess that to the share of a control.
    """

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any], notes: tuple[str, ...]) -> LocalGeometry:
        """The result of rows that share some columns."""
        return cls(to_geometry_frame({**facts, **row} for row in rows), notes)

    def table(self) -> pd.DataFrame:
        """One line per site, gradient and measure: all types, frequent, rare, their difference (p by permuted
        labels), and all types' Gaussian surrogates."""
        frame = self._frame[self._frame["variant"] == "raw"]
        lines = []
        for (site, gradient, measure), rows in frame.groupby(["site", "gradient", "measure"], sort=False):
            if measure in ("local_excess", "local_energy_share"):
                continue
            control = "normal" if measure == "local_r" else "none"
            own = rows[rows["control"] == control].set_index("group")["value"]
            line = {"site": site, "gradient": gradient, "measure": measure, **own}
            shuffled = rows[rows["control"] == "shuffled_frequencies"]["p_value"]
            line["p"] = shuffled.iloc[0] if len(shuffled) else float("nan")
            if measure == "local_r":
                flat = frame[
                    (frame["site"] == site) & (frame["gradient"] == gradient) & (frame["measure"] == "local_excess")
                ]
                flat = flat[(flat["control"] == "gaussian_surrogate") & (flat["group"] == "all")]["control_value"]
            else:
                flat = rows[(rows["control"] == "gaussian_surrogate") & (rows["group"] == "all")]["control_value"]
            line["surrogate"] = flat.iloc[0] if len(flat) else float("nan")
            lines.append(line)
        return pd.DataFrame(lines)

    def plot(self) -> Any:
        """Curvature by layer beside every control; gradient energies are in `tl_aniso.viz.local_energy_by_layer`."""
        plots = import_module("tl_aniso.viz.plots")  # figures build on results, not the other way round
        return plots.curvature_by_layer(self.frame)
