"""Tasks and checkpoints for workers of a Ray cluster, which import them from here."""

import dataclasses
import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.models import LoadedModel
from tl_aniso.study import DirectoryCheckpoints


def write_surroundings(place: Path) -> None:
    """What a worker is like."""
    warnings.warn("a thing to know", TlAnisoWarning, stacklevel=1)
    found = {"threads": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
    found["usage"] = os.environ.get("RAY_USAGE_STATS_ENABLED")
    (place / "found.json").write_text(json.dumps(found))


def write_and_wait_once(place: Path, notes: Path) -> None:
    """Half an entry and no end, the first time; a whole one the second time."""
    (place / "half").write_text("half")
    pid = notes / f"{os.getpid()}.pid"
    pid.with_suffix(".part").write_text("")
    pid.with_suffix(".part").rename(pid)
    if len(list(notes.glob("*.pid"))) == 1:
        time.sleep(600)
    (place / "whole").write_text("whole")


def write_nothing(place: Path) -> None:
    (place / "whole").write_text("whole")


def refuse(place: Path) -> None:
    raise TlAnisoError("no such thing; give another")


def die(place: Path, notes: Path) -> None:
    (notes / f"{os.getpid()}.died").write_text("")
    os.kill(os.getpid(), signal.SIGKILL)


class HoldingCheckpoints(DirectoryCheckpoints):
    """Loads nothing on any node but one, until that node is gone."""

    def __init__(self, directory: Path, *, only: str, notes: Path) -> None:
        super().__init__(directory, tokens_per_step=512)
        self._only, self._places = only, notes

    def checkpoints(self) -> list[Any]:
        return [dataclasses.replace(c, load=_Held(c.load, self._only, self._places)) for c in super().checkpoints()]


@dataclasses.dataclass(frozen=True)
class _Held:
    load: Callable[[], LoadedModel]
    only: str
    notes: Path

    def __call__(self) -> LoadedModel:
        import ray

        if ray.get_runtime_context().get_node_id() != self.only:
            (self.notes / "held").touch()
            time.sleep(600)
        return self.load()
