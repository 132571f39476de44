"""Open the sources of a recipe: data sets streamed from the Hugging Face hub, files, documentation on this machine."""

import hashlib
import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tl_aniso.errors import TextError
from tl_aniso.text.documents import iter_documents
from tl_aniso.text.local import local_corpus
from tl_aniso.text.recipe import CorpusRecipe, CorpusSource, near

__all__ = ["OpenSource", "Row", "files_revision", "open_source"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NETWORK = frozenset({"httpx", "httpcore", "requests", "urllib3", "aiohttp", "socket"})
# Of a data set in many files; each is read from its start, and the first rows of one are often alike.
_FILES_AT_ONCE = 4
_INSTALL = "pip install 'tl_aniso[corpus]'"


@dataclass(frozen=True)
class Row:
    """What a source gave: not yet known to be a usable text."""

    text: object
    language: str
    id: str


@dataclass(frozen=True)
class OpenSource:
    """A source that can be read.

    Attributes:
        rows: its documents, in an order that depends on the seed.
        revision: what identifies what is read: a commit, a hash of files, versions of packages.
    """

    rows: Iterator[Row]
    revision: str


def open_source(source: CorpusSource, recipe: CorpusRecipe, seed: int) -> OpenSource:
    """Start reading a source; nothing is downloaded but what is asked of the rows.

    A streamed source is read from four of its files at once, which come in a shuffled order, and shuffled among
    `recipe.buffer` documents; files and local documentation are put in an order of hashes. All depend on `seed` alone.

    Raises:
        TextError: the library `datasets` is missing, the source cannot be reached or does not exist, or it has no
            such field; the message names the source and the remedy.
    """
    if source.kind == "datasets":
        return _streamed(source, recipe, seed)
    if source.kind == "files":
        rows = [row for path in source.paths for row in _of_file(recipe.folder / path, source)]
        return OpenSource(iter(_by_hash(rows, seed)), files_revision(source, recipe))
    texts = local_corpus(source.packages, standard_library=source.standard_library)
    rows = [Row(text, source.language, str(number)) for number, text in enumerate(texts)]
    return OpenSource(iter(_by_hash(rows, seed)), _versions(source))


def files_revision(source: CorpusSource, recipe: CorpusRecipe) -> str:
    """SHA-256 over the content of a source's files, in the order of the recipe.

    Raises:
        TextError: a file that cannot be read.
    """
    whole = hashlib.sha256()
    for path in source.paths:
        try:
            with (recipe.folder / path).open("rb") as stream:
                whole.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise TextError(f"the source {source.name}: {path} cannot be read: {error.strerror or error}") from error
    return f"sha256:{whole.hexdigest()}"


def _by_hash(rows: list[Row], seed: int) -> list[Row]:
    def key(row: Row) -> bytes:
        return hashlib.sha256(f"{seed}|{row.text}".encode("utf-8", "surrogatepass")).digest()

    return sorted(rows, key=key)


def _versions(source: CorpusSource) -> str:
    found = ["python " + ".".join(map(str, sys.version_info[:3]))] if source.standard_library else []
    for name in source.packages:
        version = getattr(importlib.import_module(name), "__version__", "unknown")
        found.append(f"{name} {version}")
    return ", ".join(found)


def _of_file(path: Path, source: CorpusSource) -> Iterator[Row]:
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        for number, document in enumerate(iter_documents(path)):  # which refuses what is no text file
            yield Row(document.text, source.language, f"{path.name}, paragraph {number}")
        return
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise TextError(f"the source {source.name}: {path.name} is not UTF-8 (byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(f"the source {source.name}: {place} is not JSON ({error}); one document a line") from error
        if isinstance(entry, str):
            entry = {source.field: entry}
        if not isinstance(entry, Mapping):
            raise TextError(f"the source {source.name}: {place} is neither a text nor an object with {source.field!r}")
        yield _row(entry, source, place)


def _row(entry: Mapping[str, Any], source: CorpusSource, place: str) -> Row:
    for key in (source.field, source.id_field, source.language_field):
        if key is not None and key not in entry:
            known = tuple(map(str, entry))
            raise TextError(
                f"the source {source.name} has no field {key!r} ({place}){near(key, known)}; "
                f"it has {', '.join(known[:12]) or 'none'}; correct the recipe"
            )
    language = entry[source.language_field] if source.language_field is not None else None
    return Row(
        text=entry[source.field],
        language=str(language or source.language),
        id=str(entry[source.id_field]) if source.id_field is not None else place,
    )


def _streamed(source: CorpusSource, recipe: CorpusRecipe, seed: int) -> OpenSource:
    try:
        import datasets
    except ImportError as error:
        raise TextError(
            f"the source {source.name} is streamed by the library datasets, which is not installed: {_INSTALL}"
        ) from error
    where, revision = _place(source, recipe)

    stream = _guarded(
        lambda: datasets.load_dataset(
            where,
            name=source.config,
            split=source.split,
            streaming=True,
            revision=revision if _COMMIT.fullmatch(revision) else None,
        ),
        source,
    )
    return OpenSource(_shuffled(_entries(stream, source, seed), recipe.buffer, f"{seed}|{source.name}"), revision)


def _place(source: CorpusSource, recipe: CorpusRecipe) -> tuple[str, str]:
    """What `load_dataset` takes, and the commit; of a directory, a hash of its files' names and sizes."""
    name = str(source.dataset)
    if name.startswith((".", "/", "~")):
        folder = (recipe.folder / Path(name).expanduser()).resolve()
        if not folder.is_dir():
            raise TextError(f"the source {source.name}: there is no directory {folder}")
        listing = [
            f"{path.relative_to(folder).as_posix()} {path.stat().st_size}"
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        return str(folder), f"listing:{hashlib.sha256(chr(10).join(listing).encode()).hexdigest()}"
    if Path(name).exists():
        raise TextError(
            f"the source {source.name}: a directory {name} lies in the current one, and datasets would read it "
            f"in place of the hub's; write ./{name} in the recipe if it is meant, else start elsewhere"
        )
    if source.revision is not None and _COMMIT.fullmatch(source.revision):
        return name, source.revision
    from huggingface_hub import HfApi

    commit = _guarded(lambda: HfApi().dataset_info(name, revision=source.revision).sha, source)
    return name, str(commit)


def _entries(stream: Any, source: CorpusSource, seed: int) -> Iterator[Row]:
    """Rows of several files in turn, files in an order of hashes.

    `IterableDataset.shuffle` would do as much, but what it gives for a seed changed between versions of `datasets`, and
    that of 5.2 does not end on small files.
    """
    count = int(stream.num_shards)
    order = sorted(range(count), key=lambda number: _hashed(f"{seed}|{source.name}|file {number}"))
    waiting = iter(order)
    opened = [_file_rows(stream, source, count, number) for number in islice(waiting, _FILES_AT_ONCE)]
    while opened:
        for rows in tuple(opened):
            row = next(rows, None)
            if row is not None:
                yield row
                continue
            opened.remove(rows)
            opened += [_file_rows(stream, source, count, number) for number in islice(waiting, 1)]


def _file_rows(stream: Any, source: CorpusSource, count: int, number: int) -> Iterator[Row]:
    entries = _guarded(lambda: iter(stream.shard(num_shards=count, index=number)), source)
    for position in itertools.count():
        entry = _guarded(lambda: next(entries, None), source)
        if entry is None:
            return
        yield _row(entry, source, f"file {number}, row {position}")


def _shuffled(rows: Iterator[Row], size: int, key: str) -> Iterator[Row]:
    """Rows drawn from a buffer that is filled up again, by hashes alone: the same wherever and whenever it runs."""
    buffer = list(islice(rows, size))
    for number, row in enumerate(rows):
        place = _hashed(f"{key}|draw {number}") % len(buffer)
        buffer[place], row = row, buffer[place]
        yield row
    yield from sorted(buffer, key=lambda row: _hashed(f"{key}|{row.id}"))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def _guarded(action: Callable[[], Any], source: CorpusSource) -> Any:
    try:
        return action()
    except Exception as error:
        what = f"{source.dataset}, {source.config or 'default config'}, split {source.split}"
        detail = " ".join(str(error).split())[:300] or "no details"
        raise TextError(
            f"the source {source.name} ({what}) could not be read: {type(error).__name__}: {detail}; {_remedy(error)}"
        ) from error


def _remedy(error: BaseException) -> str:
    """What to do, from what kind of error it was or came from."""
    kinds: list[type] = []
    cause: BaseException | None = error
    while cause is not None and len(kinds) < 200:
        kinds += type(cause).__mro__
        cause = cause.__cause__ or cause.__context__
    names = {kind.__name__ for kind in kinds}
    if names & {"GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "DatasetNotFoundError"}:
        return "check dataset and revision in the recipe; one that is private or gated needs `hf auth login`"
    if names & {"OfflineModeIsEnabled"}:
        return "HF_HUB_OFFLINE is set: unset it, or freeze where there is a network and copy the frozen directory here"
    if any(issubclass(kind, ConnectionError | TimeoutError) for kind in kinds) or any(
        kind.__module__.split(".")[0] in _NETWORK for kind in kinds
    ):
        return (
            "is there a network (proxies, HF_ENDPOINT)? Else freeze where there is one and copy the frozen directory "
            "here: it is read without a network"
        )
    return "check dataset, config and split in the recipe"
