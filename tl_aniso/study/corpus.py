"""The text of a study: made into ids and hashed before the sweep, so that every checkpoint reads the same tokens."""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from tl_aniso import __version__
from tl_aniso.errors import ConfigError, TextError
from tl_aniso.study.checkpoints import tokenizer_id
from tl_aniso.study.store import Store, digest_of
from tl_aniso.text import CorpusRecipe, Document, FrozenCorpus, document_hash, half_of, iter_documents, load_recipe
from tl_aniso.text import freeze as freeze_recipe
from tl_aniso.text.reading import files_revision
from tl_aniso.text.sequences import MIN_TAIL
from tl_aniso.text.tokenise import tokenise

__all__ = ["Corpus", "TextSource", "freeze", "text_source"]

_IDS, _INDEX, _FROZEN = "ids.safetensors", "corpus.json", "frozen"
_LINE = re.compile(r", line (\d+)(?:, row \d+)?$")


@dataclass(frozen=True)
class TextSource:
    """Where documents come from.

    Attributes:
        name: for people.
        key: what identifies the text: a hash of the file, or a recipe and its version.
        documents: yields (document, source, language); the language is "unknown" where nobody said. None of a recipe.
        recipe: of `tl_aniso.text`, which reads and freezes what it says.
    """

    name: str
    key: str
    documents: Callable[[], Iterator[tuple[Document, str, str]]] | None = None
    recipe: CorpusRecipe | None = None


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


def text_source(text: str) -> TextSource:
    """A .txt or .jsonl file, or a recipe: its name (``local``, ``paper``) or its YAML file.

    A line of .jsonl may name its ``source`` and ``language``.

    Raises:
        ConfigError: neither a file nor a known recipe, or a recipe that cannot be used.
    """
    path = Path(text)
    if path.is_file() and path.suffix.lower() not in (".yaml", ".yml"):
        with path.open("rb") as stream:
            key = hashlib.file_digest(stream, "sha256").hexdigest()[:32]
        return TextSource(path.name, key, lambda: _of_file(path))
    try:
        recipe = load_recipe(text)
    except TextError as error:
        raise ConfigError(f"text: {error}") from error
    # What lies on this machine comes in its versions, and what was frozen once stays as it is.
    versions = (np.__version__, sys.version.split()[0]) if any(s.kind == "local" for s in recipe.sources) else ()
    key = digest_of([recipe.as_dict(), __version__, files_revision_of(recipe), *versions])
    return TextSource(f"recipe {recipe.name}", f"recipe {key}", recipe=recipe)


def files_revision_of(recipe: CorpusRecipe) -> dict[str, str]:
    """Hashes of the files that a recipe reads, by source."""
    return {s.name: files_revision(s, recipe) for s in recipe.sources if s.kind == "files"}


def freeze(
    source: TextSource,
    tokenizer: Any,
    store: Store,
    *,
    seq_len: int,
    n_documents: int | None,
    n_tokens: int | None = None,
) -> Corpus:
    """The first documents of a text as ids, read from the store where they are there already.

    Each document is cut to its first `seq_len` tokens, so that none outweighs another; those under 8 tokens and those
    that come twice are left out and counted.

    Raises:
        TextError: nothing left, or no documents in one of the halves, or text without a tokenizer.
    """
    made_by = tokenizer_id(tokenizer)
    sizes: dict[str, Any] = {"seq_len": seq_len, "n_documents": n_documents, "n_tokens": n_tokens}
    key = digest_of({"text": source.key, "tokenizer": made_by, **sizes})
    held = store.get("corpus", key, f"the frozen text {source.name}")
    if held is None:
        write = _write if source.recipe is None else _write_recipe
        held = store.put("corpus", key, lambda place: write(place, source, tokenizer, made_by, **sizes))
    return _read(held, key) if source.recipe is None else _read_recipe(held, key)


def _write_recipe(
    place: Path,
    source: TextSource,
    tokenizer: Any,
    made_by: str,
    seq_len: int,
    n_documents: int | None,
    n_tokens: int | None,
) -> None:
    """What `tl_aniso.text.freeze` makes of a recipe, and the tokenizer as studies name it."""
    frozen = freeze_recipe(
        source.recipe,
        tokenizer,
        place / _FROZEN,
        n_documents=n_documents,
        n_tokens=n_tokens,
        max_document_tokens=seq_len,
        min_document_tokens=min(MIN_TAIL, seq_len),
        progress=False,
    )
    _check_halves(source, [half_of(digest) for digest in frozen.hashes], {}, seq_len)
    (place / _INDEX).write_text(json.dumps({"tokenizer": made_by}), encoding="utf-8")


def _read_recipe(place: Path, key: str) -> Corpus:
    frozen = FrozenCorpus.load(place / _FROZEN)
    dropped: Counter[str] = Counter()
    for told in frozen.index["account"].values():
        dropped.update(told["dropped"])
        dropped["duplicate_document"] += sum(told["duplicates"].values())
    return Corpus(
        ids=tuple(ids.numpy() for ids in frozen),
        sources=frozen.sources,
        languages=frozen.languages,
        hash=frozen.hash,
        tokenizer=json.loads((place / _INDEX).read_text(encoding="utf-8"))["tokenizer"],
        dropped={reason: count for reason, count in sorted(dropped.items()) if count},
        key=key,
    )


def _write(
    place: Path,
    source: TextSource,
    tokenizer: Any,
    made_by: str,
    seq_len: int,
    n_documents: int | None,
    n_tokens: int | None,
) -> None:
    from safetensors.torch import save_file

    dropped: Counter[str] = Counter()
    kept: dict[str, tuple[np.ndarray, str, str]] = {}
    total = 0
    for document, where, language in source.documents() if source.documents else ():
        ids = tokenise([document], tokenizer)[0][:seq_len]
        digest = document_hash(ids)
        if len(ids) < min(MIN_TAIL, seq_len):
            dropped["short_document"] += 1
        elif digest in kept:
            dropped["duplicate_document"] += 1
        else:
            kept[digest] = (ids, where, language)
            total += len(ids)
        if len(kept) == n_documents or (n_tokens is not None and total >= n_tokens):
            break
    _check_halves(source, [half_of(digest) for digest in kept], dropped, seq_len)
    arrays = [ids for ids, _, _ in kept.values()]
    index = {
        "text": source.name,
        "text_key": source.key,
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


def _check_halves(source: TextSource, halves: list[str], dropped: Mapping[str, int], seq_len: int) -> None:
    if len(set(halves)) < 2:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "nothing dropped"
        raise TextError(
            f"the text {source.name} has {len(halves)} documents of {min(MIN_TAIL, seq_len)} tokens or more "
            f"({counts}), and planes are fitted on one half of them and measured on the other; give about 20 or more"
        )


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
