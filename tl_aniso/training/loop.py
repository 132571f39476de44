"""One training loop for every objective: what is trained and what it must predict are arguments."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from jaxtyping import Float, Int64
from transformers import PreTrainedModel

from tl_aniso.errors import ModelError, TextError, TlAnisoError
from tl_aniso.training.recipe import Recipe

__all__ = ["BatchLoss", "OnCheckpoint", "OnStep", "TrainedModel", "train_model"]

Model = TypeVar("Model", bound=PreTrainedModel)

OnCheckpoint = Callable[[int, Model, float], object]
OnStep = Callable[[int, float], object]


class BatchLoss(Protocol):
    """The mean loss of a batch, in nats for each token that is predicted.

    It knows the step, so that what it draws can be a function of the step alone, and never of how often it is asked.
    """

    def __call__(
        self, model: PreTrainedModel, batch: Int64[torch.Tensor, "sequence position"], step: int
    ) -> Float[torch.Tensor, ""]:
        """The loss of a batch at a step, with its graph."""
        ...


@dataclass(frozen=True)
class TrainedModel(Generic[Model]):
    """A finished run.

    Attributes:
        model: After the last step, in evaluation mode.
        losses: Mean loss of every step's batch before its update, in nats a predicted token.
    """

    model: Model
    losses: tuple[float, ...]


def train_model(
    model: Model,
    recipe: Recipe,
    windows: Int64[torch.Tensor, "window position"],
    loss_of: BatchLoss,
    *,
    seed: int = 0,
    checkpoints: Iterable[int] | None = None,
    on_checkpoint: OnCheckpoint[Model] | None = None,
    on_step: OnStep | None = None,
) -> TrainedModel[Model]:
    """Train a model in place: the same model, seed, text and machine give the same run.

    Windows are drawn without replacement, in another order every epoch; the order is a function of the seed, so two
    models of one seed see the same windows at the same steps, whatever their objectives.

    Args:
        model: What to train; its weights are changed.
        recipe: Schedule; sizes where windows are checked.
        windows: Token ids of shape (window, recipe.context).
        loss_of: The objective.
        seed: Of the order of the windows.
        checkpoints: Steps to hand out; by default `recipe.default_checkpoints()`.
        on_checkpoint: Called with (step, model, loss), as `tl_aniso.training.train_decoder` says.
        on_step: Called with (step, loss) after every update, the loss being the batch's before the update.

    Returns:
        The model in evaluation mode and the losses. The global random state is as before.

    Raises:
        TextError: Windows of another length, or with ids outside the vocabulary.
        TlAnisoError: A checkpoint outside 0 to `recipe.n_steps`.
        ModelError: A loss that is not finite; the message names the step.
    """
    steps = set(recipe.default_checkpoints() if checkpoints is None else checkpoints)
    wrong = sorted(step for step in steps if not 0 <= step <= recipe.n_steps)
    if wrong:
        raise TlAnisoError(f"Checkpoint {wrong[0]} is outside the steps 0 to {recipe.n_steps} of this run.")
    _check_windows(recipe, windows)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate(0), weight_decay=recipe.weight_decay, betas=(0.9, recipe.beta2)
    )
    losses: list[float] = []
    batches = _batches(windows, recipe.batch_size, seed)
    for step in range(recipe.n_steps + 1):
        batch = next(batches)
        if step in steps and on_checkpoint is not None:
            with _lent(model, optimiser):
                with torch.no_grad():
                    ahead = float(loss_of(model, batch, step))
                on_checkpoint(step, model, ahead)
        if step == recipe.n_steps:
            break
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        model.train()
        loss = loss_of(model, batch, step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise ModelError(f"Training diverged: the loss at step {step} is {losses[-1]}; lower learning_rate.")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if on_step is not None:
            on_step(step + 1, losses[-1])
    optimiser.zero_grad(set_to_none=True)
    model.eval()
    return TrainedModel(model, tuple(losses))


@contextmanager
def _lent(model: PreTrainedModel, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """The model as a callback may have it, and back as training needs it, also after an exception."""
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    optimiser.zero_grad(set_to_none=True)
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        model.train()
        optimiser.zero_grad(set_to_none=True)
        for parameter, flag in zip(model.parameters(), trainable, strict=True):
            parameter.requires_grad_(flag)


def _batches(
    windows: Int64[torch.Tensor, "window position"], batch_size: int, seed: int
) -> Iterator[Int64[torch.Tensor, "sequence position"]]:
    # A generator of its own: neither the caller's random state nor a checkpoint's can change the order.
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch_size:
            order = torch.cat([order, torch.randperm(len(windows), generator=generator)])
        yield windows[order[:batch_size]]
        order = order[batch_size:]


def _check_windows(recipe: Recipe, windows: Int64[torch.Tensor, "window position"]) -> None:
    if windows.ndim != 2 or windows.shape[1] != recipe.context or not len(windows):
        raise TextError(f"The windows have shape {tuple(windows.shape)}; training needs (window, {recipe.context}).")
    low, high = int(windows.min()), int(windows.max())
    if low < 0 or high >= recipe.vocab_size:
        culprit = low if low < 0 else high
        raise TextError(f"The windows hold the id {culprit}, outside the vocabulary of {recipe.vocab_size} ids.")
