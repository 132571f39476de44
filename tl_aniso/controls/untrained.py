"""The same model before any training: a copy with new random weights."""

import copy
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tl_aniso.controls.names import UNTRAINED
from tl_aniso.errors import ModelError

__all__ = ["reinitialised"]


def reinitialised(model: Any, *, seed: int = 0) -> Any:
    """A model of the same architecture with weights as they are drawn before training; the given one stays as it is.

    A Hugging Face model is built anew by its own class from a copy of its config; a TransformerBridge as the Hugging
    Face model that it wraps; a HookedTransformer by its own initialisation. The random state is as before afterwards.

    Args:
        model: what `capture` takes.
        seed: the weights are a pure function of it, the config and the library versions.

    Returns:
        A model in evaluation mode, on the device and in the type of the given one.

    Raises:
        ModelError: a model that cannot be built from its config.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso.controls import reinitialised
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> first, again = (reinitialised(model, seed=3).lm_head.weight for _ in range(2))
        >>> torch.equal(first, again), torch.equal(first, model.lm_head.weight)
        (True, False)
    """
    names = {cls.__name__ for cls in type(model).__mro__}
    with _own_randomness(seed):
        try:
            if "HookedTransformer" in names:
                built = _hooked(model)
            else:
                inner = model.original_model if "TransformerBridge" in names else model
                built = type(inner)(copy.deepcopy(inner.config))
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            raise ModelError(
                f"{type(model).__name__} cannot be built anew from its config, so the control {UNTRAINED} cannot be "
                f"had; leave it out of controls ({error})"
            ) from error
    weight = next(p for p in model.parameters() if p.is_floating_point())
    # A HookedTransformer's own `to` takes one argument and prints.
    moved = torch.nn.Module.to(built, device=weight.device, dtype=weight.dtype)
    if "HookedTransformer" in names:
        moved.cfg.device = model.cfg.device
    return moved.eval()


def _hooked(model: Any) -> Any:
    config = copy.deepcopy(model.cfg)
    # Loading sets this to false; a seed of its own would reset the whole process' random state.
    config.init_weights, config.seed = True, None
    config.device, config.tokenizer_name = "cpu", None
    return type(model)(config, move_to_device=False)


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """The CPU's generators seeded for the block, and afterwards as they were; devices are not touched."""
    digest = hashlib.sha256(f"{seed}/{UNTRAINED}".encode()).digest()
    number = int.from_bytes(digest[:4], "little")
    torch_state, numpy_state, python_state = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        with torch.device("cpu"), torch.inference_mode(False):
            yield
    finally:
        torch.random.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
