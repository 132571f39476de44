"""The layout of a HookedTransformer, the hooked model of TransformerLens below 4.

Its matrices are parameters rather than modules: ``W_Q`` is heads x d x width, used by `einsum` between hook points. So
a matrix here names two modules next to it, the one whose input or output it reads and the one whose output it made;
`hooked_tap` takes the tensors there. docs/design.md, section Models.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.capturing.hooked_checks import check_hooked
from tl_aniso.capturing.layout import Block, Layout, Matrix, unembedding
from tl_aniso.sites import input_site, output_site, residual_site, weight_site

__all__ = ["Held", "HookedUnembedding", "bind_hooked"]


class Held(nn.Module):
    """A parameter of a HookedTransformer in the place where other models have a module; it is never run."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class HookedUnembedding(nn.Module):
    """The unembedding as other models have it: views of ``W_U`` and ``b_U``, nothing copied.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> unembed = HookedUnembedding(SimpleNamespace(W_U=torch.ones(4, 9), b_U=torch.zeros(9)))
        >>> unembed.weight.shape, unembed(torch.ones(1, 2, 4)).shape
        (torch.Size([9, 4]), torch.Size([1, 2, 9]))
    """

    def __init__(self, unembed: Any) -> None:
        super().__init__()
        self._held = (unembed,)  # in a tuple: its parameters stay those of the user's model alone

    @property
    def weight(self) -> Float[Tensor, "vocab d"]:
        """``W_U``, transposed."""
        found: Tensor = self._held[0].W_U.detach().T
        return found

    @property
    def bias(self) -> Float[Tensor, " vocab"]:
        """``b_U``, zero in most models."""
        found: Tensor = self._held[0].b_U.detach()
        return found

    def forward(self, hidden: Float[Tensor, "... d"]) -> Float[Tensor, "... vocab"]:
        """Logits."""
        return nn.functional.linear(hidden, self.weight, self.bias)


def bind_hooked(model: Any) -> Layout:
    """The layout of a HookedTransformer whose weights are as they were published.

    Raises:
        ModelError: weights that TransformerLens processed, quantised or half-precision weights, or parts (experts,
            attention alone, both directions) that no site is defined for.
    """
    check_hooked(model)
    cfg = model.cfg
    blocks = tuple(_block(layer, block) for layer, block in enumerate(model.blocks))
    class_name = getattr(cfg, "original_architecture", None) or type(model).__name__
    cap = float(getattr(cfg, "output_logits_soft_cap", None) or 0)
    return Layout(
        root=model,
        backbone=model,
        family=_family(class_name),
        class_name=class_name,
        embed=Held(model.embed.W_E),
        unembed=unembedding(HookedUnembedding(model.unembed), len(blocks)),
        blocks=blocks,
        d_model=int(cfg.d_model),
        vocab_size=min(int(model.embed.W_E.shape[0]), int(model.unembed.W_U.shape[1])),
        context=int(cfg.n_ctx),
        wrapper="hooked_transformer",
        embed_scale=_embed_scale(class_name, cfg),
        softcap=cap if cap > 0 else None,
    )


def _block(layer: int, block: Any) -> Block:
    pre, post = residual_site(layer, "pre"), residual_site(layer, "post")
    mid_point = getattr(block, "hook_resid_mid", None)
    mid = None if mid_point is None else residual_site(layer, "mid")
    attn, mlp = block.attn, block.mlp

    def matrix(name: str, weight: nn.Parameter, source: nn.Module, sink: nn.Module, residual: str) -> Matrix:
        site = weight_site(layer, name)
        writes = name in ("W_O", "W_out")
        side = output_site(site) if writes else input_site(layer, "attn" if source is attn else "mlp")
        return Matrix(
            Held(weight),
            "writer" if writes else "reader",
            (site,),
            side,
            residual,
            head_counts=(int(weight.shape[0]),) if weight.dim() == 3 else (),
            source=source,
            sink=sink,
        )

    # Grouped-query attention keeps K and V at their own number of heads under a leading underscore.
    held = dict(attn.named_parameters(recurse=False))
    w_k, w_v = (held[name if name in held else f"_{name}"] for name in ("W_K", "W_V"))
    gate = getattr(mlp, "W_gate", None)
    matrices = [
        matrix("W_Q", attn.W_Q, attn, attn.hook_q, pre),
        matrix("W_K", w_k, attn, attn.hook_k, pre),
        matrix("W_V", w_v, attn, attn.hook_v, pre),
        # In gated MLPs hook_pre is behind the gate; W_in, which is not put through the activation, has its own.
        matrix("W_in", mlp.W_in, mlp, mlp.hook_pre if gate is None else mlp.hook_pre_linear, mid or pre),
        *([] if gate is None else [matrix("W_gate", gate, mlp, mlp.hook_pre, mid or pre)]),
        # The modules' own outputs: hook_attn_out and hook_mlp_out are behind a norm in some models.
        matrix("W_O", attn.W_O, attn.hook_z, attn, mid or post),
        matrix("W_out", mlp.W_out, mlp.hook_post, mlp, post),
    ]
    return Block(block, mid_point, tuple(matrices))


def _family(class_name: str) -> str:
    """ "GPTNeoXForCausalLM" is "gptneox", as for models of Hugging Face."""
    for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"):
        class_name = class_name.removesuffix(ending)
    return class_name.lower()


def _embed_scale(class_name: str, cfg: Any) -> float:
    """Gemma multiplies its embedding by sqrt(d) in the forward pass; a HookedTransformer holds the product as ``W_E``.

    Gradients are those of the published matrix, so that both agree.
    """
    if not class_name.startswith("Gemma"):
        return 1.0
    return float(torch.tensor(cfg.d_model**0.5, dtype=cfg.dtype))
