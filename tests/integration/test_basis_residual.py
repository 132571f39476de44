"""basis="residual": the plane of the residual stream that a matrix reads or writes, for gradients where they live."""

from typing import Any

import pytest
import torch

from tests.models import random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import Capture, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.errors import MergeError, SiteError, TlAnisoError
from tl_aniso.sites import proxy_site
from tl_aniso.text import document_hash, half_of

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents(tuple(20 + i % 17 for i in range(24)))
OPTIONS: dict[str, Any] = {"exclude": (), "progress": False}
RANK = 4
HALVES = [half_of(document_hash(document)) for document in DOCUMENTS]

# Weight site -> residual site, without and with a residual between attention and MLP.
PLACES = {
    "blocks.1.attn.W_Q": ("pre", "pre"),
    "blocks.0.attn.W_V": ("pre", "pre"),
    "blocks.1.attn.W_O": ("post", "mid"),
    "blocks.0.mlp.W_in": ("pre", "mid"),
    "blocks.1.mlp.W_out": ("post", "post"),
    "blocks.0.mlp.W_out": ("post", "post"),
}


def place_of(site: str, kind: str) -> str:
    if site in ("embed.W_E", "unembed.W_U"):
        return {"embed.W_E": "blocks.0.hook_resid_pre", "unembed.W_U": "blocks.1.hook_resid_post"}[site]
    return f"{site[:8]}.hook_resid_{PLACES[site][kind != 'neox-parallel']}"


def share_by_hand(reference: Reference, site: str, place: str) -> float:
    """PCA of the residual rows of half A, and the share of half B's G^T G in it, in float64."""
    rows = torch.cat([reference.residuals[place][n] for n, half in enumerate(HALVES) if half == "A"])
    basis = torch.linalg.eigh(torch.cov(rows.T)).eigenvectors[:, -RANK:]
    whole = sum(g.T @ g for g, half in zip(reference.weights[site], HALVES, strict=True) if half == "B")
    return float((basis.T @ whole @ basis).trace() / whole.trace())


@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])
def test_shares_in_the_plane_of_the_residual(kind: str) -> None:
    model, reference = tiny_model(kind), reference_gradients(tiny_model(kind), DOCUMENTS)
    sites = [*PLACES, "embed.W_E", "unembed.W_U"]
    result = tangent_energy(model, DOCUMENTS, rank=RANK, basis="residual", sites=sites, **OPTIONS)
    own = tangent_energy(model, DOCUMENTS, rank=RANK, sites=sites, **OPTIONS).frame
    frame = result.frame
    assert set(frame["basis"]) == {"residual"}
    assert set(own["basis"]) == {"own"}
    chosen = frame[(frame["measure"] == "energy_share") & (frame["control"] == "none")].set_index("site")["value"]
    other = own[(own["measure"] == "energy_share") & (own["control"] == "none")].set_index("site")["value"]
    for site in sites:
        expected = share_by_hand(reference, site, place_of(site, kind))
        assert chosen[site] == pytest.approx(expected, rel=1e-4), site
        # The embedding's plane is residual either way, and a parallel writer's output is not the stream.
        assert (abs(other[site] - expected) > 1e-3 * expected) == (site != "embed.W_E"), site


@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])
def test_names_alone_tell_the_same_place(kind: str) -> None:
    for site in [*PLACES, "embed.W_E", "unembed.W_U"]:
        got = proxy_site(site, "residual", has_mid=kind == "llama", n_layers=2)
        assert got == place_of(site, kind), site


def test_a_capture_answers_as_the_model_does() -> None:
    model = tiny_model("llama")
    held = capture(model, DOCUMENTS, basis="residual", **OPTIONS)
    assert held.metadata["options"]["proxy_sites"]["blocks.0.mlp.W_out"] == "blocks.1.hook_resid_pre"
    frames = [
        source.frame.set_index(["site", "measure", "control"])
        for source in (tangent_energy(held), tangent_energy(model, DOCUMENTS, basis="residual", **OPTIONS))
    ]
    assert set(frames[0]["basis"]) == {"residual"}
    values = [frame.loc[frames[0].index, "value"] for frame in frames]
    assert float((values[0] / values[1] - 1).abs().max()) < 1e-4
    isotropy = ablation_isotropy(held, gradients="weight", n_controls=3).frame
    assert set(isotropy["basis"]) == {"residual"}
    planes = fit_tangent_proxies(held)
    assert set(isotropy.loc[isotropy["site"] == "blocks.1.mlp.W_in", "proxy_id"]) == {
        planes["blocks.1.hook_resid_mid"].proxy_id
    }


def test_projected_captures_name_the_planes_they_used(tmp_path: Any) -> None:
    model = tiny_model("neox-parallel")
    proxies = fit_tangent_proxies(capture(model, DOCUMENTS, gradients=(), **OPTIONS), RANK)
    got = capture(model, DOCUMENTS, proxies=proxies, basis="residual", **OPTIONS)
    ids = got.metadata["options"]["proxies"]
    assert ids["blocks.1.mlp.W_in"] == proxies["blocks.1.hook_resid_pre"].proxy_id
    assert ids["blocks.1.attn.W_O"] == proxies["blocks.1.hook_resid_post"].proxy_id
    loaded = Capture.load(got.save(tmp_path / "a"))
    assert tangent_energy(loaded, proxies=proxies).frame.equals(tangent_energy(got, proxies=proxies).frame)


def test_refusals() -> None:
    model = tiny_model("llama")
    first = capture(model, DOCUMENTS[:4], basis="residual", **OPTIONS)
    with pytest.raises(MergeError, match="basis: 'residual' and 'own'"):
        first.merge(capture(model, DOCUMENTS[4:8], **OPTIONS))
    proxies = fit_tangent_proxies(capture(model, DOCUMENTS[:4], sites="blocks.0.attn.W_Q", **OPTIONS), RANK)
    with pytest.raises(SiteError, match=r"no proxy for blocks\.0\.attn\.W_Q: with basis='residual' it lives at blocks"):
        capture(model, DOCUMENTS, proxies=proxies, sites="blocks.0.attn.W_Q", basis="residual", **OPTIONS)
    with pytest.raises(SiteError, match="n_layers="):
        proxy_site("unembed.W_U", "residual")
    with pytest.raises(TlAnisoError, match="basis 'input' is not supported"):
        proxy_site("unembed.W_U", "input")
