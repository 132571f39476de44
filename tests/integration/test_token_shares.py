"""Shares of single tokens against autograd, closed forms and a capture's own controls."""

import copy
import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from torch import Tensor

from tests.masked_models import DOCUMENTS as MASKED_DOCUMENTS
from tests.masked_models import encoder
from tests.models import as_bridge, random_documents, tiny_model
from tests.reference.gradients import reference_gradients
from tl_aniso import (
    TangentProxies,
    TlAnisoError,
    ablation_isotropy,
    capture,
    energy_share,
    fit_tangent_proxies,
    tangent_energy,
)
from tl_aniso.errors import ModelError, SiteError
from tl_aniso.results import TangentEnergy
from tl_aniso.subspace import TangentProxy
from tl_aniso.token_views import TokenShares, lens, token_shares, top_tokens
from tl_aniso.viz.token_views import TokenView

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = [[1, *ids] for ids in random_documents()]
TEXT = [[1, *ids] for ids in random_documents((20, 11), seed=3)]


@cache
def model() -> Any:
    return tiny_model("llama")


@cache
def proxies() -> TangentProxies:
    return fit_tangent_proxies(capture(model(), DOCUMENTS, progress=False), rank=4)


@cache
def shares() -> TokenShares:
    return token_shares(model(), TEXT, proxies(), progress=False)


def rows_at(frame: pd.DataFrame, site: str, quantity: str, labels: str = "true") -> pd.DataFrame:
    return frame[(frame["site"] == site) & (frame["quantity"] == quantity) & (frame["labels"] == labels)]


def in_plane(rows: Tensor, basis: Tensor) -> np.ndarray:
    return ((rows @ basis).square().sum(1) / rows.square().sum(1)).numpy()


def test_every_share_is_that_of_autograd() -> None:
    frame, reference = shares().frame, reference_gradients(model(), TEXT)
    assert frame["token"].iloc[0] == "[1]"
    for site in ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_mid", "blocks.1.hook_resid_post"):
        proxy = proxies()[site]
        mean = torch.from_numpy(proxy.pca.mean_)
        got = rows_at(frame, site, "activation")["share"]
        assert got.to_numpy() == pytest.approx(
            in_plane(torch.cat(reference.residuals[site]) - mean, proxy.basis), abs=1e-5
        )
        got = rows_at(frame, site, "activation gradient")["share"].to_numpy()
        there = ~np.isnan(got)
        assert (~there).sum() == len(TEXT)
        expected = in_plane(torch.cat(reference.residual_gradients[site]), proxy.basis)
        assert got[there] == pytest.approx(expected[there], abs=1e-5)
    for site in ("embed.W_E", "blocks.0.attn.W_K", "blocks.1.mlp.W_gate", "blocks.0.attn.W_O", "blocks.1.mlp.W_out"):
        rows = torch.cat(reference.rows[site])
        found = rows_at(frame, site, "weight gradient")
        there = ~found["share"].isna().to_numpy()
        assert found["share"][there].to_numpy() == pytest.approx(in_plane(rows, proxies()[site].basis)[there], abs=1e-5)
        energy = rows.square().sum(1)
        if site != "embed.W_E":
            energy = energy * torch.cat(reference.factors[site]).square().sum(1)
        assert found["energy"][there].to_numpy() == pytest.approx(energy.numpy()[there], rel=1e-4)


@pytest.mark.parametrize("kind", ["llama", "bridge", "encoder"])
def test_weighted_shares_are_the_control_of_flipped_signs(kind: str) -> None:
    subject = encoder() if kind == "encoder" else as_bridge(model()) if kind == "bridge" else model()
    text = MASKED_DOCUMENTS if kind == "encoder" else DOCUMENTS
    planes = fit_tangent_proxies(capture(subject, text, gradients=(), progress=False), rank=4)
    sums = capture(subject, text, gradients="weight", controls="sign_flip", progress=False)
    frame = token_shares(subject, text, planes, labels="true", progress=False).frame
    sites = [s for s in sums.controls["sign_flip"] if s not in ("unembed.W_U", "embed.W_E")]
    assert len(sites) >= 12
    for site in sites:
        found = rows_at(frame, site, "weight gradient").dropna(subset=["share"])
        expected = energy_share(sums.controls["sign_flip"][site].second_moment(), planes[site].basis)
        assert np.average(found["share"], weights=found["energy"]) == pytest.approx(expected, rel=1e-4), site


def plane(site: str, basis: Tensor) -> TangentProxy:
    return dataclasses.replace(proxies()[site], basis=basis.double(), centred=False)


