"""What one run of one model says: an effect, its fall over training, its course with depth."""

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from tl_aniso.claims.cells import UNKNOWN, Cells, Ends
from tl_aniso.claims.estimates import Estimate, Untestable, correlation, difference
from tl_aniso.claims.rules import ClaimRule, Rules

__all__ = ["DEPTH", "EXISTS", "FALLS", "LEVEL", "STAYS", "estimate_of_run", "parts_of", "pooled"]

LEVEL, FALLS, STAYS, DEPTH, EXISTS = "level", "falls", "stays", "depth", "exists"
_PLANES_DRAWN = "planes drawn"


def parts_of(rule: ClaimRule) -> tuple[str, ...]:
    """The statements that a claim is made of."""
    if rule.test == "fall":
        return (FALLS, STAYS) if rule.stays else (FALLS,)
    parts = {"level": (LEVEL,), "depth": (DEPTH,), "contrast": rule.alignments}[rule.test]
    return (*parts, EXISTS) if rule.exists else parts


def estimate_of_run(run: Cells, rule: ClaimRule, part: str, control: str, rules: Rules, null: float) -> Estimate:
    """The estimate of one part against one control.

    Args:
        run: one run, of one quantity and gradient.
        rule: of the claim.
        part: one of `parts_of`.
        control: "normal" or another control.
        rules: all rules.
        null: the threshold on the additive scale.

    Raises:
        Untestable: too little was measured.
    """
    if part in (LEVEL, EXISTS):
        return pooled(_of_phase(run, rule.phase, rules), control, rules)
    if part == DEPTH:
        return _depth(_of_phase(run, rule.phase, rules), control, rules, null)
    for phase in ("early", "late"):
        _of_phase(run, phase, rules)
    both = run.at(np.array([phase in ("early", "late") for phase in run.phases]))
    early = np.array([phase == "early" for phase in both.phases])
    _refuse_unlike(both, early, rules)
    first, last = (pooled(both, control, rules, wanted) for wanted in (early, ~early))  # the same sites in both
    if part == STAYS:
        return last
    found = difference(first, last)
    if found.how == _PLANES_DRAWN:
        why = "bands over planes drawn do not bound a change over training: several runs are needed"
        found = replace(found, low=math.nan, high=math.nan, why_none=why)
    return found


def pooled(
    cells: Cells, control: str, rules: Rules, wanted: Bool[np.ndarray, " checkpoints"] | None = None
) -> Estimate:
    """Mean over sites and checkpoints of what a control has there; ends of intervals are averaged too.

    Sites and checkpoints share documents. Whatever the correlation, the standard deviation of a mean is at most the
    mean of standard deviations, so averaged ends make an interval that is wide enough and often wider.

    Args:
        cells: sites that lack a value at any of these checkpoints do not enter.
        control: "normal" or another control.
        rules: all rules.
        wanted: which checkpoints to average over; all by default.

    Raises:
        Untestable: values are missing at too many sites, or planes saw the documents.
    """
    ends, sites, bounded = _whole(cells, control, rules)
    columns = np.ones(len(cells.checkpoints), dtype=bool) if wanted is None else wanted
    cut = np.ix_(sites, columns)
    return Estimate(
        float(ends.value[cut].mean()),
        float(ends.low[cut].mean()) if bounded else math.nan,
        float(ends.high[cut].mean()) if bounded else math.nan,
        how="documents" if ends.over_text else _PLANES_DRAWN,
        n=int(sites.sum()),
        why_none="" if bounded else _why_none(cells.quantity),
        share=float(cells.facts["share"][cut].mean()),
    )


def _whole(cells: Cells, control: str, rules: Rules) -> tuple[Ends, Bool[np.ndarray, " sites"], bool]:
    """What a control has, the sites that are whole, and whether these have intervals."""
    if not cells.held_out:
        raise Untestable("the planes were fitted on the very documents that are measured (in-sample)")
    ends = cells.of(control)
    whole = np.isfinite(ends.value).all(axis=1)
    if whole.mean() < rules.enough.sites:
        at = "every checkpoint" if len(cells.checkpoints) > 1 else "the checkpoint"
        raise Untestable(f"{control} has values at {at} at {int(whole.sum())} of {len(whole)} sites only")
    with_ends = whole & np.isfinite(ends.low).all(axis=1) & np.isfinite(ends.high).all(axis=1)
    bounded = bool(with_ends.mean() >= rules.enough.sites)
    return ends, with_ends if bounded else whole, bounded


def _why_none(quantity: str) -> str:
    if quantity == "isotropy":
        return "isotropy has neither an interval over documents nor a band over planes drawn: several runs are needed"
    return "there are no intervals over documents (fewer than four shards hold energy), and there is one run"


def _of_phase(run: Cells, phase: str, rules: Rules) -> Cells:
    keep = np.array([phase in ("any", of) for of in run.phases], dtype=bool)
    if keep.sum() < rules.enough.steps:
        if not any(run.phases):
            raise Untestable("no phase is known of any checkpoint, so none is early or late")
        counted = f"{keep.sum()} checkpoints after step {rules.after_step:g}"  # which is initialisation
        raise Untestable(f"{counted} are of the phase {phase}, {rules.enough.steps} needed")
    return run.at(keep)


def _refuse_unlike(both: Cells, early: Bool[np.ndarray, " checkpoints"], rules: Rules) -> None:
    """One and the same plane early and late, on text of one length, and isotropy of equally many rows."""
    planes = [[frozenset(row[columns]) - {""} for row in both.planes] for columns in (early, ~early)]
    shared = [(one, other) for one, other in zip(*planes, strict=True) if one and other]
    if not shared:
        raise Untestable("no site was measured both early and late")
    if any(UNKNOWN in one | other for one, other in shared):
        raise Untestable("which planes were used is not known (proxy_id), so they may differ between checkpoints")
    changed = sum(len(one | other) > 1 for one, other in shared)
    if changed:
        raise Untestable(
            f"planes differ between checkpoints at {changed} of {len(shared)} sites: one set of proxies must be frozen "
            "and used throughout"
        )
    for name in ("seq_len", "unit"):
        if len(both.occurring(name)) > 1:
            raise Untestable(f"early and late checkpoints differ in {name}")
    if both.quantity == "isotropy":
        counts = both.facts["n_rows"]
        counts = counts[np.isfinite(counts).all(axis=1)]
        if len(counts) and (counts.max(axis=1) > counts.min(axis=1) * (1 + rules.alike.rows)).any():
            raise Untestable("isotropy was measured on different numbers of rows early and late")


def _depth(cells: Cells, control: str, rules: Rules, null: float) -> Estimate:
    ends, sites, _ = _whole(cells, control, rules)
    by_site, layers = ends.value[sites].mean(axis=1), cells.layers[sites]
    depths = np.unique(layers)
    if len(depths) < rules.enough.layers:
        raise Untestable(f"{len(depths)} layers were measured, {rules.enough.layers} needed")
    means = [float(by_site[layers == depth].mean()) for depth in depths]
    found = correlation(list(depths), means, rules.level, rules.enough.layers_alone, null)
    return replace(found, share=float(cells.facts["share"][sites].mean()))
