"""What a small transformer is and how it is trained, as numbers without a model."""

import math
from dataclasses import dataclass, fields

from tl_aniso.errors import TlAnisoError

__all__ = ["DecoderRecipe", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Sizes of a small transformer and the schedule of its training: AdamW, linear warmup, then a cosine.

    Attributes:
        d_model, n_layers, n_heads, d_mlp: Widths and counts of the transformer.
        vocab_size: Size of the byte-level BPE, its special tokens included.
        context: Length of a training window, in tokens.
        batch_size: Windows a step.
        n_steps: Optimiser steps.
        learning_rate: Peak rate, reached after `warmup` steps.
        final_share: Rate at the last step over the peak rate.
        weight_decay: AdamW's, on all parameters.
        beta2: AdamW's decay of squared gradients.

    Raises:
        TlAnisoError: A value that cannot be; the message names it.
    """

    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    d_mlp: int = 512
    vocab_size: int = 2048
    context: int = 128
    batch_size: int = 8
    n_steps: int = 500
    learning_rate: float = 2e-3
    warmup: int = 50
    final_share: float = 0.1
    weight_decay: float = 0.1
    beta2: float = 0.999

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float):
                continue
            may_be_zero = field.name in ("warmup", "final_share", "weight_decay")
            if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
                range_of = "at least 0" if may_be_zero else "above 0"
                raise TlAnisoError(f"{field.name} is {value}; it must be {range_of}.")
        if self.context < 2:
            raise TlAnisoError(f"context is {self.context}; a window needs at least 2 tokens.")
        if self.vocab_size <= 256:
            raise TlAnisoError(f"vocab_size is {self.vocab_size}; a byte-level vocabulary needs at least 257.")
        if self.beta2 >= 1:
            raise TlAnisoError(f"beta2 is {self.beta2}; it must be below 1.")
        if self.d_model % self.n_heads:
            raise TlAnisoError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}.")

    def rate(self, step: int) -> float:
        """Learning rate of the update that leads from `step` to `step + 1`."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.n_steps - self.warmup))
        share = self.final_share + (1.0 - self.final_share) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.learning_rate * share

    def default_checkpoints(self) -> tuple[int, ...]:
        """Twenty-one steps at equal distances, the first (0) and the last included."""
        return tuple(sorted({round(self.n_steps * i / 20) for i in range(21)}))


@dataclass(frozen=True)
class DecoderRecipe(Recipe):
    """A GPT-NeoX decoder small enough to train from scratch in a minute on a CPU.

    Untied embeddings, attention and MLP in parallel, rotary positions, no dropout: Pythia's architecture and
    initialisation. Attributes and errors are those of `Recipe`.

    Example:
        >>> from tl_aniso.training import DecoderRecipe
        >>> recipe = DecoderRecipe()
        >>> [round(recipe.rate(step), 6) for step in (0, 49, 500)]
        [4e-05, 0.002, 0.0002]
    """
