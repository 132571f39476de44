"""A corpus as token ids on disk, so that every checkpoint of a study reads the same tokens."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64

from tl_aniso.checks import as_path
from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.text.fingerprint import tokenizer_fingerprint, tokenizer_name
from tl_aniso.text.recipe import near
from tl_aniso.text.sequences import Half, document_hash, half_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMAT", "INDEX", "TENSORS", "VERSION", "FrozenCorpus", "corpus_hash", "index_digest"]

FORMAT, VERSION = "tl-aniso corpus", 1
TENSORS, INDEX = "ids.safetensors", "corpus.json"


def corpus_hash(hashes: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """SHA-256 over the hashes of documents in their order: equal for the same ids in the same order alone.

    Example:
        >>> from tl_aniso.text import document_hash
        >>> from tl_aniso.text.frozen import corpus_hash
        >>> one, two = document_hash([1, 2]), document_hash([3])
        >>> corpus_hash([one, two]) == corpus_hash([two, one])
        False
    """
    return hashlib.sha256("|".join(hashes).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class FrozenCorpus:
    """Documents as token ids, with source and language of each.

    Iterating gives each document as a 1-D int64 tensor, which is what `capture` takes.

    Attributes:
        hash: of all documents in their order; see `corpus_hash`.
        hashes: `document_hash` of each document.
        sources: name of each document's source.
        languages: of each document.
        names: names each document within its source.
        index: everything else that was recorded: the recipe with the revisions that were read, the tokenizer's name and
            fingerprint, what was asked for, and what became of each source.

    Example:
        >>> import pathlib, tempfile
        >>> from tl_aniso.text import FrozenCorpus, freeze
        >>> from tl_aniso.training import train_tokenizer
        >>> place = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (place / "roses.txt").write_text("\\n\\n".join(f"Rose {i} is a rose." for i in range(20)))
        >>> _ = (place / "mine.yaml").write_text(
        ...     "{format: 1, name: mine, sources: [{name: roses, kind: files, paths: [roses.txt], language: en}]}")
        >>> tokenizer = train_tokenizer(["Rose 0123456789"], vocab_size=257)
        >>> corpus = freeze(place / "mine.yaml", tokenizer, place / "frozen", progress=False)
        >>> len(corpus), corpus.hash == FrozenCorpus.load(place / "frozen").hash
        (20, True)
        >>> corpus.table()[["source", "language", "documents"]].to_dict("records")
        [{'source': 'roses', 'language': 'en', 'documents': 20}]
    """

    hash: str
    hashes: tuple[str, ...]
    sources: tuple[str, ...]
    languages: tuple[str, ...]
    names: tuple[str, ...]
    index: Mapping[str, Any]
    _ids: Int64[torch.Tensor, " token"]
    _offsets: Int64[np.ndarray, " boundary"]

    @classmethod
    def load(cls, directory: Path | str) -> "FrozenCorpus":
        """Read a frozen corpus and check it against its hashes.

        Raises:
            TextError: no frozen corpus there, one of a newer format, or a damaged file, which is named.
        """
        place = as_path("directory", directory)
        if not (place / INDEX).is_file():
            raise TextError(f"{place} holds no frozen corpus: there is no {INDEX}; write one with freeze()")
        index = _read_index(place)
        ids, offsets = _read_ids(place, len(index["hashes"]))
        for number, expected in enumerate(index["hashes"]):
            if document_hash(ids[offsets[number] : offsets[number + 1]].numpy()) != expected:
                raise _damaged(place, TENSORS, f"document {number} is not the one that was frozen")
        listed = index["listed"]
        return cls(
            hash=index["hash"],
            hashes=tuple(index["hashes"]),
            sources=tuple(listed["sources"][number] for number in listed["source"]),
            languages=tuple(listed["languages"][number] for number in listed["language"]),
            names=tuple(listed["name"]),
            index=MappingProxyType({k: v for k, v in index.items() if k not in ("hash", "hashes", "listed", "digest")}),
            _ids=ids,
            _offsets=offsets,
        )

    def __len__(self) -> int:
        """Documents."""
        return len(self.hashes)

    def __getitem__(self, number: int) -> Int64[torch.Tensor, " length"]:
        """The ids of one document."""
        number = range(len(self))[number]
        return self._ids[self._offsets[number] : self._offsets[number + 1]].to(torch.int64)

    def __iter__(self) -> Iterator[Int64[torch.Tensor, " length"]]:
        """The ids of each document in turn."""
        return (self[number] for number in range(len(self)))

    @property
    def n_tokens(self) -> int:
        """Tokens in all documents."""
        return len(self._ids)

    def documents(
        self, *, source: str | None = None, language: str | None = None, half: Half | None = None
    ) -> list[Int64[torch.Tensor, " length"]]:
        """The documents of one source, one language, one half, or of all that are named together.

        Halves and shards go by each document's hash, so a document is in the same ones in a part as in the whole.

        Raises:
            TextError: a source or language that the corpus does not have, or no document of both.
        """
        for what, asked, known in (("source", source, self.sources), ("language", language, self.languages)):
            names = tuple(dict.fromkeys(known))
            if asked is not None and asked not in names:
                raise TextError(
                    f"the corpus has no {what} {asked!r}{near(str(asked), names)}; it has {', '.join(names)}"
                )
        if half not in (None, "A", "B"):
            raise TlAnisoError(f"half must be 'A' or 'B', got {half!r}")
        found = [
            self[number]
            for number, digest in enumerate(self.hashes)
            if source in (None, self.sources[number])
            and language in (None, self.languages[number])
            and half in (None, half_of(digest))
        ]
        if not found:
            raise TextError(f"the corpus has no document of source {source}, language {language} and half {half}")
        return found

    def subsets(self, by: str = "source") -> dict[str, list[Int64[torch.Tensor, " length"]]]:
        """The documents of each source or language, to be captured one by one.

        Captures of the parts merge into that of the whole, as each document lies in one part.

        Args:
            by: "source" or "language".

        Raises:
            TlAnisoError: another `by`.
        """
        if by not in ("source", "language"):
            raise TlAnisoError(f"by must be 'source' or 'language', got {by!r}")
        labels = self.sources if by == "source" else self.languages
        found: dict[str, list[torch.Tensor]] = {}
        for number, label in enumerate(labels):
            found.setdefault(label, []).append(self[number])
        return found

    def table(self) -> "pd.DataFrame":
        """Documents and tokens by source and language: source, language, documents, tokens, share (of tokens)."""
        import pandas as pd

        frame = pd.DataFrame({"source": self.sources, "language": self.languages, "tokens": np.diff(self._offsets)})
        frame = frame.groupby(["source", "language"], sort=False)["tokens"].agg(["size", "sum"]).reset_index()
        frame.columns = pd.Index(["source", "language", "documents", "tokens"])
        return frame.assign(share=frame["tokens"] / self.n_tokens)

    def account(self) -> "pd.DataFrame":
        """What became of each source: revision, share asked for, documents read, kept, dropped by reason, duplicates.

        A column ``same_as_{source}`` counts documents left out because that source gave the same ids before.
        """
        import pandas as pd

        rows = []
        for name, told in self.index["account"].items():
            same = {f"same_as_{other}": count for other, count in told["duplicates"].items()}
            plain = {key: value for key, value in told.items() if key not in ("dropped", "duplicates")}
            rows.append({"source": name, **plain, **told["dropped"], **same})
        return pd.DataFrame(rows).fillna(0)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a tokenizer other than the one that made the ids.

        Raises:
            TextError: it does something else, whatever its name.
        """
        made = self.index["tokenizer"]
        if tokenizer_fingerprint(tokenizer) != made["fingerprint"]:
            raise TextError(
                f"the corpus was frozen with the tokenizer {made['name']} ({made['fingerprint']}), not with "
                f"{tokenizer_name(tokenizer)} ({tokenizer_fingerprint(tokenizer)}); freeze it again with this one"
            )


