"""The capture's second moments against autograd on the model's own parameters."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.capturing.run import capture
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject, evaluating, first_tensor, logits_of, own_tokens, relative
from tl_aniso.sites import residual_site

__all__ = ["check_gradients"]

_DOCUMENTS = 2
# Errors of so many tolerances are no rounding.
_WRONG = 10.0


@dataclass(frozen=True)
class _Place:
    """A weight site: its matrix, which of the matrix' parts it is, and the parameter that holds it."""

    site: str
    matrix: Matrix
    part: int
    parameter: nn.Parameter


def check_gradients(subject: Subject) -> Check:
    """A reader, a writer and a residual site in the first, middle and last layer, by `torch.autograd.grad`."""
    name, layout = "gradients equal autograd", subject.layout
    # Of one half, so that the capture takes them as one ragged batch, and autograd one by one.
    documents = sorted(subject.of_one_half(), key=len)[:_DOCUMENTS]
    places = list(_places(subject))
    residuals = [residual_site(layer, "pre") for layer in subject.layers]
    sites = [*(place.site for place in places), *residuals]
    expected = _autograd(layout, places, subject.layers, documents)
    held = capture(
        subject.model,
        documents,
        sites=sites,
        objective=subject.objective,
        controls=(),
        exclude=(),
        batch_size=_DOCUMENTS,
        progress=False,
    )
    found = {place.site: _summed(held.weight_gradients[place.site]) for place in places}
    found |= {site: _summed(held.activation_gradients[site]) for site in residuals}
    errors = {site: relative(found[site], expected[site]) for site in sites}
    rounding: dict[str, float] = {}
    if max(errors.values()) > subject.tolerance:
        # The model's own precision may stray that far: then autograd does too, measured against float64.
        exact = _in_float64(subject, documents)
        if exact is not None:
            errors = {site: relative(found[site], exact[site]) for site in sites}
            rounding = {site: relative(expected[site], exact[site]) for site in sites}
    table = (
        ("site", "relative error", "autograd's own"),
        *((site, f"{errors[site]:.1g}", f"{rounding[site]:.1g}" if site in rounding else "") for site in sites),
    )
    # A wrong gradient is off by far more than rounding.
    wrong = [site for site in sites if errors[site] > max(_WRONG * subject.tolerance, 2 * rounding.get(site, 0.0))]
    rough = [site for site in sites if errors[site] > max(subject.tolerance, 2 * rounding.get(site, 0.0))]
    if wrong:
        return Check(
            name,
            "fail",
            f"second moments differ from torch.autograd.grad of {subject.loss} at {_listed(wrong, errors)}",
            "a hook that replaces values or gradients, a custom autograd function, or a forward pass of the whole "
            "model that is not that of its blocks; if the model is stock, please report this",
            table,
        )
    if rough:
        return Check(
            name,
            "warn",
            f"second moments are rounded at {_listed(rough, errors)} against {'float64' if rounding else 'autograd'}",
            "" if rounding else "a float64 copy of the model, which would tell whose rounding it is, does not fit here",
            table,
        )
    worst = max(errors, key=lambda site: errors[site])
    said = f"{len(sites)} sites in layers {', '.join(map(str, subject.layers))} agree"
    if rounding:
        own = max(rounding, key=lambda site: rounding[site])
        said += f" with float64 to {errors[worst]:.1g} at worst ({worst})"
        said += f"; autograd in the model's own precision strays by {rounding[own]:.1g} ({own})"
    else:
        said += f" with torch.autograd.grad of {subject.loss} to {errors[worst]:.1g} at worst ({worst})"
    return Check(name, "pass", said, table=table)


def _listed(sites: list[str], errors: dict[str, float]) -> str:
    shown = ", ".join(f"{site} (off by {errors[site]:.2g})" for site in sites[:4])
    return shown + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")


