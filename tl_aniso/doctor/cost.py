"""What measuring this model would take here: seconds per 1000 tokens, and bytes of sums."""

import time
from collections.abc import Callable

import psutil
import torch

from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.run import capture
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.delivery import Listener
from tl_aniso.doctor.subject import Subject, padded
from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = ["bytes_of_sums", "check_cost"]

_BUDGET = 512 * 2**20
_DOCUMENTS = 3


def bytes_of_sums(layout: Layout, *, with_proxies: bool, n_halves: int = 2) -> int:
    """Size of the d x d sums of a capture with default options.

    Args:
        layout: of the model.
        with_proxies: weight gradients are projected instead of summed.
        n_halves: halves of the text that hold documents.
    """
    residual = len({layout.canonical(site) for site in layout.residual_sites})
    sums = 2 * residual
    if not with_proxies:
        sums += len(layout.matrix_sites) + len(layout.weight_sites) * (1 + len(CONTROL_NAMES))
    return n_halves * sums * layout.d_model**2 * 8


def check_cost(subject: Subject) -> Check:
    """Time a pass without sums and one with those of a few layers, and say what all layers would take."""
    layout = subject.layout
    whole, projected = (bytes_of_sums(layout, with_proxies=known) for known in (False, True))
    documents = subject.of_one_half()[:_DOCUMENTS]
    n_tokens, n_layers = sum(map(len, documents)), len(layout.blocks)
    per_layer = whole // (2 * n_layers)  # one half of the text is all there is here
    budget = min(_BUDGET, psutil.virtual_memory().available // 8)
    watched = max(1, min(n_layers, budget // max(1, per_layer)))
    bare = _seconds(lambda: _bare_pass(subject, documents))
    size = f"sums take {_size(whole)}, or {_size(projected)} with proxies known"
    table: tuple[tuple[str, ...], ...] = (
        ("capture", "seconds per 1000 tokens", "d x d sums"),
        ("forward and backward pass alone", f"{1000 * bare / n_tokens:.2g}", ""),
    )
    if per_layer > budget:
        table += (("by default", "not timed", _size(whole)), ("with proxies", "not timed", _size(projected)))
        return Check("cost of measuring", "info", f"{size}; too large to be timed here", table=table)
    first = (n_layers - watched) // 2
    sites = [f"blocks.{layer}.*" for layer in range(first, first + watched)]
    some = _seconds(
        lambda: capture(
            subject.model, list(documents), sites=sites, batch_size=len(documents), progress=False, pooled="all"
        )
    )
    total = bare + max(0.0, some - bare) * n_layers / watched
    per_thousand = 1000 * total / n_tokens
    table += (("by default, every site and control", f"{per_thousand:.2g}", _size(whole)),)
    table += (("with proxies known", "about as long", _size(projected)),)
    enough = psutil.virtual_memory().available
    return Check(
        "cost of measuring",
        "warn" if whole > 0.6 * enough else "info",
        f"about {per_thousand:.2g} s for 1000 tokens here ({n_tokens} tokens through {watched} of {n_layers} layers "
        f"timed); {size}" + (f", of {_size(enough)} free" if whole > 0.6 * enough else ""),
        "name fewer sites, or pass proxies" if whole > 0.6 * enough else "",
        table,
    )


def _seconds(run: Callable[[], object]) -> float:
    run()  # the first time pays for caches and kernels
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _bare_pass(subject: Subject, documents: tuple[list[int], ...]) -> None:
    ids, _ = padded(documents, left=False)
    nothing: frozenset[str] = frozenset()
    with tapped(subject.layout, Listener(), gradients=True, matrices=nothing, residuals=nothing) as tap:
        hidden = tap.forward(ids.to(subject.layout.device))
        tap.backward(hidden, torch.ones_like(hidden), again=False)
    if subject.layout.device.type == "cuda":
        torch.cuda.synchronize()


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.2g} MB"
