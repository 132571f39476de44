"""Frequency and local geometry of a study: one pass over each checkpoint, rows over all of them, a table of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.capturing.bind import bind
from tl_aniso.study.config import Geometry, StudyConfig
from tl_aniso.study.geometry_sites import geometry_sites
from tl_aniso.study.prints import compared
from tl_aniso.study.table import GEOMETRY_COLUMNS, geometry_bytes, notes_of, read_table
from tl_aniso.study.work import Subject

__all__ = ["GEOMETRY", "GeometryMember", "geometry_of_model", "take_geometry", "write_frequency"]

GEOMETRY = "geometry.parquet"
_TYPES, _LOCAL, _FREQUENCY = "types", "local.parquet", "frequency.parquet"


@dataclass(frozen=True)
class GeometryMember:
    """One checkpoint: what rows say of it, the directory of its pass, and of the capture that holds its fingerprint."""

    name: str
    step: int | None
    tokens_seen: int | None
    phase: str | None
    geometry: Path
    measured: Path

    @property
    def labels(self) -> dict[str, Any]:
        """Columns of rows within the checkpoint."""
        return {
            "revision": self.name,
            "step": math.nan if self.step is None else float(self.step),
            "tokens_seen": math.nan if self.tokens_seen is None else float(self.tokens_seen),
            "phase": self.phase,
        }


def take_geometry(place: Path, subject: Subject) -> None:
    """Run all documents through a checkpoint: occurrences by token type, and the local geometry of their rows."""
    from tl_aniso.frequency import type_capture
    from tl_aniso.neighbourhoods import local_geometry

    config = subject.config
    asked = config.geometry or Geometry()
    model, tokenizer = subject.load()
    residual, weights = geometry_sites(bind(model), config)
    documents = [*subject.fitted_on, *subject.measured_on]
    options = {name: subject.options[name] for name in ("objective", "seq_len", "batch_size", "dtype", "seed")}
    shared = {**options, "tokenizer": tokenizer, "progress": False}
    type_capture(model, documents, sites=residual, n_min=asked.n_min, **shared).save(place / _TYPES)
    found = local_geometry(
        model,
        documents,
        sites=[*residual, *weights],
        n_types=asked.n_types,
        n_min=asked.n_local,
        gradients=config.gradients,
        **shared,
    )
    (place / _LOCAL).write_bytes(geometry_bytes(found.frame, {"notes": list(found.notes)}))


def write_frequency(place: Path, members: Sequence[GeometryMember], config: StudyConfig) -> None:
    """Ask the types of one model's checkpoints how frequency goes with variance, within each and over all of them.

    Step 0 is initialisation, from which whatever occurs often has moved furthest, and a checkpoint whose weights are
    another's is no measurement of its own: both are left out.
    """
    from tl_aniso.frequency import TypeCapture, frequency_variance

    kept = [member for member in _distinct(members) if member.step != 0]
    asked = config.geometry or Geometry()
    frame, notes = pd.DataFrame(columns=list(GEOMETRY_COLUMNS)), tuple[str, ...]()
    if kept:
        captures = [
            TypeCapture.load(m.geometry / _TYPES).labelled(revision=m.name, step=m.step, tokens_seen=m.tokens_seen)
            for m in kept
        ]
        # At least one shuffling, of which a p-value says nothing.
        n_controls = max(1, config.n_controls)
        found = frequency_variance(captures, n_min=asked.n_min, n_controls=n_controls, seed=config.seed)
        frame, notes = found.frame, found.notes
        phases = {member.name: member.phase for member in kept}
        frame["phase"] = [phases.get(name) for name in frame["revision"]]  # over checkpoints there is none
    (place / _FREQUENCY).write_bytes(geometry_bytes(frame, {"notes": list(notes)}))


def geometry_of_model(members: Sequence[GeometryMember], frequency: Path, model: str) -> tuple[pd.DataFrame, list[str]]:
    """All rows of one model, in the order of its checkpoints, and what a reader must know."""
    found, notes = [read_table(frequency / _FREQUENCY)], list(notes_of(frequency / _FREQUENCY)["notes"])
    for member in _distinct(members):
        rows = read_table(member.geometry / _LOCAL)
        found.append(rows.assign(**member.labels))
        notes += notes_of(member.geometry / _LOCAL)["notes"]
    known = [frame for frame in found if len(frame)]
    frame = pd.concat(known, ignore_index=True) if known else found[0]
    frame["model"] = model
    return frame, list(dict.fromkeys(notes))


def _distinct(members: Sequence[GeometryMember]) -> list[GeometryMember]:
    """Those whose weights are not another's."""
    prints, _ = compared([member.measured for member in members], [member.name for member in members])
    return [member for member in members if not prints.loc[member.name, "duplicate_of"]]
