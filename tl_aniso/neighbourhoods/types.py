"""Frequent and rare token types of a text, of which both have enough occurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from tl_aniso.errors import ShortTextError
from tl_aniso.text import Sequence

__all__ = ["ChosenTypes", "choose_types", "count_types"]


@dataclass(frozen=True)
class ChosenTypes:
    """Token ids and how often each occurs in the text.

    Attributes:
        frequent: most frequent first.
        rare: rarest first, each at or above the least number of occurrences.
        counts: token id -> occurrences in both halves.
    """

    frequent: tuple[int, ...]
    rare: tuple[int, ...]
    counts: dict[int, int]

    @property
    def all(self) -> tuple[int, ...]:
        """Frequent and rare ones."""
        return self.frequent + self.rare


def count_types(
    sequences: Iterable[Sequence],
    n_ids: int,
    leave_out: Iterable[int] = (),
    *,
    kept: Callable[[Sequence], Bool[np.ndarray, " n"]] | None = None,
) -> np.ndarray:
    """Occurrences of every token id in each half of a text, 2 x n_ids.

    Args:
        sequences: of the text.
        n_ids: size of the vocabulary.
        leave_out: ids that count as none.
        kept: positions of a sequence that count; all by default.
    """
    counts = np.zeros((2, n_ids), dtype=np.int64)
    for sequence in sequences:
        ids = sequence.ids if kept is None else sequence.ids[kept(sequence)]
        counts["AB".index(sequence.half)] += np.bincount(ids, minlength=n_ids)
    counts[:, list(leave_out)] = 0
    return counts


def choose_types(counts: np.ndarray, n_types: int, n_half: int) -> ChosenTypes:
    """The `n_types` most frequent and the `n_types` rarest of the types with `n_half` occurrences in each half.

    Args:
        counts: occurrences by half and token id.
        n_types: types in each group.
        n_half: least number of occurrences in each half of the documents.

    Raises:
        ShortTextError: fewer than twice `n_types` types occur that often.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.neighbourhoods.types import choose_types
        >>> found = choose_types(np.array([[9, 1, 5, 7, 4], [9, 9, 5, 8, 4]]), 2, 3)
        >>> found.frequent, found.rare
        ((0, 3), (4, 2))
    """
    enough = np.flatnonzero((counts >= n_half).all(0))
    if len(enough) < 2 * n_types:
        raise ShortTextError(
            f"{len(enough)} token types occur {n_half} times or more in each half of the documents, and {n_types} "
            f"frequent and {n_types} rare ones are asked for; give more text, or lower n_types or n_min"
        )
    total = counts.sum(0)
    order = enough[np.lexsort((enough, -total[enough]))]
    frequent, rare = order[:n_types], order[::-1][:n_types]
    chosen = {int(i): int(total[i]) for i in (*frequent, *rare)}
    return ChosenTypes(tuple(map(int, frequent)), tuple(map(int, rare)), chosen)
