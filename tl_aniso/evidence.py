"""What a result keeps beside its table so that two of them can be subtracted: energies by shard of documents."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

__all__ = ["EnergyShares", "ShareKey"]


class ShareKey(NamedTuple):
    """Which energy: that of the gradient itself (control "none") or of a control, at one site and rank."""

    site: str
    gradient: str
    rank: int
    control: str


@dataclass(frozen=True, eq=False)
class EnergyShares:
    """Energies in planes and in all directions, by shard, and the text they are of.

    Attributes:
        documents: hashes of the measured documents, sorted.
        n_shards: shards that documents fall into.
        widths: d by site.
        energies: (selected, total) by shard, in order; one number each where shards were not kept apart.
        masking: how tokens were masked, with the special ones; None where none were.
    """

    documents: tuple[str, ...]
    n_shards: int
    widths: Mapping[str, int]
    energies: Mapping[ShareKey, tuple[Float[np.ndarray, " shards"], Float[np.ndarray, " shards"]]]
    masking: Mapping[str, Any] | None = None

    @classmethod
    def of_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        documents: Iterable[str],
        n_shards: int,
        masking: Mapping[str, Any] | None = None,
    ) -> "EnergyShares":
        """Gathered from the rows of a question that carry ``shares`` and ``d``."""
        widths: dict[str, int] = {}
        energies: dict[ShareKey, tuple[np.ndarray, np.ndarray]] = {}
        for row in rows:
            if "shares" in row:
                held = row["shares"]
                key = ShareKey(row["site"], row["gradient"], row["rank"], row["control"])
                widths[key.site] = row["d"]
                energies[key] = (held.selected.copy(), held.total.copy())
        return cls(tuple(sorted(documents)), n_shards, widths, energies, masking)
