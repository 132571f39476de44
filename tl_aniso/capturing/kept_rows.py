"""Rows that a capture keeps beside its sums: a sample per activation site, at the same places in every model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt64
from torch import Tensor

from tl_aniso.errors import SiteError
from tl_aniso.reservoir import Reservoir, row_keys
from tl_aniso.text.sequences import Batch

__all__ = ["MissingRowsError", "RowsKey", "SiteRows", "batch_keys"]


@dataclass(frozen=True, order=True)
class RowsKey:
    """What kept rows are of: activation site and half."""

    site: str
    half: str

    def text(self) -> str:
        """One line, for file formats; the inverse of `parse`."""
        return f"{self.site}|{self.half}"

    @classmethod
    def parse(cls, text: str) -> "RowsKey":
        """Read back what `text` wrote."""
        return cls(*text.split("|"))


class MissingRowsError(SiteError, KeyError):
    """A capture kept no rows of this site."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message


class SiteRows(Mapping[str, Float32[Tensor, "kept d"]]):
    """Kept rows by activation site; residual sites that carry one tensor answer under both names."""

    def __init__(
        self,
        reservoirs: Mapping[RowsKey, Reservoir],
        halves: tuple[str, ...],
        names: tuple[str, ...],
        aliases: Mapping[str, str],
    ) -> None:
        self._held: dict[str, list[Reservoir]] = {}
        for key in sorted(reservoirs):
            if key.half in halves:
                self._held.setdefault(key.site, []).append(reservoirs[key])
        self._names = tuple(name for name in names if aliases.get(name, name) in self._held)
        self._aliases = aliases

    def __getitem__(self, site: str) -> Float32[Tensor, "kept d"]:
        parts = self._held.get(self._aliases.get(site, site))
        if not parts:
            raise MissingRowsError(
                f"the capture kept no rows of {site!r}; capture with keep_rows=n, and with the site among its sites "
                f"(it keeps rows of {len(self._names)})"
            )
        found = parts[0].copy()
        for part in parts[1:]:
            found.merge(part)
        return found.rows

    def __contains__(self, site: object) -> bool:
        return isinstance(site, str) and self._aliases.get(site, site) in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def batch_keys(batch: Batch) -> UInt64[np.ndarray, "sequence position"]:
    """A key for every position of a batch: a hash of its document, its piece and its place there, and of nothing else.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.text import make_batches, make_sequences
        >>> (batch,) = make_batches(make_sequences([np.arange(20)], seq_len=10).sequences, 2)
        >>> batch_keys(batch).shape, len(np.unique(batch_keys(batch)))
        ((2, 10), 20)
    """
    places = np.arange(batch.ids.shape[1], dtype=np.uint64)
    pieces = [(s.document, np.uint64(s.index) << np.uint64(32)) for s in batch.sequences]
    return np.stack([row_keys(document, piece | places) for document, piece in pieces])
