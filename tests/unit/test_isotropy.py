"""Isotropy against the IsoScore package and explicit eigenvalues; ablation against restricted covariances."""

import importlib
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.slow_numerics import isoscore_of_eigenvalues, restricted_eigenvalues
from tl_aniso import planes
from tl_aniso.ablation import ablate
from tl_aniso.errors import TlAnisoError, TlAnisoWarning, UndefinedMeasureError
from tl_aniso.isotropy import effective_rank, isoscore, isoscore_star, participation_ratio, top_share
from tl_aniso.subspace import normal_controls, random_planes

MEASURES = [participation_ratio, isoscore, isoscore_star, effective_rank, top_share]


def rows_of(n=400, d=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing + 1.5


def covariance_of(spectrum, seed=0):
    spectrum = torch.as_tensor(spectrum, dtype=torch.float64)
    rotation = random_planes(len(spectrum), len(spectrum), 1, seed=seed)[0]
    matrix = rotation @ torch.diag(spectrum) @ rotation.T
    return (matrix + matrix.T) / 2, rotation


# -- scores


@pytest.mark.parametrize("zeta", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("n", "d", "scale"), [(400, 10, 1.0), (60, 33, 1.0), (400, 10, 0.05), (400, 10, 1e-4)])
def test_parity_with_the_isoscore_package(zeta, n, d, scale):
    package = importlib.import_module("IsoScore.IsoScore")
    rows = scale * rows_of(n, d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it copies tensors in a way torch warns about
        theirs = package.IsoScore_star(rows, torch.eye(d, dtype=torch.float64), zeta)
        plain = package.IsoScore(rows)
    assert float(isoscore_star(rows, zeta=zeta, target="identity")) == pytest.approx(float(theirs), abs=1e-4)
    assert float(isoscore_star(rows, zeta=zeta, target=torch.eye(d))) == pytest.approx(float(theirs), abs=1e-4)
    assert float(isoscore(rows)) == pytest.approx(float(plain), abs=1e-4)


@pytest.mark.parametrize("spectrum", [[1.0, 1, 1, 1], [5.0, 1, 0.1], [1.0, 0, 0, 0, 0], [1e-9, 2e-9, 7e-9]])
def test_scores_of_known_spectra(spectrum):
    matrix, _ = covariance_of(spectrum)
    values = np.asarray(spectrum)
    ratio = values.sum() ** 2 / (values**2).sum()
    shares = values[values > 0] / values.sum()
    mixed = 0.7 * values + 0.3 * values.mean()
    assert float(participation_ratio(covariance=matrix)) == pytest.approx(ratio, rel=1e-10)
    assert float(isoscore(covariance=matrix)) == pytest.approx(isoscore_of_eigenvalues(values), abs=1e-10)
    assert float(isoscore(covariance=matrix)) == pytest.approx((ratio - 1) / (len(values) - 1), abs=1e-10)
    expected = isoscore_of_eigenvalues(mixed)
    assert float(isoscore_star(covariance=matrix, zeta=0.3)) == pytest.approx(expected, abs=1e-10)
    assert float(effective_rank(covariance=matrix)) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert float(top_share(covariance=matrix)) == pytest.approx(values.max() / values.sum(), rel=1e-10)


def test_points_are_samples_first_and_centred():
    rows = rows_of()
    covariance = torch.from_numpy(np.cov(rows.numpy().T))
    for measure in MEASURES:
        assert float(measure(rows)) == pytest.approx(float(measure(covariance=covariance)), rel=1e-10)
        assert float(measure(rows.numpy() + 1e3)) == pytest.approx(float(measure(rows)), rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    spectrum=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-170, 1e-12, 1.0, 1e9]),
)
def test_identities_bounds_and_invariances(spectrum, seed, scale):
    matrix, rotation = covariance_of(spectrum, seed)
    d = len(spectrum)
    ratio, plain, star = (float(f(covariance=matrix)) for f in (participation_ratio, isoscore, isoscore_star))
    assert 1 - 1e-9 <= ratio <= d + 1e-9
    assert plain == pytest.approx((ratio - 1) / (d - 1), abs=1e-9)
    assert plain - 1e-12 <= star <= 1 + 1e-12
    assert float(participation_ratio(covariance=scale * matrix)) == pytest.approx(ratio, rel=1e-9)
    assert float(isoscore_star(covariance=scale * matrix)) == pytest.approx(star, rel=1e-9, abs=1e-12)
    turned = rotation.T @ matrix @ rotation
    assert float(isoscore_star(covariance=(turned + turned.T) / 2)) == pytest.approx(star, rel=1e-8, abs=1e-10)
    assert float(isoscore_star(covariance=matrix, zeta=1.0)) == pytest.approx(1.0)
    # Participation ratio <= effective rank (Renyi entropies fall with their order).
    assert ratio <= float(effective_rank(covariance=matrix)) * (1 + 1e-9)


def test_the_identity_target_depends_on_the_unit_and_the_default_does_not():
    rows = 1e-6 * rows_of()
    assert float(isoscore_star(rows, target="identity")) > 0.9999
    assert float(isoscore_star(rows)) == pytest.approx(float(isoscore_star(1e6 * rows)), rel=1e-9)
    assert float(isoscore_star(rows)) < 0.9


