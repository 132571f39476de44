"""heads=True: slices of autograd's weight gradients, which add up to the whole matrix'."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import as_bridge, random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import Capture, TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.errors import MergeError, SiteError
from tl_aniso.results import group_of

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents()
OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3, "heads": True}
CONTROLS = ("input_energy", "sign_flip", "shuffled_g")
# Query and output heads, and those of keys and values, of the tiny models.
COUNTS = {"neox-sequential": (4, 4), "llama": (4, 2), "gpt2": (4, 4), "gemma3": None, "qwen3": None}


@cache
def reference_of(kind: str) -> Reference:
    return reference_gradients(tiny_model(kind), DOCUMENTS)


@cache
def whole(kind: str) -> Capture:
    return capture(tiny_model(kind), DOCUMENTS, **OPTIONS)


def counts_of(kind: str) -> dict[str, int]:
    config = tiny_model(kind).config
    queries = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or queries
    assert COUNTS[kind] in (None, (queries, keys))
    names = {"W_Q": queries, "W_K": keys, "W_V": keys, "W_O": queries}
    return {f"blocks.{i}.attn.{name}": n for i in range(config.num_hidden_layers) for name, n in names.items()}


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


@pytest.mark.parametrize("kind", COUNTS)
def test_heads_are_rows_of_the_gradient(kind: str) -> None:
    # As oriented here, outputs of W_Q, W_K, W_V and inputs of W_O come first: a head is a block of rows either way.
    got, reference = whole(kind).weight_gradients, reference_of(kind)
    names = []
    for site, heads in counts_of(kind).items():
        added = torch.zeros(32, 32, dtype=torch.float64)
        for head in range(heads):
            name = f"{site}.{head}"
            names.append(name)
            blocks = [g.chunk(heads)[head] for g in reference.weights[site]]
            assert len(blocks[0]) * heads == len(reference.weights[site][0])
            expected = sum(block.T @ block for block in blocks)
            assert got[name].count == len(DOCUMENTS)
            assert relative(got[name].scatter, expected) < 1e-5, name
            added += got[name].scatter
        assert relative(added, got[site].scatter) < 1e-5, site
    assert set(got) == set(reference.weights) | set(names)


@pytest.mark.parametrize("site", ["blocks.0.attn.W_K", "blocks.1.attn.W_O"])
@pytest.mark.parametrize("control", CONTROLS)
def test_controls_of_a_head_are_made_of_its_own_factor(site: str, control: str) -> None:
    reference, heads = reference_of("llama"), counts_of("llama")[site]
    for head in range(heads):
        expected = torch.zeros(32, 32, dtype=torch.float64)
        for rows, factor in zip(reference.rows[site], reference.factors[site], strict=True):
            rows, part = rows[:-1], factor[:-1].chunk(heads, dim=1)[head]
            kernel, n = part @ part.T, len(rows)
            middle = {"input_energy": torch.eye(n).double(), "sign_flip": kernel.diagonal().diag()}.get(control)
            if middle is None:
                middle = torch.full_like(kernel, float(kernel.sum() - kernel.trace()) / max(n * (n - 1), 1))
                middle.diagonal().fill_(float(kernel.trace()) / n)
            expected += rows.T @ middle @ rows
        got = whole("llama").controls[control][f"{site}.{head}"]
        assert relative(got.scatter, expected) < 1e-5, head


@pytest.mark.parametrize("unit", ["sequence", "batch"])
def test_projected_energies_of_heads_add_up(unit: str) -> None:
    model = tiny_model("llama")
    proxies = fit_tangent_proxies(whole("llama"), 4)
    got = capture(model, DOCUMENTS, proxies=proxies, unit=unit, **OPTIONS)
    for site, heads in counts_of("llama").items():
        for control in ("none", "sign_flip", "shuffled_g"):
            parts = [got.energies("weight_gradient", f"{site}.{h}", control=control) for h in range(heads)]
            expected = got.energies("weight_gradient", site, control=control)
            # Shares weigh by energy; energies themselves add, in every shard and along every direction.
            torch.testing.assert_close(sum(parts), expected, rtol=1e-4, atol=1e-6 * float(expected.max()))
    held = got.metadata["options"]["proxies"]
    assert held["blocks.0.attn.W_K.1"] == held["blocks.0.attn.W_K"]


def test_bridges_split_alike() -> None:
    got = capture(as_bridge(tiny_model("neox-sequential")), DOCUMENTS, **OPTIONS).weight_gradients
    for site, moments in whole("neox-sequential").weight_gradients.items():
        assert relative(got[site].scatter, moments.scatter) < 1e-5, site


def test_tangent_energy_by_head() -> None:
    documents = random_documents((20,) * 16)
    sites = ["blocks.0.attn.W_?", "blocks.0.mlp.W_in"]
    for basis in ("own", "residual"):
        options = {**OPTIONS, "sites": sites, "basis": basis, "rank": 4}
        frame = tangent_energy(tiny_model("llama"), documents, **options).frame
        shares = frame[(frame["measure"] == "energy_share") & (frame["control"] == "none")].set_index("site")
        assert set(shares.index) >= {"blocks.0.attn.W_Q", "blocks.0.attn.W_Q.3", "blocks.0.attn.W_V.1"}
        assert "blocks.0.attn.W_V.2" not in shares.index
        assert set(shares["layer"]) == {0}
        heads = shares.loc[[f"blocks.0.attn.W_Q.{h}" for h in range(4)]]
        assert set(heads["proxy_id"]) == {shares.loc["blocks.0.attn.W_Q", "proxy_id"]}
        assert heads["value"].min() < shares.loc["blocks.0.attn.W_Q", "value"] < heads["value"].max()
    assert group_of("blocks.0.attn.W_O.2") == "writers by head"
    result = ablation_isotropy(tiny_model("llama"), documents, gradients="weight", n_controls=3, **options)
    assert "readers by head" in set(result.table()["group"])


def test_single_heads_can_be_named() -> None:
    got = capture(tiny_model("llama"), DOCUMENTS, sites=["blocks.1.attn.W_O.2", "blocks.0.attn.W_K.*"], **OPTIONS)
    assert list(got.weight_gradients) == ["blocks.0.attn.W_K.0", "blocks.0.attn.W_K.1", "blocks.1.attn.W_O.2"]
    for site, moments in got.weight_gradients.items():
        assert torch.equal(moments.scatter, whole("llama").weight_gradients[site].scatter)


def test_refusals() -> None:
    model = tiny_model("llama")
    with pytest.raises(SiteError, match=r"no site 'blocks\.0\.attn\.W_K\.2'"):
        capture(model, DOCUMENTS, sites="blocks.0.attn.W_K.2", **OPTIONS)
    with pytest.raises(SiteError, match="no site"):
        capture(model, DOCUMENTS, sites="blocks.0.attn.W_K.1", **{**OPTIONS, "heads": False})
    with pytest.raises(TlAnisoError, match="heads must be True or False"):
        capture(model, DOCUMENTS, **{**OPTIONS, "heads": 2})
    first = capture(model, DOCUMENTS[:3], **OPTIONS)
    with pytest.raises(MergeError, match="heads: True and False"):
        first.merge(capture(model, DOCUMENTS[3:], **{**OPTIONS, "heads": False}))
