"""One pass over a text that keeps a bounded sample of the rows of chosen token types, the same at every site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.capturing.token_rows import TokenRows
from tl_aniso.errors import TlAnisoError
from tl_aniso.reservoir import Reservoir, row_keys

__all__ = ["KeptRows", "collect"]

_PIECE = 1 << 24  # positions are counted within a piece of a document; this tells pieces apart
_KINDS = ("activations", "gradients", "outputs")


@dataclass
class KeptRows:
    """Rows of single occurrences by type and half: every kind and site side by side in one row, in float32.

    Attributes:
        columns: (kind, site) -> columns of the row, kind being that of `TokenRows`.
        samples: (type, half) -> sample, in the order of the rows' hashes.
        documents: hashes of the documents that occurrences were seen in.
    """

    columns: dict[tuple[str, str], slice] = field(default_factory=dict)
    samples: dict[tuple[int, str], Reservoir] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)

    def rows(self, token: int, half: str, kind: str, site: str, most: int | None = None) -> Float64[Tensor, "n d"]:
        """Rows of one type, half, kind and site; the first `most` by hash, so that other sites give the same ones."""
        return self.samples[token, half].rows[:most, self.columns[kind, site]].double()

    def count(self, token: int, half: str) -> int:
        """Occurrences kept."""
        return len(self.samples[token, half])


def collect(
    batches: Iterable[TokenRows],
    types: Sequence[int],
    *,
    capacity: int,
    seed: int,
    max_bytes: int,
) -> KeptRows:
    """Keep up to `capacity` occurrences of each type in each half, drawn by hash, of which no site filters any.

    Args:
        batches: of `tl_aniso.capturing.token_rows.token_rows`.
        types: token ids.
        capacity: occurrences of one type in one half.
        seed: of the draw.
        max_bytes: of all rows.

    Raises:
        TlAnisoError: the rows would not fit.
    """
    kept = KeptRows()
    wanted = torch.tensor(sorted(types))
    for batch in batches:
        if not kept.columns:
            _lay_out(kept, batch, types, capacity, seed, max_bytes)
        usable = torch.isin(batch.ids, wanted)
        for mask in batch.kept.values():
            usable &= mask
        places = usable.nonzero()[:, 0]
        if not len(places):
            continue
        keys = _keys(batch, places)
        ids, local = batch.ids[places], (batch.sequence[places] - batch.sequence[0]).numpy()
        second = torch.from_numpy(np.array([half == "B" for half in batch.half])[local])
        kept.documents.update(batch.document[i] for i in np.unique(local))
        wide = torch.cat([_part(batch, kind, site)[places] for kind, site in kept.columns], 1)
        for token in ids.unique().tolist():
            for half in "AB":
                own = (ids == token) & (second == (half == "B"))
                if own.any():
                    kept.samples[token, half].update(wide[own], keys[own.numpy()])
    return kept


def _part(batch: TokenRows, kind: str, site: str) -> Tensor:
    found: Mapping[str, Tensor] = getattr(batch, kind)
    return found[site]


def _lay_out(kept: KeptRows, batch: TokenRows, types: Sequence[int], capacity: int, seed: int, max_bytes: int) -> None:
    start = 0
    for kind in _KINDS:
        for site, rows in getattr(batch, kind).items():
            kept.columns[kind, site] = slice(start, start + rows.shape[1])
            start += rows.shape[1]
    # A reservoir holds its rows twice while it takes new ones in, one type at a time.
    size = 4 * start * capacity * 2 * len(types)
    if size > max_bytes:
        raise TlAnisoError(
            f"{len(types)} types with {capacity} rows in each half, {start} numbers wide, are {size / 1e9:.1f} GB, "
            f"above the {max_bytes / 1e9:.1f} GB allowed; name fewer sites, lower n_types or cap, or raise max_bytes"
        )
    for token in types:
        for half in "AB":
            kept.samples[token, half] = Reservoir(start, capacity, seed=seed)


def _keys(batch: TokenRows, places: Tensor) -> np.ndarray:
    local = (batch.sequence[places] - batch.sequence[0]).numpy()
    position = batch.position[places].numpy()
    keys = np.empty(len(places), dtype=np.uint64)
    for row in np.unique(local):
        own = local == row
        keys[own] = row_keys(batch.document[row], batch.piece[row] * _PIECE + position[own])
    return keys
