"""Proxies of scikit-learn decompositions fitted on kept rows: the planes they must span, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import (
    NMF,
    PCA,
    DictionaryLearning,
    FactorAnalysis,
    FastICA,
    IncrementalPCA,
    KernelPCA,
    MiniBatchDictionaryLearning,
    SparsePCA,
    TruncatedSVD,
)

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.estimators import SavedEstimator, orthonormal_span
from tl_aniso.moments import Moments
from tl_aniso.semi_nmf import SemiNMF
from tl_aniso.subspace import TangentProxies, fit_pca, fit_tangent_proxies, principal_cosines, random_planes

SITE, OTHER = "blocks.0.attn.input", "blocks.0.mlp.input"
D, K = 24, 4


def planted(n=500, mean=0.0, seed=0, noise=0.02):
    """Rows near a K-plane, with independent heavy-tailed coordinates in it, and the plane."""
    generator = np.random.default_rng(seed)
    plane = random_planes(D, K, 1, seed=9)[0].numpy()
    inside = generator.laplace(size=(n, K)) * np.array([3.0, 2.5, 2.0, 1.5]) + mean
    return inside @ plane.T + noise * generator.standard_normal((n, D)), plane


def capture_of(rows, sites=(SITE,), kept=True):
    rows = torch.as_tensor(rows, dtype=torch.float32)
    half = SimpleNamespace(
        activations={site: Moments(rows.shape[1]).update(rows) for site in sites},
        rows=dict.fromkeys(sites, rows) if kept else {},
        halves=("A",),
    )
    return SimpleNamespace(fitting_half=lambda: half, metadata={"model": "toy"}, in_sample=False)


@pytest.mark.parametrize(
    "estimator",
    [
        TruncatedSVD(),
        FastICA(),
        FactorAnalysis(),
        IncrementalPCA(),
        SparsePCA(alpha=0.01, max_iter=20),
        MiniBatchDictionaryLearning(alpha=0.1, max_iter=20),
        DictionaryLearning(alpha=0.1, max_iter=5, transform_algorithm="lasso_cd"),
        SemiNMF(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_planted_plane_comes_back(estimator):
    rows, plane = planted()
    before = repr(estimator)
    proxy = fit_tangent_proxies(capture_of(rows), K, estimator=estimator)[SITE]
    assert (proxy.rank, proxy.requested_rank) == (K, K)
    torch.testing.assert_close(proxy.basis.T @ proxy.basis, torch.eye(K, dtype=torch.float64), atol=1e-12, rtol=0)
    assert principal_cosines(proxy.basis, plane).min() > 0.99
    assert type(proxy.estimator) is type(estimator)
    # The plane is that of the components, not of the rows.
    span = np.linalg.qr(proxy.estimator.components_.T)[0]
    assert principal_cosines(proxy.basis, span).min() > 1 - 1e-8
    assert repr(estimator) == before
    assert not hasattr(estimator, "components_")
    assert proxy.provenance["estimator"].endswith(type(estimator).__name__)
    assert proxy.provenance["parameters"]["n_components"] == K
    assert proxy.provenance["rows"] == 500
    with pytest.raises(TlAnisoError, match=r"use \.estimator"):
        _ = proxy.pca


def test_nmf_takes_rows_of_no_negative_entry_and_names_the_way_out():
    rows, _ = planted()
    with pytest.raises(
        TlAnisoError, match=r"NMF.* cannot be fitted to the rows at blocks\.0\.attn\.input: Negative.*SemiNMF"
    ):
        fit_tangent_proxies(capture_of(rows), K, estimator=NMF())
    generator = np.random.default_rng(0)
    parts = np.abs(generator.standard_normal((K, D)))
    positive = generator.exponential(size=(400, K)) @ parts
    proxy = fit_tangent_proxies(capture_of(positive), K, estimator=NMF(max_iter=1000))[SITE]
    assert principal_cosines(proxy.basis, np.linalg.qr(parts.T)[0]).min() > 0.98
    assert not proxy.centred


def test_centring_is_the_estimators_own():
    # A mean outside the plane: TruncatedSVD takes it for a direction, FastICA does not.
    rows, plane = planted()
    away = random_planes(D, D, 1, seed=2)[0].numpy()
    outside = away[:, 0] - plane @ (plane.T @ away[:, 0])
    outside = outside / np.linalg.norm(outside)
    shifted = capture_of(rows + 50 * outside)
    for estimator, share, centred in ((TruncatedSVD(), 1.0, False), (SemiNMF(), 1.0, False), (FastICA(), 0.0, True)):
        proxy = fit_tangent_proxies(shifted, K, estimator=estimator)[SITE]
        assert np.square(outside @ proxy.basis.numpy()).sum() == pytest.approx(share, abs=0.02)
        assert proxy.centred == centred
    for choice in ({"centred": False}, {"pool": "covariance"}):
        with pytest.raises(TlAnisoError, match="choices of PCA"):
            fit_tangent_proxies(shifted, K, estimator=TruncatedSVD(), **choice)


def test_truncated_svd_is_uncentred_pca():
    rows, _ = planted(mean=1.0, noise=0.5)
    float32 = torch.as_tensor(rows, dtype=torch.float32)
    exact = fit_pca(Moments(D).update(float32), K, centred=False)
    proxy = fit_tangent_proxies(capture_of(rows), K, estimator=TruncatedSVD(algorithm="arpack"))[SITE]
    assert principal_cosines(proxy.basis, exact.components_.T.copy()).min() > 1 - 1e-9
    lower = proxy.at_rank(2)
    assert principal_cosines(lower.basis, exact.components_[:2].T.copy()).min() > 1 - 1e-8
    assert lower.estimator is proxy.estimator


def test_ranks_come_from_the_argument_the_estimator_or_the_default():
    captures = capture_of(planted()[0])
    assert fit_tangent_proxies(captures, 3, estimator=TruncatedSVD(5))[SITE].rank == 3
    assert fit_tangent_proxies(captures, estimator=TruncatedSVD(5))[SITE].rank == 5
    assert fit_tangent_proxies(captures, estimator=FastICA())[SITE].rank == D // 4
    with pytest.raises(TlAnisoError, match="rank 13 is outside"):
        fit_tangent_proxies(captures, estimator=TruncatedSVD(13))


@pytest.mark.parametrize("estimator", [TruncatedSVD(), FastICA(), SemiNMF()], ids=lambda e: type(e).__name__)
def test_rows_of_fewer_directions_shrink_the_rank_and_say_so(estimator):
    rows, plane = planted(noise=0.0)
    proxy = fit_tangent_proxies(capture_of(rows), 6, estimator=estimator)[SITE]
    assert (proxy.rank, proxy.requested_rank) == (K, 6)
    assert principal_cosines(proxy.basis, plane).min() > 0.999
    assert f"rank 6 was asked for; the rows at {SITE} have {K} directions" in proxy.notes


def test_components_that_span_less_shrink_the_rank_and_say_so():
    # Strong sparsity leaves the weak coordinates out.
    rows = np.random.default_rng(0).standard_normal((300, D)) * np.where(np.arange(D) < 3, 10.0, 0.01)
    proxy = fit_tangent_proxies(capture_of(rows), 6, estimator=SparsePCA(alpha=5.0))[SITE]
    assert proxy.rank == 3
    assert "the components at" in proxy.notes[-1]


def test_spans_are_orthonormal_in_order():
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, 5))
    basis = orthonormal_span([first, 2 * first, np.zeros(5), first + 1e-5 * second], SITE)
    assert basis.shape == (5, 2)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-14)
    assert abs(basis[:, 0] @ first) == pytest.approx(np.linalg.norm(first))
    with pytest.raises(UndefinedMeasureError, match="all zero"):
        orthonormal_span(np.zeros((2, 5)), SITE)
    with pytest.raises(UndefinedMeasureError, match="not finite"):
        orthonormal_span([[np.nan, 1.0]], SITE)


def test_checkpoints_pool_their_rows():
    one, plane = planted(n=200, seed=1)
    two, _ = planted(n=300, seed=2)
    proxy = fit_tangent_proxies([capture_of(one), capture_of(two)], K, estimator=FactorAnalysis())[SITE]
    assert proxy.provenance["rows"] == 500
    expected = FactorAnalysis(K, random_state=0).fit(np.vstack([one, two]).astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(proxy.estimator.components_, expected.components_, atol=1e-8)
    assert principal_cosines(proxy.basis, plane).min() > 0.99


def test_the_same_call_gives_the_same_plane_and_says_how():
    captures = capture_of(planted()[0])
    first, second = (fit_tangent_proxies(captures, K, estimator=FastICA())[SITE] for _ in range(2))
    assert torch.equal(first.basis, second.basis)
    assert first.provenance["parameters"]["random_state"] == 0
    assert first.provenance["parameters"]["whiten"] == "unit-variance"
    loud = fit_tangent_proxies(captures, K, estimator=FastICA(max_iter=1, tol=1e-12))[SITE]
    assert "did not converge" in loud.notes[0]


def test_what_cannot_be_used_is_refused():
    rows, _ = planted()
    held = capture_of(rows)
    for estimator, message in (
        (object(), "not supported"),
        (TruncatedSVD, "not supported"),
        (TruncatedSVD(3).fit(rows), "fitted already"),
        (KernelPCA(3), "no components_"),
        (TruncatedSVD(2.5), "give an integer"),
    ):
        with pytest.raises(TlAnisoError, match=message):
            fit_tangent_proxies(held, estimator=estimator)
    bare = SimpleNamespace(activations=held.fitting_half().activations)
    for empty in (capture_of(rows, kept=False), SimpleNamespace(**{**vars(held), "fitting_half": lambda: bare})):
        with pytest.raises(TlAnisoError, match=r"kept none at blocks\.0\.attn\.input; capture again with keep_rows"):
            fit_tangent_proxies(empty, estimator=FastICA())
    with pytest.raises(UndefinedMeasureError, match="constant"):
        fit_tangent_proxies(capture_of(np.ones((9, D))), 2, estimator=TruncatedSVD())


def test_saving_without_pickle(tmp_path):
    held = capture_of(planted()[0], sites=(SITE, OTHER))
    proxies = fit_tangent_proxies(held, K, estimator=FastICA(fun="exp"))
    mixed = TangentProxies([proxies[SITE].at_rank(3), fit_tangent_proxies(held, K)[OTHER]])
    saved = mixed.save(tmp_path / "proxies")
    assert sorted(path.name for path in saved.iterdir()) == ["proxies.json", "proxies.safetensors"]
    loaded = TangentProxies.load(saved)
    for site in (SITE, OTHER):
        assert torch.equal(loaded[site].basis, mixed[site].basis)
        assert loaded[site].proxy_id == mixed[site].proxy_id
        assert loaded[site].centred == mixed[site].centred
    ica = loaded[SITE].estimator
    assert isinstance(ica, SavedEstimator)
    assert ica.name == "sklearn.decomposition.FastICA"
    assert ica.get_params()["fun"] == "exp"
    np.testing.assert_array_equal(ica.components_, proxies[SITE].estimator.components_)
    assert isinstance(loaded[OTHER].pca, PCA)
    again = TangentProxies.load(loaded.save(tmp_path / "again"))[SITE]
    assert again.estimator.parameters == ica.parameters
    assert again.proxy_id == mixed[SITE].proxy_id


def test_files_of_version_1_are_still_read(tmp_path):
    saved = fit_tangent_proxies(capture_of(planted()[0]), K).save(tmp_path / "p")
    index = json.loads((saved / "proxies.json").read_text())
    assert index["version"] == 2
    (saved / "proxies.json").write_text(json.dumps({**index, "version": 1}))
    assert TangentProxies.load(saved)[SITE].rank == K