def _places(subject: Subject) -> Iterator[_Place]:
    """One reader and one writer a layer, another one in each, whose parameter can be found."""
    for number, layer in enumerate(subject.layers):
        for matrices in (subject.readers(layer), subject.writers(layer)):
            usable = [
                _Place(site, matrix, part, parameter)
                for matrix in matrices
                for part, site in enumerate(matrix.sites)
                if (parameter := _parameter(subject.layout, matrix, site)) is not None
            ]
            if usable:
                yield usable[number % len(usable)]


def _parameter(layout: Layout, matrix: Matrix, site: str) -> nn.Parameter | None:
    """The parameter of a weight site: its module's, or, in a HookedTransformer, the one of the site's own name."""
    weight = getattr(matrix.module, "weight", None)
    if isinstance(weight, nn.Parameter):
        return weight
    try:
        return layout.root.get_parameter(site)
    except AttributeError:
        return None


def _autograd(
    layout: Layout, places: list[_Place], layers: tuple[int, ...], documents: list[list[int]]
) -> dict[str, Tensor]:
    """Sums over documents of G^T G, and of g g^T at residual sites, from plain autograd; float64, on the CPU."""
    sums: dict[str, Tensor] = {}
    taken: dict[str, Tensor] = {}
    handles = []
    for layer in layers:

        def before(_module: nn.Module, args: Any, kwargs: Any, site: str = residual_site(layer, "pre")) -> None:
            value = first_tensor((*args, *kwargs.values()))
            if value is not None:
                taken[site] = value

        handles.append(layout.blocks[layer].module.register_forward_pre_hook(before, with_kwargs=True))
    parameters = [place.parameter for place in places]
    try:
        with evaluating(layout, gradients=True):
            for document in documents:
                ids = torch.tensor([document], device=layout.device)
                loss = _loss(layout, ids)
                # What a pass does not use has the gradient zero; the check will say so.
                given = torch.autograd.grad(
                    loss, [*parameters, *taken.values()], allow_unused=True, materialize_grads=True
                )
                for place, gradient in zip(places, given, strict=False):
                    _add(sums, place.site, _rows(place, gradient))
                for site, gradient in zip(taken, given[len(places) :], strict=True):
                    _add(sums, site, gradient[0])
    finally:
        for handle in handles:
            handle.remove()
    return sums


def _loss(layout: Layout, ids: Tensor) -> Tensor:
    """Summed over the tokens of one document: each predicts the next, or, in an encoder, itself."""
    logits = logits_of(layout, ids)
    if layout.attends == "both":
        return own_tokens(logits, ids, torch.ones_like(ids, dtype=torch.bool)).sum()
    return nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")


def _rows(place: _Place, gradient: Tensor) -> Float[Tensor, "side d"]:
    """A parameter's gradient as the rows whose products are summed: the residual side last."""
    if gradient.dim() == 3:  # HookedTransformer keeps heads apart: head, d, side of readers; head, side, d of writers
        return gradient.movedim(-2 if place.matrix.role == "reader" else -1, -1).flatten(0, -2)
    is_linear = isinstance(place.matrix.module, nn.Linear)
    outputs_first = gradient if is_linear else gradient.T  # Conv1D and HookedTransformer store inputs first
    if place.matrix.role == "writer":
        return outputs_first.T
    if place.matrix.split is None:
        return outputs_first
    return place.matrix.split(outputs_first.T[None])[place.part][0].T


def _add(sums: dict[str, Tensor], site: str, rows: Float[Tensor, "n d"]) -> None:
    rows = rows.detach().cpu().double()
    sums[site] = sums.get(site, 0) + rows.T @ rows


def _summed(moments: Any) -> Tensor:
    total: Tensor = moments.second_moment() * moments.count
    return total


def _in_float64(subject: Subject, documents: list[list[int]]) -> dict[str, Tensor] | None:
    """`_autograd` on a float64 copy; None where a copy would not fit."""
    n_parameters = sum(parameter.numel() for parameter in subject.layout.root.parameters())
    if 20 * n_parameters > psutil.virtual_memory().available:
        return None
    layout = bind(copy.deepcopy(subject.model).double())
    other = Subject(subject.model, layout, subject.tokenizer, subject.texts, subject.documents)
    return _autograd(layout, list(_places(other)), subject.layers, documents)
