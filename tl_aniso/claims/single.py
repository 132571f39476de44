"""What one run of one model says: an effect, its fall over training, its course with depth."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from tl_aniso.claims.estimates import Estimate, Untestable, correlation, difference
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.rules import ClaimRule, Rules

__all__ = ["DEPTH", "EXISTS", "FALLS", "LEVEL", "STAYS", "estimate_of_run", "parts_of", "pooled"]

LEVEL, FALLS, STAYS, DEPTH, EXISTS = "level", "falls", "stays", "depth", "exists"


def parts_of(rule: ClaimRule) -> tuple[str, ...]:
    """The statements that a claim is made of."""
    if rule.test == "fall":
        return (FALLS, STAYS) if rule.stays else (FALLS,)
    parts = {"level": (LEVEL,), "depth": (DEPTH,), "contrast": rule.alignments}[rule.test]
    return (*parts, EXISTS) if rule.exists else parts


def estimate_of_run(
    rows: pd.DataFrame, rule: ClaimRule, part: str, control: str, rules: Rules, null: float
) -> Estimate:
    """The estimate of one part against one control.

    Args:
        rows: observations of one run, quantity and gradient.
        rule: of the claim.
        part: one of `parts_of`.
        control: "normal" or another control.
        rules: all rules.
        null: the threshold on the additive scale.

    Raises:
        Untestable: too little was measured.
    """
    effect = _of_phase(rows[rows["control"] == NORMAL], rule.phase, rules)
    if part in (LEVEL, EXISTS):
        return pooled(rows, effect, control, rules)
    if part == DEPTH:
        return _depth(rows, effect, control, rules, null)
    early, late = (_of_phase(effect, phase, rules) for phase in ("early", "late"))
    sites = _frozen(early, late)
    chosen = effect[effect["site"].isin(sites) & effect["phase"].isin(("early", "late"))]
    _alike(chosen, rules)
    first, last = (
        pooled(rows, chosen, control, rules, phase=phase)  # the same sites in both
        for phase in ("early", "late")
    )
    if part == STAYS:
        return last
    found = difference(first, last)
    if found.how == "planes drawn":
        why = "bands over planes drawn do not bound a change over training: several runs are needed"
        found = replace(found, low=math.nan, high=math.nan, why_none=why)
    return found


def pooled(rows: pd.DataFrame, effect: pd.DataFrame, control: str, rules: Rules, phase: str | None = None) -> Estimate:
    """Mean over sites and checkpoints of `effect`, of what `control` has there; ends of intervals are averaged too.

    Sites and checkpoints share documents. Whatever the correlation, the standard deviation of a mean is at most the
    mean of standard deviations, so averaged ends make an interval that is wide enough and often wider.

    Raises:
        Untestable: values are missing at too many sites.
    """
    tables, sites, bounded = _tables(rows, effect, control, rules)
    columns = effect.drop_duplicates("checkpoint")
    wanted = columns["checkpoint"] if phase is None else columns.loc[columns["phase"] == phase, "checkpoint"]
    low, high = (
        float(tables[name].loc[sites, list(wanted)].to_numpy().mean()) if bounded else math.nan
        for name in ("low", "high")
    )
    mine = rows[(rows["control"] == control) & rows["site"].isin(sites) & rows["checkpoint"].isin(list(wanted))]
    return Estimate(
        float(tables["value"].loc[sites, list(wanted)].to_numpy().mean()),
        low,
        high,
        how="documents" if (mine["how"] == "documents").all() else "planes drawn",
        n=len(sites),
        why_none="" if bounded else _why_none(rows),
        share=float(mine["share"].mean()),
    )


def _tables(
    rows: pd.DataFrame, effect: pd.DataFrame, control: str, rules: Rules
) -> tuple[dict[str, pd.DataFrame], list[str], bool]:
    """Value and ends by site and checkpoint, the sites that are whole, and whether they have intervals."""
    checkpoints, expected = effect["checkpoint"].unique(), effect["site"].unique()
    if not effect["held_out"].astype(bool).all():
        raise Untestable("the planes were fitted on the very documents that are measured (in-sample)")
    mine = rows[(rows["control"] == control) & rows["site"].isin(expected) & rows["checkpoint"].isin(checkpoints)]
    tables = {
        name: mine.pivot(index="site", columns="checkpoint", values=name).reindex(index=expected, columns=checkpoints)
        for name in ("value", "low", "high")
    }
    whole = tables["value"].notna().all(axis=1)
    if whole.mean() < rules.enough.sites:
        at = "every checkpoint" if len(checkpoints) > 1 else "the checkpoint"
        raise Untestable(f"{control} has values at {at} at {int(whole.sum())} of {len(whole)} sites only")
    ends = whole & tables["low"].notna().all(axis=1) & tables["high"].notna().all(axis=1)
    bounded = bool(ends.mean() >= rules.enough.sites)
    chosen = ends if bounded else whole
    return tables, list(chosen.index[chosen]), bounded


def _why_none(rows: pd.DataFrame) -> str:
    if (rows["quantity"] == "isotropy").all():
        return "isotropy has neither an interval over documents nor a band over planes drawn: several runs are needed"
    return "there are no intervals over documents (fewer than four shards hold energy), and there is one run"


def _of_phase(effect: pd.DataFrame, phase: str, rules: Rules) -> pd.DataFrame:
    chosen = effect if phase == "any" else effect[effect["phase"] == phase]
    n = chosen["checkpoint"].nunique()
    if effect.empty:
        raise Untestable("it was not measured")
    if n < rules.enough.steps:
        if effect["phase"].isna().all():
            raise Untestable("no phase is known of any checkpoint, so none is early or late")
        which = "a" if phase == "any" else f"{'an' if phase == 'early' else 'a'} {phase}"
        raise Untestable(f"{n} checkpoints are of {which} phase, {rules.enough.steps} needed")
    return chosen


def _frozen(early: pd.DataFrame, late: pd.DataFrame) -> list[str]:
    """Sites that one and the same plane was measured at, early and late."""
    planes = [
        dict(rows.groupby("site", sort=False)["proxy_id"].agg(lambda ids: frozenset(map(str, ids))))
        for rows in (early, late)
    ]
    shared = [site for site in planes[0] if site in planes[1]]
    same = [site for site in shared if planes[0][site] == planes[1][site] and len(planes[0][site]) == 1]
    if not shared:
        raise Untestable("no site was measured both early and late")
    if len(same) < len(shared):
        raise Untestable(
            f"planes differ between checkpoints at {len(shared) - len(same)} of {len(shared)} sites: one set of "
            "proxies must be frozen and used throughout"
        )
    return same


def _alike(effect: pd.DataFrame, rules: Rules) -> None:
    for name in ("seq_len", "unit"):
        if effect[name].nunique(dropna=True) > 1:
            raise Untestable(f"early and late checkpoints differ in {name}")
    if (effect["quantity"] == "isotropy").all():
        counts = effect.groupby("site")["n_rows"].agg(["min", "max"]).astype("float64").dropna()
        if len(counts) and (counts["max"] > counts["min"] * (1 + rules.alike.rows)).any():
            raise Untestable("isotropy was measured on different numbers of rows early and late")


def _depth(rows: pd.DataFrame, effect: pd.DataFrame, control: str, rules: Rules, null: float) -> Estimate:
    tables, sites, _ = _tables(rows, effect, control, rules)
    by_site = tables["value"].loc[sites].mean(axis=1)
    layers = effect.drop_duplicates("site").set_index("site")["layer"].astype("float64").loc[sites]
    means = by_site.groupby(layers.to_numpy()).mean()
    if len(means) < rules.enough.layers:
        raise Untestable(f"{len(means)} layers were measured, {rules.enough.layers} needed")
    depths: Sequence[float] = list(means.index)
    found = correlation(depths, list(means), rules.level, rules.enough.layers_alone, null)
    shares: Float[np.ndarray, " sites"] = effect.loc[effect["site"].isin(sites), "share"].to_numpy(dtype=np.float64)
    return replace(found, share=float(shares.mean()))
