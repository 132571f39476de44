"""Documents with their tokens in another order."""

import hashlib
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from tl_aniso.text.sequences import Sequence

__all__ = ["permuted_sequences"]


def permuted_sequences(
    sequences: Iterable[Sequence], *, seed: int, fixed: SequenceOf[int] = ()
) -> tuple[Sequence, ...]:
    """The same documents, each with its tokens permuted among all its pieces: unigrams stay, order goes.

    The permutation is a pure function of (seed, document), the same in every batch and at every checkpoint. Lengths,
    halves and shards stay, and documents keep the hash of their true ids.

    Args:
        sequences: of a `SequenceSet`, any selection of whole documents.
        seed: of the permutations.
        fixed: ids that keep their places, such as a BOS in front.

    Returns:
        Sequences in the order given.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.text import make_sequences
        >>> found = make_sequences([[1, 5, 6, 7, 8, 9]], seq_len=8).sequences
        >>> ids = permuted_sequences(found, seed=0, fixed=[1])[0].ids
        >>> int(ids[0]), sorted(ids.tolist()), ids.tolist() == [1, 5, 6, 7, 8, 9]
        (1, [1, 5, 6, 7, 8, 9], False)
    """
    pieces = list(sequences)
    documents: dict[str, list[Sequence]] = {}
    for piece in pieces:
        documents.setdefault(piece.document, []).append(piece)
    found: dict[tuple[str, int], Sequence] = {}
    for document, parts in documents.items():
        parts = sorted(parts, key=lambda piece: piece.index)
        ids = np.concatenate([piece.ids for piece in parts])
        free = np.flatnonzero(~np.isin(ids, list(fixed)))
        digest = hashlib.sha256(f"{seed}/permuted_tokens/{document}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        ids[free] = ids[rng.permutation(free)]
        ends = np.cumsum([len(piece) for piece in parts])
        for piece, part in zip(parts, np.split(ids, ends[:-1]), strict=True):
            part.setflags(write=False)
            found[document, piece.index] = replace(piece, ids=part)
    return tuple(found[piece.document, piece.index] for piece in pieces)
