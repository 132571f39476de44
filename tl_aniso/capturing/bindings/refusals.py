"""Which family a model belongs to, and why it is refused where it belongs to none."""

import re
from typing import Any

from torch import nn

from tl_aniso.capturing.bindings.families import FAMILIES, Family
from tl_aniso.errors import ModelError

__all__ = ["SUPPORTED_CLASSES", "family_of", "forward_owner"]

SUPPORTED_CLASSES = tuple(FAMILIES)

_HOME = "transformers.models."
_ADAPTER_PARTS = frozenset({"base_layer", "lora_A", "lora_embedding_A", "lora_magnitude_vector"})
_EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_WRAPPED = {
    "OptimizedModule": "pass the model from before torch.compile",
    "DataParallel": "pass its .module",
    "DistributedDataParallel": "pass its .module",
    "FullyShardedDataParallel": "pass the model from before it was sharded",
}


def family_of(model: Any, *, wrapped: str = "") -> Family:
    """The family of a Hugging Face model; a subclass that keeps the forward pass belongs to its parent's.

    Args:
        model: the Hugging Face model.
        wrapped: what it came in, for messages, such as "a TransformerBridge of ".

    Raises:
        ModelError: adapters of low rank in it, a mixture of experts, a multimodal model, a forward pass of its own, or
            no adapter for its class.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> class Mine(LlamaForCausalLM): pass
        >>> family_of(Mine(LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1))).name
        'llama'
    """
    name = f"{wrapped}{type(model).__name__}"
    _refuse_adapters(model, name)
    for cls in type(model).__mro__:
        if cls.__name__ in FAMILIES and cls.__module__.startswith(_HOME):
            family = FAMILIES[cls.__name__]
            if forward_owner(type(model)) is not cls:
                raise ModelError(
                    f"{name} overrides the forward pass of {cls.__name__}, so its logits may be others than those that "
                    f"are measured; hand over a {cls.__name__}, or a subclass that leaves forward alone"
                )
            return family
    raise ModelError(f"no adapter for {name}; {_reason(model)}supported: {', '.join(SUPPORTED_CLASSES)}")


def forward_owner(cls: type) -> type | None:
    """The class that defines `forward` for instances of a class."""
    return next((base for base in cls.__mro__ if "forward" in vars(base)), None)


def _refuse_adapters(model: Any, name: str) -> None:
    """PEFT's wrappers, and its layers inside a model that looks plain."""
    if any(cls.__name__.startswith(("PeftModel", "PeftMixedModel")) or _from_peft(cls) for cls in type(model).__mro__):
        raise ModelError(
            f"{name} wraps a model with adapters, so a layer is not one matrix; merge them into the weights and pass "
            "the plain model: model = model.merge_and_unload()"
        )
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if _from_peft(type(module)) or not _ADAPTER_PARTS.isdisjoint(module._modules):
            path = path.replace("_original_component.", "")  # a bridge's own rooms; the name before it was booted
            raise ModelError(
                f"{path} is a {type(module).__name__} with an adapter (such as LoRA) beside its weight, so it is not "
                "one matrix; merge adapters into the weights first, with merge_and_unload() of the PEFT model"
            )


def _from_peft(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "peft"


def _reason(model: Any) -> str:
    """What is known about an unsupported model, and the way out."""
    names = [cls.__name__ for cls in type(model).__mro__]
    config = getattr(model, "config", None)
    for name in names:
        if name in _WRAPPED:
            return f"it wraps a model: {_WRAPPED[name]}; "
        if name in FAMILIES:
            return f"its {name} is not the one of transformers but code of its own ({type(model).__module__}); "
    # Before experts: a multimodal model may hold them, and its text model is what to pass.
    if any(getattr(config, field, None) is not None for field in ("vision_config", "audio_config")):
        return (
            "it is multimodal; pass its text model alone, loaded as a causal language model "
            "(e.g. Gemma3ForCausalLM.from_pretrained); "
        )
    counts = [getattr(config, field, None) for field in _EXPERT_FIELDS]
    if any(isinstance(n, int) and n > 1 for n in counts) or re.search(r"Moe|MoE|Mixtral", names[0]):
        return (
            "it is a mixture of experts, where each matrix sees only the tokens routed to it and fused experts have no "
            "site of their own; measure a dense model; "
        )
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; measure a decoder; "
    if re.search(r"(?<!LMHead)Model$", names[0]) and config is not None:
        remedy = f"load it with AutoModelFor{'MaskedLM' if _has_masked_family(names[0]) else 'CausalLM'}"
        return f"it has no unembedding, so no loss; {remedy}, if its checkpoint holds one; "
    if getattr(config, "is_decoder", False) and _has_masked_family(names[0]):
        return "it is an encoder's architecture made a decoder (is_decoder), which is supported of no family; "
    if _has_masked_family(names[0]) and config is not None:
        return "it is an encoder with another head than that of a masked-language model; AutoModelForMaskedLM has it; "
    return ""


def _has_masked_family(name: str) -> bool:
    """Whether a class of transformers, such as "BertModel", has a masked-language model that is supported."""
    prefix = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", name)
    return prefix != name and f"{prefix}ForMaskedLM" in FAMILIES
