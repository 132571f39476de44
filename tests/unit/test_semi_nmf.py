"""Semi-NMF: scikit-learn's own checks, a monotone objective, planted mixtures, and optimal weights."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, TruncatedSVD
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from tl_aniso.semi_nmf import SemiNMF


@parametrize_with_checks([SemiNMF(random_state=0)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def planted(n=600, d=20, k=4, noise=0.0, seed=0):
    """Rows that each lean on one of k directions of mixed signs and mix in the others, with nonnegative weights."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((k, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    weights = generator.exponential(0.15, size=(n, k)) + np.eye(k)[np.arange(n) % k] * generator.uniform(1, 3, (n, 1))
    return weights @ directions + noise * generator.standard_normal((n, d)), directions, weights


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_planted_mixtures_come_back(noise):
    rows, directions, weights = planted(noise=noise)
    model = SemiNMF(4, random_state=0).fit(rows)
    cosines = model.components_ @ directions.T
    found, true = linear_sum_assignment(-cosines)
    # Signs count: a direction and its opposite mix differently.
    assert cosines[found, true].min() > 0.98
    mixed = model.transform(rows)
    assert np.corrcoef(mixed[:, found].ravel(), weights[:, true].ravel())[0, 1] > 0.98
    # The span alone would not do: principal directions of the same span are not these.
    svd = TruncatedSVD(4, random_state=0).fit(rows).components_
    assert np.abs(svd @ directions.T).max(axis=0).min() < 0.9


def test_the_objective_never_rises_and_is_what_it_says():
    rows = np.random.default_rng(0).standard_normal((150, 12)) + 0.5
    model = SemiNMF(5, random_state=0, tol=0.0, max_iter=300)
    weights = model.fit_transform(rows)
    steps = np.diff(model.objectives_)
    assert (steps <= 1e-9 * model.objectives_[0]).all()
    assert len(model.objectives_) == model.n_iter_ + 1
    error = np.square(rows - weights @ model.components_).sum()
    assert model.reconstruction_err_**2 == pytest.approx(error)
    # Weights are optimal for their directions, so the end is at or below the last update.
    assert error <= model.objectives_[-1] * (1 + 1e-9)
    assert model.objectives_[-1] < 0.9 * model.objectives_[0]


def test_it_does_at_least_as_well_as_its_neighbours():
    # Nonnegative H is a special case of any H; k-means a special case of nonnegative W; rank k bounds all from below.
    rows, _, _ = planted(noise=0.1)
    mine = SemiNMF(4, random_state=0, max_iter=2000).fit(rows).reconstruction_err_
    below = np.sqrt((np.linalg.svd(rows, compute_uv=False)[4:] ** 2).sum())
    assert below <= mine < np.sqrt(KMeans(4, n_init=4, random_state=0).fit(rows).inertia_)
    positive = np.abs(rows)
    theirs = NMF(4, init="random", random_state=0, max_iter=2000).fit(positive).reconstruction_err_
    assert SemiNMF(4, random_state=0, max_iter=2000).fit(positive).reconstruction_err_ <= theirs * 1.01


def test_weights_are_the_optimum():
    rows, _, _ = planted(n=60, noise=0.2)
    model = SemiNMF(4, random_state=0).fit(rows)
    weights, directions = model.transform(rows), model.components_
    gradient = (weights @ directions - rows) @ directions.T
    assert (weights >= 0).all()
    assert (gradient > -1e-9).all()
    assert np.abs(gradient[weights > 0]).max() < 1e-9
    np.testing.assert_allclose(model.inverse_transform(weights), weights @ directions)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0)


def test_one_component_is_solved_by_hand():
    # All rows on one ray: W H is exact, and H is the ray, not its opposite.
    ray = np.array([0.6, -0.8])
    model = SemiNMF(1, random_state=0).fit(np.outer([1.0, 2.0, 5.0], ray))
    np.testing.assert_allclose(model.components_, [ray], atol=1e-12)
    np.testing.assert_allclose(model.transform([ray * 3, -ray]), [[3.0], [0.0]], atol=1e-12)


@pytest.mark.parametrize("unit", [1e-6, 1e8])
def test_units_do_not_matter(unit):
    rows, _, _ = planted(noise=0.05)
    one, other = SemiNMF(4, random_state=0).fit(rows), SemiNMF(4, random_state=0).fit(rows * unit)
    np.testing.assert_allclose(other.components_, one.components_, atol=1e-6)


def test_misuse_is_named():
    rows = np.ones((5, 3))
    for k in (0, 6, 2.5, True):
        with pytest.raises(ValueError, match="between 1 and n_samples=5"):
            SemiNMF(k).fit(rows)
    with pytest.raises(ValueError, match="max_iter"):
        SemiNMF(2, max_iter=0).fit(rows)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 "):
        SemiNMF(3, max_iter=1, tol=1e-12, random_state=0).fit(planted(noise=0.3)[0])
