"""Mean cosine, partition isotropy and intrinsic dimension: closed forms, slow references, planted dimensions."""

import math
import sys

import numpy as np
import pytest
import torch

from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError
from tl_aniso.intrinsic import intrinsic_dimension
from tl_aniso.row_isotropy import UnitSum, mean_cosine, partition_isotropy


def cloud(n=80, d=6, mean=0.0, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean


# -- mean cosine


@pytest.mark.parametrize("mean", [0.0, 0.7])
def test_mean_cosine_is_the_mean_over_pairs(mean):
    rows = cloud(mean=mean)
    pairs = [float(rows[i] @ rows[j] / rows[i].norm() / rows[j].norm()) for i in range(len(rows)) for j in range(i)]
    assert float(mean_cosine(rows)) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert float(mean_cosine(rows * torch.rand(80, 1) * 1e-180)) == pytest.approx(sum(pairs) / len(pairs), abs=1e-9)
    assert mean_cosine(rows.float()).dtype == torch.float32


def test_mean_cosine_by_hand():
    up = torch.tensor([[1.0, 0.0], [5.0, 0.0], [-2.0, 0.0]])
    assert float(mean_cosine(up)) == pytest.approx(-1 / 3)
    assert float(mean_cosine(torch.tensor([[1.0, 1.0], [3.0, 3.0]]))) == pytest.approx(1.0)
    # Zero rows have no direction: they are no orthogonal ones.
    assert float(mean_cosine(torch.cat([up, torch.zeros(4, 2)]))) == pytest.approx(-1 / 3)


def test_unit_sums_add_up():
    rows = torch.cat([cloud(mean=0.3), torch.zeros(3, 6, dtype=torch.float64)])
    whole = UnitSum(6).update(rows)
    parts = (
        UnitSum(6).update(rows[50:].numpy()).merge(UnitSum(6).update(rows[:20])).merge(UnitSum(6).update(rows[20:50]))
    )
    assert (whole.count, whole.n_zero) == (parts.count, parts.n_zero) == (80, 3)
    torch.testing.assert_close(whole.sum, parts.sum, rtol=1e-12, atol=1e-13)
    assert whole.mean_cosine() == pytest.approx(float(mean_cosine(rows)), abs=1e-14)
    stored = UnitSum.from_sums(whole.sum, whole.count, whole.n_zero)
    whole.sum.zero_()
    assert stored.mean_cosine() == whole.mean_cosine()
    with pytest.raises(MergeError, match="6 and 5"):
        whole.merge(UnitSum(5))
    with pytest.raises(UndefinedMeasureError, match="got 1"):
        UnitSum(6).update(rows[:1]).mean_cosine()
    with pytest.raises(UndefinedMeasureError, match="not finite"):
        UnitSum(6).update(torch.full((2, 6), math.inf))
    with pytest.raises(TlAnisoError, match="n x 6"):
        UnitSum(6).update(torch.zeros(2, 5))


def test_mean_cosine_is_differentiable():
    rows = cloud(n=7, d=4).requires_grad_()
    assert torch.autograd.gradcheck(mean_cosine, rows)


# -- partition isotropy


@pytest.mark.parametrize("scale", ["rms", "none"])
def test_partition_isotropy_is_its_definition(scale):
    rows = cloud(mean=0.2).numpy() * np.array([1.0, 0.5, 2.0, 1.0, 0.3, 1.0])
    unit = np.sqrt((rows**2).mean()) if scale == "rms" else 1.0
    sums = []
    for vector in np.linalg.svd(rows)[2]:
        for sign in (1, -1):
            sums.append(sum(math.exp(sign * float(vector @ row) / unit) for row in rows))
    assert float(partition_isotropy(rows, scale=scale)) == pytest.approx(min(sums) / max(sums), rel=1e-9)


def test_partition_isotropy_of_known_clouds():
    generator = torch.Generator().manual_seed(0)
    isotropic = torch.randn(200_000, 4, generator=generator)
    assert float(partition_isotropy(isotropic)) > 0.97
    # Z of N(0, s^2) rows is n exp(s^2 / 2).
    stretched = isotropic * torch.tensor([1.0, 1.0, 1.0, 1.6])
    assert float(partition_isotropy(stretched, scale="none")) == pytest.approx(math.exp((1 - 1.6**2) / 2), rel=0.06)
    shifted = isotropic + torch.tensor([1.0, 0.0, 0.0, 0.0])
    # Towards the mean exp(1/2 + 1), away from it exp(1/2 - 1).
    assert float(partition_isotropy(shifted, scale="none")) == pytest.approx(math.exp(-2), rel=0.06)


def test_units_and_signs_do_not_matter_and_nothing_overflows():
    rows = cloud(mean=0.4)
    one = float(partition_isotropy(rows))
    for unit in (1e-200, 1e-6, -1.0, 1e200):
        assert float(partition_isotropy(rows * unit)) == pytest.approx(one, rel=1e-9)
    assert float(partition_isotropy(rows * 1e4, scale="none")) == 0.0
    assert float(partition_isotropy(rows * 1e-9, scale="none")) == pytest.approx(1.0)
    with pytest.raises(TlAnisoError, match="scale"):
        partition_isotropy(rows, scale="unit")


# -- undefined input


@pytest.mark.parametrize("measure", [mean_cosine, partition_isotropy, intrinsic_dimension])
def test_undefined_input_is_a_typed_error(measure):
    for rows, message in (
        (torch.ones(1, 4), "two rows"),
        (torch.ones(9, 4), "are equal"),
        (torch.full((9, 4), math.nan), "not finite"),
    ):
        with pytest.raises(UndefinedMeasureError, match=message):
            measure(rows)
    with pytest.raises(TlAnisoError, match="n x d"):
        measure(torch.ones(4))


# -- intrinsic dimension


@pytest.fixture
def skdim():
    return pytest.importorskip("skdim", reason="scikit-dimension is not installed: pip install 'tl_aniso[dimension]'")


@pytest.mark.parametrize("method", ["TwoNN", "MLE", "lPCA"])
@pytest.mark.parametrize("k", [2, 5])
def test_planted_dimensions(skdim, method, k):
    generator = np.random.default_rng(0)
    plane = np.linalg.qr(generator.standard_normal((32, k)))[0]
    rows = generator.uniform(-1, 1, size=(1500, k)) @ plane.T
    assert intrinsic_dimension(rows, method=method) == pytest.approx(k, rel=0.12)
    # Far from the origin, in another unit, in float32.
    moved = torch.as_tensor(rows * 1e-3 + 5.0, dtype=torch.float64)
    assert intrinsic_dimension(moved, method=method) == pytest.approx(
        intrinsic_dimension(rows, method=method), rel=1e-6
    )


def test_curved_surfaces_count_their_own_dimensions(skdim):
    rows = np.random.default_rng(0).standard_normal((2000, 3))
    sphere = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert intrinsic_dimension(sphere) == pytest.approx(2, rel=0.1)
    assert intrinsic_dimension(sphere, method="MLE", K=20) == pytest.approx(2, rel=0.1)
    assert intrinsic_dimension(sphere, method="lPCA") == 3


def test_repeated_rows_count_once(skdim):
    rows = np.random.default_rng(0).standard_normal((400, 3))
    assert intrinsic_dimension(np.vstack([rows, rows, rows[:50]])) == intrinsic_dimension(rows)
    with pytest.raises(UndefinedMeasureError, match="10 different rows or more, got 3"):
        intrinsic_dimension(np.vstack([rows[:3]] * 20))


def test_what_scikit_dimension_refuses_is_named(skdim):
    rows = cloud()
    with pytest.raises(TlAnisoError, match="cannot estimate"):
        intrinsic_dimension(rows, method="TwoNN", no_such_option=1)


def test_methods_are_known_by_name_and_the_package_is_asked_for(monkeypatch):
    with pytest.raises(TlAnisoError, match="TwoNN, MLE, lPCA"):
        intrinsic_dimension(cloud(), method="PCA")
    monkeypatch.setitem(sys.modules, "skdim", None)
    with pytest.raises(TlAnisoError, match=r"tl_aniso\[dimension\]"):
        intrinsic_dimension(cloud())
