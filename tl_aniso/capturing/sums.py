"""The sums of a capture: second moments by site, half and shard, and projected energies by site and shard."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.capturing.kept_rows import RowsKey
from tl_aniso.errors import MergeError
from tl_aniso.moments import Moments
from tl_aniso.reservoir import Reservoir

__all__ = ["HALVES", "MAIN", "Energies", "EnergyKey", "Kind", "SumKey", "Sums"]

HALVES = ("A", "B")
MAIN = "main"  # the pass with the true targets; other passes carry their own names

Kind = Literal["activation", "activation_gradient", "weight_gradient"]


@dataclass(frozen=True, order=True)
class SumKey:
    """What a d x d sum is of: pass, kind of row, control ("none" for the effect), site, half, shard (-1: pooled)."""

    variant: str
    kind: str
    control: str
    site: str
    half: str
    shard: int = -1

    def text(self) -> str:
        """One line, for file formats; the inverse of `parse`."""
        return "|".join((self.variant, self.kind, self.control, self.site, self.half, str(self.shard)))

    @classmethod
    def parse(cls, text: str) -> "SumKey":
        """Read back what `text` wrote."""
        variant, kind, control, site, half, shard = text.split("|")
        return cls(variant, kind, control, site, half, int(shard))


@dataclass(frozen=True, order=True)
class EnergyKey:
    """What projected energies are of: pass, kind of row, control and site."""

    variant: str
    kind: str
    control: str
    site: str

    def text(self) -> str:
        """One line, for file formats; the inverse of `parse`."""
        return "|".join((self.variant, self.kind, self.control, self.site))

    @classmethod
    def parse(cls, text: str) -> "EnergyKey":
        """Read back what `text` wrote."""
        return cls(*text.split("|"))


# Energy along each proxy column and, in the last place, in all directions: halves x shards x (rank + 1).
Energies = Float64[Tensor, "halves shards columns"]


class Sums:
    """Mutable sums of a capture under way; everything merges by addition."""

    def __init__(self) -> None:
        self.moments: MutableMapping[SumKey, Moments] = {}
        self.energies: dict[EnergyKey, Energies] = {}
        self.tallies: dict[str, float] = {}
        self.rows: dict[RowsKey, Reservoir] = {}

    def moment(self, key: SumKey, d: int, device: torch.device) -> Moments:
        """The accumulator of a key, made on first use where its rows live."""
        if key not in self.moments:
            centred = key.kind == "activation" or key.kind == "activation_gradient"
            self.moments[key] = Moments(d, device=device) if centred else Moments.uncentred(d, device=device)
        return self.moments[key]

    def add_energy(self, key: EnergyKey, half: int, shards: Tensor, columns: Tensor, n_shards: int) -> None:
        """Add energies (sequences x (rank + 1)) to their shards."""
        if key not in self.energies:
            self.energies[key] = torch.zeros(len(HALVES), n_shards, columns.shape[1], dtype=torch.float64)
        self.energies[key][half].index_add_(0, shards, columns.detach().to("cpu", torch.float64))

    def tally(self, name: str, amount: float) -> None:
        """Add to a plain count or sum."""
        self.tallies[name] = self.tallies.get(name, 0.0) + amount

    def merge(self, other: "Sums") -> "Sums":
        """A new `Sums` with both added.

        Raises:
            MergeError: the two do not hold the same sites and shapes.
        """
        merged = Sums()
        for mine, theirs in ((self, other), (other, self)):
            for energy in mine.energies:
                if energy not in theirs.energies or mine.energies[energy].shape != theirs.energies[energy].shape:
                    raise MergeError(f"only one of the captures has energies of {energy.text()} at this rank")
        for key in sorted({*self.moments, *other.moments}):
            parts = [sums.moments[key] for sums in (self, other) if key in sums.moments]
            merged.moments[key] = parts[0].copy() if len(parts) == 1 else parts[0] + parts[1]
        for energy in self.energies:
            merged.energies[energy] = self.energies[energy] + other.energies[energy]
        for rows in sorted({*self.rows, *other.rows}):
            held = [sums.rows[rows] for sums in (self, other) if rows in sums.rows]
            merged.rows[rows] = held[0].copy() if len(held) == 1 else held[0].copy().merge(held[1])
        for name in {*self.tallies, *other.tallies}:
            merged.tallies[name] = self.tallies.get(name, 0.0) + other.tallies.get(name, 0.0)
        return merged

    def parts(self, variant: str, kind: Kind, control: str, halves: tuple[str, ...]) -> Mapping[str, list[Moments]]:
        """Site -> its accumulators over shards and halves, in one order whatever the order of the batches."""
        found: dict[str, list[SumKey]] = {}
        for key in sorted(self.moments):
            if (key.variant, key.kind, key.control) == (variant, kind, control) and key.half in halves:
                found.setdefault(key.site, []).append(key)
        return _Parts(self.moments, found)

    def shards(self, variant: str, kind: Kind, control: str, site: str, half: str) -> Mapping[int, Moments]:
        """Moments of one site by shard, where they were kept apart."""
        wanted = SumKey(variant, kind, control, site, half)
        return {
            key.shard: self.moments[key] for key in self.moments if key.shard >= 0 and replace(key, shard=-1) == wanted
        }


class _Parts(Mapping[str, list[Moments]]):
    """Accumulators by site, looked up when a site is asked for: those of a file are read then."""

    def __init__(self, moments: Mapping[SumKey, Moments], keys: Mapping[str, Sequence[SumKey]]) -> None:
        self._moments, self._keys = moments, keys

    def __getitem__(self, site: str) -> list[Moments]:
        return [self._moments[key] for key in self._keys[site]]

    def __contains__(self, site: object) -> bool:
        return site in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
