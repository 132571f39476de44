"""HookedTransformers (TransformerLens below 4) with the weights of tiny Hugging Face models, without any processing."""

import warnings
from typing import Any

import torch

from tests.models import tiny_model

# kind -> how TransformerLens 3.9 converts its weights, and what its configuration says beyond sizes.
_LAYER_NORM = {"normalization_type": "LN"}
_RMS_NORM = {"normalization_type": "RMS", "final_rms": True, "gated_mlp": True, "act_fn": "silu"}
_ROTARY = {"positional_embedding_type": "rotary"}
_CONVERSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "neox-parallel": ("neox", {**_LAYER_NORM, **_ROTARY, "act_fn": "gelu", "parallel_attn_mlp": True}),
    "neox-sequential": ("neox", {**_LAYER_NORM, **_ROTARY, "act_fn": "gelu"}),
    "llama": ("llama", {**_RMS_NORM, **_ROTARY}),
    "llama-tied": ("llama", {**_RMS_NORM, **_ROTARY}),
    "gpt2": ("gpt2", {**_LAYER_NORM, "positional_embedding_type": "standard", "act_fn": "gelu_new"}),
    "olmo": ("olmo", {**_LAYER_NORM, **_ROTARY, "gated_mlp": True, "act_fn": "silu"}),
    "olmo2": ("olmo2", {**_RMS_NORM, **_ROTARY}),
    "mistral": ("mistral", {**_RMS_NORM, **_ROTARY}),
    "qwen2": ("qwen2", {**_RMS_NORM, **_ROTARY}),
    "qwen3": ("qwen3", {**_RMS_NORM, **_ROTARY, "use_qk_norm": True}),
    "gemma3": (
        "gemma",
        {
            **_RMS_NORM,
            **_ROTARY,
            "act_fn": "gelu_pytorch_tanh",
            "use_normalization_before_and_after": True,
            "use_qk_norm": True,
            "rotary_base_local": 10_000.0,
        },
    ),
}
HOOKED_KINDS = tuple(_CONVERSIONS)
# Its conversions of OLMo and OLMo 2 know no grouped keys and values, though the architectures do.
_UNGROUPED = ("olmo", "olmo2")


def peer_of(kind: str, **changes: Any) -> Any:
    """The Hugging Face model that `hooked_model` has the weights of."""
    return tiny_model(kind, **({"num_key_value_heads": 4} if kind in _UNGROUPED else {}), **changes)


def hooked_model(kind: str, *, peer: Any = None, **changes: Any) -> Any:
    """A HookedTransformer with the weights of `peer`; `changes` go to its configuration."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained import weight_conversions

    model = peer_of(kind) if peer is None else peer
    name, options = _CONVERSIONS[kind]
    cfg = HookedTransformerConfig(**{**_sizes(model), **options, **changes})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the class is deprecated, which is why this package supports it
        hooked = HookedTransformer(cfg)
    with torch.no_grad():
        state = getattr(weight_conversions, f"convert_{name}_weights")(model, cfg)
    hooked.load_and_process_state_dict(
        {key: value.detach().clone() for key, value in state.items()},
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
    )
    return hooked.eval()


def _sizes(model: Any) -> dict[str, Any]:
    config = model.config
    heads = config.num_attention_heads
    grouped = getattr(config, "num_key_value_heads", heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    windows = getattr(config, "sliding_window", None)
    local = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or ()]
    if windows and not local:
        local = [True] * config.num_hidden_layers
    named = [getattr(config, name, None) for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")]
    return {
        "original_architecture": type(model).__name__,
        "d_model": config.hidden_size,
        "d_head": width,
        "n_heads": heads,
        "n_key_value_heads": None if grouped == heads else grouped,
        "d_mlp": getattr(config, "intermediate_size", None) or config.n_inner,
        "n_layers": config.num_hidden_layers,
        "n_ctx": config.max_position_embeddings,
        "d_vocab": config.vocab_size,
        "eps": next(filter(None, named), 1e-5),  # OLMo fixes it
        "rotary_base": rope.get("rope_theta", 10_000.0),
        "rotary_dim": int(width * rope.get("partial_rotary_factor", 1.0)),
        "attn_scale": getattr(config, "query_pre_attn_scalar", width) ** 0.5,
        "use_local_attn": any(local),
        "attn_types": ["local" if one else "global" for one in local] or ["global"] * config.num_hidden_layers,
        "window_size": windows if any(local) else None,
        "device": "cpu",
        "dtype": next(model.parameters()).dtype,
        "init_weights": False,
    }
