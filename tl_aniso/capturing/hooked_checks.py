"""What a HookedTransformer must be for its gradients to be those of the published model, or a clear refusal."""

from typing import Any

import torch
from torch import Tensor, nn

from tl_aniso.errors import ModelError

__all__ = ["check_hooked"]

_WEIGHT_TYPES = (torch.bfloat16, torch.float32, torch.float64)
_REMEDY = "load the model with HookedTransformer.from_pretrained_no_processing"
_PLAIN = (
    "load it with TransformerBridge.boot_transformers (TransformerLens 4) or hand over the Hugging Face model itself"
)


def check_hooked(model: Any) -> None:
    """Refuse what would give other numbers than the published model, or has parts that no site is defined for.

    Raises:
        ModelError: see `tl_aniso.capturing.hooked.bind_hooked`.
    """
    if not (hasattr(model, "cfg") and hasattr(model, "blocks") and hasattr(model, "run_with_cache")):
        raise ModelError(f"this HookedTransformer is not the class of TransformerLens below 4; {_PLAIN}")
    _check_parts(model, model.cfg)
    _check_parameters(model)
    found = _processing(model)
    if found is not None:
        raise ModelError(
            f"TransformerLens has processed this HookedTransformer's weights ({found}), which changes the residual "
            f"basis or the gradients; {_REMEDY}"
        )


def _check_parts(model: Any, cfg: Any) -> None:
    if not len(model.blocks):
        raise ModelError("this HookedTransformer has no blocks; there is no residual stream to measure")
    parts = {
        "runs attention in both directions": cfg.attention_dir != "causal",
        "has attention alone, without MLPs": cfg.attn_only,
        "has experts, each with its own matrices": cfg.num_experts,
        "normalises behind the embedding": cfg.post_embedding_ln,
        "adds positions to queries and keys only": cfg.positional_embedding_type == "shortformer",
        "is spread over several devices": getattr(cfg, "n_devices", 1) > 1,
    }
    for part, found in parts.items():
        if found:
            raise ModelError(f"no adapter for this HookedTransformer: it {part}; {_PLAIN}")
    if cfg.load_in_4bit:
        raise ModelError(
            "this HookedTransformer is quantised (load_in_4bit); gradients need floating-point weights: load the model "
            "without quantisation"
        )
    for switch in ("use_split_qkv_input", "use_attn_in"):
        if getattr(cfg, switch):
            raise ModelError(
                f"with {switch}, every head reads its own copy of the residual stream, so W_Q has no single input; "
                f"call model.set_{switch}(False) first"
            )


def _check_parameters(model: Any) -> None:
    kinds: set[torch.dtype] = set()
    for name, weight in model.named_parameters():
        # A subclass of Parameter is how quantised weights pass for floating-point ones.
        if type(weight) is not nn.Parameter or weight.dtype not in (*_WEIGHT_TYPES, torch.float16):
            raise ModelError(
                f"the weight {name} is quantised ({type(weight).__name__}, {weight.dtype}); gradients need "
                "floating-point weights: load the model without quantisation"
            )
        if weight.dtype == torch.float16:
            raise ModelError(
                f"the weight {name} is float16, in which small gradients become exact zeros; load the model with "
                "dtype=torch.float32"
            )
        if weight.is_inference():
            raise ModelError(
                f"the weight {name} was made under torch.inference_mode(), where no gradient can pass; load the model "
                "outside of it"
            )
        if weight.device.type == "meta":
            raise ModelError(f"the weight {name} is on the meta device: it was never loaded")
        kinds.add(weight.dtype)
    if len(kinds) > 1:
        raise ModelError(f"the weights mix {' and '.join(sorted(map(str, kinds)))}; load the model in one dtype")
    if model.cfg.dtype not in kinds:
        raise ModelError(
            f"the weights are {kinds.pop()}, but the model's cfg.dtype is {model.cfg.dtype}, to which it rounds inside "
            "its norms; load the model with the dtype it shall run in"
        )


def _processing(model: Any) -> str | None:
    """What TransformerLens did to the weights, as far as it can be seen; None if nothing.

    Only the folding of norms is recorded in the configuration. The rest shows in the weights, up to their rounding.
    Centring the unembedding shifts all logits of a token alike, which no loss or gradient feels: it is let pass.
    """
    kind = model.cfg.normalization_type
    if kind is not None and kind.endswith("Pre"):
        return "folded norms"
    blocks = list(model.blocks)
    if kind == "LN" and all(_is_centred(w) for block in blocks for w in (block.attn.W_O, block.mlp.W_out)):
        return "centred writers"
    if all(_is_orthonormal(block.attn.W_O) for block in blocks):
        return "refactored attention matrices"
    biases = [dict(block.attn.named_parameters(recurse=False)) for block in blocks]
    values = [held[name] for held in biases for name in ("b_V", "_b_V") if name in held]
    others = [held[name] for held in biases for name in ("b_Q", "b_K", "_b_K") if name in held]
    if values and not _any(values) and _any(others):
        return "folded value biases"
    return None


def _is_centred(weight: Tensor) -> bool:
    """Whether what is written has mean zero over the residual stream, to the rounding of the weights.

    Independent entries have row means 1/sqrt(d) as large as themselves; centring leaves their rounding errors.
    """
    rows = weight.detach().to("cpu", torch.float64)
    means, entries = rows.mean(-1).square().mean().sqrt(), rows.square().mean().sqrt()
    return float(means) * rows.shape[-1] ** 0.5 <= _rounding(weight) * float(entries)


def _is_orthonormal(weight: Tensor) -> bool:
    """Whether the first head's W_O is a rotation, which is what the refactoring makes of it."""
    head = weight.detach()[0].to("cpu", torch.float64)
    unit = torch.eye(len(head), dtype=head.dtype)
    return bool(torch.allclose(head @ head.T, unit, atol=_rounding(weight) ** 0.5))


def _rounding(weight: Tensor) -> float:
    """TransformerLens processes weights in float32, whatever they are."""
    return max(torch.finfo(weight.dtype).eps, torch.finfo(torch.float32).eps)


def _any(biases: list[Tensor]) -> bool:
    return any(bool(bias.detach().any()) for bias in biases)
