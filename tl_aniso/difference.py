"""`a - b` of two results over the same text: paired differences, with intervals over documents."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError
from tl_aniso.evidence import EnergyShares, ShareKey
from tl_aniso.multiple_testing import holm_over_sites
from tl_aniso.results import Result, TangentEnergy, group_of
from tl_aniso.statistics import Contrast, excess_contrast, odds_ratio_contrast, share_difference

__all__ = ["Difference", "subtract"]

_FOUND = ("value", "control_value", "null_mean", "null_std", "z", "p_value", "p_holm", "ci_low", "ci_high")
_NOTHING = Contrast(math.nan, math.nan, math.nan, math.nan)


# What energies by document are enough for.
_MEASURES = ("energy_share", "r_energy", "excess")


@dataclass(frozen=True, eq=False, repr=False)
class Difference(Result):
    """Paired differences of two measurements of the same documents: a - b.

    Rows of the frame stand for the same (site, gradient, rank, measure, control) as those of `TangentEnergy`, in
    the same columns. By measure:

    * ``energy_share``: ``value`` is E of a less E of b; with a control, ``control_value`` is that control's share in
      a less its share in b.
    * ``r_energy``: ``value`` is log(R of a / R of b), the natural logarithm; NaN where a and b differ in width,
      since R grows with width. ``control_value`` is 0 against the normal plane, and log of the ratio of the R that a
      control alone would give.
    * ``excess``: ``value`` is log(excess of a / excess of b), ``control_value`` is 0.

    Other measures, whose variances stand beside no energies by document, have no rows.

    ``ci_low`` and ``ci_high`` are paired jackknife intervals of ``value`` (each shard is left out of a and b at
    once), ``p_value`` the t-test of the jackknife that ``value`` is 0, ``p_holm`` adjusted over sites. Columns that
    describe a model hold ``a - b`` where the two differ, and numbers that differ are NaN.

    Attributes:
        names: what a and b are, for headings.
    """

    names: tuple[str, str] = field(default=("a", "b"))

    def table(self) -> pd.DataFrame:
        """Mean difference of E, geometric mean ratios of R and of excess, by gradient, group and rank."""
        frame = self._frame.assign(group=self._frame["site"].map(group_of))
        keys = ["gradient", "group", "rank"]

        def mean(measure: str, control: str) -> Any:
            rows = frame[(frame["measure"] == measure) & (frame["control"] == control)]
            return rows.groupby(keys, sort=False)["value"].mean()

        table = pd.DataFrame({"E difference": mean("energy_share", "none")})
        table["R ratio"] = np.exp(mean("r_energy", "normal"))
        for control in frame.loc[frame["measure"] == "excess", "control"].unique():
            table[f"excess {control} ratio"] = np.exp(mean("excess", control))
        shares = frame[(frame["measure"] == "energy_share") & (frame["control"] == "none")]
        by = shares.groupby(keys, sort=False)
        table["sites"] = by["site"].nunique()
        table["up"] = shares.assign(up=shares["ci_low"] > 0).groupby(keys, sort=False)["up"].sum()
        table["down"] = shares.assign(down=shares["ci_high"] < 0).groupby(keys, sort=False)["down"].sum()
        return table.reset_index()

    def summary(self) -> str:
        """The table, what it is of, and the notes; ``up`` and ``down`` count sites whose interval of E excludes 0."""
        return f"{self.names[0]} less {self.names[1]}\n{super().summary()}"

    def plot(self) -> Any:
        """E, R and excess of a against b by layer, every site with its interval."""
        from tl_aniso.viz.differences import differences_by_layer

        return differences_by_layer(self._frame, self.names)


def subtract(a: object, b: object) -> Difference:
    """Paired differences a - b, as `Difference` describes them.

    Raises:
        TlAnisoError: results of different documents, shards, units or lengths, sites that only one holds, or a result
            that kept no energies.
    """
    if not isinstance(a, TangentEnergy) or not isinstance(b, TangentEnergy):
        raise TlAnisoError(
            f"differences are taken between two TangentEnergy results, got {type(a).__name__} - {type(b).__name__}"
        )
    mine, theirs = _shares(a), _shares(b)
    _same_text(mine, theirs)
    left, right = a.frame, b.frame
    for name in ("unit", "seq_len"):
        if not _equal(left[name], right[name]):
            raise TlAnisoError(
                f"the results differ in {name} ({_listed(left[name])} and {_listed(right[name])}), on which gradient "
                "energy depends; measure both alike"
            )
    pairs = _pairs(mine, theirs)
    rows = list(_rows(left, right, mine, theirs, pairs))
    frame = pd.DataFrame(rows, columns=left.columns)
    for name in (*_FOUND, "step", "tokens_seen", "layer", "excluded_share"):
        frame[name] = frame[name].astype("float64")
    notes = dict.fromkeys((*a.notes, *b.notes, *_remarks(left, right, mine, theirs, pairs, frame)))
    return Difference(holm_over_sites(frame), tuple(notes), (_name(left, right), _name(right, left)))


def _shares(result: TangentEnergy) -> EnergyShares:
    if result._shares is None:
        raise TlAnisoError("a result made from a frame alone has no energies by document; subtract measured results")
    return result._shares


def _same_text(mine: EnergyShares, theirs: EnergyShares) -> None:
    if mine.documents != theirs.documents:
        a, b = set(mine.documents), set(theirs.documents)
        raise TlAnisoError(
            f"the results are of different documents: {len(a & b)} are in both, {len(a - b)} only in the first, "
            f"{len(b - a)} only in the second. Measure the same text; documents are told apart by their token ids, so "
            "the tokenizers must agree"
        )
    if mine.n_shards != theirs.n_shards:
        raise TlAnisoError(
            f"documents fall into {mine.n_shards} shards in one result and {theirs.n_shards} in the other"
        )


def _pairs(mine: EnergyShares, theirs: EnergyShares) -> dict[ShareKey, ShareKey]:
    """Which energy of b belongs to one of a: equal rank, or equal k / d where widths differ."""

    def place(shares: EnergyShares, key: ShareKey) -> tuple[str, str, Any, str]:
        return key.site, key.gradient, Fraction(key.rank, shares.widths[key.site]), key.control

    left = {place(mine, key): key for key in mine.energies}
    right = {place(theirs, key): key for key in theirs.energies}
    for one, other, which in ((left, right, "second"), (right, left, "first")):
        # Sites first: a site that is missing altogether is the plainer message.
        sites = {key[:2] for key in other}
        missing = sorted({f"{key[0]} ({key[1]})" for key in one if key[:2] not in sites})
        if missing:
            raise TlAnisoError(
                f"the {which} result lacks {len(missing)} sites of the other: {_listed(missing)}; measure the same "
                "sites=..."
            )
        ranks = {key[:3] for key in other}
        missing = sorted({f"{key[0]} at k/d = {key[2]}" for key in one if key[:3] not in ranks})
        if missing:
            raise TlAnisoError(
                f"the {which} result has other ranks: it lacks {_listed(missing)}; ask both for equal rank=... (equal "
                "k / d where widths differ)"
            )
    return {key: right[where] for where, key in left.items() if where in right}


def _rows(
    left: pd.DataFrame,
    right: pd.DataFrame,
    mine: EnergyShares,
    theirs: EnergyShares,
    pairs: Mapping[ShareKey, ShareKey],
) -> Iterator[dict[str, Any]]:
    keys = ["site", "gradient", "rank", "control", "measure"]
    others = {tuple(row[name] for name in keys): row for row in right.to_dict("records")}
    for row in left.to_dict("records"):
        control = row["control"]
        effect = ShareKey(row["site"], row["gradient"], row["rank"], "none")
        known = effect._replace(control="none" if control in ("none", "normal") else control)
        if known not in pairs or row["measure"] not in _MEASURES:
            continue
        opposite = pairs[effect]
        other = others[(effect.site, effect.gradient, opposite.rank, control, row["measure"])]
        same_width = mine.widths[effect.site] == theirs.widths[effect.site]
        one, two = (
            (mine.energies[effect], mine.energies[known]),
            (theirs.energies[opposite], theirs.energies[pairs[known]]),
        )
        found, beside = _contrasts(row["measure"], control, one, two, same_width)
        yield {
            **{name: _joined(name, row[name], other[name]) for name in left.columns if name not in _FOUND},
            **dict.fromkeys(_FOUND, math.nan),
            "rank": row["rank"],
            "value": found.value,
            "control_value": beside,
            "ci_low": found.low,
            "ci_high": found.high,
            "p_value": found.p_value,
        }


def _contrasts(measure: str, control: str, one: Any, two: Any, same_width: bool) -> tuple[Contrast, float]:
    """The difference of one row, and that of its control."""
    (effect_a, control_a), (effect_b, control_b) = one, two
    if measure == "excess":
        return excess_contrast(effect_a, control_a, effect_b, control_b), 0.0
    contrast = share_difference if measure == "energy_share" else odds_ratio_contrast
    if measure == "r_energy" and not same_width:
        return _NOTHING, math.nan
    found = contrast(*effect_a, *effect_b)
    if control == "none":
        return found, math.nan
    if control == "normal":
        return found, 0.0
    return found, contrast(*control_a, *control_b).value


def _joined(name: str, one: Any, other: Any) -> Any:
    if one == other or (one != one and other != other):
        return one
    if isinstance(one, str) and isinstance(other, str):
        return f"{one} - {other}"
    if name == "held_out":
        return bool(one and other)
    return math.nan


def _remarks(
    left: pd.DataFrame,
    right: pd.DataFrame,
    mine: EnergyShares,
    theirs: EnergyShares,
    pairs: Mapping[ShareKey, ShareKey],
    frame: pd.DataFrame,
) -> Iterator[str]:
    odd = ({*left["control"], *right["control"]} - {key.control for key in pairs}) - {"none", "normal"}
    if odd:
        yield f"controls of which not both results hold energies are left out: {_listed(sorted(odd))}"
    widths = [sorted(set(shares.widths.values())) for shares in (mine, theirs)]
    if widths[0] != widths[1]:
        yield f"R is not compared across widths (d = {_listed(widths[0])} and {_listed(widths[1])})"
    for name, what in (
        ("objective", "objectives"),
        ("proxy_id", "planes"),
        ("exclude", "row filters"),
        ("basis", "bases of proxies"),
    ):
        if not _equal(left[name], right[name]):
            yield f"the two were measured with different {what}, which is part of the difference"
    if _is_masked(left) and _is_masked(right) and not _equal(left["seed"], right["seed"]):
        yield (
            f"the two were masked at different positions (seeds {_listed(left['seed'])} and {_listed(right['seed'])}), "
            "which is part of the difference"
        )
    if mine.masking is not None and theirs.masking is not None:
        yield from _masks(mine.masking, theirs.masking)
    if frame["ci_low"].isna().all():
        yield "no intervals: energies were not kept by shard, or documents fill fewer than four shards"


def _masks(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """What else than rate, replacement and seed tells masked text apart."""
    for name, what in (
        ("mask_token_id", "the two were masked with different mask tokens ({0} and {1})"),
        ("special", "special tokens, which are never masked, differ ({0} and {1})"),
        ("n_tokens", "random replacements were drawn from vocabularies of {0} and {1} ids"),
    ):
        one, other = mine.get(name), theirs.get(name)
        if one == other or (name == "n_tokens" and not {"bert"} & {mine.get("replacement"), theirs.get("replacement")}):
            continue
        spelled = [_listed(ids) if isinstance(ids, list) else ids for ids in (one, other)]
        yield f"{what.format(*spelled)}, which is part of the difference"


def _is_masked(frame: pd.DataFrame) -> bool:
    return bool(frame["objective"].astype(str).str.startswith("masked").all())


def _equal(one: pd.Series, other: pd.Series) -> bool:
    return set(one.dropna()) == set(other.dropna())


def _listed(values: Any) -> str:
    names = list(dict.fromkeys(str(value) for value in values))
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _name(frame: pd.DataFrame, other: pd.DataFrame) -> str:
    """The model, with what tells it from the other one."""
    first, second = frame.iloc[0], other.iloc[0]
    parts = [str(first["model"])]
    for name in ("revision", "objective"):
        if first[name] != second[name] and isinstance(first[name], str):
            parts.append(first[name])
    if first["step"] == first["step"]:
        parts.append(f"step {first['step']:g}")
    return " ".join(parts)
