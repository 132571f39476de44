"""The doctor passes on sound models of every kind, and names the cause on each of several broken on purpose."""

import copy
from typing import Any

import pytest
import torch
from tokenizers import processors

from tests.doctor_models import TEXTS, doctors_tokenizer, model_for
from tests.models import ARCHITECTURES, as_bridge, tiny_model
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.run import capture
from tl_aniso.doctor import Diagnosis, diagnose, run
from tl_aniso.doctor.cost import bytes_of_sums
from tl_aniso.errors import TextError

pytestmark = pytest.mark.usefixtures("one_thread")

SKIPPED_BY_NAN = 9


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return doctors_tokenizer()


def check_of(found: Diagnosis, part: str) -> Any:
    (check,) = [check for check in found.checks if part in check.name]
    return check


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
def test_sound_models_pass(kind: str, wrapper: str) -> None:
    model = tiny_model(kind)
    found = diagnose(as_bridge(model) if wrapper == "bridge" else model, progress=False)
    assert found.passed, found
    assert not [check.name for check in found.checks if check.status in ("warn", "skip")], found
    assert [check.name for check in found.checks] == [step.name for step in run._STEPS if step.only != "both"]
    assert "norms recomputed" in check_of(found, "norms").found


def test_the_model_is_left_as_it_was(tokenizer: Any) -> None:
    model = model_for(tokenizer, attention_dropout=0.1).train()
    model.model.layers[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [parameter.requires_grad for parameter in model.parameters()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    diagnose(model, tokenizer, TEXTS, progress=False)
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- broken on purpose ------------------------------------------------------------------------------------------


def test_a_hook_that_never_fires(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    mlp = model.model.layers[1].mlp
    mlp.gate_proj.__class__ = type("Fused", (torch.nn.Linear,), {"__call__": lambda self, x: x @ self.weight.T})
    found = diagnose(model, tokenizer, TEXTS, progress=False)
    (failed,) = found.failures
    assert failed.name == "every site delivers exactly once"
    assert "blocks.1.mlp.W_gate (0 times)" in failed.found
    assert "W_in" not in failed.found
    # What needs no hooks was checked all the same, and what does says why it was not.
    assert check_of(found, "norms").status == "pass"
    assert check_of(found, "autograd").status == "skip"
    assert failed.name in check_of(found, "autograd").found


def test_a_block_that_is_bypassed(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    model.model.layers[1].forward = lambda hidden, *_, **__: hidden
    (failed,) = diagnose(model, tokenizer, TEXTS, progress=False).failures
    assert "blocks.1.hook_resid_mid (0 times), blocks.1.attn.W_Q (0 times)" in failed.found
    assert "blocks.0" not in failed.found


def test_a_tokenizer_that_doubles_bos(tokenizer: Any) -> None:
    doubling = copy.deepcopy(tokenizer)
    token = doubling.convert_ids_to_tokens(0)
    doubling.bos_token = token
    doubling.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} {token} $A", pair=f"{token} $A $B", special_tokens=[(token, 0)]
    )
    assert doubling("the cat")["input_ids"][:2] == [0, 0]
    (failed,) = diagnose(model_for(tokenizer), doubling, TEXTS, progress=False).failures
    assert failed.name == "BOS zero or one"
    assert f"puts 2 BOS ({token!r}, id 0) in front of {len(TEXTS[:6])} of 6 texts" in failed.found
    assert "6 from which a second one was taken" in failed.found


def test_a_single_bos_passes_and_is_recorded(tokenizer: Any) -> None:
    single = copy.deepcopy(tokenizer)
    token = single.convert_ids_to_tokens(0)
    single.bos_token = token
    single.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, 0)]
    )
    check = check_of(diagnose(model_for(tokenizer), single, TEXTS, progress=False), "BOS")
    assert check.status == "pass"
    assert "6 of 6 documents with a BOS and 0 from which" in check.found
    assert "begins with one already" in check.found


@pytest.mark.parametrize("changes", [{"attention_dropout": 0.2}, {"kind": "neox-parallel", "hidden_dropout": 0.2}])
def test_a_model_in_training_mode_with_dropout(tokenizer: Any, changes: dict[str, Any]) -> None:
    found = diagnose(model_for(tokenizer, **changes).train(), tokenizer, TEXTS, progress=False)
    (failed,) = found.failures
    assert failed.name == "evaluation mode, nothing drawn at random"
    assert "training mode with active dropout" in failed.found
    assert ("self_attn (attention_dropout = 0.2)" if "kind" not in changes else "(p = 0.2)") in failed.found
    assert failed.remedy == "call model.eval()"
    # The capture switches modes itself, so its own numbers hold.
    assert check_of(found, "autograd").status == "pass"


