"""The sample of rows: a function of the set of rows, uniform, and exact under merging."""

import numpy as np
import pytest
import torch

from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError
from tl_aniso.reservoir import Reservoir, row_keys


def rows_and_keys(n=500, d=3, seed=0):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return rows, np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, size=n)


def same(a, b):
    return torch.equal(a.rows, b.rows) and np.array_equal(a.keys, b.keys) and a.n_seen == b.n_seen


@pytest.mark.parametrize("capacity", [1, 40, 500, 900])
def test_order_batches_and_merging_do_not_matter(capacity):
    rows, keys = rows_and_keys()
    whole = Reservoir(3, capacity, seed=5).update(rows, keys)
    assert len(whole) == min(capacity, 500)
    assert whole.n_seen == 500
    shuffled = np.random.default_rng(1).permutation(500)
    batched, parts = Reservoir(3, capacity, seed=5), [Reservoir(3, capacity, seed=5) for _ in range(3)]
    for number, chunk in enumerate(np.array_split(shuffled, 17)):
        batched.update(rows[chunk], torch.from_numpy(keys[chunk]))
        parts[number % 3].update(rows[chunk].double(), keys[chunk].view(np.uint64))
    assert same(batched, whole)
    assert same(parts[2].copy().merge(parts[0]).merge(parts[1]), whole)
    assert same(parts[1].copy().merge(parts[2].copy().merge(parts[0])), whole)
    assert same(Reservoir.from_state(whole.rows, whole.keys, 500, capacity, seed=5), whole)


def test_kept_rows_are_the_rows_of_their_keys():
    rows, keys = rows_and_keys()
    kept = Reservoir(3, 60).update(rows, keys)
    where = {int(key): i for i, key in enumerate(keys.view(np.uint64))}
    assert torch.equal(kept.rows, rows[[where[int(key)] for key in kept.keys]])
    assert len(set(kept.keys.tolist())) == 60


def test_the_sample_is_uniform():
    # Consecutive keys, the hardest for a weak hash: every row is kept in about a tenth of the seeds.
    n, capacity, trials = 200, 20, 3000
    rows = torch.arange(float(n))[:, None]
    counts, pairs = np.zeros(n), 0
    for seed in range(trials):
        kept = Reservoir(1, capacity, seed=seed).update(rows, range(n)).rows[:, 0].numpy().astype(int)
        counts[kept] += 1
        pairs += {0, 1} <= set(kept.tolist())
    expected = trials * capacity / n
    chi2 = ((counts - expected) ** 2 / (expected * (1 - capacity / n))).sum()
    assert abs(chi2 - n) < 5 * np.sqrt(2 * n)
    # Neighbouring keys are kept independently: 20 * 19 / (200 * 199) of the time.
    chance = capacity * (capacity - 1) / (n * (n - 1))
    assert abs(pairs - trials * chance) < 4 * np.sqrt(trials * chance)


def test_seeds_and_documents_give_other_samples():
    rows, keys = rows_and_keys()
    first, second = (Reservoir(3, 50, seed=s).update(rows, keys) for s in (0, 1))
    assert len(set(first.keys.tolist()) & set(second.keys.tolist())) < 15
    one, other = row_keys("ab" * 32, range(100)), row_keys("ac" * 32, range(100))
    assert len(set(one.tolist()) | set(other.tolist())) == 200
    assert np.array_equal(row_keys("ab" * 32, [7]), one[7:8])


def splitmix64(state):
    # In Python integers; its first output from state 0 is the published 0xE220A8397B1DCDAF.
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64():
    # Stored samples merge with later ones only while the hash is the same on every machine and in every version.
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    start = splitmix64(0x0123456789ABCDEF)
    assert [int(k) for k in row_keys("0123456789abcdef" + "f" * 48, [0, 7])] == [
        splitmix64(start),
        splitmix64(start ^ 7),
    ]
    ranked = sorted(range(10), key=lambda key: splitmix64(key ^ splitmix64(3)))
    assert Reservoir(1, 3, seed=3).update(torch.zeros(10, 1), range(10)).keys.tolist() == ranked[:3]


def test_nothing_to_keep_and_nothing_offered():
    rows, keys = rows_and_keys()
    none = Reservoir(3, 0).update(rows, keys)
    assert (none.rows.shape, none.n_seen) == ((0, 3), 500)
    empty = Reservoir(3, 4).update(torch.empty(0, 3), [])
    assert (empty.rows.shape, empty.n_seen, empty.rows.dtype) == ((0, 3), 0, torch.float32)
    assert same(empty.merge(Reservoir(3, 4).update(rows, keys)), Reservoir(3, 4).update(rows, keys))


def test_rows_of_one_key_are_told_apart_by_their_values():
    rows = torch.tensor([[2.0], [1.0], [3.0]])
    forwards, backwards = Reservoir(1, 2), Reservoir(1, 2)
    for order, into in ((range(3), forwards), ((2, 1, 0), backwards)):
        for i in order:
            into.update(rows[i : i + 1], [9])
    assert torch.equal(forwards.rows, backwards.rows)
    assert torch.equal(forwards.rows, Reservoir(1, 2).update(rows, [9, 9, 9]).rows)


def test_what_is_handed_out_and_in_is_not_shared():
    rows, keys = rows_and_keys(n=5)
    kept = Reservoir(3, 5).update(rows, keys)
    before = kept.rows
    rows.zero_()
    kept.rows.zero_()
    kept.copy().update(torch.ones(1, 3), [0])
    assert torch.equal(kept.rows, before)


def test_misuse_is_named():
    reservoir = Reservoir(3, 4)
    for rows, keys, message in (
        (torch.zeros(2, 4), [1, 2], "n x 3"),
        (torch.zeros(2, 3), [1], "one key per row"),
        (torch.zeros(2, 3), [0.5, 1.0], "integers"),
    ):
        with pytest.raises(TlAnisoError, match=message):
            reservoir.update(rows, keys)
    with pytest.raises(UndefinedMeasureError, match="not finite"):
        reservoir.update(torch.full((1, 3), float("nan")), [1])
    for other in (Reservoir(2, 4), Reservoir(3, 5), Reservoir(3, 4, seed=1)):
        with pytest.raises(MergeError, match="unlike runs"):
            reservoir.merge(other)
    with pytest.raises(TlAnisoError, match="hexadecimal"):
        row_keys("my document", [0])
    with pytest.raises(TlAnisoError, match="capacity"):
        Reservoir(3, -1)
    with pytest.raises(TlAnisoError, match="of no reservoir"):
        Reservoir.from_state(torch.zeros(2, 3), [1, 2], 9, 4)
