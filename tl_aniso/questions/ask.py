"""The two questions: does gradient energy concentrate in tangent directions, and does removing them help isotropy?"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tl_aniso.ablation import check_settings
from tl_aniso.capturing.store import Capture
from tl_aniso.checks import MOST_SEED, as_integer, as_list, as_names
from tl_aniso.controls.names import (
    ALL,
    CLOSED_FORMS,
    CONTROLS,
    GIVEN_PLANES,
    LABEL_PASSES,
    PERMUTED_TOKENS,
    PLANE_CONTROLS,
)
from tl_aniso.controls.planes import ControlPlanes
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.evidence import EnergyShares
from tl_aniso.multiple_testing import holm_over_sites
from tl_aniso.questions.ablation_rows import ABLATION_KINDS, ablation_rows
from tl_aniso.questions.energy_rows import ENERGY_CONTROLS, energy_rows
from tl_aniso.questions.frame import to_frame
from tl_aniso.questions.kept_rows import ROW_MEASURES, has_intrinsic_dimension
from tl_aniso.questions.precision import refuse_all_zero, small_gradients
from tl_aniso.questions.source import Measured, measured, told_if_short
from tl_aniso.results import AblationIsotropy, TangentEnergy
from tl_aniso.subspace import TangentProxies

__all__ = [
    "ablation_isotropy",
    "ablation_result",
    "control_names",
    "energy_result",
    "had_controls",
    "tangent_energy",
]


def tangent_energy(
    model_or_capture: Any,
    text: Any = None,
    *,
    proxies: TangentProxies | None = None,
    rank: int | Sequence[int] | None = None,
    gradients: str | Sequence[str] = "weight",
    controls: str | Sequence[str] | None = None,
    n_controls: int = 999,
    seed: int = 0,
    planes: ControlPlanes | None = None,
    **options: Any,
) -> TangentEnergy:
    """Share of gradient energy in tangent directions, R over the exact normal control, and excess over others.

    ``E = tr(Q^T S Q) / tr(S)`` with S the uncentred second moment of gradient rows (of G^T G for weights) and Q a
    tangent proxy; ``R = odds(E) / odds(k/d)``; ``excess = odds(E) / odds(E_control)``. See arXiv:2604.08764 and
    ``docs/method.md``, sections 2 to 4. With a model and no proxies, a forward pass over one half of the documents
    fits them and the other half is measured. R grows with width and length: read E beside it, and compare at equal
    width and length only.

    Args:
        model_or_capture: a model with `text`, or a `Capture`.
        text: as `capture` takes it.
        proxies: known proxies; by default fitted on the documents' half A.
        rank: of the proxies, or several ranks; min(16, d // 4) by default, at most d // 2.
        gradients: "weight", "activation", or both.
        controls: of weight gradients "input_energy", "sign_flip", "shuffled_g" (these by default; of a capture, all
            that it holds); of both kinds "shuffled_labels" (a second backward pass), "permuted_tokens" (a second
            forward pass), "other_layer", "covariance_drawn", "next_k" (other planes), "untrained" (a second
            measurement, of the model re-initialised; with a model only); or "all".
        n_controls: planes for the Monte Carlo p-value; 0 for none, which also saves the d x d sums.
        seed: of planes, permuted labels and tokens, and the weights of the untrained model.
        planes: of controls, fitted before beside known `proxies` (`tl_aniso.controls.fit_control_planes`).
        **options: of `capture` (``sites``, ``objective``, ``unit``, ``basis``, ``heads``, ``seq_len``, ``batch_size``,
            ``progress``, ...), with a model.

    Returns:
        A `TangentEnergy`; ``.frame`` has one row per (site, gradient, rank, measure, control).

    Raises:
        TlAnisoError: rank above d // 2, an unknown control or one that cannot be had, and all that `capture` raises.
        UndefinedMeasureError: constant activations, or a gradient that is exactly zero, naming the site.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import tangent_energy
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> result = tangent_energy(LlamaForCausalLM(config), documents, progress=False)
        >>> sorted(result.frame["measure"].unique())
        ['energy_share', 'excess', 'r_energy']
    """
    kinds = _kinds(gradients, ("activation", "weight"))
    n_controls, seed = as_integer("n_controls", n_controls, least=0), as_integer("seed", seed, least=0, most=MOST_SEED)
    if planes is not None and not isinstance(planes, ControlPlanes):
        raise TlAnisoError(f"planes must be ControlPlanes, as fit_control_planes returns them, got {planes!r}")
    names, strict = control_names(model_or_capture, controls)
    unknown = sorted(set(names) - set(ENERGY_CONTROLS))
    if unknown:
        raise TlAnisoError(f"controls holds {', '.join(unknown)}; known are {', '.join(ENERGY_CONTROLS)}")
    lacking = [name for name in names if name in GIVEN_PLANES and name not in (planes or ())]
    if lacking and not isinstance(model_or_capture, Capture):
        raise TlAnisoError(f"the planes of {', '.join(lacking)} are fitted elsewhere; hand them over with planes=...")
    ranks = _ranks(rank)
    found = measured(
        model_or_capture,
        text,
        proxies=proxies,
        rank=max(ranks) if ranks else None,
        kinds=kinds,
        controls=names,
        sums="effect" if n_controls else "none",
        seed=seed,
        options=options,
        planes=planes,
        strict=strict,
    )
    names, found = (names, found) if strict else had_controls(found, names)
    return energy_result(found, kinds, ranks, names, n_controls=n_controls, seed=seed)


def energy_result(
    found: Measured,
    kinds: Sequence[str],
    ranks: Sequence[int] | None,
    controls: Sequence[str],
    *,
    n_controls: int,
    seed: int,
) -> TangentEnergy:
    """`tangent_energy` from what was measured before."""
    undefined: dict[str, list[str]] = {}
    pairs = list(_sites(found, kinds))
    with told_if_short(found.capture, max(ranks) if ranks else None):
        try:
            rows = [
                row
                for site, kind in pairs
                for row in energy_rows(
                    found, site, kind, ranks, controls, n_controls=n_controls, seed=seed, undefined=undefined
                )
            ]
        except UndefinedMeasureError as error:
            refuse_all_zero(found.capture, pairs, error)
            raise
    _refuse_nothing(rows, kinds)
    small = small_gradients(rows)
    notes = tuple(
        f"no {control} at {', '.join(sites[:3])}{' ...' if len(sites) > 3 else ''}: its planes there have fewer "
        "directions than the rank asks for"
        for control, sites in undefined.items()
    )
    text, options = found.capture.facts["text"], found.capture.facts["options"]
    documents = [document for document, half in text["halves"].items() if half in found.capture.halves]
    masking = options.get("masking")
    masking = None if masking is None else {**masking, "special": list(options["special"])}
    shares = EnergyShares.of_rows(rows, documents, options["n_shards"], masking)
    return TangentEnergy(
        holm_over_sites(to_frame(rows)), (*found.notes, *notes, *small), shares, _proxies=found.proxies
    )


def ablation_isotropy(
    model_or_capture: Any,
    text: Any = None,
    *,
    proxies: TangentProxies | None = None,
    rank: int | Sequence[int] | None = None,
    gradients: str | Sequence[str] = ("activation", "weight"),
    n_controls: int = 100,
    zeta: float = 0.1,
    target: Any = "scaled_identity",
    order: Any = "remove_first",
    space: Any = "complement",
    seed: int = 0,
    **options: Any,
) -> AblationIsotropy:
    """IsoScore* before, without the tangent plane, and without normal planes of the same rank.

    Removes first and shrinks second, inside the space that is left (``docs/method.md``, section 5; IsoScore* of
    Rudman and Eickhoff 2024; arXiv:2604.08764). Centred covariance for activations and their gradients, uncentred
    second moment for weight gradients.

    Args:
        model_or_capture: a model with `text`, or a `Capture` with d x d sums.
        text: as `capture` takes it.
        proxies: known proxies; by default fitted on the documents' half A.
        rank: of the proxies, or several ranks.
        gradients: "activation", "weight", and "none" for the activations themselves.
        n_controls: normal planes drawn per site.
        zeta: weight of the shrinkage target, in 0 ... 1.
        target: "scaled_identity" or "identity".
        order: "remove_first" or "shrink_first".
        space: "complement" or "ambient".
        seed: of the normal planes.
        **options: of `capture`, with a model; with ``keep_rows=500``, "none" also gets the measures of kept rows (mean
            cosine, partition isotropy, intrinsic dimension).

    Returns:
        An `AblationIsotropy`; its docstring says what the rows of ``.frame`` hold.

    Raises:
        TlAnisoError: rank above d // 2, an unknown option, and all that `capture` raises.
        UndefinedMeasureError: constant rows at a site.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import ablation_isotropy
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> result = ablation_isotropy(LlamaForCausalLM(config), documents, gradients="activation", progress=False)
        >>> result.table().columns.tolist()
        ['gradient', 'group', 'rank', 'before', 'without tangent', 'without normal', 'delta']
    """
    kinds = _kinds(gradients, ABLATION_KINDS)
    n_controls, seed = as_integer("n_controls", n_controls, least=1), as_integer("seed", seed, least=0, most=MOST_SEED)
    check_settings(zeta, n_controls, order, space, target)
    ranks = _ranks(rank)
    found = measured(
        model_or_capture,
        text,
        proxies=proxies,
        rank=max(ranks) if ranks else None,
        kinds=kinds,
        controls=(),
        sums="effect",
        seed=seed,
        options=options,
    )
    settings = {"n_controls": n_controls, "zeta": zeta, "target": target, "order": order, "space": space, "seed": seed}
    return ablation_result(found, kinds, ranks, settings)


def ablation_result(
    found: Measured, kinds: Sequence[str], ranks: Sequence[int] | None, settings: dict[str, Any]
) -> AblationIsotropy:
    """`ablation_isotropy` from what was measured before; `settings` go to `tl_aniso.ablation.ablate`."""
    rows, few = [], []
    with told_if_short(found.capture, max(ranks) if ranks else None):
        for site, kind in _sites(found, kinds):
            added, is_small = ablation_rows(found, site, kind, ranks, settings)
            rows.extend(added)
            few.extend([site] if is_small else [])
    _refuse_nothing(rows, kinds)
    notes = found.notes
    if few:
        notes += (
            f"{len(few)} sites have fewer than 20 d rows, where isotropy is biased low (isotropic rows score .66 at "
            "2 d): compare at equal numbers of rows only",
        )
    if any(row["measure"] in ROW_MEASURES for row in rows) and not has_intrinsic_dimension():
        notes += ("no intrinsic dimension: scikit-dimension is not installed (pip install 'tl_aniso[dimension]')",)
    return AblationIsotropy(holm_over_sites(to_frame(rows)), notes, _proxies=found.proxies)


def _refuse_nothing(rows: Sequence[Any], kinds: Sequence[str]) -> None:
    if not rows:
        raise TlAnisoError(f"there is nothing to measure: no site with gradients={'|'.join(kinds)} and a proxy is held")


def _kinds(gradients: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    names = as_names("gradients", gradients)
    unknown = [str(name) for name in names if name not in known]
    if unknown or not names:
        raise TlAnisoError(f"gradients holds {', '.join(unknown) or 'nothing'}; choose from {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _ranks(rank: Any) -> tuple[int, ...] | None:
    if rank is None:
        return None
    several = None if isinstance(rank, str) else as_list(rank)
    ranks = {as_integer("rank", r, least=1) for r in ([rank] if several is None else several)}
    if not ranks:
        raise TlAnisoError("rank is an empty list; leave it out for the default")
    return tuple(sorted(ranks))


def control_names(source: Any, controls: Any) -> tuple[tuple[str, ...], bool]:
    """The controls asked for, and whether each of them must be had."""
    if controls is not None:
        names = as_names("controls", controls)
        return (CONTROLS, False) if ALL in names else (names, True)
    return (_held(source) if isinstance(source, Capture) else CLOSED_FORMS), True


def _held(capture: Capture) -> tuple[str, ...]:
    """The controls that a capture holds without more ado."""
    options = capture.facts["options"]
    passes = [name for name in options["extra_passes"] if name in LABEL_PASSES or not options["proxies"]]
    names = {*options["controls"], *passes, *options.get("planes", {}), *capture.variants} & set(ENERGY_CONTROLS)
    if PERMUTED_TOKENS not in passes and PERMUTED_TOKENS not in options.get("planes", {}):
        names -= {PERMUTED_TOKENS}
    return tuple(name for name in ENERGY_CONTROLS if name in names)


def had_controls(found: Measured, controls: Sequence[str]) -> tuple[tuple[str, ...], Measured]:
    """Of several controls those that what was measured can answer; a note names the others."""
    planes = {*found.planes, *found.capture.facts["options"].get("planes", {})}
    held = set(_held(found.capture)) - set(PLANE_CONTROLS) | planes
    lacking = [name for name in controls if name not in held and name not in PLANE_CONTROLS]
    if lacking:  # why planes are lacking was noted where they were fitted
        note = f"without the controls {', '.join(lacking)}: the capture does not hold them"
        found = dataclasses.replace(found, notes=(*found.notes, note))
    return tuple(name for name in controls if name in held), found


def _sites(found: Measured, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    for kind in kinds:
        for site in found.sites(kind):
            yield site, kind
