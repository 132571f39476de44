"""The text of a study: made into ids and hashed before the sweep, so that every checkpoint reads the same tokens."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from tl_aniso.errors import ConfigError, TextError
from tl_aniso.study.checkpoints import tokenizer_id
from tl_aniso.study.fields import near
from tl_aniso.study.store import Store, digest_of
from tl_aniso.text import Document, document_hash, half_of, iter_documents, load_recipe, stream, tokenise
from tl_aniso.text.reading import files_revision
from tl_aniso.text.recipe import CorpusRecipe, recipe_names
from tl_aniso.text.sequences import MIN_TAIL

__all__ = ["Corpus", "Request", "TextSource", "drops", "freeze", "text_source"]

_IDS, _INDEX = "ids.safetensors", "corpus.json"
_LINE = re.compile(r", line (\d+)(?:, row \d+)?$")


@dataclass(frozen=True)
class TextSource:
    """Where documents come from.

    Attributes:
        name: for people.
        key: what identifies the text: a hash of the file, or a recipe and its version.
        documents: of a tokenizer and a `Request`, yields (document, source, language); the language is "unknown" where
            nobody said.
        revisions: source -> what was read of it, once that is known.
        dropped: reason -> count of what a recipe's sources lost on the way, once that is known.
    """

    name: str
    key: str
    documents: Callable[[Any, "Request"], Iterator[tuple[Document, str, str]]]
    revisions: dict[str, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Request:
    """How much of a text is wanted: tokens of a document at most; documents, or tokens of all of them; and a seed."""

    seq_len: int
    n_documents: int | None
    n_tokens: int | None
    seed: int


@dataclass(frozen=True, eq=False)
class Corpus:
    """Frozen documents.

    Attributes:
        ids: token ids of each document, int64, at most as many as the study measures.
        sources: of each document.
        languages: of each document.
        hash: of all ids and of their order.
        tokenizer: what made them; see `tokenizer_id`.
        dropped: reason -> count.
        key: of the entry in the store.
    """

    ids: tuple[Int64[np.ndarray, " length"], ...]
    sources: tuple[str, ...]
    languages: tuple[str, ...]
    hash: str
    tokenizer: str
    dropped: dict[str, int]
    key: str

    def half(self, half: str) -> list[Int64[np.ndarray, " length"]]:
        """The documents of half "A", which planes are fitted on, or "B", which is measured."""
        return [ids for ids in self.ids if half_of(document_hash(ids)) == half]

    @property
    def n_tokens(self) -> int:
        """Tokens in all documents."""
        return sum(map(len, self.ids))


_REASONS = {
    "short_document": "too short",
    "duplicate_document": "there before",
    "null_byte": "with a null byte",
    "empty": "empty",
    "not_text": "no text",
    "not_unicode": "no valid Unicode",
}


def drops(n_kept: int, dropped: Mapping[str, int]) -> str:
    """What of a text was left out, in words; empty where nothing was.

    Example:
        >>> drops(9, {"short_document": 191})
        '191 of 200 documents were dropped (too short)'
        >>> drops(7, {"duplicate_document": 1, "short_document": 2})
        '3 of 10 documents were dropped (1 there before, 2 too short)'
    """
    lost = {_REASONS.get(reason, reason.replace("_", " ")): count for reason, count in dropped.items() if count}
    if not lost:
        return ""
    total = sum(lost.values())
    why = ", ".join(lost) if len(lost) == 1 else ", ".join(f"{count} {reason}" for reason, count in lost.items())
    return f"{total} of {n_kept + total} documents were dropped ({why})"


def text_source(text: str) -> TextSource:
    """A .txt or .jsonl file, or a recipe of a corpus: a .yaml file, or the name of one (``local``, ``paper``).

    A line of .jsonl may name its ``source`` and ``language``.

    Raises:
        ConfigError: neither a file nor a known recipe.
    """
    path = Path(text)
    if path.is_file() and path.suffix.lower() not in (".yaml", ".yml"):
        with path.open("rb") as stream_of_bytes:
            key = hashlib.file_digest(stream_of_bytes, "sha256").hexdigest()[:32]
        return TextSource(path.name, key, lambda *_: _of_file(path))
    if not path.is_file() and text not in recipe_names():
        raise ConfigError(
            f"text: there is no file {text!r} and no recipe of that name{near(text, recipe_names())}; recipes are "
            f"{', '.join(recipe_names())}, or a .yaml file"
        )
    try:
        return _of_recipe(load_recipe(path if path.is_file() else text))
    except TextError as error:
        raise ConfigError(f"text: {error}") from error


def _of_recipe(recipe: CorpusRecipe) -> TextSource:
    """What a recipe says now identifies the text; what it gave is frozen, whatever its sources hold later."""
    revisions: dict[str, str] = {}
    dropped: Counter[str] = Counter()

    def documents(tokenizer: Any, asked: Request) -> Iterator[tuple[Document, str, str]]:
        sizes: dict[str, Any] = {"n_documents": asked.n_documents, "n_tokens": asked.n_tokens, "seed": asked.seed}
        found = stream(recipe, tokenizer, max_document_tokens=asked.seq_len, **sizes)
        revisions.update({name: str(revision) for name, revision in found.revisions.items()})
        for one in found:
            yield Document(one.ids, None, f"{one.source}, {one.id}"), one.source, one.language
        for tally in found.tallies.values():
            dropped.update({**tally.dropped, "duplicate_document": tally.duplicates.total()})

    files = {source.name: files_revision(source, recipe) for source in recipe.sources if source.kind == "files"}
    return TextSource(f"recipe {recipe.name}", digest_of([recipe.as_dict(), files]), documents, revisions, dropped)


def freeze(
    source: TextSource,
    tokenizer: Any,
    store: Store,
    *,
    seq_len: int,
    n_documents: int | None,
    n_tokens: int | None = None,
    seed: int = 0,
) -> Corpus:
    """The first documents of a text as ids, read from the store where they are there already.

    Each document is cut to its first `seq_len` tokens, so that none outweighs another; those under 8 tokens, those
    with null bytes and those that come twice are left out and counted.

    Raises:
        TextError: nothing left, or no documents in one of the halves, or text without a tokenizer.
    """
    made_by = tokenizer_id(tokenizer)
    asked = Request(seq_len, n_documents, n_tokens, seed)
    key = digest_of({"text": source.key, "tokenizer": made_by, **asdict(asked)})
    held = store.get("corpus", key, f"the frozen text {source.name}")
    if held is None:
        held = store.put("corpus", key, lambda place: _write(place, source, tokenizer, made_by, asked))
    return _read(held, key)


def _write(place: Path, source: TextSource, tokenizer: Any, made_by: str, asked: Request) -> None:
    from safetensors.torch import save_file

    dropped: Counter[str] = Counter()
    kept: dict[str, tuple[np.ndarray, str, str]] = {}
    seq_len, total = asked.seq_len, 0
    for document, where, language in source.documents(tokenizer, asked):
        if document.text is not None and "\0" in document.text:  # as a recipe does
            dropped["null_byte"] += 1
            continue
        ids = tokenise([document], tokenizer)[0][:seq_len]
        digest = document_hash(ids)
        if len(ids) < min(MIN_TAIL, seq_len):
            dropped["short_document"] += 1
        elif digest in kept:
            dropped["duplicate_document"] += 1
        else:
            kept[digest] = (ids, where, language)
            total += len(ids)
        # A recipe ends by itself, when each of its sources has given its share.
        enough = len(kept) == asked.n_documents or (asked.n_tokens is not None and total >= asked.n_tokens)
        if enough and not source.revisions:
            break
    dropped.update(+source.dropped)
    halves = Counter(half_of(digest) for digest in kept)
    if len(halves) < 2:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "nothing dropped"
        raise TextError(
            f"the text {source.name} has {len(kept)} documents of {min(MIN_TAIL, seq_len)} tokens or more ({counts}), "
            "and planes are fitted on one half of them and measured on the other; give about 20 or more"
        )
    arrays = [ids for ids, _, _ in kept.values()]
    index = {
        "text": source.name,
        "text_key": source.key,
        "revisions": source.revisions,
        "tokenizer": made_by,
        "tokenizer_name": str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__),
        "seq_len": seq_len,
        "hash": _hash(arrays),
        "n_tokens": sum(map(len, arrays)),
        "dropped": dict(sorted(dropped.items())),
        "documents": [
            {"hash": digest, "n_tokens": len(ids), "source": where, "language": language}
            for digest, (ids, where, language) in kept.items()
        ],
    }
    save_file({"ids": torch.from_numpy(np.concatenate(arrays))}, place / _IDS)
    (place / _INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False), encoding="utf-8")


def _read(place: Path, key: str) -> Corpus:
    from safetensors.torch import load_file

    index = json.loads((place / _INDEX).read_text(encoding="utf-8"))
    documents = index["documents"]
    flat = load_file(place / _IDS)["ids"].numpy()
    ends = np.cumsum([document["n_tokens"] for document in documents])
    return Corpus(
        ids=tuple(np.split(flat, ends[:-1])),
        sources=tuple(document["source"] for document in documents),
        languages=tuple(document["language"] for document in documents),
        hash=index["hash"],
        tokenizer=index["tokenizer"],
        dropped=index["dropped"],
        key=key,
    )


def _hash(arrays: list[Int64[np.ndarray, " length"]]) -> str:
    return hashlib.sha256("|".join(map(document_hash, arrays)).encode()).hexdigest()


def _of_file(path: Path) -> Iterator[tuple[Document, str, str]]:
    labels = _labels(path) if path.suffix.lower() == ".jsonl" else {}
    for document in iter_documents(path):
        line = _LINE.search(document.source)
        where, language = labels.get(int(line.group(1)) if line else 0, (path.name, "unknown"))
        yield document, where, language


def _labels(path: Path) -> dict[int, tuple[str, str]]:
    """Source and language of each line that names one of them."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # `iter_documents` says where
            continue
        if isinstance(entry, dict) and (entry.get("source") or entry.get("language")):
            found[number] = (str(entry.get("source") or path.name), str(entry.get("language") or "unknown"))
    return found
