"""Tiny models with nothing left at its default, and ragged documents of random ids for them."""

import copy
import warnings
from typing import Any

import torch
import transformers

VOCAB = 97
WIDTH = 32
LENGTHS = (23, 9, 31, 17, 40, 12, 28, 2, 35, 20)
KINDS = ("neox-parallel", "neox-sequential", "llama", "llama-tied")
# Every decoder that is supported, each with what sets it apart from the others.
ARCHITECTURES = (*KINDS, "olmo", "olmo2", "gpt2", "gemma3", "mistral", "qwen2", "qwen3")
WINDOW = 8  # most of the documents are longer

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Width of a head, where it is free, differs from hidden_size / num_attention_heads.
_GEMMA3 = {**_GROUPED, **_WINDOWS, "head_dim": 12, "query_pre_attn_scalar": 10}
# kind -> prefix of the classes, suffix of the model's, options of the config
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "neox-parallel": ("GPTNeoX", "ForCausalLM", {**_COMMON, "use_parallel_residual": True}),
    "neox-sequential": ("GPTNeoX", "ForCausalLM", {**_COMMON, "use_parallel_residual": False}),
    "llama": ("Llama", "ForCausalLM", {**_GROUPED, "tie_word_embeddings": False}),
    "llama-tied": ("Llama", "ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "olmo": ("Olmo", "ForCausalLM", _GROUPED),
    "olmo2": ("Olmo2", "ForCausalLM", _GROUPED),
    "gpt2": ("GPT2", "LMHeadModel", _GPT2),
    "gemma3": ("Gemma3", "ForCausalLM", _GEMMA3),
    "mistral": ("Mistral", "ForCausalLM", {**_GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2", "ForCausalLM", {**_GROUPED, **_WINDOWS, "use_sliding_window": True}),
    "qwen3": ("Qwen3", "ForCausalLM", {**_GROUPED, "head_dim": 12}),
}


def tiny_model(kind: str, *, seed: int = 0, layers: int = 2, **changes: Any) -> Any:
    """A model in evaluation mode whose every parameter, gains and biases too, is drawn at random."""
    prefix, suffix, options = _MODELS[kind]
    size = {"n_layer" if prefix == "GPT2" else "num_hidden_layers": layers}
    config_class = getattr(transformers, "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}Config")
    config = config_class(**{**options, **size, **changes})
    model = getattr(transformers, prefix + suffix)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            gain = name.endswith("weight") and ("norm" in name or ".ln_" in name)
            # Gemma's gains are stored less one.
            parameter.copy_((prefix != "Gemma3") + 0.3 * noise if gain else 0.2 * noise)
    config.architectures = [type(model).__name__]
    return model.eval()


def as_bridge(model: Any) -> Any:
    """A copy of the model booted into a TransformerBridge (booting rewrites the model in place)."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    own = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_bridge_from_module(own, type(own).__name__, hf_config=own.config, tokenizer=None)


def random_documents(lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0, low: int = 3) -> list[list[int]]:
    """One list of ids a length; ids repeat within a document, as words do. `low` = 3 avoids special ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(low, VOCAB // 2, (n,), generator=generator).tolist() for n in lengths]
