"""Peak memory of a capture over 100 batches against one over 10, each in a process of its own.

A Llama-shaped decoder of 2 layers, d = 128, with random weights, batches of 8 x 128: small enough that one tensor of
activations kept from each batch would miss the threshold.
"""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Line

__all__ = ["measure"]

_BATCH, _LENGTH, _VOCAB = 8, 128, 4096


def measure(say: Callable[[str], None]) -> list[Line]:
    """One pair: peaks repeat to a few MB."""
    few, many = _peak(10), _peak(100)
    say(f"memory: peak {few / 1e6:.0f} MB over 10 batches, {many / 1e6:.0f} MB over 100")
    return [Line("peak memory, 100 batches / 10", [many / few], 1.02)]


def _peak(n_batches: int) -> int:
    """Peak resident memory of a fresh process that captures so many batches, in bytes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_run, (n_batches,))


def _run(n_batches: int) -> int:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tl_aniso import capture
    from tl_aniso.text import document_hash, half_of

    config = LlamaConfig(
        vocab_size=_VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
    )
    generator = torch.Generator().manual_seed(0)
    documents: list[torch.Tensor] = []
    while len(documents) < n_batches * _BATCH:
        ids = torch.randint(_VOCAB, (_LENGTH,), generator=generator)
        if half_of(document_hash(ids.tolist())) == "A":
            documents.append(ids)
    capture(LlamaForCausalLM(config), documents, seq_len=_LENGTH, batch_size=_BATCH, progress=False)
    return _peak_here()


def _peak_here() -> int:
    """Peak resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux counts the parent's memory at the start into a child's ru_maxrss, but not into this
        return 1024 * next(int(s.split()[1]) for s in status.read_text().splitlines() if s.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
