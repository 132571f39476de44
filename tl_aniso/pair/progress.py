"""How far a model has learned: its loss against what word frequencies alone would give, and steps matched by that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from transformers import PreTrainedModel

from tl_aniso.errors import TlAnisoError
from tl_aniso.training import MaskedTokens

__all__ = ["HeldOut", "Match", "match_progress", "match_steps", "progress_of", "unigram_entropy", "unigram_losses"]

# Batches of held-out windows; larger ones save nothing on a CPU.
_BATCH = 32


def unigram_losses(
    windows: Int64[torch.Tensor, "window position"], vocab_size: int
) -> Float[torch.Tensor, " vocab_size"]:
    """Minus the logarithm of each id's frequency in the training windows, one added to every count, in nats.

    Example:
        >>> import torch
        >>> unigram_losses(torch.tensor([[0, 0, 0], [0, 0, 1]]), 2).exp().tolist()  # (5 + 1) / 8 and (1 + 1) / 8
        [1.3333333333333333, 4.0]
    """
    counts = torch.bincount(windows.flatten(), minlength=vocab_size).double() + 1
    return -(counts / counts.sum()).log()


def unigram_entropy(targets: Int64[torch.Tensor, " target"], losses: Float[torch.Tensor, " vocab_size"]) -> float:
    """Cross-entropy of targets under the training text's unigram distribution, in nats a target."""
    return float(losses[targets].mean())


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Text that a model never trains on, as its objective has it: what is fed, and which tokens are to be predicted.

    Attributes:
        fed: ids of shape (window, position).
        targets: ids of the same shape.
        chosen: where a target counts; logits at a position are held against the target at that position.
        unigram: cross-entropy of the counting targets under the training text's unigram distribution, in nats.
    """

    fed: Int64[torch.Tensor, "window position"]
    targets: Int64[torch.Tensor, "window position"]
    chosen: torch.Tensor
    unigram: float

    @classmethod
    def causal(
        cls, windows: Int64[torch.Tensor, "window position"], losses: Float[torch.Tensor, " vocab_size"]
    ) -> "HeldOut":
        """Every token but the first, from those before it."""
        chosen = torch.ones_like(windows, dtype=torch.bool)
        chosen[:, -1] = False
        targets = torch.roll(windows, -1, dims=1)
        return cls(windows, targets, chosen, unigram_entropy(targets[chosen], losses))

    @classmethod
    def masked(
        cls,
        windows: Int64[torch.Tensor, "window position"],
        losses: Float[torch.Tensor, " vocab_size"],
        objective: MaskedTokens,
    ) -> "HeldOut":
        """The tokens that the objective hides at step -1, which no training step is: the same at every checkpoint."""
        fed, chosen = objective.hide(windows, step=-1)
        return cls(fed, windows, chosen, unigram_entropy(windows[chosen], losses))

    @torch.no_grad()
    def loss(self, model: PreTrainedModel) -> float:
        """Mean cross-entropy of the counting targets, in nats."""
        total = 0.0
        for start in range(0, len(self.fed), _BATCH):
            part = slice(start, start + _BATCH)
            chosen = self.chosen[part]
            states = model.base_model(input_ids=self.fed[part]).last_hidden_state[chosen]
            logits = model.get_output_embeddings()(states)
            total += float(torch.nn.functional.cross_entropy(logits, self.targets[part][chosen], reduction="sum"))
        return total / int(self.chosen.sum())


def progress_of(loss: float, unigram: float) -> float:
    """1 - loss / unigram entropy: 0 where a model predicts as well as word frequencies do, 1 where it is never wrong.

    Below 0 it has not learned the frequencies yet. Each objective is held against the entropy of its own targets.

    Example:
        >>> progress_of(4.5, 6.0), progress_of(6.6, 6.0) < 0
        (0.25, True)
    """
    return 1.0 - loss / unigram


@dataclass(frozen=True)
class Match:
    """Two checkpoints that are compared.

    Attributes:
        decoder: step of the decoder.
        encoder: step of the encoder.
        decoder_progress, encoder_progress: of each, as `progress_of` has it.
    """

    decoder: int
    encoder: int
    decoder_progress: float
    encoder_progress: float

    @property
    def gap(self) -> float:
        """Progress of the decoder less that of the encoder."""
        return self.decoder_progress - self.encoder_progress


def match_steps(decoder: Mapping[int, float], encoder: Mapping[int, float]) -> tuple[Match, ...]:
    """Equal tokens: checkpoints of the same step, for every step that both have.

    Args:
        decoder: progress by step.
        encoder: progress by step.

    Example:
        >>> [(m.decoder, m.encoder) for m in match_steps({0: 0.0, 5: 0.2}, {0: 0.0, 5: 0.1, 9: 0.1})]
        [(0, 0), (5, 5)]
    """
    return tuple(Match(step, step, decoder[step], encoder[step]) for step in sorted(decoder.keys() & encoder.keys()))


def match_progress(
    decoder: Mapping[int, float], encoder: Mapping[int, float], *, tolerance: float = 0.01
) -> tuple[Match, ...]:
    """Equal progress: for every checkpoint of the encoder that learned something, the decoder's nearest in progress.

    Each model counts from its first checkpoint of positive progress on: before it, progress measures how untrained the
    output layer is, which both start with alike. A checkpoint of the decoder serves once: where it is nearest to
    several of the encoder, the closest of them has it, so that no comparison is counted twice.

    Args:
        decoder: progress by step.
        encoder: progress by step.
        tolerance: pairs further apart than this are left out.

    Returns:
        Matches in the order of the encoder's steps; none where the two never come near each other.

    Raises:
        TlAnisoError: a tolerance that is no positive number.

    Example:
        >>> found = match_progress({10: -0.1, 20: 0.03, 30: 0.1, 90: 0.3}, {10: -0.1, 50: 0.029, 90: 0.095})
        >>> [(m.decoder, m.encoder) for m in found]
        [(20, 50), (30, 90)]
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise TlAnisoError(f"tolerance is {tolerance}; give a positive difference in progress")
    left, right = _learned(decoder), _learned(encoder)
    best: dict[int, Match] = {}
    for step in right:
        near = min(left, key=lambda other: (abs(decoder[other] - encoder[step]), other), default=None)
        if near is None:
            continue
        found = Match(near, step, decoder[near], encoder[step])
        if abs(found.gap) <= tolerance and (near not in best or abs(found.gap) < abs(best[near].gap)):
            best[near] = found
    return tuple(sorted(best.values(), key=lambda match: match.encoder))


def _learned(progress: Mapping[int, float]) -> Sequence[int]:
    steps = sorted(progress)
    first = next((index for index, step in enumerate(steps) if progress[step] > 0), len(steps))
    return steps[first:]
