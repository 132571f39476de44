"""Moments by token type against a slow reference: regrouped, merged, stored, and with offsets that naive sums lose."""

import numpy as np
import pandas as pd
import pytest
import torch

from tl_aniso import TlAnisoError
from tl_aniso.errors import MergeError, UndefinedMeasureError
from tl_aniso.frequency import TypeMoments

TYPES, WIDTH, ROWS = 60, 24, 3000


def data(dtype=torch.float64, *, offset=0.0, apart=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, TYPES - 4, dtype=torch.float64)  # the last five types never come
    ids = torch.multinomial(weights, ROWS, replacement=True, generator=generator)
    centres = apart * torch.randn(TYPES, WIDTH, dtype=torch.float64, generator=generator)
    rows = centres[ids] + torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator) + offset
    return ids, rows.to(dtype)


def slow(ids, rows):
    """Type by type, in float64."""
    count, mean = np.zeros(TYPES, dtype=int), np.full((TYPES, WIDTH), np.nan)
    squares = np.zeros(TYPES)
    for kind in range(TYPES):
        mine = rows[ids == kind].double().numpy()
        count[kind] = len(mine)
        if len(mine):
            mean[kind] = mine.mean(0)
            squares[kind] = ((mine - mine.mean(0)) ** 2).sum()
    return count, mean, squares


def close(found, expected, tolerance):
    count, mean, squares = expected
    assert found.count.tolist() == count.tolist()
    assert np.isnan(found.mean.numpy()[count == 0]).all()
    seen = count > 0
    assert np.abs(found.mean.numpy() - mean)[seen].max() <= tolerance * np.abs(mean[seen]).max()
    assert np.abs(found.squares.numpy() - squares).max() <= tolerance * squares.max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("chunks", [[ROWS], [1] * 40 + [ROWS - 40], [700] * 4 + [200], [0, 1500, 0, 1500]])
def test_any_chunking_gives_the_moments_of_all_rows(dtype, tolerance, chunks):
    ids, rows = data(dtype)
    found = TypeMoments(TYPES, WIDTH)
    for some, mine in zip(ids.split(chunks), rows.split(chunks), strict=True):
        found.update(some, mine)
    close(found, slow(ids, rows), tolerance)


@pytest.mark.parametrize("apart", [0.0, 100.0])
def test_offsets_of_columns_and_types_cost_no_digits(apart):
    ids, rows = data(torch.float32, offset=3000.0, apart=apart)
    found = TypeMoments(TYPES, WIDTH)
    for some, mine in zip(ids.split(97), rows.split(97), strict=True):
        found.update(some, mine)
    _, mean, squares = slow(ids, rows)
    seen = squares > 0
    # The rows as they are, rounded to float32 around 3000: of these no digit is lost.
    assert np.abs(found.squares.numpy()[seen] / squares[seen] - 1).max() < 2e-6
    assert np.nanmax(np.abs(found.mean.numpy() - mean)) < 2e-5


def test_order_of_rows_does_not_matter():
    ids, rows = data(torch.float32)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(3))
    one, other = TypeMoments(TYPES, WIDTH).update(ids, rows), TypeMoments(TYPES, WIDTH).update(ids[order], rows[order])
    assert torch.allclose(one.squares, other.squares, rtol=1e-6, atol=0)
    assert torch.equal(one.count, other.count)


def test_merge_is_addition_and_leaves_the_other_alone():
    ids, rows = data()
    parts = [TypeMoments(TYPES, WIDTH).update(i, r + 0) for i, r in zip(ids.split(1000), rows.split(1000), strict=True)]
    before = parts[1].squares
    close(parts[0] + parts[1] + parts[2], slow(ids, rows), 1e-12)
    close(parts[2] + (parts[1] + parts[0]), slow(ids, rows), 1e-12)
    assert torch.equal(parts[1].squares, before)
    close(TypeMoments(TYPES, WIDTH) + parts[0] + TypeMoments(TYPES, WIDTH), slow(ids[:1000], rows[:1000]), 1e-12)


def test_variance_is_pandas_unbiased_one():
    ids, rows = data()
    found = TypeMoments(TYPES, WIDTH).update(ids, rows).variance()
    expected = pd.DataFrame(rows.numpy()).groupby(ids.numpy()).var(ddof=1).sum(axis=1, min_count=WIDTH)
    for kind in range(TYPES):
        if kind in expected.index and np.isfinite(expected[kind]):
            assert float(found[kind]) == pytest.approx(expected[kind], rel=1e-12)
        else:
            assert bool(found[kind].isnan())


def test_files_hold_all_of_it(tmp_path):
    ids, rows = data()
    held = TypeMoments(TYPES, WIDTH).update(ids[:2000], rows[:2000])
    again = TypeMoments.load(held.save(tmp_path / "moments.safetensors"))
    close(again.update(ids[2000:], rows[2000:]), slow(ids, rows), 1e-12)
    empty = TypeMoments.load(TypeMoments(TYPES, WIDTH).save(tmp_path / "empty.safetensors"))
    close(empty.update(ids, rows), slow(ids, rows), 1e-12)
    (tmp_path / "broken.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(TlAnisoError, match="broken"):
        TypeMoments.load(tmp_path / "broken.safetensors")
    with pytest.raises(TlAnisoError, match="absent"):
        TypeMoments.load(tmp_path / "absent.safetensors")


def test_half_precision_rows_and_rows_of_a_graph():
    ids, rows = data(torch.float32)
    half = rows.bfloat16()
    found = TypeMoments(TYPES, WIDTH).update(ids, half.requires_grad_())
    close(found, slow(ids, half.detach()), 1e-6)
    with torch.inference_mode():
        found = TypeMoments(TYPES, WIDTH).update(ids, rows)
    close(found.update(ids[:0], rows[:0]), slow(ids, rows), 1e-6)


def test_one_row_that_is_not_finite_adds_nothing():
    ids, rows = data(torch.float32)
    found = TypeMoments(TYPES, WIDTH).update(ids, rows)
    before = found.squares
    bad = rows.clone()
    bad[-1, 3] = float("nan")
    with pytest.raises(UndefinedMeasureError, match="1 of 3000 rows"):
        found.update(ids, bad)
    assert torch.equal(found.squares, before)
    assert found.count.sum() == ROWS


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([0, 1], torch.zeros(2, 5), "n x 24"),
        ([0], torch.zeros(2, WIDTH), "one type for each of 2 rows"),
        ([0, TYPES], torch.zeros(2, WIDTH), "between 0 and 59"),
        ([0, -1], torch.zeros(2, WIDTH), "between 0 and 59"),
        ([0.5, 1.0], torch.zeros(2, WIDTH), "integers"),
        ("ab", torch.zeros(2, WIDTH), "one type|integers"),
    ],
)
def test_wrong_arguments_are_named(ids, rows, message):
    with pytest.raises(TlAnisoError, match=message):
        TypeMoments(TYPES, WIDTH).update(ids, rows)


def test_unlike_moments_do_not_merge():
    with pytest.raises(MergeError, match="widths"):
        TypeMoments(3, 2).merge(TypeMoments(3, 4))
    with pytest.raises(MergeError, match="str"):
        TypeMoments(3, 2).merge("other")
    with pytest.raises(TlAnisoError, match="n_types"):
        TypeMoments(0, 2)