@pytest.mark.parametrize("target", ["scaled_identity", "identity", torch.diag(torch.arange(1.0, 6.0).double())])
def test_scores_are_differentiable(target):
    rows = rows_of(30, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: isoscore_star(x, target=target), rows)
    assert torch.autograd.gradcheck(participation_ratio, rows)
    single = rows.detach().float().requires_grad_()
    score = isoscore_star(single)
    score.backward()
    assert score.dtype == torch.float32
    assert score.shape == ()
    assert single.grad.abs().sum() > 0


def test_isotropic_rows_are_biased_low_at_few_rows():
    generator = torch.Generator().manual_seed(0)
    scores = {m: float(isoscore(torch.randn(m * 40, 40, generator=generator))) for m in (2, 20)}
    assert scores[2] == pytest.approx(0.66, abs=0.04)
    assert scores[20] == pytest.approx(0.95, abs=0.02)


def test_a_likely_transposition_is_pointed_out():
    with pytest.warns(TlAnisoWarning, match="5 rows and 8 columns: read as 5 samples in 8 dimensions.*8 samples in 5"):
        isoscore(rows_of(5, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        isoscore(rows_of(8, 8))
        isoscore(covariance=torch.eye(3))


@pytest.mark.parametrize("measure", MEASURES)
def test_undefined_input_is_an_error_never_a_score(measure):
    constant = torch.full((50, 4), 0.1)
    holed = rows_of(50, 4)
    holed[3, 1] = math.nan
    for points in (constant, constant.double() * math.pi, torch.ones(1, 4), holed, holed * math.inf):
        with pytest.raises(UndefinedMeasureError):
            measure(points)
    for covariance in (torch.zeros(4, 4), torch.full((4, 4), math.nan)):
        with pytest.raises(UndefinedMeasureError):
            measure(covariance=covariance)
    for bad in ({}, {"points": rows_of(), "covariance": torch.eye(10)}):
        with pytest.raises(TlAnisoError, match="either points"):
            measure(**bad)
    with pytest.raises(TlAnisoError, match="samples first"):
        measure(torch.ones(4))


def test_misuse_is_named():
    with pytest.raises(UndefinedMeasureError, match="one dimension"):
        isoscore(torch.randn(9, 1))
    with pytest.raises(TlAnisoError, match="zeta"):
        isoscore_star(rows_of(), zeta=1.5)
    with pytest.raises(TlAnisoError, match="target"):
        isoscore_star(rows_of(), target="eye")
    with pytest.raises(TlAnisoError, match="10 x 10"):
        isoscore_star(rows_of(), target=torch.eye(9))
    with pytest.raises(TlAnisoError, match="not symmetric"):
        isoscore(covariance=torch.arange(9.0).reshape(3, 3))


# -- ablation


def expected_score(covariance, removed, zeta, order, space, target):
    """From eigenvalues inside the complement, in the order and space that are asked for."""
    values = restricted_eigenvalues(covariance.numpy(), removed.numpy())
    d, k = removed.shape
    emptied = np.zeros(k)
    if order == "remove_first":
        left = values if space == "complement" else np.concatenate([values, emptied])
        goal = left.mean() if target == "scaled_identity" else 1.0
        return isoscore_of_eigenvalues((1 - zeta) * left + zeta * goal)
    goal = float(covariance.trace()) / d if target == "scaled_identity" else 1.0
    left = (1 - zeta) * values + zeta * goal
    return isoscore_of_eigenvalues(left if space == "complement" else np.concatenate([left, emptied]))


@pytest.mark.parametrize("target", ["scaled_identity", "identity"])
@pytest.mark.parametrize("space", ["complement", "ambient"])
@pytest.mark.parametrize("order", ["remove_first", "shrink_first"])
@pytest.mark.parametrize("zeta", [0.0, 0.1])
def test_ablation_against_restricted_eigenvalues(order, space, target, zeta):
    covariance, rotation = covariance_of([90.0, 40, 8, 5, 3, 2, 1, 0.7, 0.5, 0.2, 0.1])
    tangent = rotation[:, :2]
    options = {"order": order, "space": space, "target": target}
    got = ablate(covariance, tangent, zeta=zeta, n_controls=7, seed=3, **options)
    goal = float(covariance.trace()) / 11 if target == "scaled_identity" else 1.0
    before = isoscore_of_eigenvalues((1 - zeta) * np.linalg.eigvalsh(covariance.numpy()) + zeta * goal)
    assert got.before == pytest.approx(before, abs=1e-10)
    assert got.without_tangent == pytest.approx(expected_score(covariance, tangent, zeta, **options), abs=1e-10)
    assert got.raw_without_tangent == pytest.approx(expected_score(covariance, tangent, 0.0, **options), abs=1e-10)
    controls = normal_controls(tangent, 7, seed=3)
    expected = [expected_score(covariance, control, zeta, **options) for control in controls]
    raw = [expected_score(covariance, control, 0.0, **options) for control in controls]
    np.testing.assert_allclose(got.without_normal, expected, atol=1e-10)
    np.testing.assert_allclose(got.raw_without_normal, raw, atol=1e-10)
    assert got.without_normal_mean == pytest.approx(np.mean(expected))
    assert got.without_normal_std == pytest.approx(np.std(expected, ddof=1))
    assert got.delta == pytest.approx(got.without_tangent - np.mean(expected))
    assert got.raw_delta == pytest.approx(got.raw_without_tangent - np.mean(raw))
    assert got.p_value == (1 + sum(e >= got.without_tangent for e in expected)) / 8
    assert (got.rank, got.d, got.n_controls) == (2, 11, 7)


def test_shrinking_first_manufactures_isotropy_under_a_massive_tangent():
    # One direction holds 99.9% of the variance: its scale enters the target before it is removed.
    rest = torch.logspace(0, -2, 63, dtype=torch.float64)
    covariance, rotation = covariance_of(torch.cat([1000 * rest.sum()[None], rest]))
    tangent = rotation[:, :1]
    first, late = (ablate(covariance, tangent, order=order) for order in ("remove_first", "shrink_first"))
    assert first.raw_without_tangent == late.raw_without_tangent
    assert first.without_tangent - first.raw_without_tangent < 0.1
    assert late.without_tangent > 0.99


@pytest.mark.parametrize("dominance", [1e3, 1e10])
def test_the_tangent_keeps_its_digits_under_any_dominance(dominance):
    rest = torch.linspace(1, 3, 15, dtype=torch.float64)
    spectrum = torch.cat([torch.tensor([dominance], dtype=torch.float64), rest])
    got = ablate(torch.diag(spectrum), torch.eye(16)[:, :1], n_controls=5)
    assert got.raw_without_tangent == pytest.approx(isoscore_of_eigenvalues(rest.numpy()), rel=1e-6)


def test_controls_that_empty_the_covariance_keep_their_digits():
    # The variance lies almost wholly in the complement's only plane: differences of traces would be rounding.
    spectrum = torch.tensor([1e-7, 2e-7, 1.0, 3.0], dtype=torch.float64)
    covariance, rotation = covariance_of(spectrum)
    got = ablate(covariance, rotation[:, :2], n_controls=3)
    np.testing.assert_allclose(got.raw_without_normal, isoscore_of_eigenvalues([1e-7, 2e-7]), rtol=1e-5)


def test_controls_in_several_chunks(monkeypatch):
    covariance, rotation = covariance_of(torch.linspace(1, 9, 40))
    tangent = rotation[:, :3]
    monkeypatch.setattr(planes, "_CHUNK", 7 * 40 * 3)
    got = ablate(covariance, tangent, n_controls=30, seed=1)
    controls = normal_controls(tangent, 30, seed=1)
    expected = [isoscore_of_eigenvalues(restricted_eigenvalues(covariance.numpy(), q.numpy())) for q in controls]
    np.testing.assert_allclose(got.raw_without_normal, expected, rtol=1e-10)
    assert len(set(np.round(expected, 12))) == 30


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-14, 1e-3, 1e8]))
def test_ablation_is_unitless_and_depends_on_the_plane_alone(seed, scale):
    covariance, rotation = covariance_of(torch.linspace(0.1, 9, 14), seed)
    tangent, spin = rotation[:, -3:], random_planes(3, 3, 1, seed=seed)[0]
    one = ablate(covariance, tangent, n_controls=6)
    other = ablate(scale * covariance, tangent, n_controls=6)
    spun = ablate(covariance, tangent @ spin, n_controls=6)
    for name in ("before", "without_tangent", "without_normal_mean", "raw_delta"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-12)
        assert getattr(spun, name) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-12)


