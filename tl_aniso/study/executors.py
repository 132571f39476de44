"""Where the tasks of a study run: here, one after the other, or wherever else an executor takes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tl_aniso.errors import TlAnisoError
from tl_aniso.study.store import Store

__all__ = ["Executor", "LocalExecutor", "Task"]


@dataclass(frozen=True, eq=False)
class Task:
    """One entry of the store that is to be made.

    Attributes:
        kind: of the entry.
        key: of the entry.
        what: for people.
        root: the study's directory.
        write: fills a directory with the entry.
        memory: bytes that it takes, roughly; None where unknown.
    """

    kind: str
    key: str
    what: str
    root: Path
    write: Callable[[Path], Any]
    memory: int | None = None

    def __call__(self) -> str:
        """Make the entry, whole or not at all; returns its key.

        Raises:
            TlAnisoError: what went wrong, with `what` in front.
        """
        try:
            Store(self.root).put(self.kind, self.key, self.write)
        except TlAnisoError as error:
            raise TlAnisoError(f"{self.what}: {error}") from error
        return self.key


class Executor(Protocol):
    """Runs tasks that do not depend on each other.

    One that is a context manager is entered once for all stages of a study. One with a method `device_for`
    tells from the device that the config asks for where models are moved.
    """

    def map(self, tasks: Sequence[Task]) -> Iterator[str]:
        """Run every task and yield its key when it is done, in any order.

        A task that fails raises here; what other tasks finished before is kept in the store.
        """


class LocalExecutor:
    """Runs tasks in this process, one after the other."""

    def map(self, tasks: Sequence[Task]) -> Iterator[str]:
        """Run the tasks in their order."""
        for task in tasks:
            yield task()
