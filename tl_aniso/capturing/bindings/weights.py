"""Whether the weights that a layout found can be measured."""

from typing import Any

import torch
from torch import Tensor, nn

from tl_aniso.capturing.bindings.refusals import forward_owner
from tl_aniso.capturing.layout import Layout
from tl_aniso.errors import ModelError

__all__ = ["check_finite", "check_weights", "embedding_scale", "embedding_weight"]

_WEIGHT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# By name, so that nothing of transformers is imported here. A subclass that keeps forward is as plain as its parent.
_LINEAR = (("torch.nn.modules.linear", "Linear"), ("transformers.pytorch_utils", "Conv1D"))
_SCALED_TABLE = ("transformers.models.gemma3.modeling_gemma3", "Gemma3TextScaledWordEmbedding")
_TABLES = (("torch.nn.modules.sparse", "Embedding"), _SCALED_TABLE)


def embedding_weight(embed: nn.Module, class_name: str) -> Tensor:
    """The table of a token embedding.

    Raises:
        ModelError: there is none, or the module does more than look rows up (and scale them).
    """
    weight = getattr(embed, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ModelError(
            f"the embedding of {class_name} holds no plain weight; is the model quantised? Load it without"
        )
    if _forward_of(embed) not in _TABLES:
        raise ModelError(
            f"the embedding of {class_name} is a {type(embed).__name__}, not a plain table, so its gradient is not "
            "that of one matrix; merge adapters into the weights first"
        )
    return weight


def embedding_scale(embed: nn.Module, weight: Tensor) -> float:
    """What the embedding multiplies its rows by, in the weight's own precision, as the forward pass has it."""
    if _forward_of(embed) != _SCALED_TABLE or weight.is_meta:
        return 1.0
    scale: Tensor = embed.embed_scale  # type: ignore[assignment]
    return float(scale.to(weight.dtype))


def check_weights(layout: Layout) -> None:
    """Refuse weights in which gradients cannot be had, or would not be those of one matrix.

    Raises:
        ModelError: quantised, float16, never loaded, made under inference_mode, wrapped, or of mixed types.
    """
    for site, weight in layout.weights():
        # A subclass of Parameter is how quantised weights pass for floating-point ones.
        if type(weight) is not nn.Parameter or weight.dtype not in _WEIGHT_TYPES or weight.dim() != 2:
            found = str(weight.dtype) if isinstance(weight, torch.Tensor) else "no tensor at all"
            raise ModelError(
                f"the weight at {site} is quantised or not a plain parameter ({type(weight).__name__}, {found}); "
                "gradients need floating-point weights: load the model without quantisation, or dequantise it"
            )
        if weight.dtype == torch.float16:
            raise ModelError(
                f"the weight at {site} is float16, in which small gradients become exact zeros; convert the model with "
                "model.float(), or load it with dtype=torch.float32"
            )
        if weight.device.type == "meta":
            raise ModelError(f"the weight at {site} is on the meta device: it was never loaded")
    for name, parameter in layout.root.named_parameters():
        # Gains and biases too: such a parameter can neither be frozen and thawed nor be part of a graph.
        if parameter.is_inference():
            raise ModelError(
                f"the parameter {name} was made under torch.inference_mode(), where no gradient can pass; load the "
                "model outside of it"
            )
    for matrix in layout.matrices:
        # A wrapper (an adapter of low rank, say) may show a base's weight while its output holds more than W x. The
        # unembedding's rows are the vocabulary, which only a Linear has first.
        plain = _LINEAR[:1] if matrix is layout.unembed else _LINEAR
        if _forward_of(matrix.module) not in plain:
            raise ModelError(
                f"{matrix.sites[0]} is a {type(matrix.module).__name__}, not a plain linear layer, so its gradient is "
                "not that of one matrix; merge adapters into the weights first"
            )
    kinds = {weight.dtype for _, weight in layout.weights()}
    if len(kinds) > 1:
        raise ModelError(
            f"the weights mix {' and '.join(sorted(map(str, kinds)))}; convert the model to one, e.g. model.float()"
        )


def check_finite(layout: Layout) -> None:
    """Name the parameter that is not finite.

    It reads every weight once, so it is asked when a number went wrong, not before each run.

    Raises:
        ModelError: a parameter holds NaN or infinite values.
    """
    for name, parameter in layout.root.named_parameters():
        if not bool(torch.isfinite(parameter.detach().sum())) and not bool(torch.isfinite(parameter.detach()).all()):
            raise ModelError(f"the parameter {name} holds NaN or infinite values; the checkpoint is broken")


def _forward_of(module: Any) -> tuple[str, str]:
    owner = forward_owner(type(module))
    return ("", "") if owner is None else (owner.__module__, owner.__name__)
