"""Streaming moments by token type against pandas, on the same chunks; and memory over ten million rows.

50,000 types, Zipf, d = 768, float32, chunks of 100,000 rows. Two peers: of each chunk one call,
``groupby(ids).agg(["count", "mean", "var"])``; and the fastest way found to stream the same with pandas: ``size``,
``mean`` and ``var`` called one by one, which run compiled over all columns at once, added to running numpy tables by
Chan's formula. All run on one thread and are timed in CPU seconds, so that other work on the machine counts for nobody.
"""

import multiprocessing
from collections.abc import Callable
from time import process_time

import numpy as np
import pandas as pd
import torch

from benchmarks.memory import _peak_here
from benchmarks.table import Line
from tl_aniso.frequency import TypeMoments

__all__ = ["measure"]

_TYPES, _D, _CHUNK, _ROWS = 50_000, 768, 100_000, 10_000_000
_FLOOR, _LEAST, _MOST_GB = 5.0, 1.5, 2.0
_CALLS = 2  # each takes a quarter of a minute


def measure(repeats: int, say: Callable[[str], None]) -> list[Line]:
    """Interleave both on chunks of their own, then run the full size in a process of its own."""
    repeats = max(_CALLS, min(repeats, 5))
    rng = np.random.default_rng(0)
    ours, peer = TypeMoments(_TYPES, _D), _Pandas()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    streamed: list[float] = []
    called: list[float] = []
    try:
        for i in range(repeats + 1):
            ids, rows = _ids(rng), rng.standard_normal((_CHUNK, _D), dtype=np.float32)
            began = process_time()
            peer.add(*peer.group(ids, rows))
            theirs = process_time() - began
            began = process_time()
            ours.update(ids, rows)
            took = process_time() - began
            if not i:  # the first pair warms up
                continue
            streamed.append(theirs / took)
            say(f"frequency: {i}/{repeats}, pandas call by call {theirs:.2f} s, {took:.2f} s here")
            if len(called) < _CALLS:
                began = process_time()
                pd.DataFrame(rows, copy=False).groupby(ids).agg(["count", "mean", "var"])
                called.append((process_time() - began) / took)
                say(f"frequency: one call of agg {called[-1] * took:.2f} s")
    finally:
        torch.set_num_threads(before)
    if not np.allclose(ours.squares.numpy(), peer.squares, rtol=1e-4, atol=1e-3):
        raise RuntimeError("pandas and TypeMoments disagree")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        peak = pool.apply(_full_size)
    say(f"frequency: peak {peak / 1e9:.2f} GB over {_ROWS:,} rows")
    return [
        Line("pandas groupby.agg of a chunk / TypeMoments.update", called, _FLOOR, at_least=True),
        Line("pandas call by call, streamed / TypeMoments.update", streamed, _LEAST, at_least=True),
        Line("peak memory of 10 million rows by type, GB", [peak / 1e9], _MOST_GB),
    ]


class _Pandas:
    """Running tables by pandas."""

    def __init__(self) -> None:
        self.count, self.squares = np.zeros(_TYPES), np.zeros(_TYPES)
        self.mean = np.zeros((_TYPES, _D))

    def group(self, ids: np.ndarray, rows: np.ndarray) -> tuple[pd.Series, pd.DataFrame, pd.DataFrame]:
        groups = pd.DataFrame(rows, copy=False).groupby(ids)
        return groups.size(), groups.mean(), groups.var(ddof=0)

    def add(self, size: pd.Series, mean: pd.DataFrame, variance: pd.DataFrame) -> None:
        types, n = size.index.to_numpy(), size.to_numpy()
        before = self.count[types]
        after = before + n
        gap = mean.to_numpy() - self.mean[types]
        self.squares[types] += variance.to_numpy().sum(1) * n + (gap**2).sum(1) * before * n / after
        self.mean[types] += gap * (n / after)[:, None]
        self.count[types] = after


def _ids(rng: np.random.Generator) -> np.ndarray:
    weights = 1.0 / np.arange(1, _TYPES + 1)
    return rng.choice(_TYPES, _CHUNK, p=weights / weights.sum())


def _full_size() -> int:
    """In a process of its own: the peak of ten million rows; the rows of a chunk are drawn once and shifted."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.standard_normal((_CHUNK, _D), dtype=np.float32))
    held = TypeMoments(_TYPES, _D)
    for _ in range(_ROWS // _CHUNK):
        held.update(_ids(rng), rows.add_(0.01))
    if int(held.count.sum()) != _ROWS:
        raise RuntimeError("rows were lost")
    return _peak_here()
