"""Put a layout together from the parts that a plain model or a bridge was found to have."""

from typing import Any

from torch import nn

from tl_aniso.capturing.bindings.families import Family
from tl_aniso.capturing.bindings.masked import check_attention, context_of, transform_of
from tl_aniso.capturing.bindings.parts import part
from tl_aniso.capturing.bindings.refusals import forward_owner
from tl_aniso.capturing.bindings.weights import embedding_scale, embedding_weight
from tl_aniso.capturing.layout import Block, Layout, Split, fused_heads, fused_thirds, unembedding
from tl_aniso.errors import ModelError

__all__ = ["assemble", "attention_split", "check_layer", "heads_of", "is_parallel", "mlp_split", "part"]


def assemble(
    model: Any,
    family: Family,
    *,
    backbone: nn.Module,
    embed: nn.Module,
    unembed: nn.Module,
    blocks: list[Block],
    wrapper: str,
) -> Layout:
    """The layout of a model whose blocks are known.

    Raises:
        ModelError: the embedding is no plain table, a masked-language model's head computes something else, or tokens
            attend otherwise than the family's do.
    """
    config = model.config
    if family.masked:
        check_attention(model, blocks)
    elif getattr(config, "use_bidirectional_attention", False):
        raise ModelError(
            "this model's tokens attend to those behind them (config.use_bidirectional_attention), so they see what "
            "they are to predict; measure a causal model"
        )
    weight = embedding_weight(embed, type(model).__name__)
    softcap = getattr(config, "final_logit_softcapping", None) if family.softcaps else None
    return Layout(
        root=model,
        backbone=backbone,
        family=family.name,
        class_name=type(model).__name__,
        embed=embed,
        unembed=unembedding(unembed, len(blocks)),
        blocks=tuple(blocks),
        d_model=int(weight.shape[1]),
        vocab_size=min(int(weight.shape[0]), int(unembed.weight.shape[0])),  # type: ignore[index]
        context=context_of(model, family, backbone),
        wrapper=wrapper,
        embed_scale=embedding_scale(embed, weight),
        softcap=None if softcap is None else float(softcap),
        attends="both" if family.masked else "causal",
        transform=transform_of(model, family),
    )


def attention_split(family: Family, n_heads: int) -> Split | None:
    """How the output of a fused projection comes apart, or None where there is none."""
    if family.fused is None:
        return None
    return fused_heads(n_heads) if family.fused == "heads" else fused_thirds()


def mlp_split(names: tuple[str, ...]) -> Split | None:
    """The same of a reader of the MLP that holds these matrices."""
    return fused_thirds(len(names)) if len(names) > 1 else None


def check_layer(layer: nn.Module, family: Family, number: int) -> None:
    """A block that computes something else may have its residual stream elsewhere.

    Raises:
        ModelError: the block's forward pass is not that of the family's.
    """
    owner = forward_owner(type(layer))
    if owner is None or owner.__name__ != family.layer_class:
        raise ModelError(
            f"block {number} is a {type(layer).__name__}, whose forward pass is not that of {family.layer_class}, so "
            "where its residual stream runs is unknown; measure the architecture as published"
        )


def heads_of(model: Any) -> tuple[int, int]:
    """Number of query heads, and of key and value heads."""
    queries = int(model.config.num_attention_heads)
    return queries, int(getattr(model.config, "num_key_value_heads", None) or queries)


def is_parallel(model: Any, family: Family) -> bool:
    """Whether attention and MLP read one residual, so that there is none between them."""
    return family.parallel is not None and bool(getattr(model.config, family.parallel))
