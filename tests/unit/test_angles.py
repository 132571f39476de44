"""Principal angles and the projection kernel against scipy, planted angles, and draws."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.subspace import (
    TangentProxies,
    TangentProxy,
    compare_proxies,
    principal_angles,
    principal_cosines,
    projection_kernel,
    random_planes,
)


@pytest.mark.parametrize(("d", "k1", "k2"), [(12, 3, 3), (12, 2, 7), (12, 7, 2), (9, 6, 6), (5, 5, 1)])
def test_angles_are_scipys(d, k1, k2):
    for seed in range(5):
        first, second = random_planes(d, k1, 1, seed=seed)[0], random_planes(d, k2, 1, seed=seed + 50)[0]
        found = principal_angles(first, second).numpy()
        np.testing.assert_allclose(found, subspace_angles(first.numpy(), second.numpy())[::-1], atol=1e-9)
        assert (np.diff(found) >= 0).all()
        np.testing.assert_allclose(np.cos(found), principal_cosines(first, second), atol=1e-12)
        mean = (np.cos(found) ** 2).mean()
        kernel = projection_kernel(first, second)
        assert kernel.value == pytest.approx(mean, abs=1e-12)
        assert (kernel.ranks, kernel.d) == ((k1, k2), d)


@pytest.mark.parametrize("angles", [[1e-9, 0.3], [1e-5, math.pi / 2 - 1e-9], [0.0, 1.0]])
def test_planted_angles_keep_their_digits(angles):
    # Cosines alone would return 0 for an angle of 1e-9.
    eye, rotation = torch.eye(6, dtype=torch.float64), random_planes(6, 6, 1, seed=0)[0]
    tilted = torch.stack([math.cos(a) * eye[i] + math.sin(a) * eye[2 + i] for i, a in enumerate(angles)], 1)
    mixed = rotation @ tilted @ random_planes(2, 2, 1, seed=1)[0]
    found = principal_angles(rotation @ eye[:, :2], mixed)
    np.testing.assert_allclose(found, angles, rtol=1e-5, atol=2e-15)


@pytest.mark.parametrize(("d", "k1", "k2"), [(16, 4, 4), (20, 3, 8), (10, 9, 1), (6, 1, 1)])
def test_the_null_is_that_of_random_planes(d, k1, k2):
    n = 6000
    fixed, drawn = random_planes(d, k1, 1, seed=3)[0], random_planes(d, k2, n, seed=4)
    shares = (fixed.T @ drawn).square().sum((1, 2)) / min(k1, k2)
    kernel = projection_kernel(fixed, drawn[0])
    assert kernel.mean == pytest.approx(max(k1, k2) / d)
    assert float(shares.mean()) == pytest.approx(kernel.mean, abs=5 * kernel.std / math.sqrt(n))
    assert float(shares.std()) == pytest.approx(kernel.std, rel=0.08)
    assert kernel.z == pytest.approx((float(shares[0]) - kernel.mean) / kernel.std)


def test_the_same_and_orthogonal_planes():
    plane = random_planes(10, 4, 1, seed=0)[0]
    turned = plane @ random_planes(4, 4, 1, seed=1)[0]
    assert projection_kernel(plane, turned).value == pytest.approx(1.0, abs=1e-12)
    assert float(principal_angles(plane, turned).max()) < 1e-12
    inside = projection_kernel(plane, plane[:, :2])
    assert (inside.value, inside.mean) == (pytest.approx(1.0), pytest.approx(0.4))
    eye = torch.eye(10)
    assert projection_kernel(eye[:, :3], eye[:, 5:9]).value == 0.0
    whole = projection_kernel(eye, eye[:, :3])
    assert (whole.value, whole.mean, whole.std) == (1.0, 1.0, 0.0)
    assert math.isnan(whole.z)
    float32 = principal_angles(plane.float(), plane.float())
    assert float(float32.max()) < 1e-12


def proxies_of(bases):
    made = []
    for site, basis in bases.items():
        pca = PCA(basis.shape[1])
        pca.components_ = basis.T.numpy()
        made.append(TangentProxy.from_pca(site, pca, centred=True, requested_rank=basis.shape[1]))
    return TangentProxies(made)


def test_proxies_are_compared_site_by_site():
    planes = random_planes(12, 3, 4, seed=0)
    a = proxies_of({"blocks.0.attn.input": planes[0], "unembed.input": planes[1]})
    b = proxies_of({"blocks.0.attn.input": planes[0][:, :2], "unembed.input": planes[2]})
    table = compare_proxies(a, b).set_index("site")
    assert table.index.tolist() == ["blocks.0.attn.input", "unembed.input"]
    first, second = table.iloc[0], table.iloc[1]
    assert (first["kernel"], first["rank_a"], first["rank_b"]) == (pytest.approx(1.0), 3, 2)
    assert first["largest_angle"] == pytest.approx(0.0, abs=1e-6)
    angles = np.degrees(subspace_angles(planes[1].numpy(), planes[2].numpy()))
    assert second["largest_angle"] == pytest.approx(angles[0])
    assert second["smallest_angle"] == pytest.approx(angles[-1])
    assert second["null_mean"] == pytest.approx(3 / 12)
    assert second["proxy_id_b"] == b["unembed.input"].proxy_id
    assert compare_proxies(a, b, ["blocks.0.attn.W_Q"])["kernel"].tolist() == [pytest.approx(1.0)]


def test_what_does_not_compare_is_named():
    planes = random_planes(12, 3, 2, seed=0)
    a, b = proxies_of({"unembed.input": planes[0]}), proxies_of({"blocks.0.attn.input": planes[1]})
    with pytest.raises(SiteError, match=r"unembed\.input, blocks\.0\.attn\.input; name the sites"):
        compare_proxies(a, b)
    with pytest.raises(TlAnisoError, match=r"unembed\.input have different widths, 12 and 8"):
        compare_proxies(a, proxies_of({"unembed.input": random_planes(8, 3, 1)[0]}))
    with pytest.raises(TlAnisoError, match="not orthonormal"):
        projection_kernel(planes[0], 2 * planes[1])
    with pytest.raises(TlAnisoError, match="d = 12"):
        principal_angles(planes[0], random_planes(8, 3, 1)[0])
    with pytest.raises(TlAnisoError, match="d x k"):
        principal_angles(planes[0][0], planes[1])
