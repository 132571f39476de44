"""From a model or a capture to what a question needs: proxies, the measured half, and notes for the reader."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.feeding import positions_by_kind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import Options, check_options
from tl_aniso.capturing.plan import available_sites
from tl_aniso.capturing.prepare import PreparedText, prepare_text
from tl_aniso.capturing.reach import own_loss_sites
from tl_aniso.capturing.run import run_capture
from tl_aniso.capturing.store import Capture
from tl_aniso.checks import as_names
from tl_aniso.controls.names import CLOSED_FORMS, COVARIANCE_DRAWN, LABEL_PASSES, PERMUTED_TOKENS, UNTRAINED
from tl_aniso.controls.planes import ControlPlanes
from tl_aniso.controls.untrained import reinitialised
from tl_aniso.errors import TextError, TlAnisoError, UndefinedMeasureError
from tl_aniso.questions.control_planes import (
    fitting_passes,
    fitting_sites,
    needs_activations,
    planes_for_capture,
    planes_for_model,
    to_fit,
)
from tl_aniso.questions.text_notes import short_text, text_notes
from tl_aniso.sites import role_of, select_sites, whole_site
from tl_aniso.statistics import FEWEST_SHARDS
from tl_aniso.subspace import TangentProxies, TangentProxy, check_rank, fit_tangent_proxies
from tl_aniso.text import shard_of

__all__ = ["Measured", "measured", "told_if_short"]

# Share of exact zeros in a gradient above which a reader should know.
MOST_ZEROS = 0.01
# Options of a pass that both halves share, and their defaults, as `capture` has them.
_RUN_OPTIONS: dict[str, Any] = {"batch_size": None, "max_bytes": None, "progress": True}
_CHECKED: dict[str, Any] = {
    "objective": None,
    "unit": "sequence",
    "basis": "own",
    "heads": False,
    "exclude": ("special", "sink"),
    "weight_exclude": (),
    "keep_rows": 0,
    "n_shards": 8,
    "dtype": None,
}
_TEXT_OPTIONS: dict[str, Any] = {"seq_len": None, "tokenizer": None}

_FITTED_APART = (
    "the tangent planes were given, while planes of permuted_tokens and covariance_drawn were fitted on this model and "
    "text; planes=fit_control_planes(...) of the same captures compares like with like"
)


@dataclass(frozen=True)
class Measured:
    """What a question is answered from.

    Attributes:
        capture: restricted to the measured half.
        proxies: frozen planes.
        held_out: whether no measured document was used to fit the planes.
        notes: for the reader of the result.
        planes: of controls, beside the proxies.
    """

    capture: Capture
    proxies: TangentProxies
    held_out: bool
    notes: tuple[str, ...]
    planes: ControlPlanes = field(default_factory=lambda: ControlPlanes({}))

    def proxy(self, site: str) -> TangentProxy:
        """The proxy of a site; sites that carry one tensor share one."""
        place = self.capture.facts["options"]["proxy_sites"].get(site)
        if place is not None:
            return self.proxies.at(site, place)
        canonical = self.capture.canonical(site)
        return self.proxies[canonical if canonical in self.proxies else site]

    def sites(self, kind: str) -> tuple[str, ...]:
        """Sites of the capture that hold rows of a kind and have a proxy."""
        capture, silent = self.capture, _silent(self.capture, kind)
        if kind == "weight":
            wanted = [s for s in capture.sites if role_of(s) in ("reader", "writer", "embedding")]
            return tuple(s for s in wanted if whole_site(s) not in silent)
        held = capture.activation_gradients if kind == "activation" else capture.activations
        with_proxy = (site for site in held if site in self.proxies or capture.canonical(site) in self.proxies)
        return tuple(site for site in with_proxy if site not in silent)


def measured(
    model_or_capture: Any,
    text: Any,
    *,
    proxies: TangentProxies | None,
    rank: int | None,
    kinds: Sequence[str],
    controls: Sequence[str],
    sums: Literal["effect", "none"],
    seed: int,
    options: dict[str, Any],
    planes: ControlPlanes | None = None,
    strict: bool = True,
) -> Measured:
    """Proxies and the measured half, from a capture as it is or by running a model.

    Args:
        strict: raise where a control cannot be had; otherwise leave it out and say so in the notes.

    Raises:
        TlAnisoError: options that do not belong here, or too high a rank, before anything runs.
    """
    if proxies is not None and not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    if isinstance(model_or_capture, Capture):
        if text is not None or options:
            raise TlAnisoError(
                f"a capture holds its text and options already; {', '.join(options) or 'text'} would be ignored. Pass "
                "a model instead, or leave it out"
            )
        return _from_capture(model_or_capture, proxies, planes, rank, kinds, controls, seed, strict)
    if text is None:
        raise TextError("a model needs text to run on; pass text=..., or a Capture instead of the model")
    layout = bind(model_or_capture)
    if rank is not None:
        check_rank(rank, layout.d_model)
    unknown = sorted(set(options) - {*_RUN_OPTIONS, *_CHECKED, *_TEXT_OPTIONS, "sites", "shard_sites"})
    if unknown:
        raise TlAnisoError(f"unknown option {', '.join(unknown)}; see capture()")
    if options.get("keep_rows") and "none" not in kinds:
        raise TlAnisoError(
            "keep_rows keeps rows of activations, which these gradients do not look at; use it with "
            "ablation_isotropy(..., gradients='none')"
        )
    checked = check_options(
        layout,
        gradients=[kind for kind in kinds if kind != "none"],
        controls=[c for c in controls if c in CLOSED_FORMS] if "weight" in kinds else (),
        extra_passes=[c for c in controls if c in LABEL_PASSES and (strict or _has_labels(options))],
        seed=seed,
        **{name: options.get(name, default) for name, default in _CHECKED.items()},
    )
    words = {name: options.get(name, default) for name, default in _TEXT_OPTIONS.items()}
    prepared = prepare_text(
        model_or_capture, layout, text, n_shards=checked.n_shards, masked_lm=checked.masked_lm, **words
    )
    with short_text(positions_by_kind(prepared, checked.seed), checked.exclude, rank, layout.d_model):
        found = _from_model(
            model_or_capture, layout, prepared, checked, proxies, rank, kinds, sums, options, controls, planes, strict
        )
    if UNTRAINED not in controls:
        return found
    bare = dataclasses.replace(checked, controls=(), extra_passes=(), keep_rows=0)
    return _with_untrained(found, model_or_capture, prepared, bare, rank, kinds, options)


def _from_capture(
    capture: Capture,
    proxies: TangentProxies | None,
    planes: ControlPlanes | None,
    rank: int | None,
    kinds: Sequence[str],
    controls: Sequence[str],
    seed: int,
    strict: bool,
) -> Measured:
    if rank is not None:
        check_rank(rank, capture.facts["model"]["d_model"])
    if proxies is None:
        if capture.facts["options"]["proxies"] or not capture.fitting_half().activations:
            raise TlAnisoError(
                "the capture was made with known proxies, or holds no activations to fit them on; pass the same ones: "
                "proxies=..."
            )
        with told_if_short(capture, rank):
            proxies = fit_tangent_proxies(capture, rank)
    # Known planes too are measured on half B: the half they were not fitted on, where they come from here.
    found = _described(capture.measuring_half(), proxies, capture.in_sample)
    sites = dict.fromkeys(found.proxy(site).site for kind in kinds for site in found.sites(kind))
    planes = planes_for_capture(capture, proxies, planes, controls, sites, seed=seed, strict=strict)
    return dataclasses.replace(found, planes=planes, notes=(*found.notes, *planes.notes))


def _from_model(
    model: Any,
    layout: Layout,
    prepared: PreparedText,
    checked: Options,
    proxies: TangentProxies | None,
    rank: int | None,
    kinds: Sequence[str],
    sums: Literal["effect", "none"],
    options: dict[str, Any],
    controls: Sequence[str] = (),
    planes: ControlPlanes | None = None,
    strict: bool = True,
    prefix: str = "",
) -> Measured:
    run = {name: options.get(name, default) for name, default in _RUN_OPTIONS.items()}
    weights = (*layout.weight_sites, *(layout.head_sites if checked.heads else ()))
    wanted = {"weight": weights, "activation": layout.residual_sites, "none": layout.residual_sites}
    measurable = [site for kind in kinds for site in wanted[kind]]
    sites = measurable if options.get("sites") is None else as_names("sites", options["sites"])
    chosen = select_sites(sites, available_sites(layout, heads=checked.heads))
    if not set(chosen) & set(measurable):
        raise TlAnisoError(
            f"none of the sites {', '.join(sites) or '(an empty list)'} has gradients={'|'.join(kinds)}: name sites "
            f"such as {measurable[0]}"
        )
    if proxies is not None and rank is not None:
        low = [p for p in proxies.values() if max(p.rank, p.requested_rank) < rank]
        if low:
            raise TlAnisoError(f"rank {rank} is above {low[0].requested_rank}, with which the proxies were fitted")
    whole = len(prepared.halves) < 2
    in_planes = to_fit(controls, planes, n_layers=len(layout.blocks), strict=strict)
    notes: tuple[str, ...] = ()
    fitted = None
    if proxies is None or needs_activations(in_planes, proxies):
        fitted_on = prepared if whole else prepared.restricted("A")
        forward = dataclasses.replace(checked, gradients=(), extra_passes=fitting_passes(in_planes), keep_rows=0)
        fit_at = fitting_sites(layout, sites, chosen, in_planes, checked.basis)
        fitted = run_capture(model, layout, fitted_on, forward, sites=fit_at, description=f"{prefix}fitting", **run)
        if proxies is None:
            proxies = fit_tangent_proxies(fitted, rank)
        elif {PERMUTED_TOKENS, COVARIANCE_DRAWN}.intersection(in_planes):
            notes = (_FITTED_APART,)
    if in_planes:
        planes = planes_for_model(
            layout, fitted, proxies, chosen, in_planes, basis=checked.basis, seed=checked.seed, strict=strict
        )
        notes += planes.notes
    capture = run_capture(
        model,
        layout,
        prepared if whole else prepared.restricted("B"),
        checked,
        proxies=proxies,
        sites=sites,
        shard_sites=options.get("shard_sites", ()),
        pooled=sums,
        planes=planes,
        description=f"{prefix}measuring",
        **run,
    )
    found = _described(capture, proxies, whole)
    return dataclasses.replace(found, planes=planes or found.planes, notes=(*found.notes, *notes))


def _with_untrained(
    found: Measured,
    model: Any,
    prepared: PreparedText,
    checked: Options,
    rank: int | None,
    kinds: Sequence[str],
    options: dict[str, Any],
) -> Measured:
    """The same measurement of the model re-initialised, with proxies of its own, as a variant of the true one."""
    copied = reinitialised(model, seed=checked.seed)
    layout = bind(copied)
    gradients = [kind for kind in kinds if kind != "none"]
    if rank is None:
        rank = max(proxy.requested_rank for proxy in found.proxies.values())
    try:
        twin = _from_model(
            copied, layout, prepared, checked, None, rank, gradients, "none", options, prefix="untrained: "
        )
    except UndefinedMeasureError as error:
        raise UndefinedMeasureError(f"the untrained copy of the model (control {UNTRAINED}): {error}") from error
    return dataclasses.replace(found, capture=found.capture.with_variant(UNTRAINED, twin.capture))


def _described(capture: Capture, proxies: TangentProxies, whole: bool) -> Measured:
    """Say what a reader must know; `whole` means that all documents fell into one half."""
    notes: tuple[str, ...] = ()
    text, options = capture.facts["text"], capture.facts["options"]
    documents = [document for document, half in text["halves"].items() if half in capture.halves]
    fitted = {half for proxy in proxies.values() for half in _fitted_halves(proxy.provenance)}
    held_out = bool(fitted) and not fitted & set(capture.halves)
    if not held_out:
        why = "it is not known on which documents the planes were fitted, or they are measured too"
        if whole:
            why = f"the text has {len(documents)} documents, and all fell into one half; give about 10 or more"
        notes += (f"in-sample, so shares are biased upward: {why}",)
    shards = {shard_of(document, options["n_shards"]) for document in documents}
    if len(shards) < FEWEST_SHARDS:
        notes += (f"no intervals: the measured documents fill {len(shards)} shards, {FEWEST_SHARDS} are needed",)
    elif not capture.keeps_shards:
        notes += ("no intervals: the capture kept its sums whole; capture with proxies=... or shard_sites=...",)
    notes += text_notes(capture.facts)
    notes += _masked(capture)
    notes += _left_out(capture)
    notes += tuple(dict.fromkeys(note for proxy in proxies.values() for note in proxy.notes))[:5]
    notes += _underflow(capture)
    return Measured(capture, proxies, held_out, notes)


def told_if_short(capture: Capture, rank: int | None) -> AbstractContextManager[None]:
    """Where a measure of the capture has no value since its text is too short, say that."""
    metadata = capture.facts
    positions = metadata["text"].get("positions")
    return short_text(positions, metadata["options"]["exclude"], rank, metadata["model"]["d_model"])


def _silent(capture: Capture, kind: str) -> frozenset[str]:
    """Sites where the rows of a kind are exactly zero: only masked positions carry gradient, and these are left out."""
    metadata = capture.facts
    filters = {"activation": "exclude", "weight": "weight_exclude"}.get(kind)
    if filters is None or "masked" not in metadata["options"][filters]:
        return frozenset()
    sites = own_loss_sites(metadata["model"]["n_layers"])
    return frozenset(site for site in sites if (role_of(site) == "residual") == (kind == "activation"))


def _masked(capture: Capture) -> tuple[str, ...]:
    """Under a masked objective: how many positions are of which kind, and of which ones the rows are."""
    options, positions = capture.facts["options"], capture.facts["text"].get("positions")
    if options.get("masking") is None or positions is None:
        return ()
    counts = {kind: sum(positions[half][kind] for half in capture.halves) for kind in ("masked", "unmasked", "special")}

    silent = sorted({s for kind in ("activation", "weight") for s in _silent(capture, kind) if s in capture.sites})
    unheard = "; behind the last attention only masked positions have a gradient, so " if silent else ""
    unheard += f"{', '.join(silent)} are left out" if silent else ""

    def left(filters: Sequence[str]) -> str:
        return " and ".join(kind for kind, count in counts.items() if count and kind not in filters) or "no"

    return (
        f"objective {options['objective']}: of {sum(counts.values())} positions measured, {counts['masked']} are "
        f"masked and carry the loss, {counts['unmasked']} are unmasked and {counts['special']} special. Activations "
        f"and their gradients are of {left(options['exclude'])} positions, weight gradients of "
        f"{left(options['weight_exclude'])} ones{unheard}",
    )


def _left_out(capture: Capture) -> tuple[str, ...]:
    """What the row filters took away: few rows can hold nearly all the energy, and there is another reading with them.

    Also where weight gradients alone are measured, which keep every row: their planes are fitted without those rows.
    """
    filters = capture.facts["options"]["exclude"]
    judged = [site for site in capture.judged_sites if capture.excluded_share(site) > 0]
    if not filters or not judged:
        return ()
    most = max(judged, key=capture.excluded_energy_share)
    rows, energy = capture.excluded_share(most), capture.excluded_energy_share(most)
    return (
        f"filtered by {' and '.join(filters)}: at {most}, the most of {len(judged)} residual sites, {rows:.2%} of the "
        f"rows went and with them {energy:.1%} of the energy. Weight gradients keep every row, but their planes are "
        "fitted without those; exclude=() gives the reading with all rows",
    )


def _underflow(capture: Capture) -> tuple[str, ...]:
    """A note where more than 1% of a site's activation gradients are exactly zero."""
    shares = {site: capture.zero_share(site) for site in capture.activation_gradients}
    many = [site for site, share in shares.items() if share > MOST_ZEROS]
    if not many:
        return ()
    worst = max(many, key=lambda site: shares[site])
    # A window is no part of what is recorded, and positions beyond it are counted all the same.
    masked = capture.facts["options"].get("masking") is not None
    beyond = ", or, under local attention, no masked token is within their reach" if masked else ""
    return (
        f"{100 * shares[worst]:.2g}% of the activation gradient at {worst} is exactly zero (above 1% at {len(many)} "
        f"sites): small gradients underflow; measure in float32{beyond}",
    )


def _has_labels(options: Mapping[str, Any]) -> bool:
    """Whether labels can be permuted: those of an objective of the user's own are its own business."""
    return not callable(options.get("objective"))


def _fitted_halves(provenance: Any) -> Sequence[str]:
    halves = provenance.get("halves", ())
    return list(halves) if isinstance(halves, list | tuple) else []
