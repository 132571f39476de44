"""Early checkpoints less late ones, paired by document: what claims about a course over training are judged by."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from tl_aniso.capturing import Capture
from tl_aniso.claims import Paired
from tl_aniso.questions import tangent_energy
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.prints import compared
from tl_aniso.study.table import as_bytes, read_table
from tl_aniso.study.work import CAPTURE, read_planes

__all__ = ["Member", "pairs_of", "read_differences", "write_differences"]

# All pairs weigh every checkpoint alike; of very many, as many as the longer side has are enough.
_MOST_PAIRS = 64
_INDEX = "pairs.json"


@dataclass(frozen=True)
class Member:
    """One measured checkpoint: its name, step, phase, and the directory of its capture."""

    name: str
    step: int | None
    phase: str | None
    capture: Path


def pairs_of(early: Sequence[Member], late: Sequence[Member]) -> list[tuple[Member, Member]]:
    """Every early checkpoint with every late one; of very many, each in turn.

    Example:
        >>> one, other, last = (Member(name, None, None, Path()) for name in "abc")
        >>> [(e.name, l.name) for e, l in pairs_of([one, other], [last])]
        [('a', 'c'), ('b', 'c')]
    """
    if len(early) * len(late) <= _MOST_PAIRS:
        return list(product(early, late))
    n = max(len(early), len(late))
    return [(early[i % len(early)], late[i % len(late)]) for i in range(n)]


def write_differences(place: Path, members: Sequence[Member], planes: Path, config: StudyConfig) -> None:
    """Ask the captures of one model for their energies, and keep early less late, in the same frozen planes.

    Step 0 is initialisation, and a checkpoint whose weights are another's is no measurement of its own: both are left
    out.
    """
    prints, _ = compared([member.capture for member in members], [member.name for member in members])
    kept = [m for m in members if m.step != 0 and not prints.loc[m.name, "duplicate_of"]]
    early, late = ([m for m in kept if m.phase == phase] for phase in ("early", "late"))
    found = read_planes(planes)
    energies = {
        m.name: tangent_energy(
            Capture.load(m.capture / CAPTURE),
            proxies=found.early,
            planes=found.controls,
            rank=config.rank,
            gradients=config.gradients,
            n_controls=0,
            seed=config.seed,
        )
        for m in (*early, *late)
    }
    names = []
    for number, (one, other) in enumerate(pairs_of(early, late)):
        frame = (energies[one.name] - energies[other.name]).frame
        rows = frame[frame["measure"].isin(("r_energy", "excess"))].reset_index(drop=True)
        (place / f"pair-{number}.parquet").write_bytes(as_bytes(rows, {}))
        names.append([one.name, other.name])
    (place / _INDEX).write_text(json.dumps(names), encoding="utf-8")


def read_differences(place: Path, model: str) -> list[Paired]:
    """What `write_differences` kept, for `tl_aniso.claims.judge`; nothing where it never ran."""
    if not (place / _INDEX).is_file():
        return []
    n = len(json.loads((place / _INDEX).read_text(encoding="utf-8")))
    frames: list[pd.DataFrame] = [read_table(place / f"pair-{number}.parquet") for number in range(n)]
    return [Paired("C3", model, frame) for frame in frames]
