"""Permuted documents: the same tokens in another order that depends on the seed and the document alone."""

from collections import Counter

import numpy as np

from tl_aniso.text import make_sequences
from tl_aniso.text.permuted import permuted_sequences

DOCUMENTS = [[1, *range(10, 45)], list(range(50, 90)), [1, 7, 8, 9, 2, 11, 12, 13, 14, 15, 16]]


def by_document(pieces):
    found = {}
    for piece in sorted(pieces, key=lambda p: p.index):
        found.setdefault(piece.document, []).extend(piece.ids.tolist())
    return found


def test_tokens_stay_in_their_document_and_cross_its_pieces():
    true = make_sequences(DOCUMENTS, seq_len=16).sequences
    other = permuted_sequences(true, seed=3)
    before, after = by_document(true), by_document(other)
    assert before.keys() == after.keys()
    for document, ids in before.items():
        assert Counter(after[document]) == Counter(ids)
        assert after[document] != ids
    for old, new in zip(true, other, strict=True):
        assert (old.document, old.index, old.half, old.shard, len(old)) == (
            new.document,
            new.index,
            new.half,
            new.shard,
            len(new),
        )
    first = other[0]
    assert set(first.ids.tolist()) - set(true[0].ids.tolist())  # tokens of later pieces came forward


def test_a_bos_stays_in_front_and_other_fixed_ids_where_they_are():
    true = make_sequences(DOCUMENTS, seq_len=64).sequences
    other = permuted_sequences(true, seed=0, fixed=[1, 2])
    assert [s.ids[0] for s in other if 1 in s.ids] == [1, 1]
    assert np.flatnonzero(other[2].ids == 2).tolist() == [4]
    loose = permuted_sequences(true, seed=0)
    assert any(s.ids[0] != 1 for s in loose if 1 in s.ids)


def test_the_order_depends_on_seed_and_document_alone():
    true = make_sequences(DOCUMENTS, seq_len=64).sequences
    other = permuted_sequences(true, seed=5)
    assert by_document(permuted_sequences(true[::-1], seed=5)) == by_document(other)
    assert permuted_sequences(true[1:2], seed=5)[0].ids.tolist() == other[1].ids.tolist()
    assert permuted_sequences(true, seed=6)[1].ids.tolist() != other[1].ids.tolist()
    assert not other[0].ids.flags.writeable
    assert true[0].ids.tolist() == DOCUMENTS[0]