def test_a_plane_that_holds_the_rows_holds_all_of_them() -> None:
    # The embedding uses four directions alone; tokens from 40 on use one of them and a fifth.
    axes = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(5))).Q
    planted = copy.deepcopy(model())
    table = planted.model.embed_tokens.weight
    with torch.no_grad():
        table.copy_(table[:, :4] @ axes[:, :4].T)
        table[40:] = 3 * axes[:, 0] + 4 * axes[:, 8]
    site = "blocks.0.hook_resid_pre"
    text = [[1, 5, 40, 7, 41, 9, 3, 45]]
    got = token_shares(planted, text, TangentProxies([plane(site, axes[:, :4])]), sites=site, progress=False)
    values = got.series[0].share["true"][0]
    assert values == pytest.approx([9 / 25 if i >= 40 else 1.0 for i in text[0]], abs=1e-5)


def test_shuffled_labels_change_gradients_and_energies_and_no_readers_share() -> None:
    frame = shares().frame
    wide = frame.pivot_table(
        index=["site", "quantity", "sequence", "position"], columns="labels", values=["share", "energy"]
    )
    wide = wide.dropna()
    same = (wide["share", "true"] - wide["share", "shuffled"]).abs()
    moved = (wide["energy", "true"] / wide["energy", "shuffled"] - 1).abs()
    readers = wide.index.get_level_values("site").str.contains(r"W_Q|W_K|W_V|W_in|W_gate")
    assert same[readers].max() < 1e-6
    assert same[~readers].max() > 0.05
    assert (moved > 1e-3).mean() > 0.9
    assert set(frame.loc[frame["quantity"] == "activation", "labels"]) == {"true"}


def test_what_is_missing_is_missing_and_counted() -> None:
    for series in shares().series:
        for labels in series.share:
            missing = np.isnan(series.share[labels])
            assert np.array_equal(missing, np.isnan(series.energy[labels]))
            if series.quantity == "activation":
                assert not missing.any()
            else:
                assert missing[:, ~shares().carries].all()
                assert series.n_missing(labels) == missing.sum()
    assert shares().special.tolist() == (shares().ids == 1).tolist()


def test_sinks_are_flagged_and_have_a_share() -> None:
    own = copy.deepcopy(model())
    with torch.no_grad():
        own.model.embed_tokens.weight[5] *= 100
    got = token_shares(own, [[1, 7, 8, 5, 9, 6, 7, 12]], proxies(), sites="blocks.0.hook_resid_pre", progress=False)
    for series in got.series:
        assert series.sink[0].tolist() == [i == 5 for i in got.ids.tolist()]
    assert not np.isnan(got.series[0].share["true"]).any()


def test_masked_tokens_are_told() -> None:
    planes = fit_tangent_proxies(capture(encoder(), MASKED_DOCUMENTS, gradients=(), progress=False), rank=4)
    got = token_shares(encoder(), MASKED_DOCUMENTS[:3], planes, sites="blocks.*.hook_resid_pre", progress=False)
    assert got.objective.startswith("masked")
    assert 0 < (got.fed != got.ids).sum() <= got.carries.sum() < len(got)


