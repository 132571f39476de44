"""The pages of a finished study: the report of each model, and a list of them where there are several."""

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from tl_aniso.errors import TlAnisoError
from tl_aniso.study.run import PLAN, RESULTS
from tl_aniso.study.store import write_atomically
from tl_aniso.study.table import notes_of, read_table
from tl_aniso.viz.report import write_report

__all__ = ["REPORT", "write_pages"]

REPORT = "report.html"


def write_pages(directory: Path) -> Path:
    """Write the pages of the study in `directory`; returns the path of the first.

    Raises:
        TlAnisoError: it holds no finished study.
    """
    results = directory / RESULTS
    if not results.is_file():
        raise TlAnisoError(f"{directory} holds no {RESULTS}; run the study first")
    frame, facts = read_table(results), notes_of(results)
    plan = _plan(directory)
    models = list(dict.fromkeys(frame["model"]))
    pages = {model: REPORT if len(models) == 1 else f"report-{_file_name(model)}.html" for model in models}
    for model, name in pages.items():
        write_report(
            directory / name,
            frame[frame["model"] == model].reset_index(drop=True),
            title=f"Study: {model}",
            provenance=_provenance(plan, model, facts),
            notes=facts.get("notes", {}).get(model, ()),
        )
    if len(models) > 1:
        write_atomically(directory / REPORT, _list(pages).encode())
    return directory / REPORT


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
        "text": f"{sum(text['n_documents'].values())} documents, {text['n_tokens']} tokens",
        "sources of the text": text["sources"],
        "languages": text["languages"],
        "keys of the weights": {entry["name"]: entry["key"] for entry in found["checkpoints"]},
        "library": f"tl_aniso {plan['library_version']}",
    }


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", model)


def _list(pages: dict[str, str]) -> str:
    links = "\n".join(f'<li><a href="{escape(page)}">{escape(model)}</a></li>' for model, page in pages.items())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>:root { color-scheme: light dark; font-family: system-ui, sans-serif } "
        "body { max-width: 45rem; margin: 2rem auto; padding: 0 1rem }</style>\n"
        f"<title>Study</title></head>\n<body>\n<h1>Study</h1>\n<ul>\n{links}\n</ul>\n</body>\n</html>\n"
    )
