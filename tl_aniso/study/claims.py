"""What a study says of the paper's claims: its table without doubled points, held against the rules."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd

from tl_aniso.claims import (
    ClaimsTable,
    GeometryRules,
    Paired,
    Rules,
    judge,
    judge_geometry,
    load_geometry_rules,
    load_rules,
)
from tl_aniso.claims.alike import unlike
from tl_aniso.controls.names import LATE_FITTED
from tl_aniso.errors import TlAnisoError

__all__ = ["citation", "claims_of", "geometry_claims_of", "late_fitted_table", "points"]

TRAINING = "training"
# Digest of a file of rules -> the commit that wrote it, before any study measured what it judges: a wheel has no
# history to ask.
_COMMITS = {
    "f7949d853676e91b5aeab4b9f2fd6f4b59b1fe986f34b48f981d20921ddc0de3": "2e32b4902aaf85fb44ab20b7af4ce81c10d412a8",
    "95357ab9402c55a442e5e72d616692a6539d7ce46fb3f6bbd8dde1ba7e5d597f": "241e2446254410435f4cdd7166d6e9fb0a1e5b2f",
}


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """A study's table without checkpoints whose weights are another's: one point for one set of weights."""
    if "duplicate_of" not in frame:
        return frame
    return frame[frame["duplicate_of"].fillna("") == ""].reset_index(drop=True)


def claims_of(
    frame: pd.DataFrame,
    trainings: Mapping[str, Sequence[str]] | None = None,
    *,
    rules: Rules | None = None,
    differences: Sequence[Paired] = (),
    rank: int | None = None,
) -> ClaimsTable:
    """Both verdicts on each claim, from a study's table.

    Of a model that was measured at several ranks one is judged: `rank`, or the smallest; a note says which.

    Args:
        frame: of a study.
        trainings: name -> models that are trainings of it by several seeds; intervals are then over these.
        rules: those of the library by default.
        differences: early less late, for models of one training.
        rank: which of several ranks; one that was measured.

    Raises:
        TlAnisoError: a rank that was not measured, trainings that are none of one model; see `tl_aniso.claims.judge`.
    """
    rows, note = _at_rank(points(frame), rank)
    if note:
        kept = set(rows["rank"].dropna())
        differences = [replace(pair, difference=_of_ranks(pair.frame, kept)) for pair in differences]
    if trainings:
        found = judge(_as_trainings(rows, trainings), rules, differences=differences, runs=TRAINING)
    else:
        found = judge(rows, rules, differences=differences)
    return replace(found, notes=(*found.notes, *note))


def _at_rank(rows: pd.DataFrame, rank: int | None) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """One rank of every model, and a note where there were several."""
    ranks = {model: sorted({int(k) for k in of.dropna()}) for model, of in rows.groupby("model", sort=False)["rank"]}
    lacking = [model for model, known in ranks.items() if rank is not None and known and rank not in known]
    if lacking:
        known = ", ".join(map(str, ranks[lacking[0]]))
        raise TlAnisoError(f"{lacking[0]} was not measured at rank {rank}; known are {known}")
    several = {model: known for model, known in ranks.items() if len(known) > 1}
    if not several:
        return rows, ()
    chosen = {model: known[0] if rank is None else rank for model, known in several.items()}
    keep = rows["rank"].isna() | (rows["rank"] == rows["model"].map(chosen).fillna(rows["rank"]))
    every = ", ".join(map(str, sorted({k for known in several.values() for k in known})))
    at = ", ".join(map(str, sorted(set(chosen.values()))))
    note = f"several ranks were measured ({every}); claims are judged at rank {at}"
    return rows[keep].reset_index(drop=True), (f"{note}. Another: tl-aniso report DIR --rank K, Study.claims_at(K)",)


def _of_ranks(frame: pd.DataFrame, ranks: Collection[float]) -> pd.DataFrame:
    return frame[frame["rank"].isna() | frame["rank"].isin(list(ranks))] if "rank" in frame else frame


def geometry_claims_of(
    frame: pd.DataFrame,
    trainings: Mapping[str, Sequence[str]] | None = None,
    *,
    rules: GeometryRules | None = None,
    models: Sequence[str] = (),
) -> ClaimsTable:
    """Both verdicts on each claim about frequency and local geometry, from a study's ``geometry.parquet``.

    Args:
        frame: of a study.
        trainings: as for `claims_of`.
        rules: those of the library by default.
        models: of the study; one without rows has verdicts, too.

    Raises:
        TlAnisoError: see `tl_aniso.claims.judge_geometry`.
    """
    if not trainings:
        return judge_geometry(frame, rules, models=models)
    names = {member: name for name, members in trainings.items() for member in members}
    named = [names.get(model, model) for model in models]
    return judge_geometry(_as_trainings(frame, trainings), rules, runs=TRAINING, models=named)


def _as_trainings(rows: pd.DataFrame, trainings: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Models by the name of what they are trainings of, numbered.

    Raises:
        TlAnisoError: members that differ in family, objective, width or sites.
    """
    for name, members in trainings.items():
        for one, other in pairwise(members):
            what = unlike(rows[rows["model"] == one], rows[rows["model"] == other])
            if what:
                raise TlAnisoError(
                    f"trainings: {name}: {one} and {other} are no trainings of one architecture: they differ in {what}"
                )
    names = {member: name for name, members in trainings.items() for member in members}
    numbers = {member: str(place) for members in trainings.values() for place, member in enumerate(members)}
    return rows.assign(
        model=rows["model"].map(lambda model: names.get(model, model)),
        **{TRAINING: rows["model"].map(lambda model: numbers.get(model, "0"))},
    )


