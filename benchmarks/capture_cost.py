"""Cost of a capture on SmolLM2-135M, in units of an ordinary training pass over the same batch.

One batch of 8 documents of 128 tokens of English. The baseline is the plain Hugging Face model with all parameters
trainable: ``model(input_ids, labels=input_ids).loss.backward()`` after ``zero_grad(set_to_none=True)``, no optimiser
step. A capture is one call of the public `capture` with that batch as token ids, fixed costs (checks of the weights,
their fingerprint, the first allocation of the sums) included. Each capture follows a baseline of its own.
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

_BATCH, _LENGTH = 8, 128
_READERS = ("blocks.*.attn.W_[QKV]", "blocks.*.mlp.W_in", "blocks.*.mlp.W_gate", "unembed.W_U")


def english_documents(tokenizer: Any, n: int) -> list[torch.Tensor]:
    """Pieces of English, 128 tokens each, all of half A, so that they fill whole batches."""
    found: list[torch.Tensor] = []
    for text in local_corpus(packages=()):
        ids = tokenizer(text[: 8 * _LENGTH])["input_ids"][:_LENGTH]
        if len(ids) == _LENGTH and half_of(document_hash(ids)) == "A":
            found.append(torch.tensor(ids))
            if len(found) == n:
                return found
    raise RuntimeError("the local corpus holds too few long documents")


def measure(repeats: int, say: Callable[[str], None], n_batches: int = 1) -> list[Line]:
    """Pairs of a baseline and a capture, of three kinds in turn."""
    model, tokenizer = load_smollm2()
    documents = english_documents(tokenizer, n_batches * _BATCH)
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

    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats + 1):
        for name, (_, arguments) in runs.items():
            reference = baseline()
            took = ours(arguments)
            if i:  # the first round warms up
                ratios[name].append(took / reference)
                say(f"capture: {i}/{repeats}, {took:.2f} s over {reference:.2f} s = {took / reference:.2f} ({name})")
    return [Line(f"capture / training pass: {name}", ratios[name], limit) for name, (limit, _) in runs.items()]
