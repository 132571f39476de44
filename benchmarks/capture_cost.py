"""Cost of a capture on SmolLM2-135M, in units of an ordinary training pass over the same batch.

Batches are 8 documents of 128 tokens of English. The baseline is the plain Hugging Face model with all parameters
trainable: ``model(input_ids, labels=input_ids).loss.backward()`` after ``zero_grad(set_to_none=True)``, no optimiser
step. A capture is one call of the public `capture` with token ids of two batches, against two baseline steps; its fixed
costs (checks of the weights, their fingerprint, the first allocation of the sums) are included, so that a capture of
many batches costs a little less.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from benchmarks.real_model import load_smollm2
from benchmarks.table import Line
from tl_aniso import capture, fit_tangent_proxies
from tl_aniso.text import document_hash, half_of, local_corpus

__all__ = ["english_documents", "measure"]

_BATCH, _LENGTH, _BATCHES = 8, 128, 2
_READERS = ("blocks.*.attn.W_[QKV]", "blocks.*.mlp.W_in", "blocks.*.mlp.W_gate", "unembed.W_U")


def english_documents(tokenizer: Any) -> list[torch.Tensor]:
    """Pieces of English, 128 tokens each, all of half A, so that they fill whole batches."""
    found: list[torch.Tensor] = []
    for text in local_corpus(packages=()):
        ids = tokenizer(text[: 8 * _LENGTH])["input_ids"][:_LENGTH]
        if len(ids) == _LENGTH and half_of(document_hash(ids)) == "A":
            found.append(torch.tensor(ids))
            if len(found) == _BATCH * _BATCHES:
                return found
    raise RuntimeError("the local corpus holds too few long documents")


def measure(repeats: int, say: Callable[[str], None]) -> list[Line]:
    """Interleave the baseline with three kinds of capture."""
    model, tokenizer = load_smollm2()
    documents = english_documents(tokenizer)
    batches = torch.stack(documents).split(_BATCH)
    model.requires_grad_(True)
    options: dict[str, Any] = {"seq_len": _LENGTH, "batch_size": _BATCH, "progress": False}
    proxies = fit_tangent_proxies(capture(model, documents, gradients=(), **options))
    runs: dict[str, tuple[float, dict[str, Any]]] = {
        "activations and their gradients": (0.75, {"gradients": ("activation",)}),
        "and second moments of readers": (1.05, {"controls": (), "sites": ("blocks.*.hook_resid_*", *_READERS)}),
        "defaults with proxies known": (1.2, {"proxies": proxies}),
    }

    def baseline() -> float:
        began = perf_counter()
        for batch in batches:
            model.zero_grad(set_to_none=True)
            model(input_ids=batch, labels=batch).loss.backward()
        took = perf_counter() - began
        model.zero_grad(set_to_none=True)
        return took

    def ours(arguments: dict[str, Any]) -> float:
        began = perf_counter()
        capture(model, documents, **arguments, **options)
        return perf_counter() - began

    for _, arguments in runs.values():
        ours(arguments)
    baseline()
    before = baseline()
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats):
        times = {name: ours(arguments) for name, (_, arguments) in runs.items()}
        # A round lies between two baselines: where the machine's speed drifts, their mean stands in the middle.
        after = baseline()
        reference, before = (before + after) / 2, after
        for name, took in times.items():
            ratios[name].append(took / reference)
        shown = ", ".join(f"{took / reference:.2f}" for took in times.values())
        say(f"capture: {i + 1}/{repeats}, two training passes {reference:.2f} s, captures {shown} of it")
    return [Line(f"capture / training pass: {name}", ratios[name], limit) for name, (limit, _) in runs.items()]
