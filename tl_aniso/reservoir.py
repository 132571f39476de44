"""A bounded sample of rows that depends on the rows alone: not on their order, their batches, or the machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_floating
from tl_aniso.checks import MOST_SEED, as_integer
from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError

__all__ = ["Reservoir", "row_keys"]

Keys: TypeAlias = Tensor | np.ndarray | Iterable[int]


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: a bijection of 64-bit integers whose bits look independent."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_keys(document: str, positions: Keys) -> np.ndarray:
    """Keys of the rows of one document: a hash of its name and of each position in it.

    Args:
        document: hexadecimal digest of the document's token ids, 16 digits or more.
        positions: of the rows in the whole document, not in one of its sequences.

    Returns:
        One uint64 per position.

    Raises:
        TlAnisoError: a document that is not hexadecimal, positions that are not integers.

    Example:
        >>> from tl_aniso.reservoir import row_keys
        >>> keys = row_keys("00000000000000ff" * 4, [0, 1, 2])
        >>> keys.dtype, len(set(keys.tolist()))
        (dtype('uint64'), 3)
    """
    try:
        start = np.array([int(document[:16], 16)], dtype=np.uint64)
    except ValueError as error:
        raise TlAnisoError(f"a document is named by the hexadecimal digest of its ids, got {document!r}") from error
    return _mixed(_mixed(start) ^ _as_keys(positions))


class Reservoir:
    """Keeps the `capacity` rows whose hash of (seed, key) is smallest: a uniform sample without replacement.

    Every row has its own key, so the sample is a pure function of the set of rows and of the seed, and merging
    two samples gives the sample of all rows, exactly. Rows with one key (the same document twice) are told apart
    by their values.

    Args:
        d: width of the rows.
        capacity: rows to keep; 0 keeps none and only counts.
        seed: another seed, another sample.

    Raises:
        TlAnisoError: a width below 1, a capacity below 0.

    Example:
        >>> import torch
        >>> from tl_aniso.reservoir import Reservoir
        >>> rows = torch.arange(100.0)[:, None]
        >>> whole = Reservoir(1, 5).update(rows, range(100))
        >>> first, second = Reservoir(1, 5).update(rows[:60], range(60)), Reservoir(1, 5)
        >>> merged = second.update(rows[60:], range(60, 100)).merge(first)
        >>> whole.rows.shape, torch.equal(whole.rows, merged.rows), merged.n_seen
        (torch.Size([5, 1]), True, 100)
    """

    def __init__(self, d: int, capacity: int, *, seed: int = 0) -> None:
        self.d = as_integer("d", d, least=1)
        self.capacity = as_integer("capacity", capacity, least=0)
        self.seed = as_integer("seed", seed, least=0, most=MOST_SEED)
        self.n_seen = 0
        self._rows = torch.empty(0, self.d)
        self._keys = np.empty(0, dtype=np.uint64)

    @property
    def rows(self) -> Float32[Tensor, "kept d"]:
        """The kept rows on the CPU, in the order of their hashes; a copy."""
        return self._rows.clone()

    @property
    def keys(self) -> np.ndarray:
        """Keys of the kept rows (uint64), in the same order; a copy."""
        return self._keys.copy()

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, rows: Float[ArrayLike, "n d"], keys: Keys) -> Self:
        """Offer rows, each with its key. Returns the reservoir.

        Args:
            rows: on any device; only those that are kept leave it.
            keys: one 64-bit integer per row, different for different rows.

        Raises:
            TlAnisoError: rows that are not n x d, or not one integer key per row.
            UndefinedMeasureError: a row to be kept that is not finite.
        """
        offered, names = as_floating(rows, "rows").detach(), _as_keys(keys)
        if offered.ndim != 2 or offered.shape[1] != self.d:
            raise TlAnisoError(f"rows must be n x {self.d}, got shape {tuple(offered.shape)}")
        if len(names) != len(offered):
            raise TlAnisoError(f"{len(offered)} rows came with {len(names)} keys; give one key per row")
        self.n_seen += len(names)
        if not self.capacity or not len(names):
            return self
        priority = self._priority(names)
        if len(self._keys) == self.capacity:
            candidates = np.flatnonzero(priority <= self._priority(self._keys[-1:])[0])
        else:
            candidates = np.arange(len(names))
        if len(candidates) > self.capacity:
            # Those tied with the last one stay: their values decide.
            bound = np.partition(priority[candidates], self.capacity - 1)[self.capacity - 1]
            candidates = candidates[priority[candidates] <= bound]
        chosen = offered[torch.from_numpy(candidates).to(offered.device)].to("cpu", torch.float32)
        if not torch.isfinite(chosen).all():
            raise UndefinedMeasureError("a row to be kept holds values that are not finite in float32")
        self._keep(chosen, names[candidates])
        return self

    def merge(self, other: Reservoir) -> Self:
        """Take in what another reservoir saw; `other` stays as it is. Returns the reservoir.

        Raises:
            MergeError: another width, capacity or seed.
        """
        for name in ("d", "capacity", "seed"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise MergeError(f"reservoirs of unlike runs: {name} is {mine} in one and {theirs} in the other")
        self._keep(other._rows, other._keys)
        self.n_seen += other.n_seen
        return self

    def copy(self) -> Reservoir:
        """A reservoir with the same rows that changes on its own."""
        return Reservoir.from_state(self._rows, self._keys, self.n_seen, self.capacity, seed=self.seed)

    @classmethod
    def from_state(
        cls, rows: Float[Tensor, "kept d"], keys: Keys, n_seen: int, capacity: int, *, seed: int = 0
    ) -> Reservoir:
        """The reservoir whose `rows`, `keys` and `n_seen` were stored.

        Raises:
            TlAnisoError: numbers that do not fit together.
        """
        names = _as_keys(keys)
        if len(names) != len(rows) or len(names) != min(capacity, n_seen):
            raise TlAnisoError(
                f"{len(rows)} rows, {len(names)} keys, {n_seen} rows seen and capacity {capacity} are of no reservoir"
            )
        found = cls(rows.shape[1], capacity, seed=seed)
        found._keep(rows.detach().to("cpu", torch.float32), names)
        found.n_seen = as_integer("n_seen", n_seen, least=0)
        return found

    def _priority(self, keys: np.ndarray) -> np.ndarray:
        return _mixed(keys ^ _mixed(np.array([self.seed], dtype=np.uint64)))

    def _keep(self, rows: Tensor, keys: np.ndarray) -> None:
        rows, keys = torch.cat([self._rows, rows]), np.concatenate([self._keys, keys])
        priority = self._priority(keys)
        order = np.argsort(priority, kind="stable")
        ranked = priority[order]
        if (ranked[1:] == ranked[:-1]).any():
            values = rows.numpy()
            order = np.array(sorted(range(len(keys)), key=lambda i: (priority[i], values[i].tobytes())))
        order = order[: self.capacity]
        self._rows, self._keys = rows[torch.from_numpy(order)].clone(), keys[order]

    def __repr__(self) -> str:
        return f"Reservoir({len(self)} of {self.n_seen} rows, d={self.d}, capacity={self.capacity}, seed={self.seed})"


def _as_keys(keys: Keys) -> np.ndarray:
    if isinstance(keys, Tensor):
        keys = keys.detach().cpu().numpy()
    elif not isinstance(keys, np.ndarray):
        keys = np.array(list(keys))
    if keys.ndim != 1 or (keys.size and keys.dtype.kind not in "iu"):
        raise TlAnisoError(f"keys must be a list of integers, got {keys.dtype} of shape {keys.shape}")
    # Negative int64 keys are the upper half of uint64; the bits are what counts.
    return keys.astype(np.int64).view(np.uint64) if keys.dtype.kind != "u" else keys.astype(np.uint64)