def test_sequences_come_in_the_order_of_the_text() -> None:
    assert shares().ids.tolist() == [i for document in TEXT for i in document]
    cut = token_shares(model(), TEXT, proxies(), sites="embed.W_E", seq_len=8, batch_size=2, progress=False)
    assert cut.ids.tolist()[:16] == TEXT[0][:16]  # the tail of five is dropped
    assert cut.position.tolist()[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_lengths_that_do_not_match_are_errors() -> None:
    got, series = shares(), shares().series[0]
    with pytest.raises(TlAnisoError, match="tokens"):
        dataclasses.replace(got, tokens=got.tokens[1:])
    with pytest.raises(TlAnisoError, match="tokens"):
        dataclasses.replace(
            got,
            series=(
                dataclasses.replace(
                    series,
                    sink=series.sink[:, 1:],
                    share={"true": series.share["true"][:, 1:]},
                    energy={"true": series.energy["true"][:, 1:]},
                ),
            ),
        )
    with pytest.raises(TlAnisoError, match="shape"):
        dataclasses.replace(series, share={"true": series.share["true"][:, 1:]})
    with pytest.raises(TlAnisoError, match="layers"):
        dataclasses.replace(series, layers=series.layers[1:])


def test_results_show_their_own_planes() -> None:
    result = tangent_energy(
        model(), DOCUMENTS, sites=("blocks.*.attn.W_Q", "unembed.W_U"), n_controls=0, progress=False
    )
    view = result.tokens(model(), TEXT, progress=False)
    assert isinstance(view, TokenView)
    assert {(s.quantity, s.place) for s in view.shares.series} == {
        ("activation", "attn.input"),
        ("activation", "unembed.input"),
        ("weight gradient", "attn.W_Q"),
    }
    other = ablation_isotropy(model(), DOCUMENTS, gradients="activation", progress=False).tokens(
        model(), TEXT, progress=False
    )
    assert {"activation", "activation gradient"} == {s.quantity for s in other.shares.series}
    residual = tangent_energy(
        model(), DOCUMENTS, basis="residual", sites="blocks.1.attn.W_O", n_controls=0, progress=False
    )
    assert {s.place for s in residual.tokens(model(), TEXT, progress=False).shares.series} >= {"attn.W_O"}
    with pytest.raises(TlAnisoError, match="no tangent planes"):
        TangentEnergy(result.frame).tokens(model(), TEXT)


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(TlAnisoError, match="labels"):
        token_shares(model(), TEXT, proxies(), labels="permuted", progress=False)
    with pytest.raises(TlAnisoError, match="TangentProxies"):
        token_shares(model(), TEXT, {}, progress=False)  # type: ignore[arg-type]
    with pytest.raises(TlAnisoError, match="no proxy"):
        token_shares(
            model(), TEXT, TangentProxies([proxies()["blocks.0.attn.input"]]), sites="blocks.1.attn.W_Q", progress=False
        )
    kept = capture(model(), DOCUMENTS, gradients=(), sites="*_pre", keep_rows=64, progress=False)
    uncentred = fit_tangent_proxies(kept, estimator=TruncatedSVD(3))
    assert token_shares(model(), TEXT, uncentred, sites="blocks.0.hook_resid_pre", progress=False).series[0].rank == (
        3,
    )


def test_top_tokens_are_the_farthest_rows() -> None:
    site = "blocks.1.hook_resid_pre"
    got = top_tokens(model(), TEXT, proxies(), sites=site, n=3, context=2, progress=False)
    reference = reference_gradients(model(), TEXT)
    rows = torch.cat(reference.residuals[site]) - torch.from_numpy(proxies()[site].pca.mean_)
    ids = torch.tensor([i for document in TEXT for i in document])
    ordinary = ids != 1
    along = (rows @ proxies()[site].basis)[ordinary]
    assert got.n_rows[site] == int(ordinary.sum())
    for direction in range(4):
        found = got.frame[got.frame["direction"] == direction]
        high, low = along[:, direction].sort(descending=True), along[:, direction].sort()
        assert found[found["end"] == "+"]["projection"].to_numpy() == pytest.approx(high.values[:3].numpy(), abs=1e-4)
        assert found[found["end"] == "-"]["projection"].to_numpy() == pytest.approx(low.values[:3].numpy(), abs=1e-4)
        assert found[found["end"] == "+"]["id"].tolist() == ids[ordinary][high.indices[:3]].tolist()
    first = got.frame.iloc[0]
    document = next(d for d in TEXT if d[first["position"]] == first["id"])
    assert first["before"] == "".join(f"[{i}]" for i in document[max(0, first["position"] - 2) : first["position"]])
    top = top_tokens(model(), TEXT, proxies(), sites=site, kind="gradient", n=2, progress=False).frame
    gradients = torch.cat(reference.residual_gradients[site])[ordinary] @ proxies()[site].basis
    assert top["projection"].iloc[0] == pytest.approx(float(gradients[:, 0].max()), rel=1e-3)
    with pytest.raises(SiteError, match="weight"):
        top_tokens(model(), TEXT, proxies(), sites="blocks.0.attn.W_Q", progress=False)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3", "olmo", "bridge"])
def test_lens_is_the_derivative_of_the_logits(kind: str) -> None:
    subject = as_bridge(tiny_model("neox-sequential")) if kind == "bridge" else tiny_model(kind)
    planes = fit_tangent_proxies(capture(subject, DOCUMENTS, gradients=(), progress=False), rank=2)
    site = "blocks.1.hook_resid_post"
    got = lens(subject, planes, sites=site, n=97).frame
    root = getattr(subject, "original_model", subject)
    body = root.base_model
    norm = next(getattr(body, n) for n in ("norm", "final_layer_norm", "ln_f") if hasattr(body, n))
    head = root.get_output_embeddings()
    # Where the residual has mean zero and is orthogonal to v, a norm's derivative along v is its gain over its length.
    direction = planes[site].basis[:, 0].float()
    point = torch.randn(32, generator=torch.Generator().manual_seed(1))
    for other in (direction, torch.ones(32)):
        point = point - (point @ other) / other.square().sum() * other
    both = torch.linalg.qr(torch.stack([direction, torch.ones(32)], 1)).Q
    point = point - both @ (both.T @ point)
    point = point / point.square().mean().sqrt() * 50
    with torch.no_grad():
        step = 0.5 * direction
        moved = (head(norm((point + step)[None, None])) - head(norm((point - step)[None, None])))[0, 0] * 50
    expected = (moved - moved.mean()).float()
    found = got[(got["direction"] == 0) & (got["end"] == "+")].set_index("id")["logit"]
    assert found.loc[range(97)].to_numpy() == pytest.approx(expected.numpy(), abs=2e-2 * float(expected.abs().max()))
    assert found.is_monotonic_decreasing


def test_lens_refuses_what_is_read_and_heads_of_several_steps() -> None:
    with pytest.raises(SiteError, match="reads"):
        lens(model(), proxies(), sites="blocks.0.attn.input")
    from tests.encoder_models import tiny_encoder

    with pytest.raises(ModelError, match="of its own"):
        lens(tiny_encoder("Bert"), proxies())
