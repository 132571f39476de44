"""A HookedTransformer (TransformerLens 3.9) is left as it was, and refused with the reason if it cannot be measured."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.hooked_models import hooked_model
from tests.models import as_bridge, random_documents, tiny_model
from tl_aniso import capture
from tl_aniso.capturing import run
from tl_aniso.errors import ModelError, SiteError, TextError

pytestmark = [pytest.mark.hooked, pytest.mark.usefixtures("one_thread")]

DOCUMENTS = random_documents((12, 9, 20, 15))
OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 2, "exclude": ()}
UNPROCESSED = {
    "fold_ln": False,
    "center_writing_weights": False,
    "center_unembed": False,
    "fold_value_biases": False,
    "refactor_factored_attn_matrices": False,
}


def quiet(model: Any, **options: Any) -> Any:
    return capture(model, DOCUMENTS, **{**OPTIONS, **options})


def state(model: nn.Module) -> dict[str, Any]:
    hooks = [name for name in vars(nn.Module()) if "hooks" in name]
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    return {
        "modes": {name: module.training for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "hooks": [(path, name, list(vars(module)[name])) for path, module in modules.items() for name in hooks],
        "lens": {p: (list(m.fwd_hooks), list(m.bwd_hooks)) for p, m in modules.items() if hasattr(m, "fwd_hooks")},
        "flags": {name: p.requires_grad for name, p in parameters.items()},
        "identity": {name: (id(p), p.data_ptr(), p._version) for name, p in parameters.items()},
        "buffers": {name: (id(b), b.data_ptr(), tuple(b.shape)) for name, b in model.named_buffers()},
        "grads": {
            name: (id(p.grad), None if p.grad is None else float(p.grad.sum())) for name, p in parameters.items()
        },
        "cfg": {name: repr(value) for name, value in model.cfg.__dict__.items()},
        "alibi": [getattr(block.attn, "alibi", None) for block in model.blocks],
        "rng": torch.get_rng_state().tolist(),
        "modes of torch": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def lived_in(kind: str, fired: list[str]) -> Any:
    """A model in use: partly training, partly frozen, some gradients there, hooks of both directions set."""
    model = hooked_model(kind)
    for number, module in enumerate(model.modules()):
        module.training = number % 3 != 0
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
        if number % 4 == 0:
            parameter.grad = torch.full_like(parameter, float(number))
    model.add_hook("blocks.1.hook_resid_pre", lambda _value, hook: fired.append(hook.name))
    model.add_hook("blocks.0.attn.hook_q", lambda _value, hook: fired.append(hook.name), is_permanent=True)
    model.add_hook("blocks.1.hook_mlp_out", lambda _value, hook: fired.append("backward"), dir="bwd")
    return model


@pytest.mark.parametrize("kind", ["neox-parallel", "llama", "gpt2"])
class TestUntouched:
    def test_after_a_capture(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformer_lens.components import AbstractAttention

        # So that the tables of rotary positions have to grow within the texts.
        monkeypatch.setattr(AbstractAttention, "ROTARY_INITIAL_CACHE_SIZE", 8)
        expected = quiet(hooked_model(kind))
        fired: list[str] = []
        model = lived_in(kind, fired)
        before = state(model)
        got = quiet(model, extra_passes="shuffled_labels")
        assert state(model) == before
        assert set(fired) == {"blocks.1.hook_resid_pre", "blocks.0.attn.hook_q", "backward"}
        for site, moments in expected.weight_gradients.items():
            torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("where", ["forward", "backward", "reduce"])
    def test_after_an_exception(self, kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Stop(RuntimeError):
            pass

        def fail(*_: Any, **__: Any) -> None:
            raise Stop

        model = lived_in(kind, [])
        if where == "forward":
            model.add_hook("blocks.0.hook_resid_mid" if kind != "neox-parallel" else "blocks.0.hook_attn_out", fail)
        elif where == "backward":
            model.add_hook("blocks.0.mlp.hook_post", lambda value, hook: [value.register_hook(fail), None][1])
        else:
            monkeypatch.setattr(run.Reducer, "embedding_gradient", fail)
        before = state(model)
        with pytest.raises(Stop):
            quiet(model)
        assert state(model) == before

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_under_the_users_own_grad_mode(self, kind: str, mode: Any) -> None:
        model = hooked_model(kind)
        expected, before = quiet(model), state(model)
        with mode():
            got = quiet(model)
        assert state(model) == before
        for site, moments in expected.weight_gradients.items():
            torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)


def test_alibi_is_not_left_behind() -> None:
    model = hooked_model("gpt2", positional_embedding_type="alibi")
    before = state(model)
    quiet(model)
    assert state(model) == before


def test_a_tokenizer_that_pads_on_the_left_moves_nothing() -> None:
    # The model would take the first tokens for padding, mask them and shift positions.
    documents = [[0, 0, *document] for document in DOCUMENTS]
    expected = capture(hooked_model("gpt2"), documents, **OPTIONS)
    model = hooked_model("gpt2")
    model.tokenizer = SimpleNamespace(padding_side="left", pad_token_id=0, bos_token_id=0, all_special_ids=[])
    got = capture(model, documents, **OPTIONS)
    assert model.tokenizer.padding_side == "left"
    for site, moments in expected.weight_gradients.items():
        torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)


def test_what_is_recorded() -> None:
    model = hooked_model("llama", model_name="tiny-llama")
    found = quiet(model).metadata
    assert {key: found["model"][key] for key in ("name", "family", "class", "wrapper", "revision")} == {
        "name": "tiny-llama",
        "family": "llama",
        "class": "LlamaForCausalLM",
        "wrapper": "hooked_transformer",
        "revision": "unknown",
    }
    assert found["versions"]["transformer_lens"].startswith("3.9.")
    assert found["options"]["special"] == []
    assert quiet(hooked_model("llama")).metadata["model"]["name"] == "LlamaForCausalLM"


def test_strings_need_a_tokenizer() -> None:
    with pytest.raises(TextError, match="pass tokenizer="):
        capture(hooked_model("llama"), ["some text"], **OPTIONS)


class TestHooksThatFindSomethingElse:
    """Faults that would otherwise give a number, and a wrong one."""

    def test_a_hook_that_cuts_the_stream(self) -> None:
        model = hooked_model("llama")
        model.add_hook("blocks.0.hook_resid_post", lambda value, hook: value.detach())
        with pytest.raises(SiteError, match=r"no gradient reaches blocks\.1\.hook_resid_pre"):
            quiet(model)

    def test_a_matrix_that_runs_twice(self) -> None:
        model = hooked_model("llama")
        mlp = model.blocks[1].mlp
        model.blocks[1].register_forward_hook(lambda *_: [mlp(torch.zeros(1, 1, 32)), None][1])
        with pytest.raises(SiteError, match=r"blocks\.1\.mlp\.W_gate delivered 2 tensors in the forward pass"):
            quiet(model, gradients=(), sites=["blocks.1.mlp.W_in", "blocks.1.mlp.input"])

    def test_an_input_changed_in_place(self) -> None:
        model = hooked_model("llama")
        model.blocks[0].mlp.register_forward_hook(lambda _m, args, _o: [args[0].detach().mul_(2), None][1])
        with pytest.raises(SiteError, match=r"blocks\.0\.mlp\.W_in.*in place"):
            quiet(model, sites=["blocks.0.mlp.W_in"])


class TestRefused:
    @pytest.mark.parametrize(
        ("kind", "step", "found"),
        [
            ("neox-parallel", "fold_ln", "folded norms"),
            ("llama", "fold_ln", "folded norms"),
            ("neox-parallel", "center_writing_weights", "centred writers"),
            ("gpt2", "center_writing_weights", "centred writers"),
            ("neox-parallel", "fold_value_biases", "folded value biases"),
            ("qwen2", "fold_value_biases", "folded value biases"),
            ("gpt2", "refactor_factored_attn_matrices", "refactored attention matrices"),
        ],
    )
    def test_processed_weights(self, kind: str, step: str, found: str) -> None:
        model = hooked_model(kind)
        quiet(model)
        model.load_and_process_state_dict(model.state_dict(), **{**UNPROCESSED, step: True})
        with pytest.raises(ModelError, match=rf"{found}.*from_pretrained_no_processing"):
            quiet(model)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_centring_shows_in_every_precision(self, dtype: torch.dtype) -> None:
        model = hooked_model("gpt2", peer=tiny_model("gpt2").to(dtype))
        quiet(model)
        model.load_and_process_state_dict(model.state_dict(), **{**UNPROCESSED, "center_writing_weights": True})
        with pytest.raises(ModelError, match="centred writers"):
            quiet(model)

    def test_weights_that_only_look_processed(self) -> None:
        # Nearly centred writers, as training may leave them, and a model without biases.
        model = hooked_model("gpt2")
        with torch.no_grad():
            for block in model.blocks:
                for weight in (block.attn.W_O, block.mlp.W_out):
                    weight -= 0.999 * weight.mean(-1, keepdim=True)
                for bias in (block.attn.b_Q, block.attn.b_K, block.attn.b_V):
                    bias.zero_()
        quiet(model)

    def test_experts_and_other_parts(self) -> None:
        for change, message in (
            ({"attn_only": True}, "attention alone"),
            ({"attention_dir": "bidirectional"}, "both directions"),
            ({"num_experts": 4}, "experts"),
            ({"post_embedding_ln": True}, "behind the embedding"),
            ({"positional_embedding_type": "shortformer"}, "queries and keys only"),
            ({"n_devices": 2}, "several devices"),
            ({"load_in_4bit": True}, "quantised"),
        ):
            model = hooked_model("gpt2")
            vars(model.cfg).update(change)
            with pytest.raises(ModelError, match=message):
                quiet(model)

    def test_inputs_split_by_head(self) -> None:
        for kind, switch in (("llama", "use_split_qkv_input"), ("gpt2", "use_attn_in")):
            model = hooked_model(kind)
            getattr(model, f"set_{switch}")(True)
            with pytest.raises(ModelError, match=rf"set_{switch}\(False\)"):
                quiet(model)
            getattr(model, f"set_{switch}")(False)
            quiet(model)

    def test_half_precision_and_mixtures(self) -> None:
        with pytest.raises(ModelError, match="float16"):
            quiet(hooked_model("llama", peer=tiny_model("llama").half()))
        mixed = hooked_model("llama")
        mixed.unembed.double()
        with pytest.raises(ModelError, match=r"torch\.float32 and torch\.float64"):
            quiet(mixed)
        # Its norms would go on rounding to bfloat16.
        with pytest.raises(ModelError, match=r"cfg\.dtype is torch\.bfloat16"):
            quiet(hooked_model("llama", peer=tiny_model("llama").bfloat16()).float())

    def test_quantised_weights(self) -> None:
        class Params4bit(nn.Parameter):
            pass

        model = hooked_model("llama")
        model.blocks[0].mlp.W_in = Params4bit(model.blocks[0].mlp.W_in.detach(), requires_grad=False)
        with pytest.raises(ModelError, match=r"blocks\.0\.mlp\.W_in is quantised \(Params4bit"):
            quiet(model)

    def test_weights_that_no_gradient_can_pass(self) -> None:
        with torch.inference_mode():
            made = hooked_model("llama")
        with pytest.raises(ModelError, match="inference_mode"):
            quiet(made)
        with pytest.raises(ModelError, match="meta device"):
            quiet(hooked_model("llama").to_empty(device="meta"))

    def test_encoders_and_bridges_of_this_version(self) -> None:
        from transformer_lens import HookedEncoder, HookedTransformerConfig

        cfg = HookedTransformerConfig(
            n_layers=1, d_model=8, n_ctx=8, d_head=4, d_vocab=9, act_fn="gelu", d_mlp=8, device="cpu", n_heads=2
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoder = HookedEncoder(cfg)
        with pytest.raises(ModelError, match="no adapter for HookedEncoder"):
            quiet(encoder)
        with pytest.raises(ModelError, match=r"TransformerLens 3\.9.*silently wrong"):
            quiet(as_bridge(tiny_model("llama")))
