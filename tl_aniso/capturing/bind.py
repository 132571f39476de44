"""Find the layout of a user's model, or say clearly why it cannot be measured."""

from typing import Any

from tl_aniso.capturing.bindings.bridge import bind_bridge
from tl_aniso.capturing.bindings.huggingface import bind_huggingface
from tl_aniso.capturing.bindings.refusals import SUPPORTED_CLASSES, family_of
from tl_aniso.capturing.bindings.weights import check_finite, check_weights
from tl_aniso.capturing.hooked import bind_hooked
from tl_aniso.capturing.layout import Layout
from tl_aniso.errors import ModelError

__all__ = ["SUPPORTED_CLASSES", "bind", "check_finite"]


def bind(model: Any) -> Layout:
    """The layout of a Hugging Face model, a TransformerBridge or a HookedTransformer.

    Args:
        model: one of `SUPPORTED_CLASSES`, or a subclass that keeps its forward pass, plain or booted into a
            TransformerBridge of TransformerLens 4; or a HookedTransformer of an earlier TransformerLens, loaded without
            processing.

    Raises:
        ModelError: no adapter for the class, adapters of low rank, a mixture of experts, a multimodal model, a bridge
            of TransformerLens 3, weights that TransformerLens processed, quantised or float16 weights.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> bind(LlamaForCausalLM(config)).weight_sites[:3]
        ('embed.W_E', 'blocks.0.attn.W_Q', 'blocks.0.attn.W_K')
    """
    names = {cls.__name__ for cls in type(model).__mro__}
    if "TransformerBridge" in names:
        layout = bind_bridge(model)
    elif "HookedTransformer" in names:
        layout = bind_hooked(model)
    else:
        layout = bind_huggingface(model, family_of(model))
    if not layout.blocks:
        raise ModelError(f"this {layout.class_name} has no blocks; there is no residual stream to measure")
    if layout.wrapper != "hooked_transformer":  # whose matrices are no modules; they are checked where they are bound
        check_weights(layout)
    return layout