def test_isotropic_rows_are_unchanged_by_any_removal():
    got = ablate(3 * torch.eye(12), torch.eye(12)[:, :4], n_controls=10)
    assert got.before == pytest.approx(1.0)
    assert got.without_tangent == pytest.approx(1.0)
    assert got.delta == pytest.approx(0.0, abs=1e-12)
    assert got.p_value == 1.0


def test_ablation_misuse_is_named():
    covariance, tangent = torch.eye(6), torch.eye(6)[:, :2]
    for options, message in (
        ({"order": "both"}, "order"),
        ({"space": "left"}, "space"),
        ({"target": "eye"}, "target"),
        ({"zeta": -0.1}, "zeta"),
        ({"n_controls": 0}, "n_controls"),
    ):
        with pytest.raises(TlAnisoError, match=message):
            ablate(covariance, tangent, **options)
    with pytest.raises(TlAnisoError, match=r"d // 2"):
        ablate(covariance, torch.eye(6)[:, :4])
    with pytest.raises(TlAnisoError, match="not orthonormal"):
        ablate(covariance, 2 * tangent)
    with pytest.raises(UndefinedMeasureError, match="tangent plane"):
        ablate(torch.diag(torch.tensor([1.0, 1, 0, 0, 0, 0])), tangent)
    with pytest.raises(UndefinedMeasureError, match="trace"):
        ablate(torch.zeros(6, 6), tangent)
