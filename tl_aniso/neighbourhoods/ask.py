"""`local_geometry`: how a model's activations bend, and where their gradients point, near single token types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import check_options
from tl_aniso.capturing.prepare import PreparedText, prepare_text
from tl_aniso.capturing.token_rows import token_rows
from tl_aniso.checks import MOST_SEED, as_integer, as_names
from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.intrinsic import DimensionMethod
from tl_aniso.neighbourhoods.collect import collect
from tl_aniso.neighbourhoods.measure import Plan, measure
from tl_aniso.neighbourhoods.result import LocalGeometry
from tl_aniso.neighbourhoods.types import choose_types, count_types
from tl_aniso.sites import output_site, residual_site, role_of, select_sites, weight_site
from tl_aniso.text import Sequence as TokenSequence
from tl_aniso.text.masking import Masking, mask_sequence

__all__ = ["GRADIENTS", "NEIGHBOURHOODS", "local_geometry"]

NEIGHBOURHOODS = ("type", "knn")
GRADIENTS = ("activation", "weight")
# Default layers, as shares of the depth: what the first block reads is the embedding, one row for all occurrences.
_DEPTHS = (0.25, 0.5, 1.0)


def local_geometry(
    model: Any,
    text: Any,
    *,
    sites: str | Sequence[str] | None = None,
    n_types: int = 30,
    n_min: int = 100,
    cap: int | None = None,
    k: int | None = None,
    neighbourhood: Literal["type", "knn"] = "type",
    gradients: str | Sequence[str] = GRADIENTS,
    dimensions: Sequence[DimensionMethod] = (),
    n_surrogates: int = 4,
    n_permutations: int = 999,
    objective: Any = None,
    exclude: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    n_shards: int = 8,
    dtype: Any = None,
    max_bytes: int = 2_000_000_000,
    seed: int = 0,
    progress: bool = True,
) -> LocalGeometry:
    """Curvature, visible normal share, dimension and gradient energy in neighbourhoods of single token types.

    The activations of one token type are a cloud around its mean. Local PCA gives the cloud a tangent plane of rank k;
    beside it, normal amplitudes grow as the square of tangent ones where the cloud is a curved surface. Frequent and
    rare types are compared at one number of occurrences. Gradients are measured in planes that other documents gave
    (fitted on half A, measured on half B). Claims C7 and C8 of arXiv:2604.08764; ``docs/local_geometry.md``.

    Args:
        model: as of `tl_aniso.capture`.
        text: as of `tl_aniso.capture`; it is read twice, so an iterator is first held in memory.
        sites: residual sites (curvature, and gradients of activations) and weights (gradients of weights), by name or
            pattern. By default the residual stream before three blocks, at a quarter, half and the end of the model,
            with W_Q and W_in of the same blocks.
        n_types: frequent types, and as many rare ones.
        n_min: occurrences that a type must have, half of them in either half of the documents. Of every type as many
            are measured, drawn by hash.
        cap: most occurrences that are kept of a type, to show what sample size does; 2 n_min by default.
        k: rank of the tangent planes; by default one for all types of a site, the median of their participation
            ratios, and at most what leaves the quadratic fit five rows to a coefficient.
        neighbourhood: "type": all occurrences of one type. "knn": the rows of any chosen type that are nearest to one
            occurrence of a type, as many from either half.
        gradients: "activation" (at residual sites) and/or "weight" (at weights); empty for no backward pass.
        dimensions: estimators of scikit-dimension beside the participation ratio: "TwoNN", "MLE", "lPCA".
        n_surrogates: Gaussian surrogates averaged over, for every type.
        n_permutations: of the labels frequent and rare.
        objective: as of `tl_aniso.capture`.
        exclude: row filters; an occurrence that any site filters is left out at all of them. By default "special" and
            "sink", and "masked" where tokens are masked, whose rows are of the mask token.
        tokenizer: as of `tl_aniso.capture`.
        seq_len: tokens in a sequence.
        batch_size: sequences in a batch.
        n_shards: shards of documents; changes nothing here, as intervals are over types.
        dtype: None, "float32" or "bfloat16".
        max_bytes: most memory for the rows of the chosen types.
        seed: of draws, surrogates and permutations.
        progress: show progress.

    Returns:
        Means over types with intervals over types, in the geometry frame.

    Raises:
        TlAnisoError: arguments that do not fit, rows beyond `max_bytes`.
        SiteError: sites that are neither residual nor a weight of a block, or that the model does not have.
        ShortTextError: too few types with enough occurrences.
        UndefinedMeasureError: a site where all rows of every type are equal, and k is not given.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import local_geometry
        >>> config = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2, bos_token_id=None, eos_token_id=None)
        >>> text = [torch.randint(0, 8, (40,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(12)]
        >>> found = local_geometry(LlamaForCausalLM(config), text, n_types=2, n_min=20, k=2, progress=False,
        ...                        sites="blocks.1.hook_resid_pre", n_surrogates=1, n_permutations=19)
        >>> sorted(found.frame["measure"].unique())[:3]
        ['curvature_energy', 'curvature_slope', 'local_dimension']
    """
    n_types = as_integer("n_types", n_types, least=2)
    n_half = (as_integer("n_min", n_min, least=16) + 1) // 2
    most = max(n_half, n_half * 2 if cap is None else as_integer("cap", cap, least=2) // 2)
    if k is not None:
        k = as_integer("k", k, least=1)
    if neighbourhood not in NEIGHBOURHOODS:
        raise TlAnisoError(f"neighbourhood must be one of {', '.join(NEIGHBOURHOODS)}, got {neighbourhood!r}")
    kinds = as_names("gradients", gradients)
    for kind in kinds:
        if kind not in GRADIENTS:
            raise TlAnisoError(f"gradients must be of {', '.join(GRADIENTS)}, got {kind!r}")
    methods = as_names("dimensions", dimensions)
    for method in methods:
        if method not in get_args(DimensionMethod):
            raise TlAnisoError(f"dimensions must be of {', '.join(get_args(DimensionMethod))}, got {method!r}")
    seed = as_integer("seed", seed, least=0, most=MOST_SEED)
    plan_numbers = {
        "n_surrogates": as_integer("n_surrogates", n_surrogates, least=1),
        "n_permutations": as_integer("n_permutations", n_permutations, least=1),
    }
    layout = bind(model)
    residual, weights = _sites(layout, sites, "weight" in kinds)
    text = list(text) if isinstance(text, Iterator) else text
    given = {"tokenizer": tokenizer, "seq_len": seq_len}
    options = check_options(
        layout,
        gradients=(),
        objective=objective,
        exclude=("special", "sink") if exclude is None else exclude,
        seed=seed,
        dtype=dtype,
        n_shards=n_shards,
        **_REST,
    )
    filters = options.exclude
    if exclude is None and options.masked_lm is not None:
        filters = (*filters, "masked")
    prepared = prepare_text(model, layout, text, n_shards=options.n_shards, masked_lm=options.masked_lm, **given)
    special = prepared.special if "special" in filters else ()
    counted = count_types(
        prepared.sequences.sequences, layout.vocab_size, special, kept=_read(prepared.masking, filters, seed)
    )
    types = choose_types(counted, n_types, n_half)
    batches = token_rows(
        model,
        text,
        sites=(*residual, *weights, *(output_site(w) for w in weights if role_of(w) == "writer")),
        gradients=residual if "activation" in kinds else (),
        objective=objective,
        exclude=filters,
        batch_size=batch_size,
        n_shards=n_shards,
        dtype=dtype,
        seed=seed,
        progress=progress,
        **given,
    )
    kept = collect(batches, types.all, capacity=most, seed=seed, max_bytes=as_integer("max_bytes", max_bytes, least=1))
    plan = Plan(
        residual=residual,
        weights=weights,
        n_half=n_half,
        rank=k,
        neighbourhood=neighbourhood,
        gradients="activation" in kinds,
        dimensions=methods,  # type: ignore[arg-type]
        seed=seed,
        **plan_numbers,
    )
    rows, notes = measure(kept, types, plan)
    return LocalGeometry.of(rows, _facts(layout, options.objective, prepared, seed), notes)


_REST: dict[str, Any] = {
    "controls": (),
    "extra_passes": (),
    "unit": "sequence",
    "basis": "own",
    "weight_exclude": (),
    "keep_rows": 0,
}


def _read(
    masking: Masking | None, filters: Sequence[str], seed: int
) -> Callable[[TokenSequence], Bool[np.ndarray, " n"]] | None:
    """Positions that filters of masked tokens leave: a type needs its occurrences there."""
    if masking is None or not {"masked", "unmasked"} & set(filters):
        return None

    def kept(sequence: TokenSequence) -> Bool[np.ndarray, " n"]:
        places = mask_sequence(sequence, masking, seed=seed).places
        return ~places if "masked" in filters else places

    return kept


def _sites(layout: Layout, wanted: str | Sequence[str] | None, weight_gradients: bool) -> tuple[tuple[str, ...], ...]:
    """Residual sites and weights, in the model's order."""
    from tl_aniso.capturing.plan import available_sites

    depth = len(layout.blocks)
    if wanted is None:
        layers = sorted({min(max(1, round(share * (depth - 1))), depth - 1) for share in _DEPTHS})
        found = [residual_site(layer, "pre") for layer in layers]
        if weight_gradients:
            found += [weight_site(layer, name) for layer in layers for name in ("W_Q", "W_in")]
    else:
        found = select_sites(as_names("sites", wanted), available_sites(layout, heads=False))
    residual = tuple(site for site in found if role_of(site) == "residual")
    weights = tuple(site for site in found if role_of(site) in ("reader", "writer"))
    other = [site for site in found if site not in residual + weights]
    if other:
        raise SiteError(
            f"local geometry is measured at residual sites and weights of blocks, which {other[0]} is not; name sites "
            "such as 'blocks.*.hook_resid_pre' or 'blocks.*.mlp.W_in'"
        )
    if weights and not weight_gradients:
        raise SiteError(
            f"{weights[0]} is a weight, of which only gradients are measured; put 'weight' into "
            "gradients, or name no weight"
        )
    return residual, weights


def _facts(layout: Layout, objective: str, prepared: PreparedText, seed: int) -> dict[str, Any]:
    """What is the same in every row of the frame."""
    config = getattr(layout.root, "config", None)
    commit = getattr(config, "_commit_hash", None)
    return {
        "model": str(getattr(config, "_name_or_path", "") or layout.class_name),
        "family": layout.family,
        "objective": objective,
        "revision": commit if commit is not None else "unknown",
        "scope": "within",
        "n_documents": prepared.sequences.n_documents,
        "seed": seed,
    }
