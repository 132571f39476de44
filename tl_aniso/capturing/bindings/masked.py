"""What a masked-language model has beyond a decoder: attention to both sides, a head in front of its decoder matrix.

The head's transform (a matrix, an activation, a norm) is part of the forward pass and of no site: ``unembed.input`` is
what the decoder matrix reads, and gradients go back through the transform into the last residual.
"""

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.capturing.bindings.families import Family
from tl_aniso.capturing.bindings.parts import part
from tl_aniso.capturing.bindings.refusals import forward_owner
from tl_aniso.capturing.layout import Block, Transform
from tl_aniso.errors import ModelError

__all__ = ["check_attention", "context_of", "transform_of"]


def check_attention(model: Any, blocks: Iterable[Block]) -> None:
    """Refuse a model of a masked-language class whose tokens do not see all of their sequence, or more than that.

    Raises:
        ModelError: it was built as a decoder, with attention to another model, or runs its MLP in chunks.
    """
    config, name = model.config, type(model).__name__
    if getattr(config, "add_cross_attention", False):
        raise ModelError(
            f"this {name} also attends to another model (config.add_cross_attention), whose states no text can give; "
            "load it without"
        )
    if getattr(config, "chunk_size_feed_forward", 0):
        raise ModelError(
            f"this {name} runs its MLP over chunks of a sequence (config.chunk_size_feed_forward), each a call of its "
            "own; load it with chunk_size_feed_forward=0, which computes the same"
        )
    causal = "config.is_decoder" if getattr(config, "is_decoder", False) else None
    for number, block in enumerate(blocks):
        for path, module in block.module.named_modules():
            # A bridge's own attention has such a field too, of its own meaning; what runs is judged by transformers'.
            if type(module).__module__.startswith("transformers.") and getattr(module, "is_causal", False):
                causal = causal or f"{path} of block {number} is causal"
    if causal:
        raise ModelError(
            f"this {name} was built as a decoder ({causal}), so a token sees nothing behind it, which its class is "
            "made for; load it with is_decoder=False"
        )


def context_of(model: Any, family: Family, body: nn.Module) -> int:
    """The longest sequence that a model has positions for.

    Raises:
        ModelError: positions begin behind the padding index, and there is none.
    """
    longest = int(model.config.max_position_embeddings)
    if family.positions is None:
        return longest
    # RoBERTa gives its first token the position behind the padding index, as fairseq counts.
    padding = getattr(part(body, family.positions, type(model).__name__), "padding_idx", None)
    if not isinstance(padding, int):
        raise ModelError(
            f"this {type(model).__name__} was built without a padding token (config.pad_token_id), behind whose index "
            "its positions begin; load it with that of its tokenizer"
        )
    return longest - padding - 1


def transform_of(model: Any, family: Family) -> Transform | None:
    """From the body's output to the input of the decoder matrix; None where that reads the output itself.

    Raises:
        ModelError: a module of the head is missing, or computes something else.
    """
    if not family.head:
        return None
    name = type(model).__name__
    for path, expected in family.head:
        head = part(model, path, name)
        owner = forward_owner(type(head))
        if owner is None or owner.__name__ != expected:
            raise ModelError(
                f"{path} of this {name} is a {type(head).__name__}, whose forward pass is not that of {expected}, so "
                "what its logits are made of is unknown; measure the architecture as published"
            )
    if family.head_steps is None:
        return head
    dense, norm = (part(model, f"{path}.{step}", name) for step in family.head_steps)

    def transform(hidden: Float[Tensor, "batch length d"]) -> Float[Tensor, "batch length d"]:
        # RoBERTa's head, less its last step. The activation is written into it, whatever the config says.
        result: Tensor = norm(nn.functional.gelu(dense(hidden)))
        return result

    return transform
