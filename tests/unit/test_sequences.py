"""Sequences: what is kept, what is dropped and counted, and nothing that depends on order."""

import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.text import document_hash, half_of, make_batches, make_sequences, shard_of

documents = st.lists(st.lists(st.integers(0, 50), max_size=40), min_size=1, max_size=12)


def test_hash_is_of_little_endian_64_bit_ids():
    expected = hashlib.sha256(struct.pack("<3q", 1, 70000, 2)).hexdigest()
    assert document_hash([1, 70000, 2]) == expected
    for dtype in (np.int32, ">i8", np.uint32):
        assert document_hash(np.array([1, 70000, 2], dtype=dtype)) == expected


def test_halves_and_shards_are_balanced_and_independent():
    table = np.zeros((2, 8), int)
    for number in range(8000):
        digest = document_hash([number])
        table["AB".index(half_of(digest)), shard_of(digest, 8)] += 1
    # 16 cells of 500 expected: chi-square with 15 degrees of freedom, 99.99% quantile 44.3.
    assert ((table - 500.0) ** 2 / 500).sum() < 44.3


def test_shard_is_the_hash_modulo_and_one_shard_is_zero():
    assert shard_of("0" * 15 + "b" + "f" * 48, 8) == 3
    assert shard_of(document_hash([5]), 1) == 0
    assert [half_of("ab" * 31 + end) for end in ("f0", "0f", "fe", "e1")] == ["A", "B", "A", "B"]


def test_cutting_without_overlap():
    ids = np.arange(100)
    found = make_sequences([ids], seq_len=32)
    assert [len(s) for s in found.sequences] == [32, 32, 32]  # the tail of 4 is dropped
    assert np.array_equal(np.concatenate([s.ids for s in found.sequences]), ids[:96])
    assert [s.index for s in found.sequences] == [0, 1, 2]
    assert dict(found.dropped) == {"short_tail": 1}
    assert found.n_tokens == 96


@pytest.mark.parametrize(
    ("length", "pieces", "dropped"),
    [
        (1, None, None),
        (2, [2], {}),
        (7, [7], {}),  # a short document is no tail
        (16, [16], {}),
        (23, [16], {"short_tail": 1}),
        (24, [16, 8], {}),
    ],
)
def test_short_documents_and_tails(length, pieces, dropped):
    if pieces is None:
        with pytest.raises(TextError, match=r"1 short_document"):
            make_sequences([np.arange(length)], 16)
        return
    found = make_sequences([np.arange(length)], 16)
    assert [len(s) for s in found.sequences] == pieces
    assert dict(found.dropped) == dropped


def test_seq_len_below_the_shortest_tail_keeps_full_pieces():
    found = make_sequences([np.arange(11)], seq_len=4)
    assert [len(s) for s in found.sequences] == [4, 4]
    assert dict(found.dropped) == {"short_tail": 1}


def test_duplicates_and_short_documents_are_counted():
    found = make_sequences([[1, 2, 3], [], [4], [1, 2, 3], [9, 9]], 16)
    assert [s.ids.tolist() for s in found.sequences] == [[1, 2, 3], [9, 9]]
    assert dict(found.dropped) == {"duplicate_document": 1, "short_document": 2}
    assert found.n_documents == 2
    assert found.documents == (document_hash([1, 2, 3]), document_hash([9, 9]))


def test_pieces_inherit_half_and_shard_of_the_whole_document():
    ids = np.arange(64)
    digest = document_hash(ids)
    for piece in make_sequences([ids], 16, n_shards=5).sequences:
        assert (piece.document, piece.half, piece.shard) == (digest, half_of(digest), shard_of(digest, 5))


@pytest.mark.parametrize(
    ("ids", "vocab", "message"),
    [
        ([3, 10], 10, r"id 10 at position 1 of document 1"),
        ([-1, 3], 10, r"id -1 at position 0 of document 1"),
        ([3, -100], None, r"id -100 at position 1 of document 1.*negative"),
    ],
)
def test_ids_outside_the_vocabulary(ids, vocab, message):
    with pytest.raises(TextError, match=message):
        make_sequences([[1, 9], ids], 16, vocab_size=vocab)


def test_sources_name_documents():
    with pytest.raises(TextError, match=r"a\.jsonl, line 7"):
        make_sequences([[11, 1]], 16, vocab_size=10, sources=["a.jsonl, line 7"])


def test_bad_numbers_are_refused():
    with pytest.raises(TextError, match="no documents"):
        make_sequences([], 16)
    with pytest.raises(TlAnisoError, match="seq_len is 1"):
        make_sequences([[1, 2]], 1)
    with pytest.raises(TlAnisoError, match="n_shards is 0"):
        make_sequences([[1, 2]], 16, n_shards=0)
    with pytest.raises(TlAnisoError, match="batch_size is 0"):
        make_batches([], 0)


def test_sequences_do_not_follow_the_callers_array():
    ids = np.arange(10)
    (sequence,) = make_sequences([ids], 16).sequences
    ids[0] = 99
    assert sequence.ids[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        sequence.ids[0] = 5


def test_batches_hold_one_half_padded_on_the_right():
    found = make_sequences([np.arange(n) for n in range(2, 40)], 64)
    batches = make_batches(found.sequences, 4)
    for batch in batches:
        assert {s.half for s in batch.sequences} == {batch.half}
        assert batch.ids.dtype == torch.int64
        assert batch.mask.dtype == torch.bool
        assert batch.ids.shape == batch.mask.shape == (len(batch.sequences), max(map(len, batch.sequences)))
        for ids, mask, sequence in zip(batch.ids, batch.mask, batch.sequences, strict=True):
            assert ids[: len(sequence)].tolist() == sequence.ids.tolist()
            assert mask.tolist() == [True] * len(sequence) + [False] * (len(ids) - len(sequence))
            assert not ids[len(sequence) :].any()
    assert {batch.half for batch in batches} == {"A", "B"}
    # Sorted by length within a half, little is padding.
    cells = sum(batch.mask.numel() for batch in batches)
    assert sum(int(batch.mask.sum()) for batch in batches) == found.n_tokens > 0.85 * cells


@given(documents, st.integers(1, 5), st.randoms(use_true_random=False))
def test_batches_do_not_depend_on_the_order_of_documents(texts, batch_size, random):
    if not any(len(ids) >= 2 for ids in texts):
        return
    shuffled = list(texts)
    random.shuffle(shuffled)
    one, two = (make_sequences(t, 10) for t in (texts, shuffled))
    assert dict(one.dropped) == dict(two.dropped)
    ordered = make_batches(one.sequences, batch_size)
    again = make_batches(random.sample(two.sequences, len(two.sequences)), batch_size)
    assert len(ordered) == len(again)
    for a, b in zip(ordered, again, strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.mask, b.mask)
        assert [(s.document, s.index) for s in a.sequences] == [(s.document, s.index) for s in b.sequences]


@given(documents, st.integers(2, 20))
def test_every_token_is_kept_or_dropped_for_a_reason(texts, seq_len):
    whole = {tuple(ids) for ids in texts if len(ids) >= 2}
    if not whole:
        return
    found = make_sequences(texts, seq_len)
    assert found.n_tokens == sum(map(len, found.sequences))
    tails = 0
    for ids in whole:
        mine = [s.ids.tolist() for s in found.sequences if s.document == document_hash(ids)]
        kept = [i for piece in mine for i in piece]
        assert kept == list(ids[: len(kept)])
        assert len(ids) - len(kept) < min(8, seq_len)
        tails += len(kept) < len(ids)
    assert found.dropped.get("short_tail", 0) == tails
    assert found.n_documents == len(whole)
