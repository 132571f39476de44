"""Building and training the small decoder, with its checkpoints handed out live."""

from collections.abc import Iterable

import torch
from jaxtyping import Int64
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tl_aniso.training.loop import OnCheckpoint, OnStep, TrainedModel, train_model
from tl_aniso.training.objectives import next_token_loss
from tl_aniso.training.recipe import DecoderRecipe

__all__ = ["build_decoder", "train_decoder"]


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
    on_checkpoint: OnCheckpoint[GPTNeoXForCausalLM] | None = None,
    on_step: OnStep | None = None,
) -> TrainedModel[GPTNeoXForCausalLM]:
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
    return train_model(
        build_decoder(recipe, seed),
        recipe,
        windows,
        next_token_loss,
        seed=seed,
        checkpoints=checkpoints,
        on_checkpoint=on_checkpoint,
        on_step=on_step,
    )
