"""What a second worker brings: captures one after the other, and two at a time, each worker with one thread.

Speed-up divided by two. Both run on the same Ray cluster of this machine, whose workers have loaded everything before.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.table import Line

__all__ = ["measure"]

_CAPTURES, _FLOOR = 6, 0.7
_D, _LAYERS, _DOCUMENTS, _LENGTH = 256, 4, 24, 128


def measure(repeats: int, say: Callable[[str], None]) -> list[Line]:
    """Interleave both ways."""
    import ray

    from tl_aniso.study import RayExecutor

    ratios = []
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with RayExecutor() as executor, tempfile.TemporaryDirectory() as directory:
            list(executor.map(_tasks(Path(directory) / "warm")))
            for i in range(repeats):
                began = perf_counter()
                for task in _tasks(Path(directory) / f"one{i}"):
                    list(executor.map([task]))
                one = perf_counter() - began
                began = perf_counter()
                list(executor.map(_tasks(Path(directory) / f"two{i}")))
                two = perf_counter() - began
                ratios.append(one / two / 2)
                say(f"ray: {i + 1}/{repeats}, {_CAPTURES} captures by one worker {one:.1f} s, by two {two:.1f} s")
    finally:
        ray.shutdown()
    return [Line("speed-up / 2 of two one-thread Ray workers", ratios, _FLOOR, at_least=True)]


def _tasks(root: Path) -> list[Any]:
    from tl_aniso.study import Task

    return [
        Task("captures", f"{number}", f"capture {number}", root, partial(_capture, seed=number))
        for number in range(_CAPTURES)
    ]


def _capture(place: Path, seed: int) -> None:
    """In a worker."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tl_aniso import capture

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=_D,
        intermediate_size=4 * _D,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        max_position_embeddings=_LENGTH,
    )
    ids = torch.randint(3, 2048, (_DOCUMENTS, _LENGTH)).tolist()
    capture(LlamaForCausalLM(config), ids, progress=False).save(place / "capture")