def citation(claims: ClaimsTable | None = None) -> str:
    """The rules by file, commit and digest: those of C1 to C5, and of what else a table judges.

    Example:
        >>> "SHA-256" in citation()
        True
    """
    found: list[Rules | GeometryRules] = [load_rules()]
    further = load_geometry_rules()
    if claims is not None and set(further.claims) & set(claims.statements):
        found.append(further)
    return "; and by ".join(_cited(rules) for rules in found)


def _cited(rules: Rules | GeometryRules) -> str:
    commit = _COMMITS.get(rules.digest)
    what = "measured what it judges" if isinstance(rules, GeometryRules) else "ran"
    if commit is None:
        return f"{rules.source}, of no commit that is known here, SHA-256 {rules.digest}"
    return f"{rules.source}, commit {commit[:12]}, written before the first study {what}, SHA-256 {rules.digest}"


def late_fitted_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Early planes against late-fitted ones: geometric means over sites of blocks and checkpoints.

    Columns: model, gradient, phase, `E`, `E in late planes` (means) and `ratio`, the odds of the first over those of
    the second: below 1, planes fitted late hold more of the gradient than those frozen early.
    """
    import numpy as np

    rows = points(frame)
    rows = rows[(rows["control"] == LATE_FITTED) & rows["measure"].isin(("energy_share", "excess"))]
    rows = rows[rows["site"].str.startswith("blocks.") & rows["phase"].notna()]
    found: list[dict[str, Any]] = []
    for (model, gradient, phase), group in rows.groupby(["model", "gradient", "phase"], sort=False):
        shares, excess = (group[group["measure"] == name] for name in ("energy_share", "excess"))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(excess["value"].to_numpy(dtype=float))
        logs = logs[np.isfinite(logs)]
        found.append(
            {
                "model": model,
                "gradient": gradient,
                "phase": phase,
                "E": shares["value"].mean(),
                "E in late planes": shares["control_value"].mean(),
                "ratio": float(np.exp(logs.mean())) if len(logs) else float("nan"),
            }
        )
    return pd.DataFrame(found, columns=["model", "gradient", "phase", "E", "E in late planes", "ratio"])
