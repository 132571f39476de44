"""Frozen results: a tidy table, a reading in words, a figure."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.evidence import EnergyShares
from tl_aniso.sites import BASES, UNEMBEDDING, proxy_site, whole_site

if TYPE_CHECKING:
    from tl_aniso.difference import Difference
    from tl_aniso.subspace import TangentProxies
    from tl_aniso.viz.token_views import TokenView

__all__ = ["AblationIsotropy", "Result", "TangentEnergy", "geometric_mean", "group_of"]


def geometric_mean(values: Any) -> float:
    """Geometric mean of positive numbers; NaN for none.

    Example:
        >>> geometric_mean([2.0, 8.0])
        4.0
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(np.exp(np.log(known).mean())) if len(known) and (known > 0).all() else float("nan")


def group_of(site: str) -> str:
    """The group of sites that a table averages over: readers and writers of blocks, residual, (un)embedding.

    Single heads are groups of their own, so that a matrix is not counted again through its heads.

    Example:
        >>> group_of("blocks.0.attn.W_Q"), group_of("blocks.0.mlp.W_out"), group_of("unembed.W_U")
        ('readers', 'writers', 'unembedding')
        >>> group_of("blocks.0.attn.W_Q.3")
        'readers by head'
    """
    whole = whole_site(site)
    if whole != site:
        return f"{group_of(whole)} by head"
    if site.startswith("unembed"):
        return "unembedding"
    if site.startswith("embed"):
        return "embedding"
    if site.endswith((".input", ".output")):
        return "inputs and outputs"
    if ".hook_resid_" in site:
        return "residual stream"
    return "writers" if site.endswith(("W_O", "W_out")) else "readers"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What all results share.

    Attributes:
        notes: what a reader must know before reading the numbers (in-sample, ranks that shrank, few rows).
    """

    _frame: pd.DataFrame
    notes: tuple[str, ...] = field(default=())
    _proxies: "TangentProxies | None" = field(default=None, kw_only=True)

    @property
    def frame(self) -> pd.DataFrame:
        """The tidy table, one row per (site, gradient, rank, measure, control); a copy."""
        return self._frame.copy()

    def table(self) -> pd.DataFrame:
        """The short table that `summary` prints."""
        raise NotImplementedError

    def summary(self) -> str:
        """The short table and the notes, as plain text."""
        text = self.table().to_string(index=False, float_format=lambda v: f"{v:.3g}", na_rep="-")
        return "\n".join((text, *(f"note: {note}" for note in self.notes)))

    def to_latex(self) -> str:
        """The short table as a LaTeX tabular."""
        return self.table().to_latex(index=False, float_format="%.3g", na_rep="--", escape=True)

    def plot(self) -> Any:
        """An interactive plotly figure of the result by layer."""
        raise NotImplementedError

    def tokens(self, model: Any, text: Any, **options: Any) -> "TokenView":
        """A text coloured, token by token, by tangent shares in this result's planes, layer by layer.

        Args:
            model: as of `tl_aniso.capture`; of the width that the result was measured on, at any checkpoint.
            text: as of `tl_aniso.capture`.
            **options: of `tl_aniso.token_views.token_shares` (``sites``, ``labels``, ``tokenizer``, ``seq_len``, ...);
                by default the sites of the result and the activations that their planes were fitted on.

        Returns:
            A `tl_aniso.viz.token_views.TokenView`: shown in notebooks, ``.save(path)``, ``.frame``.

        Raises:
            TlAnisoError: a result without planes (one that was read from a table), and all that `token_shares` raises.
        """
        from tl_aniso.token_views import token_shares
        from tl_aniso.viz.token_views import TokenView

        if self._proxies is None:
            raise TlAnisoError(
                "this result holds no tangent planes, only its table; measure it again, or call "
                "tl_aniso.token_views.token_shares(model, text, proxies)"
            )
        bases = [basis for basis in self._frame["basis"].dropna().unique() if basis in BASES]
        basis = options.pop("basis", bases[0] if bases else "own")
        if "sites" not in options:
            measured = dict.fromkeys(whole_site(site) for site in self._frame["site"])
            own = [s for s in measured if s in self._proxies or proxy_site(s, n_layers=1) in self._proxies]
            homes = {proxy_site(s) for s in own} if basis == "own" else set(self._proxies)
            fitted = [s for s in self._proxies if s in homes]
            # The unembedding's gradient rows are as wide as the vocabulary: what it reads is shown.
            options["sites"] = tuple(dict.fromkeys((*fitted, *(s for s in measured if s != UNEMBEDDING))))
        return TokenView(token_shares(model, text, self._proxies, basis=basis, **options))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._frame)} rows, {self._frame['site'].nunique()} sites)\n{self.summary()}"
        )

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>note: {_escaped(note)}</p>" for note in self.notes)
        return self.table().to_html(index=False, float_format=lambda v: f"{v:.3g}", na_rep="–", escape=True) + notes

    def _measure(self, measure: str) -> pd.DataFrame:
        rows = self._frame[self._frame["measure"] == measure].copy()
        if rows.empty:
            raise UndefinedMeasureError(f"the result holds no {measure}")
        rows["group"] = rows["site"].map(group_of)
        return rows


@dataclass(frozen=True, eq=False, repr=False)
class TangentEnergy(Result):
    """Gradient energy in tangent directions, against the exact normal control and against every other control.

    Rows of the frame, by measure:

    * ``energy_share``, control ``none``: E with its exact normal null, z, p-value (planes from all of R^d) and
      jackknife interval; with another control, ``control_value`` is that control's E (of ``covariance_drawn`` the
      mean over planes, with its deviation in ``null_std``).
    * ``r_energy``: odds(E) / odds(k/d), the ratio to the mean normal plane; against ``normal`` the control is 1 by
      definition, against another control ``control_value`` is the R that the control alone would give.
    * ``excess``: odds(E) / odds(E of the control); 1 where the control explains all of it.
    * ``share_per_variance``, control ``next_k``: E over the share of variance that the first k components explain;
      ``control_value`` the same of the next k.

    ``a - b`` of two results over the same documents is a `tl_aniso.difference.Difference`.
    """

    _shares: EnergyShares | None = field(default=None)

    def __sub__(self, other: object) -> "Difference":
        """Paired differences with intervals; TlAnisoError for results that were not measured alike."""
        from tl_aniso.difference import subtract

        return subtract(self, other)

    def table(self, *, spread: bool = False) -> pd.DataFrame:
        """Mean E, geometric means of R and of excess, by gradient, group and rank.

        Args:
            spread: also the median and the quartiles of every ratio over the sites of a row: where they are far from
                the mean, few sites carry it.
        """
        ratio = self._measure("r_energy")
        share = self._measure("energy_share")
        keys = ["gradient", "group", "rank"]
        ratios = {"R": ratio[ratio["control"] == "normal"].groupby(keys, sort=False)["value"]}
        for control in ratio["control"].unique():
            if control != "normal":
                rows = ratio[ratio["control"] == control].groupby(keys, sort=False)
                ratios[f"R {control}"] = rows["control_value"]
        excess = self._frame[self._frame["measure"] == "excess"].copy()
        if not excess.empty:
            excess["group"] = excess["site"].map(group_of)
            for control in excess["control"].unique():
                ratios[f"excess {control}"] = excess[excess["control"] == control].groupby(keys, sort=False)["value"]
        table = pd.DataFrame({name: values.agg(geometric_mean) for name, values in ratios.items()})
        table.insert(0, "E", share[share["control"] == "none"].groupby(keys, sort=False)["value"].mean())
        if spread:
            for name, values in ratios.items():
                table[f"median of {name}"] = values.median()
                table[f"lower quartile of {name}"] = values.quantile(0.25)
                table[f"upper quartile of {name}"] = values.quantile(0.75)
        return table.reset_index()

    def plot(self) -> Any:
        """R by layer for every site, with the R of each control beside it."""
        from tl_aniso.viz.figures import energy_by_layer

        return energy_by_layer(self._frame)


@dataclass(frozen=True, eq=False, repr=False)
class AblationIsotropy(Result):
    """Isotropy before and after removing the tangent plane, against removing normal planes of the same rank.

    Rows of the frame, by measure (``gradient`` is ``none`` for the activations themselves):

    * ``isoscore`` and ``isoscore_star``, control ``none``: the score before any removal.
    * ``isoscore`` and ``isoscore_star``, control ``normal``: ``value`` without the tangent plane, ``control_value``
      and ``null_mean`` the mean without a normal plane, ``null_std`` its spread over draws, z and p-value.
    * ``delta_isoscore_star``, control ``normal``: without tangent minus mean without normal.
    * ``participation_ratio``, ``effective_rank`` and ``top_share``, control ``none``: of the spectrum before removal.
    * ``mean_cosine``, ``partition_isotropy`` and ``intrinsic_dimension`` of activations whose rows were kept: before
      (control ``none``), and without the tangent against without five normal planes (control ``normal``).
    """

    def __sub__(self, other: object) -> None:
        """Refused: isotropy is not kept by document, so that paired intervals cannot be had."""
        raise TlAnisoError(
            "isotropy is a property of all documents together, so two AblationIsotropy results have no paired "
            "difference; compare their frames, or subtract TangentEnergy results"
        )

    def table(self) -> pd.DataFrame:
        """Mean IsoScore* before, without tangent and without normal, by gradient, group and rank."""
        rows = self._measure("isoscore_star")
        rows["gradient"] = rows["gradient"].replace("none", "(activations)")
        keys = ["gradient", "group", "rank"]
        before = rows[rows["control"] == "none"].groupby(keys, sort=False)["value"].mean()
        after = rows[rows["control"] == "normal"].groupby(keys, sort=False)
        table = pd.DataFrame({"before": before})
        table["without tangent"] = after["value"].mean()
        table["without normal"] = after["control_value"].mean()
        table["delta"] = table["without tangent"] - table["without normal"]
        return table.reset_index()

    def plot(self) -> Any:
        """IsoScore* by layer: before, without tangent, without normal with its band."""
        from tl_aniso.viz.figures import isotropy_by_layer

        return isotropy_by_layer(self._frame)


def _escaped(text: str) -> str:
    from html import escape

    return escape(text)
