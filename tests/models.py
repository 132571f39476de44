"""Tiny models with nothing left at its default, and ragged documents of random ids for them."""

import copy
import warnings
from typing import Any

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

VOCAB = 97
WIDTH = 32
LENGTHS = (23, 9, 31, 17, 40, 12, 28, 2, 35, 20)
KINDS = ("neox-parallel", "neox-sequential", "llama", "llama-tied")


def tiny_model(kind: str, *, seed: int = 0, layers: int = 2, **changes: Any) -> Any:
    """A model in evaluation mode whose every parameter, gains and biases too, is drawn at random."""
    common = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 160,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind.startswith("neox"):
        config = GPTNeoXConfig(**{**common, "use_parallel_residual": kind == "neox-parallel", **changes})
        model = GPTNeoXForCausalLM(config)
    else:
        tied = kind == "llama-tied"
        config = LlamaConfig(**{**common, "num_key_value_heads": 2, "tie_word_embeddings": tied, **changes})
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            gain = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if gain else 0.2 * noise)
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
