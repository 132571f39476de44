"""What a study has finished, by key: each entry a directory that appears complete or not at all, with checksums.

An entry is ``<kind>/<key>/``: what was written, and ``checksums.json`` with the size and SHA-256 of each of its files.
Whoever asks for an entry gets it checked; one that is not as it was written is moved to ``damaged/``, named, and made
again.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.staging import remove_all_abandoned, staging

__all__ = ["KINDS", "PART", "Store", "digest_of", "write_atomically"]

KINDS = ("corpus", "captures", "proxies", "frames", "tokens")
_CHECKSUMS = "checksums.json"
_LOCK = "study.lock"
PART = ".part"


class Store:
    """The directory of a study.

    Args:
        root: made where it does not exist.

    Example:
        >>> import tempfile
        >>> store = Store(Path(tempfile.mkdtemp()))
        >>> _ = store.put("frames", "0a1b", lambda place: (place / "table.csv").write_text("1,2"))
        >>> (store.get("frames", "0a1b", "a table") / "table.csv").read_text(), store.get("frames", "2c", "another")
        ('1,2', None)
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is, or would be."""
        return self.root / kind / key

    def has(self, kind: str, key: str) -> bool:
        """Whether an entry is there; its content is not looked at."""
        return (self.path(kind, key) / _CHECKSUMS).is_file()

    def get(self, kind: str, key: str, what: str) -> Path | None:
        """The directory of a finished entry whose files are as they were written; None where there is none.

        A damaged one is moved aside with a `TlAnisoWarning` that names it by `what` and its key, and the file.
        """
        place = self.path(kind, key)
        if not place.exists():
            return None
        fault = _fault(place)
        if fault is None:
            return place
        aside = self._aside(kind, key)
        warnings.warn(
            f"{what} ({kind}/{key}) is damaged: {fault}; it was moved to {aside.relative_to(self.root)} and is made "
            "again",
            TlAnisoWarning,
            stacklevel=2,
        )
        return None

    def put(self, kind: str, key: str, write: Callable[[Path], Any]) -> Path:
        """Make an entry: `write` fills a directory, which is then put in place with its checksums.

        Raises:
            TlAnisoError: the place cannot be written; and what `write` raises.
        """
        place = self.path(kind, key)
        try:
            with staging(place) as temporary:
                write(temporary)
                sums = {path.relative_to(temporary).as_posix(): _sum(path) for path in _files(temporary)}
                text = json.dumps(sums, indent=1, sort_keys=True)
                (temporary / _CHECKSUMS).write_text(text + "\n", encoding="utf-8")
                if place.exists():
                    self._aside(kind, key)
                temporary.rename(place)
        except OSError as error:
            raise TlAnisoError(f"{kind}/{key} could not be written to {self.root}: {error}") from error
        return place

    def tidy(self) -> None:
        """Remove what killed runs left half-written. Only for the holder of the lock, before it writes."""
        for directory in (self.root, *(self.root / kind for kind in KINDS)):
            if directory.is_dir():
                remove_all_abandoned(directory)
                for part in directory.glob(f".*{PART}"):
                    part.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep the directory for this process.

        The operating system gives the lock up with its process, however that ends, so that none is ever stale.

        Raises:
            TlAnisoError: another process holds it, or the directory cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise TlAnisoError(f"cannot write to {self.root}: {error.strerror}") from error
        try:
            if not _taken(handle):
                holder = os.read(handle, 200).decode("utf-8", "replace").strip() or "unknown"
                raise TlAnisoError(
                    f"another run is at work in {self.root} ({holder}); wait for it, or choose another directory"
                )
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()}\n".encode())
            yield
        finally:
            with suppress(OSError):
                os.close(handle)

    def _aside(self, kind: str, key: str) -> Path:
        directory = self.root / "damaged"
        directory.mkdir(parents=True, exist_ok=True)
        number = next(n for n in range(1_000_000) if not (directory / f"{kind}-{key}-{n}").exists())
        return self.path(kind, key).rename(directory / f"{kind}-{key}-{number}")


def digest_of(value: Any) -> str:
    """Twenty-four hex digits of plain JSON values; the order of keys does not matter.

    Example:
        >>> digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}), len(digest_of(0))
        (True, 24)
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def write_atomically(path: Path, content: bytes) -> None:
    """A file that appears whole or not at all, in the place of an older one.

    Raises:
        TlAnisoError: it cannot be written; an older one is then still there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise TlAnisoError(f"cannot write {path}: {error.strerror}") from error


def _fault(place: Path) -> str | None:
    """What is wrong with an entry; None where nothing is."""
    try:
        sums = json.loads((place / _CHECKSUMS).read_text(encoding="utf-8"))
        known = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in sums.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its {_CHECKSUMS} cannot be read"
    found = {path.relative_to(place).as_posix(): path for path in _files(place) if path.name != _CHECKSUMS}
    for name, (size, sha) in sorted(known.items()):
        if name not in found:
            return f"{name} is missing"
        try:
            now = _sum(found[name])
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if now["bytes"] != size:
            return f"{name} has {now['bytes']} bytes, not {size}"
        if now["sha256"] != sha:
            return f"{name} was altered"
    extra = sorted(set(found) - set(known))
    return f"{extra[0]} does not belong to it" if extra else None


def _sum(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _taken(handle: int) -> bool:
    """Take an exclusive lock on an open file, or say that another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 20, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
