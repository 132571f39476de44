"""Documents of several sources in shares of tokens, one after another in an order that never changes."""

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int64

from tl_aniso.checks import MOST_SEED, as_integer
from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.text.documents import Document
from tl_aniso.text.fingerprint import tokenizer_fingerprint
from tl_aniso.text.reading import Row, open_source
from tl_aniso.text.recipe import CorpusRecipe, CorpusSource, load_recipe
from tl_aniso.text.sequences import MIN_TAIL, document_hash
from tl_aniso.text.tokenise import tokenise

__all__ = ["CorpusStream", "SourceTally", "SourcedDocument", "stream"]

# So many documents in a row without one that can be used: the recipe names the wrong field, not a bad patch of text.
_MOST_UNUSABLE = 10_000


@dataclass(frozen=True, eq=False)
class SourcedDocument:
    """A document and where it came from.

    Attributes:
        text: as the source has it, whole.
        ids: its token ids, int64, shape (length,), cut where the stream was asked to.
        source: name of the source in the recipe.
        language: of the document.
        id: names it within its source.
        hash: `document_hash` of `ids`.
    """

    text: str
    ids: Int64[np.ndarray, " length"]
    source: str
    language: str
    id: str
    hash: str


@dataclass
class SourceTally:
    """What became of the documents of one source.

    Attributes:
        documents: given out.
        tokens: in them.
        dropped: reason -> count: "not_text", "empty", "null_byte", "not_unicode" (a lone surrogate), "short_document".
        duplicates: source that gave the same ids before -> count; the source itself may be among them.
        ran_dry: whether it ended before it had given its share.
    """

    documents: int = 0
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    ran_dry: bool = False

    @property
    def read(self) -> int:
        """Documents taken from the source."""
        return self.documents + self.dropped.total() + self.duplicates.total()


def stream(
    recipe: CorpusRecipe | object,
    tokenizer: Any,
    *,
    n_tokens: int | None = None,
    n_documents: int | None = None,
    seed: int = 0,
    max_document_tokens: int | None = None,
    min_document_tokens: int = MIN_TAIL,
) -> "CorpusStream":
    """Documents of a recipe, each source giving its share of the tokens.

    The next document always comes from the source that is furthest behind its share. With `n_tokens`, a source is read
    until it has reached its share of them, and so exceeds it by less than its last document. With `n_documents`, shares
    are equal to within one document at every moment.

    A source that runs dry is never replaced: with `n_tokens` the others give their own shares and no more, with
    `n_documents` the stream ends there; a warning says so, and `tallies` count it.

    Args:
        recipe: what `load_recipe` returns or takes.
        tokenizer: the model's. Shares are counted in its tokens.
        n_tokens: of all sources together.
        n_documents: of all sources together. With neither, everything until a first source ends; not for streamed ones.
        seed: of the order within each source.
        max_document_tokens: documents are cut to their first so many tokens, lest one outweigh the others.
        min_document_tokens: shorter documents are dropped and counted.

    Returns:
        An iterator over `SourcedDocument`s.

    Raises:
        TextError: a recipe, a source or a tokenizer that cannot be used; 10 000 unusable documents in a row.
        TlAnisoError: both `n_tokens` and `n_documents`, or a number out of bounds.

    Example:
        >>> import json, pathlib, tempfile
        >>> from tl_aniso.text import stream
        >>> from tl_aniso.training import train_tokenizer
        >>> place = pathlib.Path(tempfile.mkdtemp())
        >>> for name, length in (("short", 20), ("long", 200)):
        ...     lines = [json.dumps({"text": f"{number} rose" * length}) for number in range(300)]
        ...     _ = (place / f"{name}.jsonl").write_text("\\n".join(lines))
        >>> _ = (place / "mine.yaml").write_text(\"\"\"
        ... format: 1
        ... name: mine
        ... sources:
        ...   - {name: short, kind: files, paths: [short.jsonl], language: en}
        ...   - {name: long, kind: files, paths: [long.jsonl], language: en}
        ... \"\"\")
        >>> found = stream(place / "mine.yaml", train_tokenizer(["0123456789 rose"], vocab_size=257), n_tokens=20_000)
        >>> documents = list(found)
        >>> {name: tally.documents for name, tally in found.tallies.items()}
        {'short': 65, 'long': 7}
    """
    return CorpusStream(
        recipe if isinstance(recipe, CorpusRecipe) else load_recipe(recipe),
        tokenizer,
        n_tokens=n_tokens,
        n_documents=n_documents,
        seed=seed,
        max_document_tokens=max_document_tokens,
        min_document_tokens=min_document_tokens,
    )


