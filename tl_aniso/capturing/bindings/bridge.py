"""The layout of a TransformerBridge, which presents every architecture under the same component names."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

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
from tl_aniso.capturing.bindings.refusals import family_of
from tl_aniso.capturing.layout import Block, Layout, Split, block_matrices
from tl_aniso.errors import ModelError

__all__ = ["bind_bridge"]

_OLDEST_BRIDGE = 4
_MLP_NAMES = {"W_in": "mlp.in", "W_gate": "mlp.gate"}  # by the first matrix that a module holds


def bind_bridge(bridge: Any) -> Layout:
    """Find the live modules inside a bridge's components.

    Fused projections are mostly apart here: a bridge runs copies of their query, key and value parts.

    Raises:
        ModelError: a bridge of TransformerLens 3, processed weights, or an architecture without an adapter.
    """
    _check_bridge_version()
    if getattr(bridge, "_weights_processed", False):
        raise ModelError(
            "TransformerLens has processed this bridge's weights (folded norms, centred writers), which changes the "
            "residual basis and the gradients; boot it again without enable_compatibility_mode()"
        )
    model = bridge.original_model
    family = family_of(model, wrapped="a TransformerBridge of ")
    if family.masked and getattr(bridge.cfg, "attention_dir", None) != "bidirectional":
        raise ModelError(
            f"this bridge runs {type(model).__name__} with attention to earlier tokens alone (cfg.attention_dir is "
            f"{getattr(bridge.cfg, 'attention_dir', None)!r}); boot it with the adapter of its own class "
            "(tl_aniso.adapters.register)"
        )
    heads, parallel = heads_of(model), is_parallel(model, family)
    readers = _attention_readers(family, heads[0])
    blocks = []
    for i, block in enumerate(bridge.blocks):
        layer = _inner(block)
        check_layer(layer, family, i)
        where = f"block {i} of the bridge"
        matrices = block_matrices(
            i,
            attention=[(_inner(part(block, path, where)), names, split) for path, names, split in readers],
            attention_out=_inner(part(block, "attn.o", where)),
            mlp=[
                (_inner(part(block, _MLP_NAMES[names[0]], where)), names, mlp_split(names)) for _, names in family.mlp
            ],
            mlp_out=_inner(part(block, "mlp.out", where)),
            has_mid=not parallel,
            heads=heads,
        )
        blocks.append(Block(layer, None if parallel else part(block, family.bridge_mid, where), matrices))
    return assemble(
        model,
        family,
        backbone=model.base_model,
        embed=_inner(bridge.embed),
        unembed=_inner(bridge.unembed),
        blocks=blocks,
        wrapper="transformer_bridge",
    )


def _attention_readers(family: Family, n_heads: int) -> list[tuple[str, tuple[str, ...], Split | None]]:
    if family.bridge_fused is not None:
        return [(family.bridge_fused, ("W_Q", "W_K", "W_V"), attention_split(family, n_heads))]
    return [(f"attn.{name}", (f"W_{name.upper()}",), None) for name in ("q", "k", "v")]


def _inner(component: nn.Module) -> nn.Module:
    """The module that a bridge component wraps: it, not the wrapper, holds the live parameter."""
    inner = component._modules.get("_original_component")
    return component if inner is None else inner


def _check_bridge_version() -> None:
    try:
        found = version("transformer_lens")
    except PackageNotFoundError:
        found = "unknown"
    major = found.split(".")[0]
    if not major.isdigit() or int(major) < _OLDEST_BRIDGE:
        raise ModelError(
            f"this TransformerBridge is of TransformerLens {found}, whose gradients and padding are silently wrong; "
            f"install transformer_lens >= {_OLDEST_BRIDGE} or hand over the Hugging Face model itself"
        )
