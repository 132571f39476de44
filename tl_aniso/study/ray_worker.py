"""What a worker of a Ray cluster does with a task."""

import contextlib
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.study.executors import Task
from tl_aniso.study.store import Store

__all__ = ["Surroundings", "make"]


@dataclass(frozen=True)
class Surroundings:
    """What a task finds where it was made, and must find where it runs.

    Attributes:
        threads: of a worker.
        seal: name of a file in the study's directory.
        directory: that relative paths are relative to.
        version: of the library, which is part of every key.
    """

    threads: int
    seal: str
    directory: Path
    version: str

    @classmethod
    def here(cls, threads: int, seal: str) -> Self:
        """Those of this process."""
        return cls(threads, seal, Path.cwd(), _version())


def make(task: Task, around: Surroundings) -> list[str]:
    """Make a task's entry; returns what it warned about.

    A worker may have died after it had put its entry in place; that one is kept.

    Raises:
        TlAnisoError: a node with another version of the library, or that does not see the study's directory; and what
            the task raises.
    """
    torch.set_num_threads(around.threads)
    if around.version != _version():
        raise TlAnisoError(
            f"{task.what}: {platform.node()} has tl_aniso {_version()}, and the study runs with {around.version}; "
            "install the same version on every node"
        )
    # A worker makes one task at a time, so the directory is its own.
    with contextlib.chdir(around.directory) if around.directory.is_dir() else contextlib.nullcontext():
        if not (task.root / around.seal).is_file():
            raise TlAnisoError(
                f"{task.what}: {platform.node()} does not see the study's directory {task.root}; put the study, and "
                "checkpoints that are directories, on a filesystem that every node has at the same path"
            )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if Store(task.root).get(task.kind, task.key, task.what) is None:
                task()
    told = (str(one.message) for one in caught if issubclass(one.category, TlAnisoWarning))
    return list(dict.fromkeys(told))


def _version() -> str:
    from tl_aniso import __version__

    return __version__
