"""Masks: a pure function of seed, document and piece, with the promised frequencies, and never at special tokens."""

import numpy as np
import pytest
from scipy.stats import binomtest

from tl_aniso import MaskedLM, TlAnisoError
from tl_aniso.text import make_sequences
from tl_aniso.text.masking import Masking, mask_sequence
from tl_aniso.text.permuted import permuted_sequences

SPECIAL = (0, 1, 2, 5, 96)
MASK = 5
VOCAB = 97
ORDINARY = sorted(set(range(VOCAB)) - set(SPECIAL))


def masking(rate: float = 0.3, replacement: str = "bert") -> Masking:
    return Masking(rate, replacement, MASK, SPECIAL, VOCAB)


def pieces(n: int = 400, length: int = 60):
    rng = np.random.default_rng(0)
    documents = [np.array([1, *rng.choice(ORDINARY, length), 2]) for _ in range(n)]
    return make_sequences(documents, length + 2).sequences


def fits(successes: int, n: int, share: float) -> bool:
    """Within what a binomial of that share gives all but once in ten thousand times."""
    return bool(binomtest(successes, n, share).pvalue > 1e-4)


@pytest.mark.parametrize("rate", [0.3, 0.15, 0.9])
def test_frequencies(rate):
    tokens = np.concatenate([piece.ids for piece in pieces()])
    found = [mask_sequence(piece, masking(rate), seed=0) for piece in pieces()]
    places, ids = (np.concatenate([getattr(m, name) for m in found]) for name in ("places", "ids"))
    ordinary = ~np.isin(tokens, SPECIAL)
    n = int(places.sum())
    assert fits(n, int(ordinary.sum()), rate)
    # Of the 10% random ones, one in 92 draws the token that stood there.
    assert fits(int((ids[places] == MASK).sum()), n, 0.8)
    assert fits(int((ids[places] == tokens[places]).sum()), n, 0.1 + 0.1 / len(ORDINARY))
    drawn = ids[places & (ids != MASK) & (ids != tokens)]
    assert fits(len(drawn), n, 0.1 * (1 - 1 / len(ORDINARY)))
    assert (ids[~places] == tokens[~places]).all()
    assert not np.isin(drawn, SPECIAL).any()


def test_random_tokens_are_uniform_over_the_ordinary_ones():
    drawn = []
    for piece in pieces(2000):
        found = mask_sequence(piece, masking(1.0), seed=3)
        drawn.append(found.ids[(found.ids != MASK) & (found.ids != piece.ids)])
    counts = np.bincount(np.concatenate(drawn), minlength=VOCAB)
    assert sorted(np.flatnonzero(counts)) == ORDINARY  # the lowest and the highest too, and none that is special
    n, expected = counts.sum(), counts.sum() / len(ORDINARY)
    chi = float(((counts[ORDINARY] - expected) ** 2 / expected).sum())
    assert n > 10_000
    assert chi < len(ORDINARY) + 5 * np.sqrt(2 * len(ORDINARY))


def test_mask_only_puts_the_mask_token_at_the_same_places():
    for piece in pieces(20):
        one, other = (mask_sequence(piece, masking(replacement=name), seed=0) for name in ("bert", "mask"))
        assert (one.places == other.places).all()
        assert (other.ids[other.places] == MASK).all()
        assert (other.ids[~other.places] == piece.ids[~other.places]).all()


def test_special_tokens_are_never_masked():
    documents = [[1, 96, *range(10, 30), 5, 2, 0], [0, 1, 7, 2]]
    for piece in make_sequences(documents, 64).sequences:
        for seed in range(50):
            found = mask_sequence(piece, masking(1.0), seed=seed)
            assert (found.places == ~np.isin(piece.ids, SPECIAL)).all()


def test_at_least_one_token_is_masked():
    short = make_sequences([[1, *ids, 2] for ids in np.random.default_rng(1).choice(ORDINARY, (300, 4))], 64).sequences
    found = [mask_sequence(piece, masking(1e-9), seed=0).places for piece in short]
    assert {int(places.sum()) for places in found} == {1}
    # Which one is as likely as any other.
    counts = np.sum(found, axis=0)
    assert counts[[0, -1]].tolist() == [0, 0]
    assert all(fits(int(count), len(found), 0.25) for count in counts[1:-1])


def test_a_pure_function_of_seed_document_and_piece():
    one, again = pieces(30), pieces(30)
    for piece, other in zip(one, reversed(again), strict=True):
        np.random.seed(len(piece) + int(other.ids[3]))
        found = mask_sequence(piece, masking(), seed=0)
        twin = mask_sequence(next(p for p in again if p.document == piece.document), masking(), seed=0)
        assert (found.ids == twin.ids).all()
        assert (found.places == twin.places).all()
    differs = [
        (mask_sequence(p, masking(), seed=0).places != mask_sequence(p, masking(), seed=1).places).any() for p in one
    ]
    assert sum(differs) >= 29
    whole = make_sequences([np.tile(np.arange(10, 26), 2)], 16).sequences  # two pieces with the same ids
    first, second = (mask_sequence(piece, masking(), seed=0).places for piece in whole)
    assert (first != second).any()


def test_a_higher_rate_masks_the_same_places_and_more():
    for piece in pieces(30):
        low, high = (mask_sequence(piece, masking(rate), seed=0).places for rate in (0.15, 0.4))
        assert (high | ~low).all()


def test_permuted_documents_are_masked_at_the_same_places():
    true = pieces(30)
    for piece, permuted in zip(true, permuted_sequences(true, seed=0, fixed=SPECIAL), strict=True):
        assert (piece.ids != permuted.ids).any()
        found, other = (mask_sequence(p, masking(), seed=0) for p in (piece, permuted))
        assert (found.places == other.places).all()


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, float("nan"), float("inf"), "0.3", True, None, 1j])
def test_rates_that_are_none(rate):
    with pytest.raises(TlAnisoError, match=r"rate must be a number above 0 and at most 1, got"):
        MaskedLM(rate=rate)


def test_unknown_replacement_and_mask_token():
    with pytest.raises(TlAnisoError, match=r"replacement must be 'bert' \(80/10/10\) or 'mask', got 'random'"):
        MaskedLM(replacement="random")
    with pytest.raises(TlAnisoError, match="mask_token_id must be an integer, got 'x'"):
        MaskedLM(mask_token_id="x")
    with pytest.raises(TlAnisoError, match="mask_token_id must be at least 0"):
        MaskedLM(mask_token_id=-1)


def test_names():
    assert str(MaskedLM()) == str(MaskedLM(mask_token_id=7)) == "masked"
    assert str(MaskedLM(rate=1, replacement="bert")) == "masked(rate=1.0, replacement=bert)"
    assert str(MaskedLM(np.float32(0.5), "mask")) == "masked(rate=0.5, replacement=mask)"