class CorpusStream(Iterator[SourcedDocument]):
    """What `stream` returns: an iterator that can be asked how far it is.

    Attributes:
        recipe: the recipe.
        revisions: source -> what was read of it: a commit, a hash of files, versions of packages.
        tallies: source -> `SourceTally`, counted while the stream is read.
    """

    def __init__(
        self,
        recipe: CorpusRecipe,
        tokenizer: Any,
        *,
        n_tokens: int | None,
        n_documents: int | None,
        seed: int,
        max_document_tokens: int | None,
        min_document_tokens: int,
    ) -> None:
        if n_tokens is not None and n_documents is not None:
            raise TlAnisoError("n_tokens and n_documents are both given; one of them says how much text there shall be")
        as_integer("seed", seed, least=0, most=MOST_SEED)
        self._n_tokens = None if n_tokens is None else as_integer("n_tokens", n_tokens, least=1)
        self._n_documents = None if n_documents is None else as_integer("n_documents", n_documents, least=1)
        self._shortest = as_integer("min_document_tokens", min_document_tokens, least=1)
        self._longest = max_document_tokens
        if max_document_tokens is not None:
            as_integer("max_document_tokens", max_document_tokens, least=self._shortest)
        endless = [source.name for source in recipe.sources if not source.is_finite]
        if n_tokens is None and n_documents is None and endless:
            raise TlAnisoError(
                f"the source {endless[0]} of {recipe.name} is streamed and would be read to its end; give n_tokens or "
                "n_documents"
            )
        tokenizer_fingerprint(tokenizer)  # refuses what is no tokenizer before anything is opened
        self.recipe = recipe
        self._tokenizer = tokenizer
        self._opened = {source.name: open_source(source, recipe, seed) for source in recipe.sources}
        self.revisions: Mapping[str, str] = MappingProxyType({n: o.revision for n, o in self._opened.items()})
        tallies = {source.name: SourceTally() for source in recipe.sources}
        self.tallies: Mapping[str, SourceTally] = MappingProxyType(tallies)
        self._shares = {source.name: recipe.share(source.name) for source in recipe.sources}
        self._given: dict[str, str] = {}
        self._ended = False

    def __next__(self) -> SourcedDocument:
        while not self._ended:
            source = self._next_source()
            if source is None:
                break
            document = self._next_document(source)
            if document is not None:
                return document
            self._run_dry(source)
        self._ended = True
        raise StopIteration

    def _next_source(self) -> CorpusSource | None:
        """The source furthest behind its share, in the recipe's order where several are; None at the end."""
        if self._n_documents is not None and sum(t.documents for t in self.tallies.values()) >= self._n_documents:
            return None
        behind = [source for source in self.recipe.sources if self._wants(source.name)]
        if not behind:
            return None
        return min(behind, key=lambda source: self.tallies[source.name].tokens / self._shares[source.name])

    def _wants(self, name: str) -> bool:
        tally = self.tallies[name]
        return not tally.ran_dry and tally.tokens < self._target(name)

    def _target(self, name: str) -> float:
        return math.inf if self._n_tokens is None else self._n_tokens * self._shares[name]

    def _next_document(self, source: CorpusSource) -> SourcedDocument | None:
        tally = self.tallies[source.name]
        for unusable, row in enumerate(self._opened[source.name].rows):
            if unusable >= _MOST_UNUSABLE:
                reasons = [f"{count} {reason}" for reason, count in sorted(tally.dropped.items())]
                raise TextError(
                    f"the source {source.name} gave {unusable} documents in a row that cannot be used "
                    f"({', '.join(reasons) or 'duplicates'}); check field and split in the recipe"
                )
            document = self._usable(row, source, tally)
            if document is not None:
                self._given[document.hash] = source.name
                tally.documents += 1
                tally.tokens += len(document.ids)
                return document
        return None

    def _usable(self, row: Row, source: CorpusSource, tally: SourceTally) -> SourcedDocument | None:
        fault = _fault(row.text)
        if fault is not None:
            tally.dropped[fault] += 1
            return None
        text = str(row.text)
        ids = tokenise([Document(None, text, f"{row.id} of {source.name}")], self._tokenizer)[0][: self._longest]
        if len(ids) < self._shortest:
            tally.dropped["short_document"] += 1
            return None
        digest = document_hash(ids)
        if digest in self._given:
            tally.duplicates[self._given[digest]] += 1
            return None
        return SourcedDocument(text, ids, source.name, row.language, row.id, digest)

    def _run_dry(self, source: CorpusSource) -> None:
        tally = self.tallies[source.name]
        tally.ran_dry = True
        if self._n_tokens is None:
            self._ended = True
        if self._n_tokens is not None:
            wanted = f"{math.ceil(self._target(source.name))} tokens that are its share; the others keep to theirs"
        elif self._n_documents is not None:
            total = sum(t.documents for t in self.tallies.values())
            wanted = f"its share; the corpus ends with {total} of {self._n_documents} documents, so that shares hold"
        else:
            return
        warnings.warn(
            f"the source {source.name} ran dry: it has {tally.documents} usable documents of {tally.tokens} tokens, "
            f"short of {wanted}",
            TlAnisoWarning,
            stacklevel=3,
        )


def _fault(text: object) -> str | None:
    """Why a row is no text that could be measured, or None."""
    if not isinstance(text, str):
        return "not_text"
    if not text.strip():
        return "empty"
    if "\0" in text:
        return "null_byte"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "not_unicode"
    return None
