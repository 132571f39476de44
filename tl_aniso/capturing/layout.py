"""Where the sites of `tl_aniso.sites` live in a model: the modules, and which side of each matrix is residual.

One `Layout` serves plain Hugging Face models and TransformerBridges alike. A bridge keeps the Hugging Face model and
replaces its modules in place, so the same forward pass runs both; only the paths to the modules differ.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.sites import (
    EMBEDDING,
    UNEMBEDDING,
    UNEMBEDDING_INPUT,
    Role,
    head_site,
    input_site,
    output_site,
    proxy_site,
    residual_site,
    weight_site,
    whole_site,
)

__all__ = [
    "Attends",
    "Block",
    "Layout",
    "Matrix",
    "Split",
    "Transform",
    "block_matrices",
    "fused_heads",
    "fused_thirds",
    "unembedding",
]

Attends = Literal["causal", "both"]
Transform = Callable[[Float[Tensor, "batch length d"]], Float[Tensor, "batch length d"]]
Split = Callable[[Float[Tensor, "batch length fused"]], tuple[Float[Tensor, "batch length side"], ...]]


def fused_heads(n_heads: int, parts: int = 3) -> Split:
    """Split the output of a fused projection whose rows run head by head, query, key and value within each.

    Example:
        >>> import torch
        >>> q, k, v = fused_heads(n_heads=2)(torch.arange(12.0).reshape(1, 1, 12))
        >>> q.flatten().tolist(), v.flatten().tolist()
        ([0.0, 1.0, 6.0, 7.0], [4.0, 5.0, 10.0, 11.0])
    """

    def split(fused: Float[Tensor, "batch length fused"]) -> tuple[Float[Tensor, "batch length side"], ...]:
        pattern = "batch length (head part side) -> part batch length (head side)"
        return tuple(rearrange(fused, pattern, head=n_heads, part=parts))

    return split


def fused_thirds(parts: int = 3) -> Split:
    """Split the output of a fused projection that holds all queries first, then all keys, then all values.

    With ``parts=2``, all rows of one matrix first, then all of another.

    Example:
        >>> import torch
        >>> q, k, v = fused_thirds()(torch.arange(12.0).reshape(1, 1, 12))
        >>> q.flatten().tolist(), v.flatten().tolist()
        ([0.0, 1.0, 2.0, 3.0], [8.0, 9.0, 10.0, 11.0])
    """

    def split(fused: Float[Tensor, "batch length fused"]) -> tuple[Float[Tensor, "batch length side"], ...]:
        return tuple(rearrange(fused, "batch length (part side) -> part batch length side", part=parts))

    return split


@dataclass(frozen=True)
class Matrix:
    """One linear module and the weight sites it holds (several where projections are fused).

    Attributes:
        module: the module whose input and output are taken.
        role: "reader" or "writer".
        sites: names of its weight sites; more than one needs `split`.
        activation: the activation site of its residual side: a reader's input, a writer's output.
        residual: the residual site at which sinks are looked for: what a reader reads, where a writer's sum stands.
        split: takes the output's gradient apart.
        head_counts: number of attention heads of each of `sites` (keys and values at their own number), whose rows
            run head by head in the split output, or in a writer's input; empty outside attention.
        source: where `module` is never run (HookedTransformer): the module whose input a reader reads, or whose output
            a writer does.
        sink: with `source`, the module whose output the matrix made.
    """

    module: nn.Module
    role: Role
    sites: tuple[str, ...]
    activation: str
    residual: str
    split: Split | None = None
    head_counts: tuple[int, ...] = ()
    source: nn.Module | None = None
    sink: nn.Module | None = None


@dataclass(frozen=True)
class Block:
    """One transformer block: its module, the module whose first input is the residual after attention (the norm before
    the MLP or, without one, the MLP or its first layer; None in parallel blocks), and the matrices."""

    module: nn.Module
    mid: nn.Module | None
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Layout:
    """Where everything is in one model.

    Attributes:
        root: the module whose parameters and modes belong to the pass.
        backbone: runs from token ids to the input of the unembedding, without the logits.
        family: lower-case family name, e.g. "gptneox".
        class_name: the Hugging Face class.
        embed: the token embedding.
        unembed: the unembedding matrix.
        blocks: the transformer blocks, in order.
        d_model: width of the residual stream.
        context: longest sequence the model takes.
        wrapper: "huggingface", "transformer_bridge" or "hooked_transformer".
        embed_scale: what the embedding multiplies its rows by.
        softcap: c where logits z become c tanh(z / c) before the loss.
        attends: whether a token sees those before it ("causal") or all of its sequence ("both").
        transform: from the body's output to the input of the unembedding, where a head has more than the one matrix.
    """

    root: nn.Module
    backbone: nn.Module
    family: str
    class_name: str
    embed: nn.Module
    unembed: Matrix
    blocks: tuple[Block, ...]
    d_model: int
    vocab_size: int
    context: int
    wrapper: str
    embed_scale: float = 1.0
    softcap: float | None = None
    attends: Attends = "causal"
    transform: Transform | None = None

    @cached_property
    def residual_sites(self) -> tuple[str, ...]:
        """Every residual site, block by block."""
        names: list[str] = []
        for layer, block in enumerate(self.blocks):
            names.append(residual_site(layer, "pre"))
            if block.mid is not None:
                names.append(residual_site(layer, "mid"))
            names.append(residual_site(layer, "post"))
        return tuple(names)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every linear module, the unembedding last."""
        return (*(matrix for block in self.blocks for matrix in block.matrices), self.unembed)

    @cached_property
    def weight_sites(self) -> tuple[str, ...]:
        """Every weight site: the embedding, the blocks, the unembedding."""
        return (EMBEDDING, *(site for matrix in self.matrices for site in matrix.sites))

    @cached_property
    def head_counts(self) -> Mapping[str, int]:
        """Weight site -> number of its attention heads, where it has any."""
        return {s: n for m in self.matrices if m.head_counts for s, n in zip(m.sites, m.head_counts, strict=True)}

    @cached_property
    def head_sites(self) -> tuple[str, ...]:
        """Every attention head of every weight site."""
        return tuple(head_site(site, head) for site, n in self.head_counts.items() for head in range(n))

    @cached_property
    def matrix_sites(self) -> tuple[str, ...]:
        """Inputs of readers and outputs of writers."""
        return tuple(dict.fromkeys(matrix.activation for matrix in self.matrices))

    def proxy_site(self, site: str, basis: str = "own") -> str:
        """The activation site whose tangent proxy belongs to a weight site, by its own name for it."""
        if basis == "residual":
            for matrix in self.matrices:
                if whole_site(site) in matrix.sites:
                    return self.canonical(matrix.residual)
        return self.canonical(proxy_site(site))

    def canonical(self, site: str) -> str:
        """The residual site that carries the same tensor: a block's output is the next block's input."""
        for layer in range(len(self.blocks) - 1):
            if site == residual_site(layer, "post"):
                return residual_site(layer + 1, "pre")
        return site

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Residual site -> the site whose sums it shares."""
        return {site: self.canonical(site) for site in self.residual_sites}

    def weights(self) -> Iterable[tuple[str, Any]]:
        """Names and weights of the matrices that are measured, fused ones once."""
        for matrix in self.matrices:
            # Quantised linear modules may have no weight, or a method of that name; who reads them has to say so.
            yield "+".join(matrix.sites), getattr(matrix.module, "weight", None)
        yield EMBEDDING, getattr(self.embed, "weight", None)

    @property
    def device(self) -> torch.device:
        """Where the embedding, and so the ids, live."""
        weight: Any = self.embed.weight
        found: torch.device = weight.device
        return found


def block_matrices(
    layer: int,
    *,
    attention: Iterable[tuple[nn.Module, tuple[str, ...], Split | None]],
    attention_out: nn.Module,
    mlp: Iterable[tuple[nn.Module, tuple[str, ...], Split | None]],
    mlp_out: nn.Module,
    has_mid: bool,
    heads: tuple[int, int],
) -> tuple[Matrix, ...]:
    """Name the matrices of one block; `attention` and `mlp` list its readers, `heads` counts those of queries and keys.

    In a block without a residual between attention and MLP (parallel), both read ``pre`` and write into ``post``.
    """
    pre, post = residual_site(layer, "pre"), residual_site(layer, "post")
    mid = residual_site(layer, "mid") if has_mid else None
    counts = {"W_Q": heads[0], "W_K": heads[1], "W_V": heads[1]}
    readers = [
        Matrix(
            module,
            "reader",
            tuple(weight_site(layer, n) for n in names),
            input_site(layer, "attn"),
            pre,
            split,
            tuple(counts[n] for n in names),
        )
        for module, names, split in attention
    ]
    readers += [
        Matrix(
            module, "reader", tuple(weight_site(layer, n) for n in names), input_site(layer, "mlp"), mid or pre, split
        )
        for module, names, split in mlp
    ]
    w_o, w_out = weight_site(layer, "W_O"), weight_site(layer, "W_out")
    writers = [
        Matrix(attention_out, "writer", (w_o,), output_site(w_o), mid or post, head_counts=heads[:1]),
        Matrix(mlp_out, "writer", (w_out,), output_site(w_out), post),
    ]
    return (*readers, *writers)


def unembedding(module: nn.Module, n_layers: int) -> Matrix:
    """The unembedding as a reader of the last residual."""
    return Matrix(module, "reader", (UNEMBEDDING,), UNEMBEDDING_INPUT, residual_site(n_layers - 1, "post"))
