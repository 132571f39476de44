"""Norms apply their gain: each norm's output against what its parameters make of its input."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject, evaluating, first_tensor, logits_of, relative

__all__ = ["check_norms"]

_KNOWN = re.compile(r"LayerNorm|RMSNorm")
# Formula of a norm: whether the mean is taken out, and whether the gain is stored as what is added to 1 (Gemma).
_FORMULAS = {
    "layer norm": (True, False),
    "RMS norm": (False, False),
    "RMS norm with gain 1 + w": (False, True),
}


@dataclass(frozen=True)
class _Norm:
    """A norm that ran once: where, of which class, and its error under every formula."""

    name: str
    kind: str
    errors: dict[str, float]
    ignored: str
    has_gain: bool


def check_norms(subject: Subject) -> Check:
    """Run once and recompute every norm from its own input and parameters."""
    name, layout = "norms apply their gain", subject.layout
    seen: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}
    handles = []
    for label, module in layout.root.named_modules():
        if "norm" in type(_holder(module)).__name__.lower():

            def after(module: nn.Module, args: Any, kwargs: Any, output: Any, label: str = label) -> None:
                given, made = first_tensor((*args, *kwargs.values())), first_tensor(output)
                if given is not None and made is not None and label not in seen:
                    seen[label] = (_holder(module), given.detach().clone(), made.detach().clone())

            handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        with evaluating(layout):
            logits_of(layout, torch.tensor([subject.documents[0][:32]]))
    finally:
        for handle in handles:
            handle.remove()
    # A bridge's component and the module it wraps are one norm.
    wrapped = {f"{label}._original_component" for label in seen}
    seen = {label: found for label, found in seen.items() if label not in wrapped}
    norms = [_examined(label, *found, tolerance=subject.tolerance) for label, found in seen.items()]
    return _judged(name, norms, subject.tolerance)


def _judged(name: str, norms: list[_Norm], tolerance: float) -> Check:
    if not norms:
        return Check(name, "info", "no module that looks like a norm ran; nothing was recomputed")
    wrong, unknown, formulas = [], [], Counter[str]()
    for kind in dict.fromkeys(norm.kind for norm in norms):
        # All norms of one class follow one formula; whichever most of them do is its own, and the rest are at fault.
        own = [norm for norm in norms if norm.kind == kind]
        votes = Counter(f for norm in own for f in _allowed(kind) if norm.errors[f] <= tolerance)
        formula = votes.most_common(1)[0][0] if votes else _allowed(kind)[0]
        for norm in own:
            if norm.errors[formula] <= tolerance:
                formulas[formula] += 1
            elif norm.ignored or votes or _KNOWN.search(kind):
                what = norm.ignored or f"is {norm.errors[formula]:.2g} away from what its parameters make of its input"
                wrong.append((norm.name, kind, what))
            else:
                unknown.append(f"{norm.name} ({kind})")
    if wrong:
        shown = ", ".join(f"{label} ({kind}) {what}" for label, kind, what in wrong[:3])
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Check(
            name,
            "fail",
            shown + more,
            "a patched forward, a replaced kernel or a hook on the norm: load the model without it",
            (("norm", "class", "output"), *wrong),
        )
    if unknown:
        return Check(
            name,
            "warn",
            f"no known formula gives the output of {', '.join(unknown[:3])}",
            "compare it with its definition yourself",
        )
    counted = ", ".join(f"{n} as {formula}" for formula, n in formulas.items())
    n_plain = sum(not norm.has_gain for norm in norms)
    plain = f"; {n_plain} have no gain, or one of exactly 1" if n_plain else ""
    return Check(name, "pass", f"{len(norms)} norms recomputed: {counted}{plain}")


def _allowed(kind: str) -> tuple[str, ...]:
    """The formulas that a class of this name may follow."""
    if "Gemma" in kind:
        return ("RMS norm with gain 1 + w",)
    if "RMS" in kind:
        return ("RMS norm", "RMS norm with gain 1 + w")
    if "LayerNorm" in kind and "T5" not in kind:
        return ("layer norm",)
    return tuple(_FORMULAS)


def _examined(label: str, holder: nn.Module, given: Tensor, made: Tensor, *, tolerance: float) -> _Norm:
    """The error of each formula, and which of the parameters a formula without them explains."""
    given, made = given.cpu().double(), made.cpu().double()
    gain, bias = _parameter(holder, ("weight", "w"), given), _parameter(holder, ("bias", "b"), given)
    errors, kind, ignored = {}, type(holder).__name__, ""
    for formula, (centred, from_one) in _FORMULAS.items():
        plain = _standardised(given, _eps(holder), centred)
        scale = torch.ones(()) if gain is None else 1 + gain if from_one else gain
        shift = torch.zeros(()) if bias is None else bias
        errors[formula] = relative(made, plain * scale + shift)
        if formula not in _allowed(kind):
            continue
        if relative(made, plain + shift) <= tolerance or relative(made, plain) <= tolerance:
            ignored = "ignores its gain"
        elif relative(made, plain * scale) <= tolerance:
            ignored = "ignores its bias"
    neutral = 0.0 if "Gemma" in kind else 1.0
    has_gain = gain is not None and not bool((gain == neutral).all())
    return _Norm(label.replace("._original_component", ""), kind, errors, ignored, has_gain)


def _standardised(rows: Float[Tensor, "*rows d"], eps: float, centred: bool) -> Float[Tensor, "*rows d"]:
    rows = rows - rows.mean(-1, keepdim=True) if centred else rows
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()


def _holder(module: nn.Module) -> nn.Module:
    """The module that holds the parameters: a bridge's component wraps the one of Hugging Face."""
    inner = module._modules.get("_original_component")
    return module if inner is None else inner


def _parameter(module: nn.Module, names: tuple[str, ...], rows: Tensor) -> Tensor | None:
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, Tensor) and value.numel() == rows.shape[-1]:
            return value.detach().cpu().double().flatten()
    return None


def _eps(module: nn.Module) -> float:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    value = getattr(getattr(module, "cfg", None), "eps", None)
    return value if isinstance(value, float) else 1e-5
