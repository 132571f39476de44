"""The page of a finished study: claims with every control beside them, figures, a reading of each model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.claims import ClaimsTable, Paired
from tl_aniso.errors import TlAnisoError
from tl_aniso.study.claims import citation, claims_of, geometry_claims_of, late_fitted_table, points
from tl_aniso.study.corpus import drops
from tl_aniso.study.differences import read_differences
from tl_aniso.study.geometry import GEOMETRY
from tl_aniso.study.run import PLAN, RESULTS
from tl_aniso.study.store import Store
from tl_aniso.study.table import notes_of, read_table
from tl_aniso.study.tokens import TOKENS, read_tokens
from tl_aniso.viz.report import write_page
from tl_aniso.viz.study_page import ModelPart, PageFragment, study_report
from tl_aniso.viz.token_views import TokenPart, fitted_sections, token_sections

__all__ = ["REPORT", "judged", "marked", "write_pages"]

REPORT = "report.html"
# Larger pages open slowly; single tokens give way to the numbers of the table.
_MOST_BYTES = 15_000_000


def judged(directory: Path, rank: int | None = None) -> ClaimsTable:
    """Verdicts on the claims from the finished study in a directory.

    Args:
        directory: of the study.
        rank: which of several; by default the smallest, and a note says so.

    Raises:
        TlAnisoError: it holds no finished study, or no such rank.
    """
    frame, _ = _read(directory)
    return _judged(directory, frame, _plan(directory), rank)


def write_pages(directory: Path, rank: int | None = None) -> Path:
    """Write the page of the study in `directory`, ``report.html``; returns its path.

    Args:
        directory: of the study.
        rank: of several, the one at which claims are judged.

    Raises:
        TlAnisoError: it holds no finished study, or no such rank, or its page cannot be written.
    """
    frame, facts = _read(directory)
    plan = _plan(directory)
    try:
        claims: ClaimsTable | str = _judged(directory, frame, plan, rank)
    except TlAnisoError as error:  # no geometry, say: the figures are there all the same
        if rank is not None:
            raise
        claims = f"The claims were not judged: {error}"
    try:
        return write_page(directory / REPORT, _fitting_page(frame, facts, plan, claims, directory))
    except OSError as error:
        raise TlAnisoError(f"cannot write {directory / REPORT}: {error.strerror}") from error


def _fitting_page(
    frame: pd.DataFrame, facts: dict[str, Any], plan: dict[str, Any], claims: ClaimsTable | str, directory: Path
) -> str:
    """The page with as many token views as its size allows."""
    parts, lost = _tokens(directory, plan)
    views: list[PageFragment] = list(token_sections(parts, lost)) if parts or lost else []
    page = _page(frame, facts, plan, claims, directory, views)
    spare = _MOST_BYTES - len(page.encode("utf-8", "backslashreplace"))
    if spare < 0 and parts:
        views = list(fitted_sections(parts, lost, over=-spare))
        page = _page(frame, facts, plan, claims, directory, views)
    return page


def _page(
    frame: pd.DataFrame,
    facts: dict[str, Any],
    plan: dict[str, Any],
    claims: ClaimsTable | str,
    directory: Path,
    views: Sequence[PageFragment],
) -> str:
    rows = points(frame)
    return study_report(
        [
            ModelPart(
                model,
                rows[rows["model"] == model],
                marked=marked(frame, model),
                notes=facts.get("notes", {}).get(model, ()),
                provenance=_provenance(plan, model, facts),
            )
            for model in dict.fromkeys(rows["model"])
        ],
        claims,
        late=late_fitted_table(frame),
        rules=citation(claims if isinstance(claims, ClaimsTable) else None),
        facts={
            "early": f"the first {facts['early_fraction']:.0%} of the {facts['early_unit']} of each model",
            "trainings": {name: ", ".join(members) for name, members in plan["config"]["trainings"]} or "one a model",
            "library": f"tl_aniso {plan['library_version']}",
        },
        geometry=_geometry(directory, plan),
        token_views=views,
    )


def _tokens(directory: Path, plan: dict[str, Any]) -> tuple[list[TokenPart], list[str]]:
    """Single tokens of every model that the plan has them of, and what could not be read."""
    store, parts, lost = Store(directory), list[TokenPart](), list[str]()
    for model in plan["models"]:
        phases = {one["name"]: one["phase"] for one in model["checkpoints"]}
        for taken in model.get("tokens", ()):
            name, phase = taken["checkpoint"], phases[taken["checkpoint"]]
            place = store.get(TOKENS, taken["key"], f"token views of {model['name']} at {name}")
            if place is None:
                lost.append(f"{model['name']} at {name} is not there: run the study again")
                continue
            held = read_tokens(place)
            about = f"{name} ({phase})" if phase else name
            parts.append(TokenPart(model["name"], about, held.shares, held.top, held.lens, held.n_rows, held.notes))
    return parts, lost


def _geometry(directory: Path, plan: dict[str, Any]) -> pd.DataFrame | None:
    """Rows about local geometry and frequency, where this study measured them: an earlier one may have left a file."""
    path = directory / GEOMETRY
    return read_table(path) if plan["config"].get("geometry") and path.is_file() else None


def _read(directory: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    results = directory / RESULTS
    if not results.is_file():
        raise TlAnisoError(f"{directory} holds no {RESULTS}; run the study first")
    return read_table(results), notes_of(results)


def _judged(directory: Path, frame: pd.DataFrame, plan: dict[str, Any], rank: int | None) -> ClaimsTable:
    differences: list[Paired] = []
    names = {member: name for name, members in plan["config"]["trainings"] for member in members}
    for model in plan["models"]:
        if model["differences"] is not None:
            place = Store(directory).path("frames", model["differences"])
            differences += read_differences(place, names.get(model["name"], model["name"]))
    trainings = dict(plan["config"]["trainings"])
    found = claims_of(frame, trainings, differences=differences, rank=rank)
    if not plan["config"].get("geometry"):
        return found
    if not (directory / GEOMETRY).is_file():
        raise TlAnisoError(f"{directory} holds no {GEOMETRY}; run the study again")
    return found.joined(
        geometry_claims_of(read_table(directory / GEOMETRY), trainings, models=list(frame["model"].unique()))
    )


def marked(frame: pd.DataFrame, model: str) -> list[str]:
    """What is wrong with checkpoints of a model, in a line each."""
    rows = frame[frame["model"] == model].drop_duplicates("revision")
    equal = [
        f"{r['revision']} has the weights of {r['duplicate_of']}, and is no point of figures or claims"
        for _, r in rows.iterrows()
        if r["duplicate_of"]
    ]
    mixed = [
        f"{r['revision']} holds tensors of {r['mixed_with']}"
        for _, r in rows.iterrows()
        if r["mixed_with"] and not r["duplicate_of"]
    ]
    return equal + mixed


def _plan(directory: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((directory / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise TlAnisoError(f"cannot read {directory / PLAN}: {error}; run the study again") from error


def _provenance(plan: dict[str, Any], model: str, facts: dict[str, Any]) -> dict[str, Any]:
    found = next((entry for entry in plan["models"] if entry["name"] == model), None)
    if found is None:
        raise TlAnisoError(f"{PLAN} does not name {model}, which {RESULTS} holds; run the study again")
    text = found["text"]
    n_kept = sum(text["n_documents"].values())
    lost = drops(n_kept, text["dropped"])
    phases = [checkpoint["phase"] for checkpoint in found["checkpoints"]]
    return {
        "model": f"{model} ({found['source']})",
        "checkpoints": f"{len(phases)} of {found['n_published']}: {phases.count('early')} early, "
        f"{phases.count('late')} late",
        "early": f"the first {facts['early_fraction']:.0%} of the {facts['early_unit']}",
        "tangent proxies": "PCA of half A of the documents, pooled over the early checkpoints, frozen",
        "late-fitted planes": "alike, over the late checkpoints"
        if plan["config"]["late_fitted"] and "late" in phases
        else "none",
        "measured on": "half B of the documents",
        "listing": found["listing"] or "as it was handed over",
        "text": f"{n_kept} documents, {text['n_tokens']} tokens{'; ' if lost else ''}{lost}",
        "sources of the text": text["sources"],
        "languages": text["languages"],
        "keys of the weights": {entry["name"]: entry["key"] for entry in found["checkpoints"]},
        "library": f"tl_aniso {plan['library_version']}",
    }
