"""The rows that a measured capture answers with: energies and isotropy, late-fitted planes beside the frozen ones."""

from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.capturing import Capture
from tl_aniso.controls.names import LATE_FITTED, UNTRAINED
from tl_aniso.questions import ablation_isotropy, tangent_energy
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.table import as_bytes
from tl_aniso.study.work import CAPTURE, read_planes

__all__ = ["FRAME", "answer"]

FRAME = "frame.parquet"
# Of these, a removal in the late-fitted planes stands beside one in the frozen planes.
_BESIDE = ("isoscore", "isoscore_star", "delta_isoscore_star")
_SAME = ["site", "gradient", "rank", "measure"]
_NULL = ("null_mean", "null_std", "z", "p_value", "p_holm", "ci_low", "ci_high")


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
    parts = [energy.frame, isotropy.frame]
    if found.late is not None:
        parts.append(_beside(isotropy.frame, ablation_isotropy(held, proxies=found.late, **asked).frame))
    notes = tuple(dict.fromkeys((*found.controls.notes, *energy.notes, *isotropy.notes)))
    frame = pd.concat([part for part in parts if len(part)], ignore_index=True)
    (place / FRAME).write_bytes(as_bytes(frame, {"notes": list(notes)}))


def _beside(early: pd.DataFrame, late: pd.DataFrame) -> pd.DataFrame:
    """Scores without the frozen plane, with those without the late-fitted plane as their control."""

    def removed(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame["control"] == "normal") & frame["measure"].isin(_BESIDE)]

    other = removed(late)[[*_SAME, "value"]].rename(columns={"value": "control_value"})
    both = removed(early).drop(columns="control_value").merge(other, on=_SAME, how="inner")
    both["control"] = LATE_FITTED
    both[list(_NULL)] = float("nan")
    return both[list(early.columns)]
