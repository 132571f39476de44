"""The layout of a plain Hugging Face model."""

from typing import Any

from tl_aniso.capturing.bindings.assemble import (
    assemble,
    attention_split,
    check_layer,
    heads_of,
    is_parallel,
    mlp_split,
    part,
)
from tl_aniso.capturing.bindings.families import Family
from tl_aniso.capturing.layout import Block, Layout, block_matrices

__all__ = ["bind_huggingface"]


def bind_huggingface(model: Any, family: Family) -> Layout:
    """Find a family's modules in a model of that family.

    Raises:
        ModelError: a module is missing or computes something else.
    """
    name = type(model).__name__
    body = part(model, family.body, name)
    heads, parallel = heads_of(model), is_parallel(model, family)
    blocks = []
    for i, layer in enumerate(part(body, family.layers, name).children()):
        check_layer(layer, family, i)
        where = f"block {i} of {name}"
        matrices = block_matrices(
            i,
            attention=[
                (part(layer, path, where), names, attention_split(family, heads[0])) for path, names in family.attention
            ],
            attention_out=part(layer, family.attention_out, where),
            mlp=[(part(layer, path, where), names, mlp_split(names)) for path, names in family.mlp],
            mlp_out=part(layer, family.mlp_out, where),
            has_mid=not parallel,
            heads=heads,
        )
        blocks.append(Block(layer, None if parallel else part(layer, family.mid, where), matrices))
    return assemble(
        model,
        family,
        backbone=body,
        embed=part(body, family.embed, name),
        unembed=model.get_output_embeddings(),
        blocks=blocks,
        wrapper="huggingface",
    )
