"""Tasks of a study on a Ray cluster, on many machines or GPUs; those of a worker that died are run again."""

import os
import signal
import socket
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, Self

from tl_aniso.checks import as_integer
from tl_aniso.errors import ConfigError, TlAnisoError, TlAnisoWarning
from tl_aniso.study.executors import Task
from tl_aniso.study.ray_worker import Surroundings, make
from tl_aniso.study.store import PART, Store

__all__ = ["RayExecutor"]

# Tasks that Ray holds at a time. Each carries its documents, so that not all of a large study's should lie in memory.
_MOST_SUBMITTED = 64
_LISTENING_SECONDS = 10.0
# Libraries size their thread pools by these when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class RayExecutor:
    """Runs tasks on Ray: one capture is one task.

    Workers write into the study's directory, which therefore must lie on a filesystem that every node sees at the same
    path, as must checkpoints that are directories. Sums do not travel; a task hands back its warnings only. What a
    task made is complete or not there, so a task whose worker or node died is run again, elsewhere if need be, and one
    that keeps dying, or fails, is named after all others were run.

    The cluster is the one that the process is connected to, that of `address` or ``RAY_ADDRESS``, or else one that is
    started on this machine and ends with the study: without dashboard, and without usage statistics.

    Args:
        address: of a cluster, as `ray.init` takes it; None for ``RAY_ADDRESS``, or a cluster of its own.
        threads: of a worker, each on a processor core of its own. Results depend on it in their last digits.
        num_gpus: GPUs of a capture, or a fraction of one where several captures share it. Ray shows a worker its own
            GPUs alone, so models are moved to "cuda". Planes and rows are made without.
        max_retries: how often a task is run again whose worker died.

    Raises:
        TlAnisoError: a number that cannot be used.

    Example:
        >>> RayExecutor(num_gpus=0.5).device_for("cuda:3")
        'cuda'
    """

    def __init__(
        self, *, address: str | None = None, threads: int = 1, num_gpus: float = 0.0, max_retries: int = 3
    ) -> None:
        if not isfinite(num_gpus) or num_gpus < 0 or (num_gpus > 1 and num_gpus != int(num_gpus)):
            raise TlAnisoError(f"num_gpus must be a fraction of one GPU or a whole number of them, got {num_gpus}")
        self._address = address
        self._threads = as_integer("threads", threads, least=1)
        self._num_gpus = float(num_gpus)
        self._max_retries = as_integer("max_retries", max_retries, least=0)
        self._open = 0
        self._ending = ExitStack()

    def device_for(self, asked: str | None) -> str | None:
        """Where a worker moves models; None for where they are loaded.

        Raises:
            ConfigError: a GPU, of which workers are given none.
        """
        kind = None if asked is None else asked.partition(":")[0]
        if self._num_gpus:
            return "cuda" if kind in (None, "cuda") else asked
        if kind == "cuda":
            raise ConfigError(f"device {asked}: workers are given no GPUs; ask for some, e.g. --gpus 1")
        return asked

    def __enter__(self) -> Self:
        """Join the cluster, or start one, for every `map` of the block."""
        if not self._open:
            self._ending.enter_context(_connected(self._address))
        self._open += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; one that was started here ends."""
        self._open -= 1
        if not self._open:
            self._ending.close()

    def map(self, tasks: Sequence[Task]) -> Iterator[str]:
        """Run every task and yield its key when it is done.

        Raises:
            TlAnisoError: Ray is not installed or not reached, no node is large enough, or tasks failed: then after all
                others were run, with each of their names.
        """
        if not tasks:
            return
        with self, _sealed(sorted({task.root for task in tasks})) as seal:
            failed: list[str] = []
            yield from self._made(tasks, seal, failed)
            # No task is at work any more: what workers that died left half-written can go.
            for root in sorted({task.root for task in tasks}):
                Store(root).tidy()
            if failed:
                raise TlAnisoError(
                    f"{len(failed)} of {len(tasks)} tasks failed, and what the others made is kept: {'; '.join(failed)}"
                )

    def _made(self, tasks: Sequence[Task], seal: str, failed: list[str]) -> Iterator[str]:
        import ray

        around = Surroundings.here(self._threads, seal)
        waiting, running = list(reversed(tasks)), dict[Any, Task]()
        try:
            while waiting or running:
                while waiting and len(running) < _MOST_SUBMITTED:
                    task = waiting.pop()
                    running[self._submit(task, around)] = task
                (done, *_), _ = ray.wait(list(running))
                task = running.pop(done)
                try:
                    told = ray.get(done)
                except ray.exceptions.RayError as error:
                    failed.append(self._reason(task, error))
                    continue
                for message in told:
                    warnings.warn(message, TlAnisoWarning, stacklevel=3)
                yield task.key
        finally:
            for left in running:
                ray.cancel(left, force=True)

    def _submit(self, task: Task, around: Surroundings) -> Any:
        import ray

        remote = ray.remote(make).options(
            name=task.what,
            max_retries=self._max_retries,
            retry_exceptions=False,  # what fails here fails there
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": dict.fromkeys(_THREADS, str(self._threads))},
            **self._asked(task),
        )
        return remote.remote(task, around)

    def _asked(self, task: Task) -> dict[str, Any]:
        """What a node must have free for a task.

        Raises:
            TlAnisoError: more than any node has, for which Ray would wait for ever.
        """
        import ray

        gpus = self._num_gpus if task.kind in ("captures", "tokens") else 0.0
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = [node for node in nodes if node.get("CPU", 0) >= self._threads and node.get("GPU", 0) >= gpus]
        if not fit:
            held = ", ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise TlAnisoError(
                f"{task.what} needs {self._threads} processor cores and {gpus:g} GPUs, and no node has as many (they "
                f"have {held or 'none'}); ask for fewer, or join a larger cluster"
            )
        # An estimate says how many tasks a node takes at a time, not whether it may try a large one alone.
        memory = min(task.memory or 0, max(int(node.get("memory", 0)) for node in fit))
        return {"num_cpus": self._threads, "num_gpus": gpus, **({"memory": memory} if memory else {})}

    def _reason(self, task: Task, error: Any) -> str:
        """Why a task failed, with its name."""
        import ray

        if not isinstance(error, ray.exceptions.RayTaskError):
            text = " ".join(str(error).split())[:300]
            return f"{task.what}: its worker died {self._max_retries + 1} times ({type(error).__name__}: {text})"
        cause = error.cause
        if isinstance(cause, TlAnisoError):
            return str(cause)  # begins with the name
        return f"{task.what}: {type(cause).__name__}: {' '.join(str(cause).split())[:300]}"


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    try:
        import ray
    except ImportError:
        raise ConfigError("the executor ray needs Ray, which is not installed: pip install 'tl_aniso[ray]'") from None
    if ray.is_initialized():  # by the caller, who also ends it
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _refuse_deaf(address)
    stopping = signal.getsignal(signal.SIGTERM)
    with _variable("RAY_USAGE_STATS_ENABLED", "0"):
        try:
            # Not whatever cluster happens to run on this machine, which is what no address would mean.
            settings = {"include_dashboard": False} if address == "local" else {}
            ray.init(address=address, log_to_driver=False, logging_level="error", **settings)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            text = " ".join(str(error).split())[:300]
            raise TlAnisoError(f"no Ray cluster at {address}: {text}") from error
        if stopping is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stopping)  # Ray put its own in place, with another exit code
        try:
            yield
        finally:
            ray.shutdown()


def _refuse_deaf(address: str) -> None:
    """Ray itself would try for minutes.

    Raises:
        TlAnisoError: a host and port where nobody listens.
    """
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENING_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise TlAnisoError(f"no Ray cluster at {address}: {error}; start one (ray start --head)") from error


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def _sealed(roots: Sequence[Path]) -> Iterator[str]:
    """The name of a file in each directory, by which a worker knows that it sees the same directory.

    Raises:
        TlAnisoError: a directory that cannot be written.
    """
    seal = f".{uuid.uuid4().hex}{PART}"
    try:
        for root in roots:
            try:
                root.mkdir(parents=True, exist_ok=True)
                (root / seal).touch()
            except OSError as error:
                raise TlAnisoError(f"cannot write to {root}: {error.strerror}") from error
        yield seal
    finally:
        for root in roots:
            (root / seal).unlink(missing_ok=True)
