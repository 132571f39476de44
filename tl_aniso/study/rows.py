"""The rows that a measured capture answers with: energies and isotropy, and the planes of controls beside."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.capturing import Capture
from tl_aniso.controls.names import UNTRAINED
from tl_aniso.questions import ablation_isotropy, tangent_energy
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.removals import control_removals
from tl_aniso.study.table import as_bytes
from tl_aniso.study.work import CAPTURE, read_planes

__all__ = ["FRAME", "answer"]

FRAME = "frame.parquet"


def answer(place: Path, measured: Path, planes: Path, untrained: Path | None, config: StudyConfig) -> None:
    """Ask a capture both questions and keep the rows.

    Args:
        place: to write the rows to.
        measured: directory of the capture.
        planes: of what `fit_planes` wrote.
        untrained: directory of the untrained twin's capture.
        config: of the study.
    """
    held, found = Capture.load(measured / CAPTURE), read_planes(planes)
    if untrained is not None:
        held = held.with_variant(UNTRAINED, Capture.load(untrained / CAPTURE))
    energy = tangent_energy(
        held,
        proxies=found.early,
        planes=found.controls,
        rank=config.rank,
        gradients=config.gradients,
        n_controls=config.n_controls,
        seed=config.seed,
    )
    asked: dict[str, Any] = {"rank": config.rank, "gradients": ("none", *config.gradients), "seed": config.seed}
    isotropy = ablation_isotropy(held, proxies=found.early, **asked)
    parts = [energy.frame, isotropy.frame, control_removals(isotropy.frame, held, found)]
    notes = tuple(dict.fromkeys((*found.controls.notes, *energy.notes, *isotropy.notes)))
    frame = pd.concat([part for part in parts if len(part)], ignore_index=True)
    (place / FRAME).write_bytes(as_bytes(frame, {"notes": list(notes), "loss": _known(held.loss)}))


def _known(value: float) -> float | None:
    """A number as JSON has it."""
    return value if math.isfinite(value) else None
