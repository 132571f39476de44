"""Count, mean and scatter of rows: all that proxies, energies and isotropy need to know about them."""

from __future__ import annotations

import operator
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import as_floating
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError

__all__ = ["Moments"]

# Long inputs are taken in pieces: a float32 product over more rows loses digits.
_ROWS_AT_ONCE = 4096
# Below this width one product is as fast as four narrower ones (measured on CPUs, 1024 rows).
_SPLIT_FROM = 256
_SPLIT_INTO = 4
# Rank-one corrections are kept as vectors and applied together: one pass over d x d, not two per update.
_MOST_PENDING = 32
# A float32 column of equal values leaves a standard deviation of up to about 1e-9 of its mean; real float32
# rows that differ at all leave 1e-8 or more.
_CONSTANT_TOLERANCE = 1e-8


class Moments:
    """Running count, mean and centred scatter of rows, in float64, mergeable by addition.

    Rows are float32 or float64 vectors of width d. Products of float32 (and bfloat16, float16) rows are taken
    in float32 after subtracting the batch's own mean, so that a column mean of 3000 costs no digits, and
    added up in float64; float64 rows stay float64. With batch mean c as rounded and delta the mean of what is
    left,

        scatter = Xc^T Xc - n delta delta^T        mean = c + delta

    and two batches combine with the pairwise formula of Chan, Golub and LeVeque (1983).

    Args:
        d: width of a row.
        device: where the accumulators live; the CPU if that device has no float64.

    Raises:
        TlAnisoError: `d` is not a positive integer.

    Example:
        >>> import torch
        >>> from tl_aniso import Moments
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]])
        >>> whole = Moments(2).update(rows)
        >>> parts = Moments(2).update(rows[:1]) + Moments(2).update(rows[1:])
        >>> whole.count, whole.mean.tolist(), torch.allclose(whole.covariance(), parts.covariance())
        (3, [3.0, 3.0], True)
    """

    def __init__(self, d: int, *, device: str | torch.device = "cpu") -> None:
        self._start(d, device, centred=True)

    @classmethod
    def uncentred(cls, d: int, *, device: str | torch.device = "cpu") -> Self:
        """A sum of outer products alone, for rows whose mean is never formed (gradients of weights).

        `mean` and `covariance()` of the result raise `TlAnisoError`.

        Example:
            >>> import torch
            >>> from tl_aniso import Moments
            >>> Moments.uncentred(2).update(torch.tensor([[3.0, 4.0]])).second_moment().tolist()
            [[9.0, 12.0], [12.0, 16.0]]
        """
        self = cls.__new__(cls)
        self._start(d, device, centred=False)
        return self

    @classmethod
    def from_sums(
        cls,
        count: int,
        mean: Float[Tensor, " d"] | np.ndarray | None,
        scatter: Float[Tensor, "d d"] | np.ndarray,
        *,
        eps: float | None = None,
    ) -> Self:
        """Moments from sums that were stored or computed elsewhere.

        Args:
            count: number of rows (of sequences, for gradients of weights).
            mean: mean row, or None for uncentred moments.
            scatter: sum of outer products about `mean` (about zero where `mean` is None).
            eps: machine epsilon of the rows the sums came from, as in `Moments.eps`; float64's by default.

        Raises:
            TlAnisoError: shapes that do not fit, a negative count, or a scatter that is not symmetric.
            UndefinedMeasureError: numbers that are not finite.

        Example:
            >>> import torch
            >>> from tl_aniso import Moments
            >>> Moments.from_sums(5, torch.zeros(2), 4 * torch.eye(2)).covariance().tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        total = as_floating(scatter, "scatter").detach()
        if total.ndim != 2 or total.shape[0] != total.shape[1]:
            raise TlAnisoError(f"scatter must be a square d x d matrix, got shape {tuple(total.shape)}")
        count, d = operator.index(count), total.shape[0]
        if count < 0:
            raise TlAnisoError(f"count must be 0 or more, got {count}")
        self = cls.__new__(cls)
        self._start(d, total.device, centred=mean is not None)
        self._count = count
        self._lower.copy_(total)
        if not torch.isfinite(self._lower).all():
            raise UndefinedMeasureError("scatter holds values that are not finite")
        if not torch.allclose(self._lower, self._lower.T, rtol=1e-5, atol=1e-5 * float(self._lower.abs().max())):
            raise TlAnisoError("scatter is not symmetric; pass a sum of outer products")
        if mean is not None:
            centre = as_floating(mean, "mean").detach()
            if tuple(centre.shape) != (d,):
                raise TlAnisoError(f"mean must have shape ({d},) as scatter has, got {tuple(centre.shape)}")
            if not torch.isfinite(centre).all():
                raise UndefinedMeasureError("mean holds values that are not finite")
            self._mean.copy_(centre)
        if count:
            self._eps = torch.finfo(torch.float64).eps if eps is None else float(eps)
        return self

    def _start(self, d: int, device: str | torch.device, *, centred: bool) -> None:
        try:
            if isinstance(d, bool):
                raise TypeError
            d = operator.index(d)
        except TypeError as error:
            raise TlAnisoError(f"the width d of Moments must be an integer, got {type(d).__name__}") from error
        if d < 1:
            raise TlAnisoError(f"the width d of Moments must be at least 1, got {d}")
        place = torch.device(device)
        place = torch.device("cpu") if place.type == "mps" else place
        # Accumulators made under torch.inference_mode could not be updated outside it.
        with torch.inference_mode(False):
            self._mean = torch.zeros(d, dtype=torch.float64, device=place)
            # Only the lower triangle is meaningful: `_add_gram` leaves most of the upper one alone.
            self._lower = torch.zeros(d, d, dtype=torch.float64, device=place)
            # One buffer for good: small tensors that outlive an update would lie scattered between its large
            # temporaries and keep the allocator from reusing their memory.
            self._pending = torch.empty(_MOST_PENDING if centred else 0, d, dtype=torch.float64, device=place)
        self._count = 0
        self._centred = centred
        self._eps = 0.0
        self._weights: list[float] = []

    # -- accumulating --

    def update(self, rows: Float[Tensor, "n d"] | np.ndarray, *, scratch: bool = False) -> Self:
        """Add rows; returns itself, so that calls chain. No rows is a no-op.

        Args:
            rows: n x d, samples first. The caller's graph is never kept.
            scratch: the rows may be overwritten, which saves a copy of them.

        Raises:
            TlAnisoError: `rows` is not n x d.
            UndefinedMeasureError: a row is not finite (nothing is added then), or its square is too large.

        Example:
            >>> import torch
            >>> from tl_aniso import Moments
            >>> Moments(3).update(torch.zeros(0, 3)).update(torch.eye(3)).count
            3
        """
        values = as_floating(rows, "rows").detach()
        if values.ndim != 2 or values.shape[1] != self.d:
            raise TlAnisoError(f"rows must be n x {self.d}, samples first, got shape {tuple(values.shape)}")
        if values.shape[0] == 0:
            return self
        # A user's autocast would take the products in bfloat16.
        with torch.no_grad(), torch.inference_mode(False), torch.autocast(values.device.type, enabled=False):
            self._eps = max(self._eps, torch.finfo(values.dtype).eps)
            if values.dtype not in (torch.float32, torch.float64):
                values = values.to(torch.float32)
            pieces = values.split(_ROWS_AT_ONCE)
            sums = [piece.sum(0) for piece in pieces]
            if not torch.isfinite(torch.stack(sums)).all() and not torch.isfinite(values).all():
                bad = int((~torch.isfinite(values)).any(1).sum())
                raise UndefinedMeasureError(f"{bad} of {values.shape[0]} rows hold values that are not finite")
            for piece, total in zip(pieces, sums, strict=True):
                self._add_rows(piece, total / piece.shape[0], scratch)
            if not torch.isfinite(self._lower.diagonal().sum()):
                raise UndefinedMeasureError("the squares of the rows overflow; scale the rows down")
        return self

    def _add_rows(self, rows: Tensor, centre: Tensor, scratch: bool) -> None:
        n, place = rows.shape[0], self._mean.device
        if not self._centred:
            self._add_gram(rows)
            self._count += n
            return
        some = rows.any(1)
        n_zero = n - int(some.sum())
        if n_zero:
            # Less the mean, rows of zeros (gradients of tokens that carry no loss) are all alike, and the roundings of
            # so many equal products add up to more than 1e-6. They are known exactly: mean zero, no scatter.
            self._shift(n_zero, self._mean.new_zeros(self.d))
            if n_zero == n:
                return
            rows, centre, n, scratch = rows[some], centre * (n / (n - n_zero)), n - n_zero, True
        centred = rows.sub_(centre) if scratch else rows - centre
        delta = centred.mean(0).to(place, torch.float64)
        self._add_gram(centred)
        self._push(-float(n), delta)
        self._shift(n, delta + centre.to(place, torch.float64))

    def _add_gram(self, rows: Tensor) -> None:
        """Add rows^T rows to the lower triangle; four block rows need 5/8 of the products."""
        d, lower = self.d, self._lower
        step = -(-d // _SPLIT_INTO) if d >= _SPLIT_FROM and rows.device.type == "cpu" else d
        left = rows.T
        for start in range(0, d, step):
            stop = min(start + step, d)
            block = left[start:stop] @ rows[:, :stop]
            lower[start:stop, :stop].add_(block.to(lower.device))

    def _shift(self, n: int, mean: Tensor) -> None:
        """Account for the distance of the mean so far to the mean of n rows whose scatter is already in."""
        total = self._count + n
        gap = mean - self._mean
        if self._count:
            self._push(self._count * n / total, gap)
        self._mean.add_(gap, alpha=n / total)
        self._count = total

    def _push(self, weight: float, vector: Tensor) -> None:
        self._pending[len(self._weights)].copy_(vector)
        self._weights.append(weight)
        if len(self._weights) == _MOST_PENDING:
            self._flush()

    def _flush(self) -> None:
        if not self._weights:
            return
        with torch.no_grad(), torch.inference_mode(False):
            stack = self._pending[: len(self._weights)]
            self._lower.addmm_((stack * stack.new_tensor(self._weights)[:, None]).T, stack)
        self._weights.clear()

    def add_sums(self, count: int, total: Float[Tensor, "d d"] | np.ndarray) -> Self:
        """Add a sum of outer products that was formed elsewhere; for uncentred moments.

        Args:
            count: how many rows (or sequences) the sum is over.
            total: symmetric; only its lower triangle is read.

        Raises:
            TlAnisoError: centred moments, a wrong shape, a negative count.
            UndefinedMeasureError: `total` is not finite.

        Example:
            >>> import torch
            >>> from tl_aniso import Moments
            >>> Moments.uncentred(2).add_sums(4, 8 * torch.eye(2)).second_moment().tolist()
            [[2.0, 0.0], [0.0, 2.0]]
        """
        if self._centred:
            raise TlAnisoError("centred moments need the mean beside the sum; use Moments.from_sums and merge")
        values, count = as_floating(total, "total").detach(), operator.index(count)
        if tuple(values.shape) != (self.d, self.d):
            raise TlAnisoError(f"total must be {self.d} x {self.d}, got shape {tuple(values.shape)}")
        if count < 0:
            raise TlAnisoError(f"count must be 0 or more, got {count}")
        if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
            raise UndefinedMeasureError("the sum of outer products holds values that are not finite")
        with torch.no_grad(), torch.inference_mode(False):
            self._lower.add_(values.to(self._lower.device))
        self._count += count
        self._eps = max(self._eps, torch.finfo(values.dtype).eps)
        return self

    def merge(self, other: Moments) -> Self:
        """Add the rows of `other`, in place; `other` stays as it is.

        Raises:
            TlAnisoError: different widths, or one centred and one not.
        """
        if not isinstance(other, Moments):
            raise TlAnisoError(f"can only merge Moments, got {type(other).__name__}")
        if other.d != self.d or other._centred != self._centred:
            raise TlAnisoError(f"cannot merge {other!r} into {self!r}: widths and centring must agree")
        if other._count == 0:
            return self
        with torch.no_grad(), torch.inference_mode(False):
            place = self._lower.device
            other._flush()
            self._lower.add_(other._lower.to(place))
            self._eps = max(self._eps, other._eps)
            if self._centred:
                self._shift(other._count, other._mean.to(place, copy=True))
            else:
                self._count += other._count
        return self

    def __add__(self, other: Moments) -> Self:
        return self.copy().merge(other)

    def copy(self) -> Self:
        """An independent copy."""
        self._flush()
        twin = type(self).__new__(type(self))
        twin._start(self.d, self._lower.device, centred=self._centred)
        twin._mean.copy_(self._mean)
        twin._lower.copy_(self._lower)
        twin._count, twin._eps = self._count, self._eps
        return twin

    # -- reading --

    @property
    def d(self) -> int:
        """Width of a row."""
        return self._mean.shape[0]

    @property
    def count(self) -> int:
        """Number of rows so far (of sequences, for gradients of weights)."""
        return self._count

    @property
    def is_centred(self) -> bool:
        """Whether a mean is kept beside the scatter."""
        return self._centred

    @property
    def eps(self) -> float:
        """Machine epsilon of the coarsest rows seen (0.0 before any): the relative noise of the products."""
        return self._eps

    @property
    def mean(self) -> Float64[Tensor, " d"]:
        """Mean row, a fresh tensor. TlAnisoError if uncentred, UndefinedMeasureError before the first row."""
        if not self._centred:
            raise TlAnisoError("uncentred moments hold a sum of outer products only; they have no mean")
        if not self._count:
            raise UndefinedMeasureError("no rows yet: the mean is undefined")
        return self._mean.clone()

    @property
    def scatter(self) -> Float64[Tensor, "d d"]:
        """Sum of outer products about the mean (about zero if uncentred), a fresh symmetric tensor."""
        self._flush()
        result = self._lower.tril()
        return result + self._lower.tril(-1).T

    @property
    def is_constant(self) -> bool:
        """Whether all rows are equal up to rounding (all zero, if uncentred)."""
        self._flush()
        trace = float(self._lower.diagonal().sum())
        if not self._centred or not self._count:
            return trace <= 0.0
        return trace <= self._count * (_CONSTANT_TOLERANCE * float(self._mean.norm())) ** 2

    def covariance(self) -> Float64[Tensor, "d d"]:
        """Unbiased covariance, scatter / (count - 1); zero where the rows are constant up to rounding.

        Raises:
            TlAnisoError: uncentred moments.
            UndefinedMeasureError: fewer than two rows.
        """
        if not self._centred:
            raise TlAnisoError("uncentred moments have no covariance; use second_moment()")
        if self._count < 2:
            raise UndefinedMeasureError(f"a covariance needs at least two rows, got {self._count}")
        if self.is_constant:
            return torch.zeros_like(self._lower)
        return self.scatter / (self._count - 1)

    def second_moment(self) -> Float64[Tensor, "d d"]:
        """Uncentred second moment, the sum of outer products over count.

        Raises:
            UndefinedMeasureError: no rows yet.
        """
        if not self._count:
            raise UndefinedMeasureError("no rows yet: the second moment is undefined")
        result = self.scatter / self._count
        return result + torch.outer(self._mean, self._mean) if self._centred else result

    def __repr__(self) -> str:
        kind = "" if self._centred else ".uncentred"
        return f"Moments{kind}(d={self.d}, count={self._count})"
