"""A decoder and an encoder that differ in objective and attention mask alone."""

from dataclasses import dataclass

import torch
from transformers import EuroBertConfig, EuroBertForMaskedLM, LlamaConfig, LlamaForCausalLM

from tl_aniso.errors import ModelError
from tl_aniso.training.objectives import MaskedTokens
from tl_aniso.training.recipe import Recipe

__all__ = ["MEASURED", "Pair", "PairRecipe", "build_pair"]

# Denser early: a decoder passes there, in a few steps, what an encoder takes the whole run to learn, and a checkpoint
# of equal progress must lie near.
MEASURED = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class PairRecipe(Recipe):
    """Sizes and schedule of both models of a pair, and how the encoder's tokens are masked.

    The schedule is the one in which the encoder, the slower learner of the two, leaves the plateau where it predicts
    word frequencies and nothing else; the decoder is given the same, for nothing but objective and mask may differ.

    Attributes:
        mask_rate: Share of tokens that the encoder must predict.
        replacement: "bert" (80% hidden, 10% replaced, 10% kept) or "mask" (all hidden), as `MaskedTokens` has it.
        rope_theta: Base of the rotary positions.
        initializer_range: Standard deviation of the initial weights.
        measured: Where both are measured, as shares of the steps.
    """

    d_mlp: int = 344
    context: int = 64
    batch_size: int = 16
    n_steps: int = 800
    beta2: float = 0.98
    mask_rate: float = 0.3
    replacement: str = "bert"
    rope_theta: float = 100.0
    initializer_range: float = 0.06
    measured: tuple[float, ...] = MEASURED

    @property
    def mask_id(self) -> int:
        """Id of the mask token in a tokenizer of ``train_tokenizer(..., mask=True)``."""
        return 1

    def objective(self, seed: int = 0) -> MaskedTokens:
        """What the encoder is trained on; its masks are a function of the seed and the step."""
        special = (0, self.mask_id)
        return MaskedTokens(self.mask_id, self.vocab_size, self.mask_rate, self.replacement, special, seed)

    def default_checkpoints(self) -> tuple[int, ...]:
        """Where both are measured."""
        return tuple(sorted({round(self.n_steps * share) for share in self.measured}))

    def plane_steps(self) -> tuple[int, ...]:
        """Where planes are fitted: every twentieth of the steps up to three tenths, as in the demo of one decoder."""
        return tuple(sorted({round(self.n_steps * i / 20) for i in range(7)}))


@dataclass(frozen=True)
class Pair:
    """Two models with equal weights.

    Attributes:
        decoder: A Llama: attends to what is before a token.
        encoder: A EuroBERT: attends to both sides.
    """

    decoder: LlamaForCausalLM
    encoder: EuroBertForMaskedLM


def build_pair(recipe: PairRecipe, seed: int = 0) -> Pair:
    """A Llama and a EuroBERT of one size and with one initial set of weights; the global random state stays.

    EuroBERT is a Llama whose attention looks both ways: their modules have equal names and their weights equal shapes,
    so that one state dict serves both, the head included.

    Args:
        recipe: Sizes.
        seed: Of the initialisation.

    Returns:
        Both in evaluation mode, on the CPU, in float32.

    Raises:
        ModelError: The two classes of this version of transformers no longer share their weights' names.

    Example:
        >>> from tl_aniso.training import PairRecipe, build_pair
        >>> pair = build_pair(PairRecipe(d_model=16, n_layers=1, n_heads=2, d_mlp=32, vocab_size=300))
        >>> all(bool((a == b).all()) for a, b in zip(pair.decoder.parameters(), pair.encoder.parameters()))
        True
    """
    sizes = {
        "vocab_size": recipe.vocab_size,
        "hidden_size": recipe.d_model,
        "intermediate_size": recipe.d_mlp,
        "num_hidden_layers": recipe.n_layers,
        "num_attention_heads": recipe.n_heads,
        "num_key_value_heads": recipe.n_heads,
        "max_position_embeddings": recipe.context,
        "rms_norm_eps": 1e-5,
        "initializer_range": recipe.initializer_range,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "tie_word_embeddings": False,
        "use_cache": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = LlamaForCausalLM(LlamaConfig(**sizes))
        encoder = EuroBertForMaskedLM(EuroBertConfig(**sizes, mask_token_id=recipe.mask_id))
    weights = decoder.state_dict()
    if {n: v.shape for n, v in encoder.state_dict().items()} != {n: v.shape for n, v in weights.items()}:
        raise ModelError(
            "LlamaForCausalLM and EuroBertForMaskedLM of this version of transformers differ in their weights' names "
            "or shapes, so that a pair cannot start from one state; use a version that pyproject.toml names"
        )
    encoder.load_state_dict(weights)
    return Pair(decoder.eval(), encoder.eval())
