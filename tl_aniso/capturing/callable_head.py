"""The same as `tl_aniso.capturing.head` for a loss that the user wrote: any callable from logits to per-token losses.

Its gradient at the logits comes from autograd, one sequence at a time, without padding: a sequence's losses cannot see
another sequence, whatever the callable does, and the batch size changes nothing. All logits of one sequence are held,
with their gradient and what the callable makes of them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_aniso.capturing.head import Head, Inner, Unembedding
from tl_aniso.capturing.objectives import Losses, name_of
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.projection import Formed
from tl_aniso.text.sequences import Batch, Sequence
from tl_aniso.weight_moments import symmetric_product

__all__ = ["Called", "callable_head"]


@dataclass(frozen=True)
class Called:
    """What a callable objective gave.

    Attributes:
        head: as of `cross_entropy_head`; `formed` is of the whole batch.
        carries: positions whose logits have a gradient.
        n_losses: losses that are not exactly zero.
    """

    head: Head
    carries: Bool[Tensor, "batch length"]
    n_losses: int


def callable_head(
    unembedding: Unembedding,
    hidden: Float[Tensor, "batch length d"],
    batch: Batch,
    losses: Losses,
    *,
    inner: Inner,
    counted: Bool[Tensor, "batch length"],
) -> Called:
    """Call an objective on every sequence of a batch.

    Args:
        unembedding: from hidden states to logits.
        hidden: its input.
        batch: the sequences, real tokens first.
        losses: the objective.
        inner: "kernel" for the inner products within each sequence, "cheapest" for G^T G of the whole batch's G.
        counted: positions of which a formed G is made.

    Raises:
        TlAnisoError: losses of another shape, that do not depend on the logits, or that autograd cannot follow.
            What the objective itself raises passes through, with a note on where.
        UndefinedMeasureError: losses or gradients that are not finite.
    """
    weight, given = unembedding.weight, batch.mask.device
    hidden = hidden.detach().to(weight.device, weight.dtype)  # as in `cross_entropy_head`
    ids, mask, counted = (tensor.to(weight.device) for tensor in (batch.ids, batch.mask, counted))
    size, length, _ = hidden.shape
    gradient = torch.zeros_like(hidden, dtype=torch.float32)
    kernel = hidden.new_zeros((size, length, length), dtype=torch.float32) if inner == "kernel" else None
    joint = _Joint(unembedding, size, length) if inner == "cheapest" else None
    loss = hidden.new_zeros(size, dtype=torch.float32 if hidden.device.type == "mps" else torch.float64)
    carries, n_losses = torch.zeros_like(mask), 0
    for row, sequence in enumerate(batch.sequences):
        n, one = len(sequence), slice(row, row + 1)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            logits = unembedding.logits(hidden[one, :n])
        per_token, at_logits = _called(losses, logits.requires_grad_(), ids[one, :n], mask[one, :n], sequence)
        loss[row] = per_token.sum(dtype=loss.dtype)
        n_losses += int(per_token.count_nonzero())
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            carries[row, :n] = at_logits.abs().amax(-1) > 0
            slope = unembedding.slope(logits.detach()[0])
            factor = at_logits if slope is None else at_logits * slope
            gradient[row, :n] = (factor.to(weight.dtype) @ weight).float()
            if kernel is not None:
                kernel[row, :n, :n] = factor @ factor.T
            if joint is not None:
                joint.add(row, factor * counted[row, :n, None], hidden[row, :n].float())
    formed = None if joint is None else joint.found()
    return Called(Head(gradient, loss, kernel, formed), carries.to(given), n_losses)


def _called(losses: Losses, logits: Tensor, ids: Tensor, mask: Tensor, sequence: Sequence) -> tuple[Tensor, Tensor]:
    """Losses of one sequence and their gradient at the logits, both checked."""
    where = f"piece {sequence.index} of document {sequence.document[:16]}..."
    with torch.enable_grad(), torch.autocast(logits.device.type, enabled=False):
        # Copies: what the objective writes into must be neither the batch nor a leaf of the graph.
        given = logits.clone()
        start = given.grad_fn
        try:
            found: Any = losses(given, ids.clone(), mask.clone())
        except Exception as error:
            error.add_note(f"raised in the objective {name_of(losses)} at {where}")
            raise
    if given._version and given.grad_fn is start:
        raise TlAnisoError(
            f"the objective {name_of(losses)} wrote into its logits under no_grad at {where}, which hides the change "
            "from its gradient; write outside no_grad, or into logits.detach().clone()"
        )
    if not isinstance(found, Tensor) or found.shape != ids.shape:
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise TlAnisoError(
            f"the objective {name_of(losses)} must return one loss a token, of shape {tuple(ids.shape)} as the ids "
            f"have, got {what}; put zeros where a position has no loss, and do not sum"
        )
    if not bool(torch.isfinite(found).all()):
        raise UndefinedMeasureError(f"the objective returned losses that are not finite for {where}")
    at_logits = None
    # A view made under no_grad says that it requires a gradient, but has no way to one.
    if found.grad_fn is not None and found.is_floating_point():
        try:
            (at_logits,) = torch.autograd.grad(found, logits, grad_outputs=torch.ones_like(found), allow_unused=True)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise TlAnisoError(
                f"the losses of the objective {name_of(losses)} cannot be differentiated at {where}: {error}; write "
                "in place only into what no gradient needs (into a clone() of it instead)"
            ) from error
    if at_logits is None:
        raise TlAnisoError(
            f"the losses of the objective {name_of(losses)} keep no graph to the logits for {where}; compute "
            "them from the logits handed over with torch operations, without detach(), numpy or no_grad"
        )
    if not bool(torch.isfinite(at_logits).all()):
        raise UndefinedMeasureError(f"the gradient of the objective's losses is not finite for {where}")
    return found.detach()[0], at_logits[0]


class _Joint:
    """G of a whole batch, vocabulary x d, added up over its sequences."""

    def __init__(self, unembedding: Unembedding, batch: int, length: int) -> None:
        weight = unembedding.weight
        self._gradient = torch.zeros_like(weight, dtype=torch.float32)
        self._sum = self._gradient.new_zeros(weight.shape[0])
        self._norms = self._gradient.new_zeros((batch, length))

    def add(self, row: int, factor: Float[Tensor, "length vocabulary"], hidden: Float[Tensor, "length d"]) -> None:
        self._gradient.addmm_(factor.T, hidden)
        self._sum += factor.sum(0)
        self._norms[row, : len(factor)] = factor.square().sum(1)

    def found(self) -> Formed:
        moment = symmetric_product(self._gradient, self._gradient)
        return Formed(moment[None], self._norms.reshape(1, -1), self._sum.square().sum()[None])
