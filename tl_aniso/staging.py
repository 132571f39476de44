"""A directory that appears complete or not at all, and the remains of writers that were killed."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["remove_all_abandoned", "staging"]

_LOCK_SUFFIX = ".writing"
# A lock file bears this name until it is locked, so that whoever finds one under the other may take it for abandoned
# if nobody holds it. Younger than so many seconds, it is about to be locked.
_NEW_SUFFIX = ".starting"
_SETTLED_SECONDS = 60.0


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target`, which the block fills and renames; what it does not rename goes.

    A killed process cannot tidy up. So a lock file stands beside the directory while its writer lives; the operating
    system gives the lock up with the process, and the next writer of the same target removes what nobody holds any
    more. Where locks do not exist (Windows) nothing of the kind is removed.

    Raises:
        OSError: the place cannot be written.

    Example:
        >>> place = Path(tempfile.mkdtemp())
        >>> with staging(place / "results") as directory:
        ...     _ = (directory / "table.csv").write_text("1,2")
        ...     _ = directory.rename(place / "results")
        >>> [path.name for path in place.iterdir()]
        ['results']
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent, f".{target.name}.", time.time() - _SETTLED_SECONDS)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=_NEW_SUFFIX, dir=target.parent)
    lock, directory = Path(name), Path(name.removesuffix(_NEW_SUFFIX))
    try:
        _locked(handle)
        lock = lock.rename(lock.with_suffix(_LOCK_SUFFIX))
        directory.mkdir()
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(handle)
        lock.unlink(missing_ok=True)


def remove_all_abandoned(parent: Path) -> None:
    """Remove what killed writers of any target left in a directory, however lately.

    For a caller that knows that nobody is about to write there, such as the holder of a lock of its own.
    """
    _remove_abandoned(parent, ".", time.time() + _SETTLED_SECONDS)


def _remove_abandoned(parent: Path, prefix: str, latest: float) -> None:
    for lock in parent.iterdir():
        if not (lock.name.startswith(prefix) and lock.suffix in (_LOCK_SUFFIX, _NEW_SUFFIX)):
            continue
        with suppress(OSError):  # of another user, or gone already
            if lock.suffix == _NEW_SUFFIX and lock.stat().st_mtime > latest:
                continue
            handle = os.open(lock, os.O_RDWR)
            try:
                if _locked(handle):
                    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                    lock.unlink(missing_ok=True)
            finally:
                os.close(handle)


def _locked(handle: int) -> bool:
    """Take the lock of an open file, or say that another process holds it (or that there are no locks here)."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
