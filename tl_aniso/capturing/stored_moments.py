"""Moments of a saved capture, read when they are asked for: one site at a time in memory, however many there are."""

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from tl_aniso.capturing.sums import SumKey
from tl_aniso.errors import TlAnisoError
from tl_aniso.moments import Moments

__all__ = ["StoredMoments", "restored_moments"]


class StoredMoments(MutableMapping[SumKey, Moments]):
    """The moments in a file of safetensors, which stays open; each access reads them anew.

    Args:
        tensors: the file.
        described: what `capture.json` says of each: count, whether it is centred, and its precision.
    """

    def __init__(self, tensors: Path, described: Mapping[str, Mapping[str, Any]]) -> None:
        self._described = {SumKey.parse(text): (text, kept) for text, kept in described.items()}
        self._file = safe_open(tensors, framework="pt")
        self._names = frozenset(self._file.keys())
        missing = [text for text, _ in self._described.values() if f"scatter|{text}" not in self._names]
        if missing:
            raise KeyError(f"scatter|{missing[0]}")

    def __getitem__(self, key: SumKey) -> Moments:
        text, kept = self._described[key]
        mean = f"mean|{text}"
        return restored_moments(
            kept,
            self._file.get_tensor(f"scatter|{text}"),
            self._file.get_tensor(mean) if mean in self._names else None,
        )

    def __contains__(self, key: object) -> bool:
        return key in self._described  # without reading it

    def __iter__(self) -> Iterator[SumKey]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __setitem__(self, key: SumKey, value: Moments) -> None:
        raise TlAnisoError(f"a capture that was read from disk is not changed ({key.text()}); merge makes a new one")

    def __delitem__(self, key: SumKey) -> None:
        raise TlAnisoError(f"a capture that was read from disk is not changed ({key.text()})")


def restored_moments(kept: Mapping[str, Any], scatter: torch.Tensor, mean: torch.Tensor | None) -> Moments:
    """One accumulator from what a capture's files hold of it."""
    if mean is None and kept["centred"]:
        mean = torch.zeros(scatter.shape[0])
    return Moments.from_sums(kept["count"], mean if kept["centred"] else None, scatter, eps=kept["eps"])