def test_training_mode_without_dropout_is_a_warning(tokenizer: Any) -> None:
    found = diagnose(model_for(tokenizer).train(), tokenizer, TEXTS, progress=False)
    assert found.passed
    assert check_of(found, "evaluation mode").status == "warn"


def test_a_hook_that_draws_at_random(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: out + 0.1 * torch.randn_like(out))
    names = [check.name for check in diagnose(model, tokenizer, TEXTS, progress=False).failures]
    assert names[0] == "evaluation mode, nothing drawn at random"


def test_a_model_that_ignores_its_text(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    check = check_of(diagnose(model, tokenizer, TEXTS, progress=False), "finite")
    assert check.status == "fail"
    assert "the logits are the same at all" in check.found


def test_nan_in_one_layer(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] = torch.nan
    found = diagnose(model, tokenizer, TEXTS, progress=False)
    (failed,) = [check for check in found.failures if "finite" in check.name]
    assert "model.layers.1.mlp.down_proj.weight holds NaN" in failed.found
    assert {check.status for check in found.checks if check is not failed} <= {"pass", "skip"}
    assert sum(check.status == "skip" for check in found.checks) == SKIPPED_BY_NAN


def test_a_layer_whose_output_overflows_is_named(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    model.model.layers[1].mlp.register_forward_hook(lambda _m, _a, out: out / 0)
    failed = diagnose(model, tokenizer, TEXTS, progress=False).failures[0]
    assert "the output of blocks.1 holds NaN" in failed.found


@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])
@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
def test_a_norm_that_ignores_its_gain(kind: str, wrapper: str) -> None:
    model = tiny_model(kind)
    layers = model.model.layers if kind == "llama" else model.gpt_neox.layers
    norm = layers[1].input_layernorm
    bias = getattr(norm, "bias", None)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x if bias is None else x - x.mean(-1, keepdim=True)
        out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return out if bias is None else out + bias

    if wrapper == "bridge":
        model = as_bridge(model)
        layers = model.original_model.model.layers if kind == "llama" else model.original_model.gpt_neox.layers
        layers[1].input_layernorm.forward = lambda x, *_, **__: forward(x)
    else:
        norm.forward = forward
    failed = check_of(diagnose(model, progress=False), "norms")
    assert failed.status == "fail"
    assert "layers.1.input_layernorm" in failed.found
    assert "ignores its gain" in failed.found
    assert "layers.0" not in failed.found


