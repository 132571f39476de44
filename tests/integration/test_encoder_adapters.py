"""Encoders as a TransformerBridge against untouched Hugging Face models: logits, and residual gradients."""

import copy
import warnings
from functools import cache, partial
from typing import Any

import pytest
import torch

from tests.encoder_models import IMPLEMENTATIONS, KINDS, SIDES, VOCAB, WINDOW, ragged, tiny_encoder
from tl_aniso.adapters import ARCHITECTURES, register

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [(kind, implementation) for kind in KINDS for implementation in IMPLEMENTATIONS]


@cache
def pair(kind: str, implementation: str) -> tuple[Any, Any]:
    """The untouched model, and a bridge of a copy of it (booting rewrites a model in place)."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    register()
    model = tiny_encoder(kind, implementation)
    own = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = build_bridge_from_module(own, type(own).__name__, hf_config=own.config, tokenizer=None)
    assert model.config._attn_implementation == own.config._attn_implementation == implementation
    return model, bridge


def test_all_are_here() -> None:
    assert set(ARCHITECTURES) == {f"{kind}ForMaskedLM" for kind in KINDS}


@pytest.mark.parametrize(("kind", "implementation"), CASES)
class TestLogits:
    @pytest.mark.parametrize("side", SIDES)
    def test_equal_hugging_face(self, kind: str, implementation: str, side: str) -> None:
        model, bridge = pair(kind, implementation)
        ids, mask = ragged(side)
        with torch.no_grad():
            expected = model(ids, attention_mask=mask).logits
            found = bridge(ids, attention_mask=mask, return_type="logits")
        real = mask.bool()  # at pads the two may differ: a bridge counts positions from the first real token
        assert expected[real].std() > 0.5
        torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)

    def test_without_a_mask(self, kind: str, implementation: str) -> None:
        model, bridge = pair(kind, implementation)
        ids, _ = ragged("none")
        with torch.no_grad():
            expected, found = model(ids).logits, bridge(ids, return_type="logits")
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    def test_a_token_sees_both_sides(self, kind: str, implementation: str) -> None:
        _, bridge = pair(kind, implementation)
        ids, _ = ragged("none")
        middle = ids.shape[1] // 2
        others = ids.clone()
        others[:, middle] = (ids[:, middle] + 1 - 4) % (VOCAB - 4) + 4
        with torch.no_grad():
            moved = (bridge(ids, return_type="logits") - bridge(others, return_type="logits")).abs().amax((0, 2))
        assert moved[middle - 1] > 1e-3
        assert moved[middle + 1] > 1e-3


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_modernbert_has_local_and_global_layers(implementation: str) -> None:
    """The batches above are longer than the window: with global attention everywhere, logits are others."""
    model, bridge = pair("ModernBert", implementation)
    ids, mask = ragged("none")
    assert model.config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    assert ids.shape[1] > 2 * WINDOW
    wide = tiny_encoder("ModernBert", implementation, local_attention=2 * ids.shape[1])
    with torch.no_grad():
        found = bridge(ids, attention_mask=mask, return_type="logits")
        assert (found - wide(ids, attention_mask=mask).logits).abs().max() > 0.1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("kind", "implementation"), CASES)
def test_gradients_of_the_residual_stream(kind: str, implementation: str, side: str) -> None:
    """At hook_resid_pre and hook_resid_post of every block, of a masked-language loss; at pads, exactly zero."""
    model, bridge = pair(kind, implementation)
    ids, mask = ragged(side)
    expected = _reference_gradients(model, ids, mask)
    found = _bridge_gradients(bridge, ids, mask)
    assert len(expected) == 2 * model.config.num_hidden_layers
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        scale = gradient.abs().max()
        assert scale > 1e-3, name
        difference = (found[name] - gradient).abs().max()
        assert difference <= 1e-5 * scale, (name, float(difference / scale))
        assert not found[name][mask == 0].any(), name


_LLAMA = {
    "embed": "model.embed_tokens",
    "blocks.1.ln1": "model.layers.1.input_layernorm",
    "blocks.1.attn.q": "model.layers.1.self_attn.q_proj",
    "blocks.1.attn.k": "model.layers.1.self_attn.k_proj",
    "blocks.1.attn.v": "model.layers.1.self_attn.v_proj",
    "blocks.1.attn.o": "model.layers.1.self_attn.o_proj",
    "blocks.1.ln2": "model.layers.1.post_attention_layernorm",
    "blocks.1.mlp.gate": "model.layers.1.mlp.gate_proj",
    "blocks.1.mlp.in": "model.layers.1.mlp.up_proj",
    "blocks.1.mlp.out": "model.layers.1.mlp.down_proj",
    "ln_final": "model.norm",
    "unembed": "lm_head",
}
_MODERN = {
    "embed": "model.embeddings.tok_embeddings",
    "embed_ln": "model.embeddings.norm",
    "blocks.1.ln1": "model.layers.1.attn_norm",
    "blocks.1.attn.qkv": "model.layers.1.attn.Wqkv",
    "blocks.1.attn.o": "model.layers.1.attn.Wo",
    "blocks.1.ln2": "model.layers.1.mlp_norm",
    "blocks.1.mlp.in": "model.layers.1.mlp.Wi",
    "blocks.1.mlp.out": "model.layers.1.mlp.Wo",
    "ln_final": "model.final_norm",
    "mlm_head": "head.dense",
    "mlm_head_ln": "head.norm",
    "unembed": "decoder",
}
_ROBERTA = {
    "embed": "roberta.embeddings.word_embeddings",
    "pos_embed": "roberta.embeddings.position_embeddings",
    "embed_ln": "roberta.embeddings.LayerNorm",
    "blocks.1.attn.q": "roberta.encoder.layer.1.attention.self.query",
    "blocks.1.attn.o": "roberta.encoder.layer.1.attention.output.dense",
    "blocks.1.ln1": "roberta.encoder.layer.1.attention.output.LayerNorm",
    "blocks.1.mlp.in": "roberta.encoder.layer.1.intermediate.dense",
    "blocks.1.mlp.out": "roberta.encoder.layer.1.output.dense",
    "blocks.1.ln2": "roberta.encoder.layer.1.output.LayerNorm",
    "unembed": "lm_head.decoder",
}
_NAMES = {"EuroBert": _LLAMA, "ModernBert": _MODERN, "Camembert": _ROBERTA, "XLMRoberta": _ROBERTA}


@pytest.mark.parametrize("kind", KINDS)
def test_components_hold_the_right_weights(kind: str) -> None:
    """Every weight is drawn for itself, so equal values mean the same module."""
    model, bridge = pair(kind, "eager")
    for component, path in _NAMES[kind].items():
        found = bridge.get_submodule(component).original_component.weight
        assert torch.equal(found, model.get_submodule(path).weight), component


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("EuroBert", "hook_resid_mid", "model.layers.1.post_attention_layernorm"),
        ("ModernBert", "hook_resid_mid", "model.layers.1.mlp_norm"),
        ("Camembert", "ln1.hook_out", "roberta.encoder.layer.1.intermediate.dense"),
        ("XLMRoberta", "ln1.hook_out", "roberta.encoder.layer.1.intermediate.dense"),
    ],
)
def test_residual_after_attention(kind: str, name: str, path: str) -> None:
    """What the MLP's norm reads; where the norms come last, what the MLP itself reads."""
    model, bridge = pair(kind, "eager")
    ids, mask = ragged("right")
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        with torch.no_grad():
            model(ids, attention_mask=mask)
            point = (f"blocks.1.{name}", lambda tensor, hook: seen.append(tensor))
            bridge.run_with_hooks(ids, attention_mask=mask, return_type="logits", fwd_hooks=[point])
    finally:
        handle.remove()
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)


