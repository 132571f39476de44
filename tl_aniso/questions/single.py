"""Both questions about one model from one pair of passes."""

from typing import Any, NamedTuple

from tl_aniso.questions.ask import ablation_result, energy_result
from tl_aniso.questions.source import Measured, measured
from tl_aniso.results import AblationIsotropy, TangentEnergy
from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = ["Single", "measure_once"]


class Single(NamedTuple):
    """Energy and isotropy of one model, and what they were measured from."""

    energy: TangentEnergy
    isotropy: AblationIsotropy
    measured: Measured


def measure_once(
    model: Any,
    text: Any,
    *,
    rank: int | None = None,
    shuffled_labels: bool = False,
    n_controls: int = 999,
    n_planes: int = 100,
    seed: int = 0,
    **options: Any,
) -> Single:
    """`tangent_energy` and `ablation_isotropy` of everything: activations, their gradients, weight gradients.

    Args:
        model: as `capture` takes it.
        text: as `capture` takes it.
        rank: of the proxies.
        shuffled_labels: send a second gradient back, of permuted targets.
        n_controls: planes for p-values.
        n_planes: normal planes removed per site.
        seed: of planes and permuted labels.
        **options: of `capture`.

    Raises:
        TlAnisoError: as `tangent_energy`.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> found = measure_once(LlamaForCausalLM(config), documents, progress=False)
        >>> found.measured.held_out
        True
    """
    controls = (*CONTROL_NAMES, "shuffled_labels") if shuffled_labels else CONTROL_NAMES
    found = measured(
        model,
        text,
        proxies=None,
        rank=rank,
        kinds=("none", "activation", "weight"),
        controls=controls,
        sums="effect",
        seed=seed,
        options=options,
    )
    ranks = None if rank is None else (rank,)
    energy = energy_result(found, ("activation", "weight"), ranks, controls, n_controls=n_controls, seed=seed)
    settings = {"n_controls": n_planes, "seed": seed}
    kinds = [kind for kind in ("none", "activation", "weight") if found.sites(kind)]
    return Single(energy, ablation_result(found, kinds, ranks, settings), found)