def test_norms_that_all_ignore_their_gain(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    model.model.norm.forward = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    (failed,) = diagnose(model, tokenizer, TEXTS, progress=False).failures
    assert failed.found.count("ignores its gain") == 3
    assert failed.found.endswith("and 2 more")


def test_a_block_that_looks_ahead(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: out + out.mean(1, keepdim=True))
    names = [check.name for check in diagnose(model, tokenizer, TEXTS, progress=False).failures]
    assert names[:2] == ["no token sees what comes after it", "a document's numbers do not depend on its batch"]


def test_rows_of_a_batch_that_mix(tokenizer: Any) -> None:
    model = model_for(tokenizer)
    model.model.layers[-1].mlp.register_forward_hook(lambda _m, _a, out: out + 0.1 * out[:1])
    found = diagnose(model, tokenizer, TEXTS, progress=False)
    failed = check_of(found, "depend on its batch")
    assert failed.status == "fail"
    assert "mixed batch" in failed.found
    errors = {label: float(error) for label, error, _site in failed.table[1:]}
    assert min(errors["rows in a mixed batch"], errors["energies in a mixed batch"]) > 1e-2
    # Alone, pads change nothing: the fault is the batch's.
    assert max(errors["energies, padded right"], errors["energies, padded left"]) < 1e-5


def test_a_gradient_that_is_not_that_of_the_loss(tokenizer: Any) -> None:
    model = model_for(tokenizer)

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (1 if gradient.shape[0] == 1 else 0.5)

    # Only in batches: autograd on single documents does not see it, a capture of two does.
    model.model.layers[0].mlp.register_forward_hook(lambda _m, _a, out: Halved.apply(out))
    failed = check_of(diagnose(model, tokenizer, TEXTS, progress=False), "autograd")
    assert failed.status == "fail"
    assert "blocks.0.attn.W_Q (off by" in failed.found
    assert "hook_resid_pre" in str(failed.table)


def test_gradients_that_underflow_are_counted(tokenizer: Any) -> None:
    model = model_for(tokenizer)

    class Underflow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            kept = gradient.clone()
            kept[..., :8] = 0  # a quarter of the 32 directions
            return kept

    model.model.norm.register_forward_pre_hook(lambda _m, args: (Underflow.apply(args[0]), *args[1:]))
    check = check_of(diagnose(model, tokenizer, TEXTS, progress=False), "exactly zero")
    assert check.status == "warn"
    assert "at most 25% of the entries" in check.found
    assert "(blocks.1.hook_resid_post)" in check.found


def test_sinks_are_found(tokenizer: Any) -> None:
    model = model_for(tokenizer)

    def loud(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[:, 0] *= 1000
        return out

    model.model.layers[0].mlp.register_forward_hook(loud)
    check = check_of(diagnose(model, tokenizer, TEXTS, progress=False), "sinks")
    assert check.status == "info"
    assert "always the first position" in check.found
    assert "blocks.1.hook_resid_pre" in check.found
    assert "('the')" in str(check.table)


def test_a_check_that_crashes_fails_and_the_rest_go_on(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_subject: Any) -> Any:
        raise ZeroDivisionError("by <zero>")

    steps = [step._replace(run=crash) if "sinks" in step.name else step for step in run._STEPS]
    monkeypatch.setattr(run, "_STEPS", steps)
    found = diagnose(model_for(tokenizer), tokenizer, TEXTS, progress=False)
    (failed,) = found.failures
    assert failed.found == "could not be checked: ZeroDivisionError: by <zero>"
    assert found.checks[-1].name == "cost of measuring"
    assert found.checks[-1].status == "info"


def test_a_single_document_gets_company(tokenizer: Any) -> None:
    found = diagnose(model_for(tokenizer), tokenizer, TEXTS[0], progress=False)
    assert found.passed, found
    assert "beside" in check_of(found, "depend on its batch").found
    assert "beside 0" not in check_of(found, "depend on its batch").found


def test_absolute_positions_make_left_padding_the_models_own_affair(tokenizer: Any) -> None:
    model, positions = model_for(tokenizer), {}

    def before(_module: Any, _args: Any, kwargs: Any) -> None:
        positions["now"] = kwargs.get("position_ids")

    def absolute(_module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        places = torch.arange(out.shape[1])[None] if positions["now"] is None else positions["now"]
        return out + torch.sin(places)[..., None]

    model.model.register_forward_pre_hook(before, with_kwargs=True)
    model.model.embed_tokens.register_forward_hook(absolute)
    check = check_of(diagnose(model, tokenizer, TEXTS, progress=False), "left padding")
    assert check.status == "info"
    assert "The library always pads on the right" in check.found
    alone, with_positions = (float(part.split("move by ")[1].split()[0]) for part in check.found.split(";")[:2])
    assert alone > 0.1
    assert with_positions < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(tokenizer: Any, dtype: torch.dtype) -> None:
    found = diagnose(model_for(tokenizer).to(dtype), tokenizer, TEXTS, progress=False)
    assert found.passed, found
    assert check_of(found, "precision").status == ("warn" if dtype == torch.bfloat16 else "pass")


def test_models_and_tokenizers_that_cannot_be_used_at_all(tokenizer: Any) -> None:
    (failed,) = diagnose(torch.nn.Linear(2, 2), progress=False).failures
    assert failed.name == "the model can be measured"
    (failed,) = diagnose(model_for(tokenizer), lambda *_, **__: 1 / 0, progress=False).failures
    assert failed.found == "could not be checked: ZeroDivisionError: division by zero"


def test_the_tokenizer_of_another_model(tokenizer: Any) -> None:
    (failed,) = diagnose(tiny_model("llama", vocab_size=20), tokenizer, TEXTS, progress=False).failures
    assert "outside the model's vocabulary of 20" in failed.found


def test_sizes_are_those_of_a_capture(tokenizer: Any) -> None:
    for kind in ("llama", "neox-parallel"):
        model = model_for(tokenizer, kind)
        held = capture(model, TEXTS, tokenizer=tokenizer, progress=False)
        assert set(held.halves) == {"A", "B"}
        n = sum(map(len, (held.activations, held.activation_gradients, held.weight_gradients)))
        n += sum(map(len, held.controls.values()))
        n -= 2  # the output of each block but the last answers under a second name, in two of the tables
        assert bytes_of_sums(bind(model), with_proxies=False) == 2 * n * 32 * 32 * 8


def test_text_that_holds_nothing_is_an_error(tokenizer: Any) -> None:
    with pytest.raises(TextError, match="12 tokens"):
        diagnose(model_for(tokenizer), tokenizer, ["short"], progress=False)
