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
from tl_aniso.doctor.subject import Subject
from tl_aniso.text import document_hash, half_of
from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = ["bytes_of_sums", "check_cost"]

# Sums of as many layers are timed as fit; sequences are as long.
_BUDGET = 512 * 2**20
_TOKENS = 256
# What a capture refuses to exceed by itself.
_SHARE_OF_FREE = 0.6


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
    """Time one more sequence of a pass, with the sums of a few layers, and say what those of all layers would take."""
    layout = subject.layout
    whole, projected = (bytes_of_sums(layout, with_proxies=known) for known in (False, True))
    available = psutil.virtual_memory().available
    n_layers, first, second = len(layout.blocks), *_sequences(subject)
    per_layer = whole // (2 * n_layers)  # one half of the text is all there is here
    watched = min(n_layers, min(_BUDGET, available // 8) // max(1, per_layer))
    bare = 1000 * _seconds(lambda: _bare_pass(subject, second)) / len(second)
    table: list[tuple[str, ...]] = [("capture", "seconds per 1000 tokens", "d x d sums")]
    table += [("forward and backward pass alone", f"{bare:.2g}", "")]
    size = f"sums take {_size(whole)}, or {_size(projected)} with proxies known"
    found = f"{size}; too large to be timed here"
    if watched:
        middle = (n_layers - watched) // 2
        sites = [f"blocks.{layer}.*" for layer in range(middle, middle + watched)]
        once = _seconds(lambda: _captured(subject, [first], sites))
        twice = _seconds(lambda: _captured(subject, [first, second], sites))
        # What a capture does once, such as setting up its sums, is not part of what a token costs.
        some = max(bare, 1000 * (twice - once) / len(second))
        total = bare + (some - bare) * n_layers / watched
        found = (
            f"about {total:.2g} s for 1000 tokens here, in sequences of {len(second)} (the sums of {watched} of "
            f"{n_layers} layers timed); {size}"
        )
        table += [("by default, every site and control", f"{total:.2g}", _size(whole))]
        table += [("with proxies known", "not timed", _size(projected))]
    if whole <= _SHARE_OF_FREE * available:
        return Check("cost of measuring", "info", found, table=tuple(table))
    return Check(
        "cost of measuring",
        "warn",
        f"{found}, of {_size(available)} free",
        "name fewer sites, or pass proxies",
        tuple(table),
    )


def _sequences(subject: Subject) -> tuple[list[int], list[int]]:
    """Two sequences of one half, long enough to be like those of a measurement, made of all documents."""
    whole = [i for ids in subject.documents for i in ids]
    longest = min(_TOKENS, subject.layout.context, len(whole))
    first = whole[:longest]
    other = whole[::-1]
    for n in range(longest, max(2, longest - 24), -1):
        if half_of(document_hash(other[:n])) == half_of(document_hash(first)):
            return first, other[:n]
    return first, other[:longest]


def _captured(subject: Subject, documents: list[list[int]], sites: list[str]) -> object:
    return capture(subject.model, documents, sites=sites, objective=subject.objective, batch_size=1, progress=False)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _bare_pass(subject: Subject, ids: list[int]) -> None:
    nothing: frozenset[str] = frozenset()
    with tapped(subject.layout, Listener(), gradients=True, matrices=nothing, residuals=nothing) as tap:
        hidden = tap.forward(torch.tensor([ids], device=subject.layout.device))
        tap.backward(hidden, torch.ones_like(hidden), again=False)
    if subject.layout.device.type == "cuda":
        torch.cuda.synchronize()


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.2g} MB"
