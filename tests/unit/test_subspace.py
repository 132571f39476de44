"""Planes and proxies against scikit-learn, planted planes, and their own invariances."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tl_aniso.errors import MergeError, SiteError, TlAnisoError, UndefinedMeasureError
from tl_aniso.moments import Moments
from tl_aniso.subspace import (
    TangentProxies,
    TangentProxy,
    check_rank,
    default_rank,
    fit_pca,
    fit_tangent_proxies,
    normal_controls,
    principal_cosines,
    random_planes,
)

SITE = "blocks.0.attn.input"


def anisotropic_rows(n=600, d=48, seed=0, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    spectrum = torch.logspace(0.5, -1.5, d, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) * spectrum @ rotation + mean


def capture_of(rows, site=SITE, **metadata):
    half = SimpleNamespace(activations={site: Moments(rows.shape[1]).update(rows)})
    return SimpleNamespace(fitting_half=lambda: half, metadata=metadata)


# -- planes


@pytest.mark.parametrize(("d", "k"), [(12, 1), (12, 6), (40, 16), (5, 5)])
def test_random_planes_are_orthonormal(d, k):
    planes = random_planes(d, k, 50, seed=3)
    eye = torch.eye(k, dtype=torch.float64).expand(50, k, k)
    torch.testing.assert_close(planes.mT @ planes, eye, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(12, 1), (12, 6), (40, 16), (33, 16)])
def test_normal_controls_are_orthonormal_and_orthogonal_to_the_tangent(d, k):
    tangent = random_planes(d, k, 1, seed=1)[0]
    controls = normal_controls(tangent, 50, seed=2)
    eye = torch.eye(k, dtype=torch.float64).expand(50, k, k)
    torch.testing.assert_close(controls.mT @ controls, eye, rtol=0, atol=1e-12)
    assert float((tangent.T @ controls).abs().max()) < 1e-12


def test_planes_are_uniform():
    # Haar: the mean projector is (k/m) times the identity, and the squared entries follow Beta(1/2, (m-1)/2).
    d, k, n = 10, 3, 8000
    tangent = random_planes(d, 2, 1, seed=5)[0]
    complement = torch.eye(d, dtype=torch.float64) - tangent @ tangent.T
    for planes, space, m in ((random_planes(d, k, n, seed=0), torch.eye(d), d), (None, complement, d - 2)):
        if planes is None:
            planes = torch.cat([normal_controls(random_planes(d, 2, 1, seed=5)[0], n, seed=0)])
            k = 2
        projector = torch.einsum("nik,njk->ij", planes, planes) / n
        assert float((projector - space * k / m).abs().max()) < 4 * np.sqrt(k / m / n)
        axis = space[0].double() / space[0].norm()
        shares = torch.einsum("i,nik->nk", axis, planes).square().sum(1)
        # Beta(k/2, (m-k)/2)
        assert float(shares.var()) == pytest.approx(2 * k * (m - k) / (m * m * (m + 2)), rel=0.1)


def test_frames_are_uniform_not_only_their_spans():
    # Householder QR leaves the signs of its first column to the arithmetic; a Haar frame has mean zero.
    frames = random_planes(6, 2, 4000, seed=0)
    assert float(frames.mean(0).abs().max()) < 5 / np.sqrt(6 * 4000)


def test_planes_depend_on_the_seed_alone():
    before = torch.random.get_rng_state()
    first = random_planes(20, 4, 30, seed=7)
    assert torch.equal(first, random_planes(20, 4, 30, seed=7))
    assert not torch.allclose(first, random_planes(20, 4, 30, seed=8))
    assert torch.equal(before, torch.random.get_rng_state())


def test_ranks_without_room_are_refused():
    with pytest.raises(TlAnisoError, match="complement"):
        normal_controls(torch.eye(9)[:, :5], 3)
    with pytest.raises(TlAnisoError, match="orthonormal"):
        normal_controls(torch.ones(9, 2), 3)
    with pytest.raises(TlAnisoError, match="does not fit"):
        random_planes(4, 5, 1)
    with pytest.raises(TlAnisoError, match=r"rank 9 .* 8 .*d = 16"):
        check_rank(9, 16)
    with pytest.raises(TlAnisoError, match="rank 0"):
        check_rank(0, 16)
    assert check_rank(8, 16) == 8
    assert [default_rank(d) for d in (2, 8, 48, 64, 576)] == [1, 2, 12, 16, 16]


# -- PCA


@pytest.mark.parametrize("mean", [0.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity_with_scikit_learns_full_solver(mean, dtype):
    rows = anisotropic_rows(mean=mean).to(dtype)
    exact = PCA(12, svd_solver="full").fit(rows.double().numpy())
    moments = Moments(48)
    for batch in rows.split(100):
        moments.update(batch)
    ours = fit_pca(moments, 12)
    assert principal_cosines(ours.components_.T.copy(), exact.components_.T.copy()).min() > 0.9999
    tight = 1e-8 if dtype == torch.float64 else 2e-3
    np.testing.assert_allclose(ours.components_, exact.components_, atol=tight)  # signs too
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(exact, name), rtol=1e-4, atol=1e-5, err_msg=name)
    assert (ours.n_components_, ours.n_features_in_, ours.n_samples_) == (12, 48, 600)


def test_the_fitted_pca_works_like_one():
    rows = anisotropic_rows().numpy()
    exact = PCA(5, svd_solver="full").fit(rows)
    ours = fit_pca(Moments(48).update(rows), 5)
    np.testing.assert_allclose(ours.transform(rows), exact.transform(rows), atol=1e-8)
    projected = ours.transform(rows)
    np.testing.assert_allclose(ours.inverse_transform(projected), exact.inverse_transform(projected), atol=1e-8)
    assert ours.score(rows) == pytest.approx(exact.score(rows), rel=1e-9)


def test_uncentred_directions_are_those_of_the_second_moment():
    rows = anisotropic_rows(mean=0.7)
    left = torch.linalg.svd(rows, full_matrices=False)
    for moments in (Moments(48).update(rows), Moments.uncentred(48).update(rows)):
        pca = fit_pca(moments, 6, centred=False)
        assert principal_cosines(pca.components_.T.copy(), left.Vh[:6].T).min() > 1 - 1e-10
        np.testing.assert_allclose(pca.explained_variance_, left.S[:6].numpy() ** 2 / 600, rtol=1e-10)
        assert not pca.mean_.any()
    centred = fit_pca(Moments(48).update(rows), 6)
    assert principal_cosines(centred.components_.T.copy(), left.Vh[:6].T).min() < 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_a_planted_tangent_plane_comes_back_and_its_rank_is_found(dtype, mean):
    tangent = random_planes(64, 5, 1, seed=4)[0]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 5, generator=generator, dtype=torch.float64) * torch.tensor([9.0, 4, 2, 1, 0.5]) @ tangent.T
    moments = Moments(64).update((rows + mean).to(dtype))
    exact = fit_pca(moments, 5)
    assert principal_cosines(exact.components_.T.copy(), tangent).min() > 1 - 1e-6
    if dtype == torch.float64 or mean == 0.0:  # float32 rows at 50 carry rounding of their own in every direction
        assert fit_pca(moments, 16).n_components_ == 5


def test_fewer_rows_than_the_rank():
    rows = anisotropic_rows(n=4)
    assert fit_pca(Moments(48).update(rows), 10).n_components_ == 3
    assert fit_pca(Moments(48).update(rows), 10, centred=False).n_components_ == 4


def test_what_has_no_directions_is_named():
    constant = Moments(8).update(torch.full((50, 8), 0.1))
    with pytest.raises(UndefinedMeasureError, match=r"blocks\.1\.mlp\.input are constant"):
        fit_pca(constant, 2, site="blocks.1.mlp.input")
    with pytest.raises(UndefinedMeasureError, match="two rows"):
        fit_pca(Moments(8).update(torch.ones(1, 8)), 2)
    with pytest.raises(UndefinedMeasureError, match="zero"):
        fit_pca(Moments(8).update(torch.zeros(9, 8)), 2, centred=False)
    with pytest.raises(TlAnisoError, match="centred=False"):
        fit_pca(Moments.uncentred(8).update(torch.eye(8)), 2)


# -- proxies


def test_pooling_scatter_or_covariance():
    # Two checkpoints that differ by a drift of the mean along one axis, in which neither varies.
    d = 12
    rows = torch.randn(500, d, generator=torch.Generator().manual_seed(0)).double()
    rows[:, 0] = 0.0
    rows[:, 1] *= 3.0
    drift = 50.0 * torch.eye(d, dtype=torch.float64)[0]
    captures = [capture_of(rows, model="early"), capture_of(rows + drift, model="late")]
    pooled = fit_tangent_proxies(captures, 1)[SITE]
    within = fit_tangent_proxies(captures, 1, pool="covariance")[SITE]
    assert abs(float(pooled.basis[0, 0])) > 0.999
    assert abs(float(within.basis[1, 0])) > 0.99
    both = torch.cat([rows, rows + drift]).numpy()
    exact = PCA(1, svd_solver="full").fit(both)
    np.testing.assert_allclose(abs(pooled.basis[:, 0].numpy()), abs(exact.components_[0]), atol=1e-10)
    np.testing.assert_allclose(within.pca.mean_, both.mean(0), atol=1e-10)
    covariance = torch.cov(rows.T)
    assert float(within.pca.explained_variance_[0]) == pytest.approx(float(torch.linalg.eigvalsh(covariance)[-1]))
    assert [source["model"] for source in pooled.provenance["sources"]] == ["early", "late"]
    assert pooled.provenance["rows"] == 1000


def test_fitting_does_not_touch_the_captures():
    captures = [capture_of(anisotropic_rows(seed=s)) for s in range(2)]
    before = [c.fitting_half().activations[SITE].copy() for c in captures]
    fit_tangent_proxies(captures)
    for capture, kept in zip(captures, before, strict=True):
        assert capture.fitting_half().activations[SITE].count == kept.count
        assert torch.equal(capture.fitting_half().activations[SITE].scatter, kept.scatter)


def test_ranks_default_shrink_and_refuse():
    rows = anisotropic_rows()
    assert fit_tangent_proxies(capture_of(rows))[SITE].rank == 12
    flat = rows @ random_planes(48, 3, 1, seed=0)[0] @ random_planes(48, 3, 1, seed=1)[0].T
    shrunk = fit_tangent_proxies(capture_of(flat), 8)[SITE]
    assert (shrunk.rank, shrunk.requested_rank) == (3, 8)
    assert "rank 8" in shrunk.notes[0]
    assert "3 directions" in shrunk.notes[0]
    with pytest.raises(TlAnisoError, match="rank 25"):
        fit_tangent_proxies(capture_of(rows), 25)
    proxy = fit_tangent_proxies(capture_of(rows), 8)[SITE]
    assert torch.equal(proxy.at_rank(3).basis, proxy.basis[:, :3])
    with pytest.raises(TlAnisoError, match="holds 8"):
        proxy.at_rank(9)


def test_what_cannot_be_fitted_is_refused():
    rows = anisotropic_rows()
    assert fit_tangent_proxies(capture_of(rows), estimator=PCA(7))[SITE].rank == 7
    for estimator in (PCA(7).fit(rows.numpy()), PCA(7, whiten=True), PCA(0.9), object()):
        with pytest.raises(TlAnisoError, match="not supported"):
            fit_tangent_proxies(capture_of(rows), estimator=estimator)
    with pytest.raises(TlAnisoError, match="pool"):
        fit_tangent_proxies(capture_of(rows), pool="mean")
    with pytest.raises(TlAnisoError, match="no captures"):
        fit_tangent_proxies([])
    with pytest.raises(MergeError, match=r"blocks\.1"):
        fit_tangent_proxies([capture_of(rows), capture_of(rows, site="blocks.1.attn.input")])


def proxy_of(basis, site=SITE):
    pca = PCA(basis.shape[1])
    pca.components_ = basis.T.numpy()
    return TangentProxy.from_pca(site, pca, centred=True, requested_rank=basis.shape[1])


def test_the_identifier_is_that_of_the_plane():
    basis = random_planes(24, 4, 1, seed=0)[0]
    rotation = random_planes(4, 4, 1, seed=1)[0]
    known = proxy_of(basis).proxy_id
    assert proxy_of(basis * torch.tensor([1.0, -1, 1, -1])).proxy_id == known
    assert proxy_of(basis @ rotation).proxy_id == known
    assert proxy_of(basis, "unembed.input").proxy_id != known
    assert proxy_of(basis).at_rank(3).proxy_id != known
    assert proxy_of(random_planes(24, 4, 1, seed=2)[0]).proxy_id != known


def test_a_proxy_is_not_changed_through_its_pca():
    proxy = fit_tangent_proxies(capture_of(anisotropic_rows()), 4)[SITE]
    kept = proxy.basis.clone()
    proxy.pca.components_[:] = 0.0
    assert torch.equal(proxy.basis, kept)
    with pytest.raises(TypeError):
        proxy.provenance["rows"] = 1


def test_weight_sites_resolve_to_the_space_they_read():
    proxies = fit_tangent_proxies(capture_of(anisotropic_rows()), 4)
    assert proxies["blocks.0.attn.W_K"] is proxies[SITE]
    assert "blocks.0.attn.W_V" in proxies
    assert "blocks.1.attn.W_V" not in proxies
    assert "nonsense" not in proxies
    assert proxies.get("blocks.0.mlp.W_in") is None
    with pytest.raises(SiteError, match=r"blocks\.0\.mlp\.input"):
        proxies["blocks.0.mlp.W_in"]
    with pytest.raises(TlAnisoError, match="two proxies"):
        TangentProxies([proxies[SITE], proxies[SITE]])


def test_saving_and_loading(tmp_path):
    rows = anisotropic_rows()
    proxies = fit_tangent_proxies(capture_of(rows, model="toy", options={"exclude": ("sink",)}), 6)
    proxies.save(tmp_path / "deep" / "proxies")
    proxies.at_rank(4).save(tmp_path / "deep" / "proxies")  # replaces
    loaded = TangentProxies.load(tmp_path / "deep" / "proxies")[SITE]
    proxy = proxies[SITE].at_rank(4)
    assert torch.equal(loaded.basis, proxy.basis)
    assert (loaded.proxy_id, loaded.requested_rank, loaded.centred) == (proxy.proxy_id, 4, True)
    assert loaded.provenance["sources"] == [{"model": "toy", "exclude": ["sink"]}]
    np.testing.assert_array_equal(loaded.pca.transform(rows.numpy()), proxy.pca.transform(rows.numpy()))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["proxies"]


def test_nothing_half_written_and_nothing_overwritten(tmp_path, monkeypatch):
    proxies = fit_tangent_proxies(capture_of(anisotropic_rows()), 6)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(TlAnisoError, match="holds no saved proxies"):
        proxies.save(tmp_path / "mine")

    def full_disk(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", full_disk)
        with pytest.raises(TlAnisoError, match="no space"):
            proxies.save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_damaged_files_are_refused(tmp_path):
    with pytest.raises(TlAnisoError, match="cannot read"):
        TangentProxies.load(tmp_path)
    saved = fit_tangent_proxies(capture_of(anisotropic_rows()), 6).save(tmp_path / "p")
    index = json.loads((saved / "proxies.json").read_text())
    for change, message in (({"version": 99}, "version 1"), ({"proxies": [{}]}, "lacks")):
        (saved / "proxies.json").write_text(json.dumps({**index, **change}))
        with pytest.raises(TlAnisoError, match=message):
            TangentProxies.load(saved)
    index["proxies"][0]["proxy_id"] = "0" * 12
    (saved / "proxies.json").write_text(json.dumps(index))
    with pytest.raises(TlAnisoError, match="not the one that was saved"):
        TangentProxies.load(saved)
