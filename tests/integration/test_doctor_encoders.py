"""The doctor on encoders: sound ones pass, each check says what holds for them, and planted faults are named."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.encoder_models import ALL_KINDS, WORDS, save_as_on_hub, tiny_encoder
from tests.models import as_bridge, tiny_model
from tl_aniso.capturing.bind import SUPPORTED_CLASSES
from tl_aniso.cli import main
from tl_aniso.doctor import Diagnosis, diagnose, run

pytestmark = pytest.mark.usefixtures("one_thread")

BOUND = [kind for kind in ALL_KINDS if f"{kind}ForMaskedLM" in SUPPORTED_CLASSES]
TEXTS = [" ".join(WORDS[(i * step) % len(WORDS)] for i in range(30 + 5 * step)) for step in (1, 2, 4, 5)]
ONLY_ENCODERS = ["a token to mask with", "every block sees both sides of a token", "no token sees padding"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_as_on_hub(tiny_encoder("EuroBert"), directory)
    return transformers.AutoTokenizer.from_pretrained(directory)


def check_of(found: Diagnosis, part: str) -> Any:
    (check,) = [check for check in found.checks if part in check.name]
    return check


def failures(model: Any, tokenizer: Any) -> dict[str, str]:
    return {check.name: check.found for check in diagnose(model, tokenizer, TEXTS, progress=False).failures}


@pytest.mark.parametrize("wrapper", ["eager", "sdpa", "bridge"])
@pytest.mark.parametrize("kind", BOUND)
def test_sound_encoders_pass(kind: str, wrapper: str, tokenizer: Any) -> None:
    model = tiny_encoder(kind, "sdpa" if wrapper == "sdpa" else "eager")
    model = as_bridge(model) if wrapper == "bridge" else model
    found = diagnose(model, tokenizer, TEXTS, progress=False)
    assert found.passed, found
    assert not [check.name for check in found.checks if check.status in ("warn", "skip")], found
    assert [check.name for check in found.checks] == [step.name for step in run._STEPS if step.only != "causal"]
    assert "'<mask>', id 3. The checks here differentiate the loss of every token" in check_of(found, "mask with").found
    assert "in all 3 blocks" in check_of(found, "both sides").found
    assert "1 in front of a text" in check_of(found, "BOS").found
    assert "sites in layers 0, 1, 2 agree" in check_of(found, "autograd").found


def test_without_a_tokenizer_ids_are_drawn(tokenizer: Any) -> None:
    found = diagnose(tiny_encoder("EuroBert"), progress=False)
    assert found.passed, found
    assert check_of(found, "mask with").status == "info"


def test_decoders_are_not_asked_what_only_encoders_promise() -> None:
    names = [check.name for check in diagnose(tiny_model("llama"), progress=False).checks]
    assert not set(ONLY_ENCODERS) & set(names)
    assert "no token sees what comes after it" in names


def test_a_single_block_that_is_causal(tokenizer: Any) -> None:
    """The others still look ahead, so the logits alone would not tell."""
    model = tiny_encoder("EuroBert", "eager")
    attention = model.model.layers[1].self_attn

    def causal(_module: Any, args: Any, kwargs: Any) -> Any:
        length = kwargs["hidden_states"].shape[1]
        kwargs["attention_mask"] = torch.full((length, length), -torch.inf).triu(1)[None, None]
        return args, kwargs

    attention.register_forward_pre_hook(causal, with_kwargs=True)
    found = failures(model, tokenizer)
    assert found["every block sees both sides of a token"] == (
        "in blocks.1 (of 3) no token sees those behind it: that is not how an encoder attends"
    )


def test_a_decoders_mask_in_all_blocks(tokenizer: Any) -> None:
    """The twin trained left to right, under the encoder's name; a module that says so itself is refused before."""
    model = tiny_encoder("EuroBert", "sdpa")

    def causal(_module: Any, args: Any, kwargs: Any) -> Any:
        length = kwargs["hidden_states"].shape[1]
        return args, {**kwargs, "attention_mask": torch.full((length, length), -torch.inf).triu(1)[None, None]}

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(causal, with_kwargs=True)
    found = failures(model, tokenizer)
    assert "in blocks.0, blocks.1, blocks.2 (of 3) no token sees those behind it" in found[ONLY_ENCODERS[1]]


def test_a_mask_that_is_ignored(tokenizer: Any) -> None:
    model = tiny_encoder("EuroBert")
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _m, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
        )
    found = failures(model, tokenizer)
    assert (
        "the mask is ignored, and in a batch every document would see the padding of the others"
        in (found["no token sees padding"])
    )
    assert "a document's numbers do not depend on its batch" in found
    assert "every block sees both sides of a token" not in found


def test_rows_of_a_batch_that_mix(tokenizer: Any) -> None:
    model = tiny_encoder("EuroBert")
    model.model.layers[-1].mlp.register_forward_hook(lambda _m, _a, out: out + 0.1 * out[:1])
    assert "mixed batch" in failures(model, tokenizer)["a document's numbers do not depend on its batch"]


def test_a_norm_that_ignores_its_gain(tokenizer: Any) -> None:
    model = tiny_encoder("EuroBert")
    norm = model.model.layers[1].input_layernorm
    norm.forward = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    found = failures(model, tokenizer)
    assert "model.layers.1.input_layernorm" in found["norms apply their gain"]
    assert "ignores its gain" in found["norms apply their gain"]


def test_a_gradient_that_is_not_that_of_the_loss(tokenizer: Any) -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (1 if gradient.shape[0] == 1 else 0.5)

    model = tiny_encoder("EuroBert")
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: Halved.apply(out))
    assert "blocks.0.attn.W_Q (off by" in failures(model, tokenizer)["gradients equal autograd"]


def test_a_tokenizer_without_a_mask_token(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    bare = transformers.AutoTokenizer.from_pretrained(tmp_path)
    bare.mask_token = None
    named = diagnose(tiny_encoder("EuroBert"), bare, TEXTS, progress=False)
    assert "the tokenizer has none; the config names id 3" in check_of(named, "mask with").found
    found = failures(tiny_encoder("EuroBert", mask_token_id=128002), bare)  # outside its vocabulary
    assert "has no mask token" in found["a token to mask with"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_cls_takes_the_place_of_a_bos(n: int, tokenizer: Any, tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer.save_pretrained(tmp_path)
    own = transformers.AutoTokenizer.from_pretrained(tmp_path)
    own.bos_token = None
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{'<s> ' * n}$A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    check = check_of(diagnose(tiny_encoder("EuroBert"), own, TEXTS, progress=False), "BOS")
    assert check.status == ("pass" if n == 1 else "fail")
    assert f"the tokenizer has no BOS, and puts {n} CLS ('<s>', id 1) in front of a text" in check.found


def test_the_command_on_a_directory(tmp_path: Path, capsys: Any) -> None:
    model = tiny_encoder("EuroBert", "sdpa")
    save_as_on_hub(model, tmp_path / "whole")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(TEXTS))
    out = tmp_path / "out"
    assert main(["doctor", str(tmp_path / "whole"), "--text", str(text), "--out", str(out)]) == 0
    assert "(EuroBertForMaskedLM, 3 layers, d_model 32): all checks passed" in " ".join(capsys.readouterr().out.split())
    save_as_on_hub(model.model, tmp_path / "body")
    assert main(["doctor", str(tmp_path / "body"), "--out", str(out)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "FAIL the model loads:" in shown
    assert "names the class EuroBertModel, an encoder without its masked-language head" in shown
