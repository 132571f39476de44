"""Building and training the small decoder, with its checkpoints handed out live."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tl_aniso.errors import ModelError, TextError, TlAnisoError
from tl_aniso.training.recipe import DecoderRecipe

__all__ = ["OnCheckpoint", "OnStep", "TrainedDecoder", "build_decoder", "train_decoder"]

OnCheckpoint = Callable[[int, GPTNeoXForCausalLM, float], object]
OnStep = Callable[[int, float], object]


@dataclass(frozen=True)
class TrainedDecoder:
    """A finished run.

    Attributes:
        model: After the last step, in evaluation mode.
        losses: Mean cross-entropy of every step's batch before its update, in nats a token.
    """

    model: GPTNeoXForCausalLM
    losses: tuple[float, ...]


def build_decoder(recipe: DecoderRecipe, seed: int = 0) -> GPTNeoXForCausalLM:
    """A randomly initialised GPT-NeoX of the recipe's size; the global random state is left as it was.

    Args:
        recipe: Sizes.
        seed: Of the initialisation (normal, standard deviation 0.02).

    Returns:
        The model in evaluation mode, on the CPU, in float32.

    Example:
        >>> from tl_aniso.training import DecoderRecipe, build_decoder
        >>> sum(p.numel() for p in build_decoder(DecoderRecipe()).parameters())
        1317632
    """
    config = GPTNeoXConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.d_model,
        num_hidden_layers=recipe.n_layers,
        num_attention_heads=recipe.n_heads,
        intermediate_size=recipe.d_mlp,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPTNeoXForCausalLM(config)
    return model.eval()


def train_decoder(
    recipe: DecoderRecipe,
    windows: Int64[torch.Tensor, "window position"],
    *,
    seed: int = 0,
    checkpoints: Iterable[int] | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    on_step: OnStep | None = None,
) -> TrainedDecoder:
    """Train a decoder from scratch by next-token prediction, the same for the same seed, text and machine.

    Step s is the model after s updates: 0 as initialised, `recipe.n_steps` finished. Windows are drawn
    without replacement, in another order every epoch.

    Args:
        recipe: What to train and how.
        windows: Token ids of shape (window, recipe.context), as `pack_windows` returns them.
        seed: Of the initialisation and of the order of the windows.
        checkpoints: Steps to hand out; by default 21 at equal distances.
        on_checkpoint: Called with (step, model, loss): the live model in evaluation mode, its `.grad`s
            empty, to be read and left as it is, and its mean loss in nats on the batch that comes next.
            Whatever it does to modes, gradients or the random state, training goes on as if not interrupted.
        on_step: Called with (step, loss) after every update, the loss being the batch's before the update.

    Returns:
        The model in evaluation mode and the losses. The global random state is as before.

    Raises:
        TextError: Windows of another length, or with ids outside the vocabulary.
        TlAnisoError: A checkpoint outside 0 to `recipe.n_steps`.
        ModelError: A loss that is not finite; the message names the step.

    Example:
        >>> import torch
        >>> from tl_aniso.training import DecoderRecipe, train_decoder
        >>> recipe = DecoderRecipe(d_model=16, n_layers=1, n_heads=2, vocab_size=300, context=8, n_steps=4)
        >>> seen = []
        >>> run = train_decoder(recipe, torch.randint(300, (40, 8)), checkpoints=(0, 4),
        ...                     on_checkpoint=lambda step, model, loss: seen.append(step))
        >>> seen, len(run.losses)
        ([0, 4], 4)
    """
    steps = set(recipe.default_checkpoints() if checkpoints is None else checkpoints)
    wrong = sorted(step for step in steps if not 0 <= step <= recipe.n_steps)
    if wrong:
        raise TlAnisoError(f"Checkpoint {wrong[0]} is outside the steps 0 to {recipe.n_steps} of this run.")
    _check_windows(recipe, windows)
    model = build_decoder(recipe, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate(0), weight_decay=recipe.weight_decay)
    losses: list[float] = []
    batches = _batches(windows, recipe.batch_size, seed)
    for step in range(recipe.n_steps + 1):
        batch = next(batches)
        if step in steps and on_checkpoint is not None:
            with _lent(model, optimiser):
                on_checkpoint(step, model, _loss(model, batch))
        if step == recipe.n_steps:
            break
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        model.train()
        loss = model(input_ids=batch, labels=batch).loss
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise ModelError(f"Training diverged: the loss at step {step} is {losses[-1]}; lower learning_rate.")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if on_step is not None:
            on_step(step + 1, losses[-1])
    optimiser.zero_grad(set_to_none=True)
    return TrainedDecoder(model.eval(), tuple(losses))


@contextmanager
def _lent(model: GPTNeoXForCausalLM, optimiser: torch.optim.Optimizer) -> Iterator[None]:
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


@torch.no_grad()
def _loss(model: GPTNeoXForCausalLM, batch: Int64[torch.Tensor, "sequence position"]) -> float:
    return float(model(input_ids=batch, labels=batch).loss)


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


def _check_windows(recipe: DecoderRecipe, windows: Int64[torch.Tensor, "window position"]) -> None:
    if windows.ndim != 2 or windows.shape[1] != recipe.context or not len(windows):
        raise TextError(f"The windows have shape {tuple(windows.shape)}; training needs (window, {recipe.context}).")
    low, high = int(windows.min()), int(windows.max())
    if low < 0 or high >= recipe.vocab_size:
        culprit = low if low < 0 else high
        raise TextError(f"The windows hold the id {culprit}, outside the vocabulary of {recipe.vocab_size} ids.")
