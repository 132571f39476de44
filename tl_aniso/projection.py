"""Energy of weight gradients along known directions, without any d x d matrix.

With R, F and ``K = F F^T`` as in `tl_aniso.weight_moments`, and Q an orthonormal basis of a proxy:

    along each column    diag(Q^T G^T G Q) = sum of (R Q)^T F, squared
    in all               tr(G^T G)         = sum of K * (R R^T)

One column at a time gives every rank up to k, and a control costs no more than a few row sums.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from tl_aniso.weight_moments import RowWeights, gram_kernel, second_moment, symmetric_product

__all__ = ["Factor", "Formed", "Rows", "control_energy", "embedding_factor", "energy_along", "gradient_energy"]


@dataclass(frozen=True)
class Rows:
    """The residual side of a matrix over a batch; what is derived from it is computed once and shared.

    Attributes:
        values: rows R, batch x length x d.
        carries: positions that can carry gradient.
    """

    values: Float[Tensor, "batch length d"]
    carries: Bool[Tensor, "batch length"]

    @cached_property
    def gram(self) -> Float[Tensor, "batch length length"]:
        """R R^T of every sequence."""
        return gram_kernel(self.values)

    @cached_property
    def norms(self) -> Float[Tensor, "batch length"]:
        """Squared norms of the rows."""
        return self.values.square().sum(2)

    @cached_property
    def carried_sum(self) -> Float[Tensor, "batch d"]:
        """Sum of the carrying rows."""
        return torch.bmm(self.carries.to(self.values.dtype)[:, None, :], self.values)[:, 0]

    @cached_property
    def _coordinates(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def coordinates(self, basis: Float[Tensor, "d k"]) -> Float[Tensor, "batch length k"]:
        """R Q, kept per basis: the matrices that read one input share its proxy."""
        if id(basis) not in self._coordinates:
            self._coordinates[id(basis)] = (basis, self.values @ basis)
        return self._coordinates[id(basis)][1]


@dataclass(frozen=True)
class Formed:
    """What is known of a weight gradient G = F^T R that was formed, in slices, and dropped.

    Attributes:
        moment: G^T G of each sequence.
        norms: squared norms of the rows of F.
        total: squared norm of their sum.
    """

    moment: Float[Tensor, "batch d d"]
    norms: Float[Tensor, "batch length"]
    total: Float[Tensor, " batch"]


@dataclass(frozen=True)
class Factor:
    """The other side of a matrix: its rows F, or less of them where F is too wide to keep.

    Attributes:
        values: F, zero at positions that carry nothing; None where only the kernel, or G^T G, is known.
        inner: the kernel, if already at hand.
        formed: what is left of a G that was formed elsewhere.
    """

    values: Float[Tensor, "batch length side"] | None
    inner: Float[Tensor, "batch length length"] | None = None
    formed: Formed | None = None

    @cached_property
    def kernel(self) -> Float[Tensor, "batch length length"]:
        """F F^T of every sequence."""
        if self.inner is not None:
            return self.inner
        if self.values is None:
            raise ValueError("a factor needs its rows or its kernel")
        return gram_kernel(self.values)

    def moment(self, rows: Rows, part: Tensor | slice) -> Float[Tensor, "d d"]:
        """Sum of G^T G over some of the sequences."""
        if self.formed is not None:
            return self.formed.moment[part].sum(0)
        values = None if self.values is None else self.values[part]
        return second_moment(rows.values[part], values, self.kernel[part] if values is None else None)

    @cached_property
    def norms(self) -> Float[Tensor, "batch length"]:
        """Squared norms of the rows of F."""
        if self.formed is not None:
            return self.formed.norms
        return self.kernel.diagonal(dim1=1, dim2=2) if self.values is None else self.values.square().sum(2)

    @cached_property
    def total(self) -> Float[Tensor, " batch"]:
        """Squared norm of the sum of the rows of F."""
        if self.formed is not None:
            return self.formed.total
        return self.kernel.sum((1, 2)) if self.values is None else self.values.sum(1).square().sum(1)


def embedding_factor(rows: Rows, ids: Integer[Tensor, "one length"]) -> Factor:
    """The factor of an embedding for one long sequence, through the rows of its gradient that are not zero.

    Example:
        >>> import torch
        >>> rows = Rows(torch.tensor([[[1.0], [2.0], [5.0]]]), torch.ones(1, 3, dtype=torch.bool))
        >>> embedding_factor(rows, torch.tensor([[8, 9, 8]])).formed.moment.item()
        40.0
    """
    carries = rows.carries[0].to(rows.values.dtype)
    tokens, place = torch.unique(ids[0], return_inverse=True)
    gradient = rows.values.new_zeros((len(tokens), rows.values.shape[2]))
    gradient.index_add_(0, place, rows.values[0] * carries[:, None])
    counts = carries.new_zeros(len(tokens)).index_add_(0, place, carries)
    moment = symmetric_product(gradient, gradient)
    return Factor(None, formed=Formed(moment[None], carries[None], counts.square().sum()[None]))


def energy_along(rows: Rows, factor: Factor, basis: Float[Tensor, "d k"]) -> Float[Tensor, "batch k"]:
    """Energy of each sequence's gradient along each column of a basis; columns need not be orthogonal.

    Example:
        >>> import torch
        >>> rows = Rows(torch.eye(3)[None], torch.ones(1, 3, dtype=torch.bool))
        >>> energy_along(rows, Factor(2 * torch.eye(3)[None]), torch.eye(3)[:, :2]).tolist()
        [[4.0, 4.0]]
    """
    if factor.formed is not None:
        return ((factor.formed.moment @ basis) * basis).sum(1)
    coordinates = rows.coordinates(basis)
    if factor.values is None:
        return (torch.bmm(factor.kernel, coordinates) * coordinates).sum(1)
    return torch.bmm(coordinates.transpose(1, 2), factor.values).square().sum(2)


def gradient_energy(
    rows: Rows, factor: Factor, basis: Float[Tensor, "d k"]
) -> tuple[Float[Tensor, "batch k"], Float[Tensor, " batch"]]:
    """Energy of each sequence's gradient along each column of a basis, and in all directions.

    Example:
        >>> import torch
        >>> x, g = torch.randn(2, 6, 8, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
        >>> rows = Rows(x, torch.ones(2, 6, dtype=torch.bool))
        >>> along, total = gradient_energy(rows, Factor(g), torch.eye(8, dtype=torch.float64))
        >>> torch.allclose(along.sum(1), total)
        True
    """
    along = energy_along(rows, factor, basis)
    if factor.formed is not None:
        return along, factor.formed.moment.diagonal(dim1=1, dim2=2).sum(1)
    if factor.values is None:
        return along, (factor.kernel * rows.gram).sum((1, 2))
    length, d, side = rows.values.shape[1], rows.values.shape[2], factor.values.shape[2]
    # Either form G and take its norm, or multiply two length x length matrices element by element.
    if side * d <= length * (side + d):
        total = torch.bmm(factor.values.transpose(1, 2), rows.values).square().sum((1, 2))
    else:
        total = (factor.kernel * rows.gram).sum((1, 2))
    return along, total


def control_energy(
    rows: Rows, weights: RowWeights, basis: Float[Tensor, "d k"]
) -> tuple[Float[Tensor, "batch k"], Float[Tensor, " batch"]]:
    """The same for a control given as weights on rows.

    Example:
        >>> import torch
        >>> rows = Rows(torch.eye(3)[None], torch.ones(1, 3, dtype=torch.bool))
        >>> along, total = control_energy(rows, RowWeights(torch.tensor([[2.0, 1.0, 1.0]])), torch.eye(3)[:, :1])
        >>> along.tolist(), total.tolist()
        ([[2.0]], [4.0])
    """
    coordinates = rows.coordinates(basis)
    along = (coordinates.square() * weights.row[..., None]).sum(1)
    total = (rows.norms * weights.row).sum(1)
    if weights.outer is not None:
        along = along + weights.outer[:, None] * (rows.carried_sum @ basis).square()
        total = total + weights.outer * rows.carried_sum.square().sum(1)
    return along, total
