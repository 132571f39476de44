"""Documents cut into sequences, told apart by content alone, and batched without mixing the two halves."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int64

from tl_aniso.errors import TextError, TlAnisoError

__all__ = [
    "Batch",
    "Half",
    "Sequence",
    "SequenceSet",
    "document_hash",
    "half_of",
    "make_batches",
    "make_sequences",
    "shard_of",
]

Half = Literal["A", "B"]

MIN_TAIL = 8
MIN_DOCUMENT = 2


def document_hash(ids: Int64[np.ndarray, " length"] | SequenceOf[int]) -> str:
    """SHA-256 of a document's token ids as little-endian 64-bit integers: the same on every machine.

    Args:
        ids: Token ids of the whole document, shape (length,).

    Returns:
        64 hexadecimal digits.

    Example:
        >>> from tl_aniso.text import document_hash
        >>> document_hash([1, 2, 3])[:8]
        'e2e2033a'
    """
    return hashlib.sha256(np.asarray(ids).astype("<i8").tobytes()).hexdigest()


def half_of(digest: str) -> Half:
    """The half of a document: A (proxies are fitted) if its hash is even, B (everything is measured) if odd.

    Example:
        >>> from tl_aniso.text import half_of
        >>> half_of("00ff"), half_of("00fe")
        ('B', 'A')
    """
    return "B" if int(digest[-1], 16) % 2 else "A"


def shard_of(digest: str, n_shards: int = 8) -> int:
    """The shard of a document, from bits of its hash that say nothing about its half.

    Args:
        digest: What `document_hash` returns.
        n_shards: Number of shards, at least 1.

    Returns:
        A number from 0 to n_shards - 1.

    Raises:
        TlAnisoError: `n_shards` below 1.

    Example:
        >>> from tl_aniso.text import document_hash, shard_of
        >>> shard_of(document_hash([1, 2, 3]), n_shards=8)
        0
    """
    if n_shards < 1:
        raise TlAnisoError(f"n_shards is {n_shards}; it must be at least 1.")
    return int(digest[:16], 16) % n_shards


@dataclass(frozen=True, eq=False)
class Sequence:
    """A piece of a document: what one row of a batch and one weight gradient belong to.

    Attributes:
        ids: Token ids, int64, shape (length,), read-only.
        document: `document_hash` of the whole document.
        index: Which piece of the document, from 0.
        half: "A" or "B"; the same for every piece of a document.
        shard: Shard number; the same for every piece of a document.
    """

    ids: Int64[np.ndarray, " length"]
    document: str
    index: int
    half: Half
    shard: int

    def __len__(self) -> int:
        """Tokens."""
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class SequenceSet:
    """Sequences of a text and the count of what was left out.

    Attributes:
        sequences: In the order of the documents.
        documents: Hashes of the documents that gave at least one sequence, in order.
        dropped: Reason -> count, for `short_document` (under 2 tokens), `short_tail` (a remainder under 8
            tokens after full pieces) and `duplicate_document` (the same ids as one before); where tokens are masked,
            also `no_maskable_token` (a sequence of special tokens alone).
        n_tokens: Tokens in all sequences.
    """

    sequences: tuple[Sequence, ...]
    documents: tuple[str, ...]
    dropped: Mapping[str, int]
    n_tokens: int

    @property
    def n_documents(self) -> int:
        """Documents that gave at least one sequence."""
        return len(self.documents)


def make_sequences(
    list_of_ids: Iterable[Int64[np.ndarray, " length"] | SequenceOf[int]],
    seq_len: int,
    vocab_size: int | None = None,
    n_shards: int = 8,
    *,
    sources: SequenceOf[str] | None = None,
) -> SequenceSet:
    """Cut documents into sequences of at most `seq_len` tokens, without overlap.

    A remainder under 8 tokens is dropped and counted, as are whole documents under 2 tokens, which have no
    next token to predict. A document given twice is taken once and counted: captures refuse to merge a
    document they already hold, so counting it twice here would make one capture differ from the merged ones.

    Args:
        list_of_ids: Token ids of one document an entry, each of shape (length,).
        seq_len: Longest sequence, in tokens.
        vocab_size: Ids must lie in [0, vocab_size); None checks only that they are not negative.
        n_shards: Number of shards for the jackknife.
        sources: Names of the documents for error messages; by default their numbers.

    Returns:
        A `SequenceSet` with at least one sequence.

    Raises:
        TextError: An id outside the vocabulary (named with its document), or nothing left to measure.
        TlAnisoError: `seq_len` below 2 or `n_shards` below 1.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.text import make_sequences
        >>> found = make_sequences([np.arange(21), np.arange(5)], seq_len=16)
        >>> [len(sequence) for sequence in found.sequences], dict(found.dropped)
        ([16, 5], {'short_tail': 1})
    """
    if seq_len < MIN_DOCUMENT:
        raise TlAnisoError(f"seq_len is {seq_len}; a sequence needs at least {MIN_DOCUMENT} tokens.")
    dropped: Counter[str] = Counter()
    pieces: list[Sequence] = []
    hashes: dict[str, None] = {}
    for number, entry in enumerate(list_of_ids):
        name = sources[number] if sources is not None else f"document {number}"
        ids = np.array(entry, dtype=np.int64).reshape(-1)
        ids.setflags(write=False)
        _check_ids(ids, vocab_size, name)
        if len(ids) < MIN_DOCUMENT:
            dropped["short_document"] += 1
            continue
        digest = document_hash(ids)
        if digest in hashes:
            dropped["duplicate_document"] += 1
            continue
        hashes[digest] = None
        half, shard = half_of(digest), shard_of(digest, n_shards)
        for index, start in enumerate(range(0, len(ids), seq_len)):
            piece = ids[start : start + seq_len]
            if index and len(piece) < min(MIN_TAIL, seq_len):
                dropped["short_tail"] += 1
            else:
                pieces.append(Sequence(piece, digest, index, half, shard))
    if not pieces:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "no documents"
        raise TextError(f"Nothing left to measure ({counts}); a document needs at least {MIN_DOCUMENT} tokens.")
    n_tokens = sum(len(piece) for piece in pieces)
    return SequenceSet(tuple(pieces), tuple(hashes), MappingProxyType(dict(dropped)), n_tokens)


def _check_ids(ids: Int64[np.ndarray, " length"], vocab_size: int | None, name: str) -> None:
    wrong = np.flatnonzero((ids < 0) if vocab_size is None else (ids < 0) | (ids >= vocab_size))
    if len(wrong):
        limit = "any vocabulary (it is negative)" if vocab_size is None else f"the vocabulary of {vocab_size} ids"
        raise TextError(
            f"The id {ids[wrong[0]]} at position {wrong[0]} of {name} is outside {limit}; "
            "was the text tokenised for another model?"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of one half, right-padded with id 0.

    Attributes:
        ids: Token ids, shape (sequence, position).
        mask: True at real tokens; from the lengths, never from the ids, so that a real id 0 stays real.
        sequences: What each row is.
    """

    ids: Int64[torch.Tensor, "sequence position"]
    mask: Bool[torch.Tensor, "sequence position"]
    sequences: tuple[Sequence, ...]

    @property
    def half(self) -> Half:
        """The half that every row belongs to."""
        return self.sequences[0].half


