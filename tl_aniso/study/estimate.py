"""What a capture of a model takes, from its config alone: an empty model is bound, and no weight is loaded."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tl_aniso.capturing.bindings.huggingface import bind_huggingface
from tl_aniso.capturing.bindings.refusals import family_of
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import Options
from tl_aniso.capturing.plan import available_sites, make_plan
from tl_aniso.controls.names import CLOSED_FORMS, LABEL_PASSES, PERMUTED_TOKENS
from tl_aniso.errors import TlAnisoError
from tl_aniso.models.kind import objective_of
from tl_aniso.sites import role_of, select_sites
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.geometry_sites import geometry_sizes

__all__ = ["Estimate", "estimate", "flops_per_second", "layout_of"]

_FLOAT32, _FLOAT64 = 4, 8
# Logits of a batch and what autograd keeps, beside weights and sums.
_WORKING = 2**29


@dataclass(frozen=True)
class Estimate:
    """Rough sizes of one model's captures.

    Attributes:
        n_parameters: of the model.
        n_layers: its blocks.
        d_model: its width.
        running_bytes: memory of a model that runs: weights and working space.
        fit_bytes: of a forward capture's sums, in memory while it runs and on disk; also of the directions that are
            found from any number of such captures.
        measure_bytes: of a measured capture's sums.
        fit_flops: floating-point operations of a forward capture, a token.
        measure_flops: of a measured capture, a token.
        geometry_bytes: of what is kept by token type, for frequency and local geometry; 0 where they are not asked for.
        geometry_flops: of the passes behind them, a token.
    """

    n_parameters: int
    n_layers: int
    d_model: int
    running_bytes: int
    fit_bytes: int
    measure_bytes: int
    fit_flops: float
    measure_flops: float
    geometry_bytes: int = 0
    geometry_flops: float = 0.0


_UNKNOWN = (TlAnisoError, ValueError, KeyError, AttributeError, NotImplementedError, RuntimeError)


def layout_of(config: Any) -> Layout | None:
    """An empty model of a Hugging Face config, bound; None where there is none, or of a class that is not measured."""
    if config is None:
        return None
    try:
        model = _empty(config)
        return bind_huggingface(model, family_of(model))
    except _UNKNOWN:
        return None


def estimate(config: Any, study: StudyConfig, layout: Layout | None = None) -> Estimate | None:
    """Sizes from a Hugging Face config; None where there is none, or of a class that is not measured.

    `layout` is what `layout_of` makes of the config, where that is at hand.

    Example:
        >>> from transformers import LlamaConfig
        >>> from tl_aniso.study import read_config
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2, architectures=["LlamaForCausalLM"])
        >>> found = estimate(config, read_config({"models": ["checkpoints"], "text": "local"}))
        >>> found.n_parameters, found.d_model
        (6480, 16)
    """
    layout = layout_of(config) if layout is None else layout
    if layout is None:
        return None
    try:
        n_parameters = sum(parameter.numel() for parameter in layout.root.parameters())
        fit = _sums(layout, study, fitting=True)
        measured = _sums(layout, study, fitting=False)
        held, geometry_passes = geometry_sizes(layout, study)
    except _UNKNOWN:
        return None
    d, passes = layout.d_model, 1 + len(set(LABEL_PASSES) & set(study.all_controls))
    again = 1 + (PERMUTED_TOKENS in study.all_controls)
    return Estimate(
        n_parameters=n_parameters,
        n_layers=len(layout.blocks),
        d_model=d,
        running_bytes=_FLOAT32 * n_parameters + _WORKING,
        fit_bytes=fit[1],
        measure_bytes=measured[1],
        fit_flops=2.0 * n_parameters * again + 2.0 * d * d * fit[0],
        measure_flops=(2.0 + 4.0 * passes) * n_parameters + 2.0 * d * d * measured[0],
        geometry_bytes=held,
        geometry_flops=2.0 * n_parameters * geometry_passes,
    )


def _empty(config: Any) -> Any:
    """A model whose weights are only shapes."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    auto = AutoModelForMaskedLM if objective_of(config, "the model") == "masked" else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


def _sums(layout: Layout, study: StudyConfig, *, fitting: bool) -> tuple[int, int]:
    """Number of d x d sums, and their bytes."""
    asked = study.all_controls
    passes = (PERMUTED_TOKENS,) if fitting else LABEL_PASSES
    options = Options(
        gradients=() if fitting else study.gradients,
        controls=() if fitting else tuple(name for name in CLOSED_FORMS if name in asked),
        extra_passes=tuple(name for name in passes if name in asked),
        objective="causal",  # no sum depends on it
        unit="sequence",
        basis="own",
        exclude=(),
        weight_exclude=(),
        n_shards=study.n_shards,
        dtype=study.dtype,
        seed=study.seed,
    )
    plan = make_plan(
        layout,
        options,
        sites=study.sites,
        proxies=None,
        shard_sites=(),
        special=(),
        pooled="all" if fitting else "effect",
        n_halves=1,
    )
    if fitting:
        return plan.n_sums, plan.n_bytes
    # With proxies known, which they are not here, nothing is summed for fitting them.
    named = select_sites(study.sites, available_sites(layout, heads=False)) if study.sites is not None else []
    only_fitted = [s for s in plan.wanted.activations if role_of(s) in ("input", "output") and s not in named]
    return plan.n_sums - len(only_fitted), plan.n_bytes - len(only_fitted) * layout.d_model**2 * _FLOAT64


def flops_per_second(seconds: float = 0.2, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """What this processor does in products of the size that captures take: half of what a bare product reaches."""
    left, right = torch.ones(512, 512), torch.ones(512, 512)
    done, began = 0, clock()
    while clock() - began < seconds:
        left @ right
        done += 1
    return 0.5 * done * 2 * 512**3 / (clock() - began)
