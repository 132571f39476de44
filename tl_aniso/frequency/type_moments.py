"""Count, mean and spread of rows by token type, in one pass over any amount of text."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tl_aniso.arrays import as_floating
from tl_aniso.checks import as_integer, as_path
from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError

__all__ = ["TypeMoments"]

# Rows at once: they and what is made of them stay in a core's cache, and a float32 sum over so few loses no digits.
_PIECE = 512
_FORMAT = "1"


class TypeMoments:
    """Running count, mean and sum of squared distances to the mean, of each of `n_types` kinds of rows.

    Memory is ``n_types * d`` float64 numbers, whatever the text. Of each piece of rows, sorted by type, the mean of
    every type is taken first and the distances to it second, and two pieces combine by the pairwise formula of Chan,
    Golub and LeVeque (1983):

        mean    += gap * n_b / n          gap = mean_b - mean
        squares += squares_b + |gap|^2 * n_a * n_b / n

    No square of a raw row is ever formed, so neither a common offset of all rows (a column mean of 3000) nor one of a
    type costs digits. Float32 rows grouped otherwise agree to 1e-6, float64 rows to 1e-12, relative to the largest.
    Accumulators are float64 on the CPU, wherever the rows are. Method: ``docs/method.md``, frequency and variance.

    Args:
        n_types: how many types there are; ids run from 0 to n_types - 1.
        d: width of a row.

    Raises:
        TlAnisoError: `n_types` or `d` is not a positive integer.

    Example:
        >>> import torch
        >>> from tl_aniso.frequency import TypeMoments
        >>> rows = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 5.0]])
        >>> found = TypeMoments(4, 2).update(torch.tensor([2, 2, 0]), rows)
        >>> found.count.tolist(), found.means([2]).tolist(), found.squares.tolist()
        ([1, 0, 2, 0], [[2.0, 0.0]], [0.0, 0.0, 2.0, 0.0])
    """

    def __init__(self, n_types: int, d: int) -> None:
        n_types, d = as_integer("n_types", n_types, least=1), as_integer("d", d, least=1)
        with torch.inference_mode(False):
            self._count = torch.zeros(n_types, dtype=torch.int64)
            # Means are kept less a common anchor, near all of them, that float32 rows lose digits to if they keep it.
            self._offset = torch.zeros(n_types, d, dtype=torch.float64)
            self._squares = torch.zeros(n_types, dtype=torch.float64)
            self._anchor: Tensor | None = None

    # -- accumulating --

    def update(
        self, ids: Integer[Tensor, " n"] | np.ndarray | list[int], rows: Float[Tensor, "n d"] | np.ndarray
    ) -> Self:
        """Add rows and the types they belong to; returns itself, so that calls chain.

        Args:
            ids: the type of each row, in any order.
            rows: n x d, samples first. They are not changed, and their graph is not kept.

        Raises:
            TlAnisoError: shapes that do not fit, or an id outside 0 ... n_types - 1.
            UndefinedMeasureError: a row is not finite; nothing is added then.

        Example:
            >>> import torch
            >>> from tl_aniso.frequency import TypeMoments
            >>> TypeMoments(3, 2).update([0, 2], torch.eye(2)).update([2], torch.zeros(1, 2)).count.tolist()
            [1, 0, 2]
        """
        values = as_floating(rows, "rows").detach()
        if values.ndim != 2 or values.shape[1] != self.d:
            raise TlAnisoError(f"rows must be n x {self.d}, samples first, got shape {tuple(values.shape)}")
        types = self._checked(ids, values.shape[0])
        if not len(types):
            return self
        with torch.no_grad(), torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            values = values.cpu()
            if values.dtype not in (torch.float32, torch.float64):
                values = values.float()
            if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
                bad = int((~torch.isfinite(values)).any(1).sum())
                raise UndefinedMeasureError(f"{bad} of {values.shape[0]} rows hold values that are not finite")
            types, order = torch.sort(types, stable=True)
            if self._anchor is None:
                near = values[order[:_PIECE]].mean(0).float()
                self._anchor = torch.where(torch.isfinite(near), near, torch.zeros_like(near)).double()
            self._add_sorted(types, order, values, self._anchor)
        return self

    def _checked(self, ids: Integer[Tensor, " n"] | np.ndarray | list[int], n: int) -> Int64[Tensor, " n"]:
        try:
            types = ids if isinstance(ids, Tensor) else torch.as_tensor(np.asarray(ids))
        except (TypeError, ValueError) as error:
            raise TlAnisoError(f"ids must be integers, got {type(ids).__name__}") from error
        if types.ndim != 1 or types.shape[0] != n:
            raise TlAnisoError(f"ids must hold one type for each of {n} rows, got shape {tuple(types.shape)}")
        if n and (types.is_floating_point() or types.is_complex() or types.dtype == torch.bool):
            raise TlAnisoError(f"ids must be integers, got {types.dtype}")
        types = types.detach().to("cpu", torch.int64)
        if n and not 0 <= int(types.min()) <= int(types.max()) < self.n_types:
            raise TlAnisoError(
                f"ids must lie between 0 and {self.n_types - 1}, got {int(types.min())} to {int(types.max())}"
            )
        return types

    def _add_sorted(self, types: Tensor, order: Tensor, values: Tensor, anchor: Tensor) -> None:
        """Segment by segment; all buffers are made once, since most of the time is spent on moving memory."""
        n, dtype = len(types), values.dtype
        anchor = anchor.to(dtype)
        size = min(_PIECE, n)
        room, spread, means, lefts = (torch.empty(size, self.d, dtype=dtype) for _ in range(4))
        held, gaps = (torch.empty(size, self.d, dtype=torch.float64) for _ in range(2))
        for start in range(0, n, size):
            places = order[start : start + size]
            rows = torch.index_select(values, 0, places, out=room[: len(places)]).sub_(anchor)
            kinds, segment, counts = torch.unique_consecutive(
                types[start : start + size], return_inverse=True, return_counts=True
            )
            mean = means[: len(kinds)].zero_().index_add_(0, segment, rows).div_(counts[:, None].to(dtype))
            rows.sub_(torch.index_select(mean, 0, segment, out=spread[: len(places)]))
            distances = torch.linalg.vector_norm(rows, dim=1).double().square_()
            squares = torch.zeros(len(kinds), dtype=torch.float64).index_add_(0, segment, distances)
            # What rounding left of the mean, to which many alike rows of few digits (bfloat16) add up.
            left = lefts[: len(kinds)].zero_().index_add_(0, segment, rows).div_(counts[:, None].to(dtype))
            self._combine(kinds, counts, mean, left, squares, held, gaps)

    def _combine(
        self, kinds: Tensor, counts: Tensor, mean: Tensor, left: Tensor, squares: Tensor, held: Tensor, gaps: Tensor
    ) -> None:
        """Chan's formula, for the types of a piece."""
        before = self._count[kinds]
        after = before + counts
        old = torch.index_select(self._offset, 0, kinds, out=held[: len(kinds)])
        gap = torch.sub(mean, old, out=gaps[: len(kinds)]).add_(left)
        share = counts.double() / after
        apart = torch.linalg.vector_norm(gap, dim=1).square_() * (before * share)
        self._squares.index_add_(0, kinds, squares.add_(apart))
        self._offset.index_copy_(0, kinds, old.addcmul_(gap, share[:, None]))
        self._count.index_copy_(0, kinds, after)

    def merge(self, other: TypeMoments) -> Self:
        """Add the rows of `other`, in place; `other` stays as it is.

        Raises:
            MergeError: another number of types, or another width.
        """
        if not isinstance(other, TypeMoments):
            raise MergeError(f"can only merge TypeMoments, got {type(other).__name__}")
        if (other.n_types, other.d) != (self.n_types, self.d):
            raise MergeError(f"cannot merge {other!r} into {self!r}: types and widths must agree")
        if other._anchor is None:
            return self
        if self._anchor is None:
            self._anchor = other._anchor.clone()
        shift = other._anchor - self._anchor
        with torch.no_grad(), torch.inference_mode(False):
            held, gaps = (torch.empty(_PIECE, self.d, dtype=torch.float64) for _ in range(2))
            for kinds in other._count.nonzero()[:, 0].split(_PIECE):
                count, mean, squares = other._count[kinds], other._offset[kinds], other._squares[kinds]
                self._combine(kinds, count, mean, shift, squares, held, gaps)
        return self

    def replaced(self, other: TypeMoments, types: Bool[Tensor, " n_types"]) -> TypeMoments:
        """A copy in which some types are as in `other`, rows and all."""
        parts = []
        for held, chosen in ((self, ~types), (other, types)):
            part = held.copy()
            for values in (part._count, part._squares, part._offset):
                values[~chosen] = 0
            parts.append(part)
        return parts[0].merge(parts[1])

    def __add__(self, other: TypeMoments) -> Self:
        return self.copy().merge(other)

    def copy(self) -> Self:
        """An independent copy."""
        twin = type(self)(self.n_types, self.d)
        twin._count.copy_(self._count)
        twin._offset.copy_(self._offset)
        twin._squares.copy_(self._squares)
        twin._anchor = None if self._anchor is None else self._anchor.clone()
        return twin

    # -- reading --

    @property
    def n_types(self) -> int:
        """Number of types, seen or not."""
        return self._offset.shape[0]

    @property
    def d(self) -> int:
        """Width of a row."""
        return self._offset.shape[1]

    @property
    def count(self) -> Int64[Tensor, " n_types"]:
        """Rows by type, a fresh tensor."""
        return self._count.clone()

    @property
    def squares(self) -> Float64[Tensor, " n_types"]:
        """Sum of squared distances to the type's mean, a fresh tensor; 0 where no row was seen."""
        return self._squares.clone()

    @property
    def mean(self) -> Float64[Tensor, "n_types d"]:
        """Mean row by type, a fresh tensor; NaN where no row was seen."""
        return self.means(torch.arange(self.n_types))

    def means(self, types: Integer[Tensor, " some"] | np.ndarray | list[int]) -> Float64[Tensor, "some d"]:
        """Mean rows of some types; NaN where no row was seen."""
        chosen = self._checked(types, len(types))
        found = self._offset[chosen]
        if self._anchor is not None:
            found += self._anchor
        found[self._count[chosen] == 0] = float("nan")
        return found

    def variance(self) -> Float64[Tensor, " n_types"]:
        """Unbiased mean squared distance to the type's mean, summed over columns; NaN below two rows.

        Example:
            >>> import torch
            >>> from tl_aniso.frequency import TypeMoments
            >>> TypeMoments(2, 1).update([0, 0, 1], torch.tensor([[1.0], [3.0], [9.0]])).variance().tolist()
            [2.0, nan]
        """
        return torch.where(self._count > 1, self._squares / (self._count - 1).clamp(min=1), torch.nan)

    # -- files --

    def state(self) -> dict[str, Tensor]:
        """Tensors that hold all of it: of the types that were seen alone, since most of a vocabulary never is."""
        seen = self._count.nonzero()[:, 0]
        anchor = torch.zeros(self.d, dtype=torch.float64) if self._anchor is None else self._anchor
        return {
            "shape": torch.tensor([self.n_types, self.d]),
            "types": seen,
            "count": self._count[seen],
            "offset": self._offset[seen],
            "squares": self._squares[seen],
            "anchor": anchor.clone(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """What `state` gave, as it was.

        Raises:
            TlAnisoError: tensors that are missing or do not fit.
        """
        try:
            self = cls(*(int(n) for n in state["shape"]))
            types = state["types"]
            self._count[types] = state["count"]
            self._offset[types] = state["offset"]
            self._squares[types] = state["squares"]
            self._anchor = state["anchor"].clone() if len(types) else None
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise TlAnisoError(f"this is no state of TypeMoments: {error}") from error
        return self

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file; an older one of that name is replaced.

        Raises:
            TlAnisoError: the file cannot be written.
        """
        target = as_path("path", path)
        try:
            save_file(self.state(), target, metadata={"tl_aniso": "type_moments", "format": _FORMAT})
        except (OSError, SafetensorError) as error:
            raise TlAnisoError(f"the moments could not be written to {target}: {error}") from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            TlAnisoError: no such file, or one that is damaged or holds something else.
        """
        source = as_path("path", path)
        try:
            state = load_file(source)
        except (OSError, SafetensorError) as error:
            raise TlAnisoError(f"{source} cannot be read: {error}") from error
        return cls.from_state(state)

    def __repr__(self) -> str:
        seen = int((self._count > 0).sum())
        return f"{type(self).__name__}({self.n_types} types of width {self.d}, {seen} seen)"
