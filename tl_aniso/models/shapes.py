"""Sizes of the registry's models, as their public configs give them: to plan by where no config is at hand.

Nothing is measured with these. A config in the hub's cache, or from the hub, takes their place.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tl_aniso.models.registry import Entry

__all__ = ["config_by_shape"]


def _shape(model_type: str, layers: int, width: int, inner: int, heads: int, vocabulary: int, **more: Any) -> Any:
    return MappingProxyType(
        {
            "model_type": model_type,
            "num_hidden_layers": layers,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "vocab_size": vocabulary,
            **more,
        }
    )


_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "pythia-160m": _shape("gpt_neox", 12, 768, 3072, 12, 50_304),
    "pythia-410m": _shape("gpt_neox", 24, 1024, 4096, 16, 50_304),
    "pythia-1b": _shape("gpt_neox", 16, 2048, 8192, 8, 50_304),
    "olmo-1b": _shape("olmo", 16, 2048, 8192, 16, 50_304, tie_word_embeddings=True),
    "smollm2-135m": _shape("llama", 30, 576, 1536, 9, 49_152, num_key_value_heads=3, tie_word_embeddings=True),
    "smollm2-360m": _shape("llama", 32, 960, 2560, 15, 49_152, num_key_value_heads=5, tie_word_embeddings=True),
    "smollm2-1.7b": _shape("llama", 24, 2048, 8192, 32, 49_152, tie_word_embeddings=True),
    "gaperon-1.5b": _shape("llama", 16, 2048, 8192, 32, 128_256, num_key_value_heads=8),
    "eurobert-210m": _shape("eurobert", 12, 768, 3072, 12, 128_256, tie_word_embeddings=False),
    "eurobert-610m": _shape("eurobert", 26, 1152, 4096, 18, 128_256, num_key_value_heads=6, tie_word_embeddings=False),
    # Special tokens inside this vocabulary: those of ModernBERT's own lie beyond it.
    "moderncamembert-base": _shape(
        "modernbert",
        22,
        768,
        1152,
        12,
        32_768,
        tie_word_embeddings=True,
        **{f"{kind}_token_id": 0 for kind in ("pad", "bos", "eos", "cls", "sep")},
    ),
}


def config_by_shape(entry: Entry) -> Any:
    """A Hugging Face config with the sizes of a model of the registry; None for any other model.

    Example:
        >>> from tl_aniso.models import find
        >>> config = config_by_shape(find("gaperon-1.5b"))
        >>> config.hidden_size, config.num_hidden_layers, config.architectures
        (2048, 16, ['LlamaForCausalLM'])
    """
    from transformers import AutoConfig

    shape = _SHAPES.get(entry.name) if entry.known else None
    if shape is None:
        return None
    facts = dict(shape)
    config = AutoConfig.for_model(facts.pop("model_type"), **facts)
    config.architectures = [entry.class_name]
    return config
