"""Both questions about one model from one pair of passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tl_aniso.controls.names import LABEL_PASSES
from tl_aniso.questions.ask import ablation_result, control_names, energy_result, had_controls
from tl_aniso.questions.source import Measured, measured
from tl_aniso.results import AblationIsotropy, TangentEnergy

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
    controls: str | Sequence[str] | None = None,
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
        controls: as `tangent_energy` takes them; the closed forms by default.
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
    names, strict = control_names(model, controls)
    names = tuple(dict.fromkeys((*names, *(LABEL_PASSES if shuffled_labels else ()))))
    found = measured(
        model,
        text,
        proxies=None,
        rank=rank,
        kinds=("none", "activation", "weight"),
        controls=names,
        sums="effect",
        seed=seed,
        options=options,
        strict=strict,
    )
    names, found = (names, found) if strict else had_controls(found, names)
    ranks = None if rank is None else (rank,)
    energy = energy_result(found, ("activation", "weight"), ranks, names, n_controls=n_controls, seed=seed)
    settings = {"n_controls": n_planes, "seed": seed}
    kinds = [kind for kind in ("none", "activation", "weight") if found.sites(kind)]
    return Single(energy, ablation_result(found, kinds, ranks, settings), found)
