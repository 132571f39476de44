"""Second moments of the gradient of a weight matrix, and of its controls, without the gradient.

For one sequence the gradient of a matrix with a side in residual space is ``G = F^T R`` (other side x d), where the
rows R live in the residual stream and the factor F on the other side:

=========  =============================  ==================================
matrix     rows R (length x d)            factor F (length x other side)
=========  =============================  ==================================
reader     its inputs x                   gradients of its outputs g
writer     gradients of its outputs g     its inputs h
embedding  gradients of its outputs g     one-hot token ids (only F F^T is used)
=========  =============================  ==================================

so ``G^T G = R^T K R`` with the length x length kernel ``K = F F^T``. Everything below needs R and K only: no
parameter gradient is formed, and each sequence of a batch counts on its own. Rows at padding must be zero in K.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

__all__ = [
    "CONTROL_NAMES",
    "RowWeights",
    "control_weights",
    "gram_kernel",
    "second_moment",
    "symmetric_product",
    "token_kernel",
    "weighted_second_moment",
]

# As in `Moments`: below this width one product is as fast as four narrower ones.
_SPLIT_FROM = 256
_SPLIT_INTO = 4

CONTROL_NAMES = ("input_energy", "sign_flip", "shuffled_g")


def gram_kernel(factor: Float[Tensor, "batch length side"]) -> Float[Tensor, "batch length length"]:
    """K = F F^T of every sequence.

    Example:
        >>> import torch
        >>> gram_kernel(torch.eye(3)[None]).shape
        torch.Size([1, 3, 3])
    """
    return torch.bmm(factor, factor.transpose(1, 2))


def token_kernel(
    ids: Integer[Tensor, "batch length"], carries: Bool[Tensor, "batch length"], dtype: torch.dtype
) -> Float[Tensor, "batch length length"]:
    """The kernel of an embedding: 1 where two carrying positions hold the same token, else 0.

    Example:
        >>> import torch
        >>> token_kernel(torch.tensor([[5, 6, 5]]), torch.tensor([[True, True, True]]), torch.float32)[0, 0].tolist()
        [1.0, 0.0, 1.0]
    """
    equal = ids[:, :, None] == ids[:, None, :]
    return (equal & carries[:, :, None] & carries[:, None, :]).to(dtype)


def symmetric_product(left: Float[Tensor, "n d"], right: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """``left^T right`` where the product is known to be symmetric: only its lower half is computed, by block rows.

    Four block rows need 5/8 of the multiplications; narrow matrices are multiplied whole, since there the cost of
    starting a product dominates.

    Example:
        >>> import torch
        >>> rows = torch.randn(50, 300, dtype=torch.float64)
        >>> torch.allclose(symmetric_product(rows, rows), rows.T @ rows)
        True
    """
    d = left.shape[1]
    if d < _SPLIT_FROM:
        return left.T @ right
    product = left.new_empty((d, d))
    step = -(-d // _SPLIT_INTO)
    for start in range(0, d, step):
        stop = min(start + step, d)
        torch.mm(left[:, start:stop].T, right[:, :stop], out=product[start:stop, :stop])
        product[:start, start:stop] = product[start:stop, :start].T
    return product


def second_moment(
    rows: Float[Tensor, "batch length d"],
    factor: Float[Tensor, "batch length side"] | None,
    kernel: Float[Tensor, "batch length length"] | None = None,
) -> Float[Tensor, "d d"]:
    """Sum over sequences of G^T G, by the kernel or by forming G, whichever costs fewer multiplications.

    Args:
        rows: the residual side R.
        factor: the other side F; may be None where the kernel is given.
        kernel: F F^T if it is at hand (then it is used).

    Returns:
        The d x d sum, in the precision of the rows.

    Example:
        >>> import torch
        >>> x, g = torch.randn(2, 7, 5, dtype=torch.float64), torch.randn(2, 7, 3, dtype=torch.float64)
        >>> by_hand = sum((g[b].T @ x[b]).T @ (g[b].T @ x[b]) for b in range(2))
        >>> torch.allclose(second_moment(x, g), by_hand)
        True
    """
    batch, length, d = rows.shape
    if kernel is None and factor is not None:
        side = factor.shape[2]
        by_kernel = length * length * (side + d) + length * d * d
        by_gradient = length * side * d + side * d * d
        if by_gradient < by_kernel:
            gradient = torch.bmm(factor.transpose(1, 2), rows).reshape(batch * side, d)
            return symmetric_product(gradient, gradient)
        kernel = gram_kernel(factor)
    if kernel is None:
        raise ValueError("either the factor or the kernel is needed")
    return symmetric_product(rows.reshape(-1, d), torch.bmm(kernel, rows).reshape(-1, d))


@dataclass(frozen=True)
class RowWeights:
    """A control's second moment as weights on rows plus a rank-one part per sequence.

    ``sum_t w_t r_t r_t^T + b (sum_t r_t)(sum_t r_t)^T``, the second sum over the carrying positions.
    """

    row: Float[Tensor, "batch length"]
    outer: Float[Tensor, " batch"] | None = None


def control_weights(
    name: str,
    norms: Float[Tensor, "batch length"],
    total: Float[Tensor, " batch"],
    carries: Bool[Tensor, "batch length"],
) -> RowWeights:
    """Closed form of a control from the other side's squared norms alone.

    * ``input_energy``: every carrying row counts alike; the other side is ignored.
    * ``sign_flip``: E[G^T G] when each token's factor keeps its length and gets a random sign,
      ``sum_t |f_t|^2 r_t r_t^T``.
    * ``shuffled_g``: E[G^T G] when the factors are permuted over the N carrying positions,
      ``(a - b) sum r r^T + b (sum r)(sum r)^T`` with ``a = mean |f|^2`` and
      ``b = (|sum f|^2 - sum |f|^2) / (N (N - 1))``; for N = 1 just ``a r r^T``.

    Args:
        name: one of `CONTROL_NAMES`.
        norms: squared norms of the factor's rows, zero where nothing is carried.
        total: squared norm of the factor's sum, per sequence.
        carries: the positions that can carry gradient.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 3)
        >>> control_weights("sign_flip", 2 * one, torch.tensor([9.0]), one.bool()).row.tolist()
        [[2.0, 2.0, 2.0]]
    """
    mask = carries.to(norms.dtype)
    if name == "input_energy":
        return RowWeights(mask)
    if name == "sign_flip":
        return RowWeights(norms * mask)
    if name == "shuffled_g":
        count = mask.sum(1)
        squares = (norms * mask).sum(1)
        a = squares / count.clamp(min=1)
        b = torch.where(count > 1, (total - squares) / (count * (count - 1)).clamp(min=1), torch.zeros_like(total))
        return RowWeights((a - b)[:, None] * mask, b)
    raise ValueError(f"unknown control {name!r}")


def weighted_second_moment(
    rows: Float[Tensor, "batch length d"], weights: RowWeights, carries: Bool[Tensor, "batch length"]
) -> Float[Tensor, "d d"]:
    """The d x d second moment that `RowWeights` describe, summed over sequences.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 4, 3, dtype=torch.float64)
        >>> w = RowWeights(torch.ones(1, 4, dtype=torch.float64))
        >>> torch.allclose(weighted_second_moment(x, w, torch.ones(1, 4, dtype=torch.bool)), x[0].T @ x[0])
        True
    """
    d = rows.shape[2]
    flat = rows.reshape(-1, d)
    moment = symmetric_product(flat * weights.row.reshape(-1, 1), flat)
    if weights.outer is not None:
        sums = torch.bmm(carries.to(rows.dtype)[:, None, :], rows)[:, 0]
        moment += (sums * weights.outer[:, None]).T @ sums
    return moment
