"""Each kind of norm is recognised by its formula, and found where it ignores a parameter."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from tl_aniso.doctor.norms import _examined, _judged

D = 24


class MyNorm(nn.Module):
    """A formula that nobody knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().amax(-1, keepdim=True)


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 + 0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def examined(module: nn.Module, name: str = "norm", forward: Any = None) -> Any:
    rows = 3 * torch.randn(2, 7, D, generator=torch.Generator().manual_seed(1)) + 1
    with torch.no_grad():
        return _examined(name, module, rows, (forward or module)(rows), tolerance=1e-4)


NORMS = {
    "layer norm": lambda: nn.LayerNorm(D),
    "layer norm without parameters": lambda: nn.LayerNorm(D, elementwise_affine=False),
    "OLMo": lambda: OlmoLayerNorm(D),
    "OLMo 2": lambda: Olmo2RMSNorm(D),
    "Llama": lambda: LlamaRMSNorm(D),
    "Gemma": lambda: Gemma3RMSNorm(D),
    "torch": lambda: nn.RMSNorm(D, eps=1e-6),
}
FORMULA = {"Gemma": "RMS norm with gain 1 + w", "OLMo 2": "RMS norm", "Llama": "RMS norm", "torch": "RMS norm"}


@pytest.mark.parametrize("name", NORMS)
def test_sound_norms_pass(name: str) -> None:
    check = _judged("norms", [examined(drawn(NORMS[name]()))], 1e-4)
    assert check.status == "pass", check
    assert f"1 as {FORMULA.get(name, 'layer norm')}" in check.found


@pytest.mark.parametrize("name", ["layer norm", "OLMo 2", "Llama", "Gemma", "torch"])
def test_a_gain_left_out_is_named(name: str) -> None:
    sound, broken = drawn(NORMS[name]()), drawn(NORMS[name](), seed=2)
    bare = NORMS[name]()  # freshly made: its gain is 1 and its bias 0, so it only standardises
    norms = [examined(sound, "layers.0.norm"), examined(broken, "layers.1.norm", forward=bare)]
    check = _judged("norms", norms, 1e-4)
    assert check.status == "fail"
    assert "layers.1.norm" in check.found
    assert "ignores its gain" in check.found
    assert "layers.0" not in check.found
    assert _judged("norms", norms[1:], 1e-4).status == "fail"  # also where there is no sound one beside it


def test_a_bias_left_out_is_named() -> None:
    norm = drawn(nn.LayerNorm(D))
    check = _judged("norms", [examined(norm, forward=lambda x: norm(x) - norm.bias)], 1e-4)
    assert "ignores its bias" in check.found


def test_gemmas_one_is_part_of_its_gain() -> None:
    norm = drawn(Gemma3RMSNorm(D))
    check = _judged("norms", [examined(norm, forward=lambda x: norm(x) * norm.weight / (1 + norm.weight))], 1e-4)
    assert check.status == "fail"


def test_another_error_is_told_by_its_size() -> None:
    norm = drawn(LlamaRMSNorm(D))
    check = _judged("norms", [examined(norm, forward=lambda x: 1.01 * norm(x))], 1e-4)
    assert check.status == "fail"
    assert "is 0.01 away" in check.found


def test_an_unknown_formula_is_a_warning_and_no_norm_is_no_fault() -> None:
    check = _judged("norms", [examined(MyNorm(), "odd")], 1e-4)
    assert check.status == "warn"
    assert "odd (MyNorm)" in check.found
    assert _judged("norms", [], 1e-4).status == "info"


def test_gains_of_one_are_counted() -> None:
    assert "1 have no gain, or one of exactly 1" in _judged("norms", [examined(LlamaRMSNorm(D))], 1e-4).found
    assert Counter(examined(drawn(LlamaRMSNorm(D))).errors.keys()).total() == 3
