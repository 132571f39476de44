"""Find the layout of a user's model, or say clearly why it cannot be measured."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from tl_aniso.capturing.layout import Block, Layout, block_matrices, fused_heads, unembedding
from tl_aniso.errors import ModelError

__all__ = ["SUPPORTED_CLASSES", "bind", "check_finite"]

_OLDEST_BRIDGE = 4
_WEIGHT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def bind(model: Any) -> Layout:
    """The layout of a Hugging Face model or a TransformerBridge.

    Args:
        model: GPTNeoXForCausalLM or LlamaForCausalLM, plain or booted into a TransformerBridge of TransformerLens 4.

    Raises:
        ModelError: no adapter for the class, a bridge of TransformerLens 3, weights that TransformerLens processed,
            quantised, half-precision or non-finite weights.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> bind(LlamaForCausalLM(config)).weight_sites[:3]
        ('embed.W_E', 'blocks.0.attn.W_Q', 'blocks.0.attn.W_K')
    """
    names = {cls.__name__ for cls in type(model).__mro__}
    if "TransformerBridge" in names:
        layout = _bind_bridge(model)
    elif "HookedTransformer" in names:
        raise ModelError(
            "no adapter for HookedTransformer; load the model with TransformerBridge.boot_transformers "
            "(TransformerLens 4) or hand over the Hugging Face model itself"
        )
    elif type(model).__name__ in _BINDERS:
        layout = _BINDERS[type(model).__name__](model)
    else:
        raise ModelError(f"no adapter for {type(model).__name__}; supported: {', '.join(SUPPORTED_CLASSES)}")
    if not layout.blocks:
        raise ModelError(f"this {layout.class_name} has no blocks; there is no residual stream to measure")
    _check_weights(layout)
    return layout


def _bind_neox(model: Any) -> Layout:
    config, body = model.config, model.gpt_neox
    parallel = bool(config.use_parallel_residual)
    split = fused_heads(config.num_attention_heads)
    blocks = []
    for i, layer in enumerate(body.layers):
        matrices = block_matrices(
            i,
            attention=[(layer.attention.query_key_value, ("W_Q", "W_K", "W_V"), split)],
            attention_out=layer.attention.dense,
            mlp=[(layer.mlp.dense_h_to_4h, "W_in")],
            mlp_out=layer.mlp.dense_4h_to_h,
            has_mid=not parallel,
        )
        blocks.append(Block(layer, None if parallel else layer.post_attention_layernorm, matrices))
    return _layout(model, body, "gptneox", body.embed_in, model.get_output_embeddings(), blocks, "huggingface")


def _bind_llama(model: Any) -> Layout:
    body = model.model
    blocks = []
    for i, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        matrices = block_matrices(
            i,
            attention=[
                (attention.q_proj, ("W_Q",), None),
                (attention.k_proj, ("W_K",), None),
                (attention.v_proj, ("W_V",), None),
            ],
            attention_out=attention.o_proj,
            mlp=[(mlp.up_proj, "W_in"), (mlp.gate_proj, "W_gate")],
            mlp_out=mlp.down_proj,
            has_mid=True,
        )
        blocks.append(Block(layer, layer.post_attention_layernorm, matrices))
    return _layout(model, body, "llama", body.embed_tokens, model.get_output_embeddings(), blocks, "huggingface")


def _bind_bridge(bridge: Any) -> Layout:
    """A bridge presents every architecture under the same component names."""
    _check_bridge_version()
    if getattr(bridge, "_weights_processed", False):
        raise ModelError(
            "TransformerLens has processed this bridge's weights (folded norms, centred writers), which changes the "
            "residual basis and the gradients; boot it again without enable_compatibility_mode()"
        )
    model = bridge.original_model
    class_name = type(model).__name__
    if class_name not in _BINDERS:
        raise ModelError(
            f"no adapter for a TransformerBridge of {class_name}; supported: {', '.join(SUPPORTED_CLASSES)}"
        )
    parallel = class_name == "GPTNeoXForCausalLM" and bool(model.config.use_parallel_residual)
    blocks = []
    for i, block in enumerate(bridge.blocks):
        mlp = [(_inner(getattr(block.mlp, "in")), "W_in")]
        if hasattr(block.mlp, "gate"):
            mlp.append((_inner(block.mlp.gate), "W_gate"))
        matrices = block_matrices(
            i,
            attention=[(_inner(getattr(block.attn, p)), (f"W_{p.upper()}",), None) for p in ("q", "k", "v")],
            attention_out=_inner(block.attn.o),
            mlp=mlp,
            mlp_out=_inner(block.mlp.out),
            has_mid=not parallel,
        )
        blocks.append(Block(_inner(block), None if parallel else block.ln2, matrices))
    family = "gptneox" if class_name == "GPTNeoXForCausalLM" else "llama"
    return _layout(
        model,
        model.base_model,
        family,
        _inner(bridge.embed),
        _inner(bridge.unembed),
        blocks,
        "transformer_bridge",
    )


_BINDERS: dict[str, Callable[[Any], Layout]] = {
    "GPTNeoXForCausalLM": _bind_neox,
    "LlamaForCausalLM": _bind_llama,
}
SUPPORTED_CLASSES = tuple(_BINDERS)


def _inner(component: nn.Module) -> nn.Module:
    """The module that a bridge component wraps: it, not the wrapper, holds the live parameter."""
    inner = component._modules.get("_original_component")
    return component if inner is None else inner


def _layout(
    model: Any,
    backbone: nn.Module,
    family: str,
    embed: nn.Module,
    unembed: nn.Module,
    blocks: list[Block],
    wrapper: str,
) -> Layout:
    weight = getattr(embed, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise ModelError(
            f"the embedding of {type(model).__name__} holds no plain weight; is the model quantised? Load it without"
        )
    return Layout(
        root=model,
        backbone=backbone,
        family=family,
        class_name=type(model).__name__,
        embed=embed,
        unembed=unembedding(unembed, len(blocks)),
        blocks=tuple(blocks),
        d_model=int(weight.shape[1]),
        vocab_size=min(int(weight.shape[0]), int(unembed.weight.shape[0])),  # type: ignore[index]
        context=int(model.config.max_position_embeddings),
        wrapper=wrapper,
    )


def _check_bridge_version() -> None:
    try:
        found = version("transformer_lens")
    except PackageNotFoundError:
        found = "unknown"
    major = found.split(".")[0]
    if not major.isdigit() or int(major) < _OLDEST_BRIDGE:
        raise ModelError(
            f"this TransformerBridge is of TransformerLens {found}, whose gradients and padding are silently wrong; "
            f"install transformer_lens >= {_OLDEST_BRIDGE} or hand over the Hugging Face model itself"
        )


def _check_weights(layout: Layout) -> None:
    for site, weight in layout.weights():
        # A subclass of Parameter is how quantised weights pass for floating-point ones.
        if type(weight) is not nn.Parameter or weight.dtype not in _WEIGHT_TYPES or weight.dim() != 2:
            found = str(weight.dtype) if isinstance(weight, torch.Tensor) else "no tensor at all"
            raise ModelError(
                f"the weight at {site} is quantised or not a plain parameter ({type(weight).__name__}, {found}); "
                "gradients need floating-point weights: load the model without quantisation, or dequantise it"
            )
        if weight.dtype == torch.float16:
            raise ModelError(
                f"the weight at {site} is float16, in which small gradients become exact zeros; convert the model with "
                "model.float(), or load it with dtype=torch.float32"
            )
        if weight.is_inference():
            raise ModelError(
                f"the weight at {site} was made under torch.inference_mode(), where no gradient can pass; load the "
                "model outside of it"
            )
        if weight.device.type == "meta":
            raise ModelError(f"the weight at {site} is on the meta device: it was never loaded")
    for matrix in layout.matrices:
        # A wrapper (an adapter of low rank, say) may show a base's weight while its output holds more than W x.
        if not isinstance(matrix.module, nn.Linear):
            raise ModelError(
                f"{matrix.sites[0]} is a {type(matrix.module).__name__}, not a plain linear layer, so its gradient is "
                "not that of one matrix; merge adapters into the weights first"
            )
    kinds = {weight.dtype for _, weight in layout.weights()}
    if len(kinds) > 1:
        raise ModelError(
            f"the weights mix {' and '.join(sorted(map(str, kinds)))}; convert the model to one, e.g. model.float()"
        )


def check_finite(layout: Layout) -> None:
    """Name the parameter that is not finite.

    It reads every weight once, so it is asked when a number went wrong, not before each run.

    Raises:
        ModelError: a parameter holds NaN or infinite values.
    """
    for name, parameter in layout.root.named_parameters():
        if not bool(torch.isfinite(parameter.detach().sum())) and not bool(torch.isfinite(parameter.detach()).all()):
            raise ModelError(f"the parameter {name} holds NaN or infinite values; the checkpoint is broken")