def _loss(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Summed over every third real token, as masked-language loss is: unshifted."""
    labels = ids.masked_fill((mask == 0) | (torch.arange(ids.shape[1]) % 3 != 0), -100)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def _reference_gradients(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    base = model.base_model
    layers = base.encoder.layer if hasattr(base, "encoder") else base.layers
    seen: dict[str, torch.Tensor] = {}

    def note(i: int, _module: Any, args: tuple, kwargs: dict, output: Any) -> None:
        seen[f"blocks.{i}.hook_resid_pre"] = args[0] if args else kwargs["hidden_states"]
        seen[f"blocks.{i}.hook_resid_post"] = output[0] if isinstance(output, tuple) else output

    handles = [layer.register_forward_hook(partial(note, i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        loss = _loss(model(ids, attention_mask=mask).logits, ids, mask)
    finally:
        for handle in handles:
            handle.remove()
    return dict(zip(seen, torch.autograd.grad(loss, list(seen.values())), strict=True))


def _bridge_gradients(bridge: Any, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}

    def note(name: str, tensor: torch.Tensor, hook: Any) -> None:
        seen[name] = tensor

    names = [f"blocks.{i}.hook_resid_{end}" for i in range(len(bridge.blocks)) for end in ("pre", "post")]
    logits = bridge.run_with_hooks(
        ids, attention_mask=mask, return_type="logits", fwd_hooks=[(name, partial(note, name)) for name in names]
    )
    gradients = torch.autograd.grad(_loss(logits, ids, mask), [seen[name] for name in names])
    return dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("kind", KINDS)
class TestRefusals:
    def test_causal_loss(self, kind: str) -> None:
        """The bridge's own loss is shifted by a token, which means nothing here."""
        _, bridge = pair(kind, "sdpa")
        with pytest.raises(NotImplementedError, match="shifted causal loss"):
            bridge(ragged("none")[0], return_type="loss")
