"""What the model is before anything is measured: finite numbers, a precision, and a mode."""

from typing import Any

import torch
from torch import Tensor, nn

from tl_aniso.capturing.bind import check_finite
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject, evaluating, first_tensor, logits_of, spread
from tl_aniso.errors import ModelError

__all__ = ["check_mode", "check_numbers", "check_precision"]

# Two passes over one text on one machine: what is left of a difference once nothing is drawn at random.
_REPEATED = 1e-4


def check_numbers(subject: Subject) -> Check:
    """Parameters are finite, and so are the logits; else the parameter, or the first layer, is named."""
    name, layout = "weights and logits are finite", subject.layout
    try:
        check_finite(layout)
    except ModelError as error:
        return Check(name, "fail", str(error), "download or convert the checkpoint again")
    broken: list[str] = []
    handles = []
    for layer, block in enumerate(layout.blocks):

        def after(_module: nn.Module, _args: Any, output: Any, layer: int = layer) -> None:
            value = first_tensor(output)
            if value is not None and not bool(torch.isfinite(value).all()):
                broken.append(f"blocks.{layer}")

        handles.append(block.module.register_forward_hook(after))
    try:
        with evaluating(layout):
            logits = logits_of(layout, torch.tensor([subject.documents[0]]))
    finally:
        for handle in handles:
            handle.remove()
    n = sum(1 for _ in layout.root.parameters())
    if broken or not bool(torch.isfinite(logits).all()):
        where = broken[0] if broken else "the unembedding"
        return Check(
            name,
            "fail",
            f"the {n} parameters are finite, but the output of {where} holds NaN or infinite values",
            "weights too large for their precision, or a patched layer: load the model again, in float32",
        )
    if not bool((logits - logits[:, :1]).any()):
        return Check(
            name,
            "fail",
            f"the logits are the same at all {len(subject.documents[0])} tokens, whatever the text: the model computes "
            "nothing (an embedding, an unembedding or a final norm of zeros)",
            "load the weights again; nothing can be measured on a model that ignores its text",
        )
    return Check(name, "pass", f"{n} parameters, and the logits of {len(subject.documents[0])} tokens")


def check_precision(subject: Subject) -> Check:
    """Which precision the weights have, and what follows from it."""
    weight: Tensor = subject.layout.embed.weight  # type: ignore[assignment]
    found = f"weights in {str(weight.dtype).removeprefix('torch.')} on {subject.layout.device}"
    if weight.dtype in (torch.float32, torch.float64):
        return Check("precision", "pass", found)
    return Check(
        "precision",
        "warn",
        f"{found}: second moments stray by several percent",
        "model.float(), and capture(..., dtype='bfloat16') where speed matters",
    )


def check_mode(subject: Subject) -> Check:
    """Evaluation mode, and two passes that agree, in the state in which the model was handed over."""
    name, layout = "evaluation mode, nothing drawn at random", subject.layout
    training = [label or "the model" for label, module in layout.root.named_modules() if module.training]
    dropouts = _dropouts(layout.root)
    ids = torch.tensor([subject.documents[0]])
    devices = [layout.device] if layout.device.type == "cuda" else []
    # The user's random state stays as it was: dropout draws from it.
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        first, second = logits_of(layout, ids), logits_of(layout, ids)
    difference = spread(second, first)
    differ = f"two passes over one text differ by {difference:.2g} of the logits' deviation"
    outside = "A capture switches modes itself, but what you measure elsewhere with this model is random."
    if dropouts:
        shown = ", ".join(dropouts[:3]) + (f" and {len(dropouts) - 3} more" if len(dropouts) > 3 else "")
        return Check(
            name,
            "fail",
            f"the model is in training mode with active dropout: {shown}; {differ}. {outside}",
            "call model.eval()",
        )
    if difference > _REPEATED:
        mode = f"{len(training)} modules are in training mode" if training else "the model is in evaluation mode"
        return Check(
            name,
            "fail",
            f"{mode}, and {differ}: something draws at random or remembers",
            "call model.eval(); take out hooks and layers that sample",
        )
    if training:
        return Check(
            name,
            "warn",
            f"{len(training)} modules are in training mode ({training[0]}), without any effect on the logits",
            "call model.eval()",
        )
    agree = f"differ by {difference:.1g} of the logits' deviation" if difference else "agree to the last digit"
    return Check(name, "pass", f"every module is in evaluation mode; two passes over one text {agree}")


def _dropouts(root: nn.Module) -> list[str]:
    """Active dropout: modules, and probabilities that a module in training mode hands to a function."""
    found = []
    for label, module in root.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd):
            if module.p > 0:
                found.append(f"{label} (p = {module.p:g})")
            continue
        for attribute, value in vars(module).items():
            if ("dropout" in attribute or attribute.endswith("pdrop")) and isinstance(value, float) and value > 0:
                found.append(f"{label} ({attribute} = {value:g})")
    return found