def make_batches(sequences: Iterable[Sequence], batch_size: int, *, by_shard: bool = False) -> list[Batch]:
    """Batches of at most `batch_size` sequences, each of one half and of similar lengths.

    The order depends on the sequences' content alone (half, length, document hash, index), so that the same
    text in another order gives the same batches.

    Args:
        sequences: Of a `SequenceSet`.
        batch_size: Most rows of a batch.
        by_shard: Keep each batch within one shard, for batches that count as one.

    Returns:
        Batches with ids and mask of shape (sequence, position), position being the longest of the batch.

    Raises:
        TlAnisoError: `batch_size` below 1.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.text import make_batches, make_sequences
        >>> found = make_sequences([np.arange(n) for n in range(4, 12)], seq_len=16)
        >>> sum(int(batch.mask.sum()) for batch in make_batches(found.sequences, 3)) == found.n_tokens
        True
    """
    if batch_size < 1:
        raise TlAnisoError(f"batch_size is {batch_size}; it must be at least 1.")
    ordered = sorted(sequences, key=lambda s: (len(s), s.document, s.index))
    groups: dict[tuple[str, int], list[Sequence]] = {}
    for sequence in ordered:
        groups.setdefault((sequence.half, sequence.shard if by_shard else -1), []).append(sequence)
    batches = []
    for _, rows in sorted(groups.items(), key=lambda group: group[0]):
        for start in range(0, len(rows), batch_size):
            batches.append(_padded(tuple(rows[start : start + batch_size])))
    return batches


def _padded(rows: tuple[Sequence, ...]) -> Batch:
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.from_numpy(row.ids.copy())
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(ids, mask, rows)