def index_digest(index: Mapping[str, Any]) -> str:
    """SHA-256 of an index without this digest: labels and counts are checked as ids are."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _read_index(place: Path) -> dict[str, Any]:
    try:
        index = json.loads((place / INDEX).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(place, INDEX, str(error)) from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise TextError(f"{place / INDEX} is not the index of a frozen corpus")
    if index.get("version") != VERSION:
        raise TextError(
            f"{place} is a corpus of version {index.get('version')!r}, this library reads {VERSION}; freeze it again"
        )
    told = index.pop("digest", None)
    if told != index_digest(index):
        raise _damaged(place, INDEX, "its content was altered")
    if index["hash"] != corpus_hash(index["hashes"]):
        raise _damaged(place, INDEX, "its hash is not that of its documents")
    return index


def _read_ids(place: Path, n_documents: int) -> tuple[torch.Tensor, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        # Read, not mapped: a file that changes later must not change what was checked.
        tensors = load((place / TENSORS).read_bytes())
        ids, offsets = tensors["ids"], tensors["offsets"].numpy()
    except (OSError, SafetensorError, KeyError) as error:
        raise _damaged(place, TENSORS, f"{type(error).__name__}: {error}") from error
    whole = ids.ndim == 1 and offsets.shape == (n_documents + 1,) and offsets[0] == 0 and offsets[-1] == len(ids)
    if not whole or (np.diff(offsets) < 1).any():
        raise _damaged(place, TENSORS, "its offsets do not fit its ids")
    return ids, offsets


def _damaged(place: Path, file: str, what: str) -> TextError:
    return TextError(
        f"the frozen corpus {place} is damaged: {file}: {what}; copy it again, or remove it and freeze anew"
    )
