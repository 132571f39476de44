"""What a study will do, before it does it: every capture with its key, and what it takes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tl_aniso import __version__
from tl_aniso.capturing.provenance import FORMAT_VERSION
from tl_aniso.controls.names import CLOSED_FORMS, LABEL_PASSES, LATE_FITTED, PERMUTED_TOKENS, PLANE_CONTROLS, UNTRAINED
from tl_aniso.study.checkpoints import Checkpoint
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.corpus import Corpus
from tl_aniso.study.geometry_sites import geometry_places
from tl_aniso.study.outline import ModelOutline, Outline
from tl_aniso.study.phases import Chosen
from tl_aniso.study.store import digest_of
from tl_aniso.study.tokens import N_CONTEXT_TOKENS, N_TOKENS, token_places

__all__ = ["ModelPlan", "PlannedCapture", "StudyPlan", "plan_of"]

CaptureKind = Literal["fit", "measure", "untrained", "geometry", "tokens"]
PLAN_FORMAT = 1


@dataclass(frozen=True)
class PlannedCapture:
    """One pass over one checkpoint; `key` is a hash of all that determines it."""

    key: str
    kind: CaptureKind
    model: str
    checkpoint: Checkpoint

    @property
    def what(self) -> str:
        """For people."""
        words = {
            "fit": "fitting capture",
            "measure": "measured capture",
            "untrained": "untrained twin",
            "geometry": "types and local geometry",
            "tokens": "token views",
        }
        return f"{words[self.kind]} of {self.model} at {self.checkpoint.name}"


@dataclass(frozen=True, eq=False)
class ModelPlan:
    """One model's part of a plan.

    Attributes:
        outline: its checkpoints.
        corpus: the text in its tokens.
        early: captures that planes are fitted on.
        late: captures that late-fitted planes are fitted on; empty without that control.
        measured: one a checkpoint, in their order.
        untrained: of the model re-initialised; None without that control.
        proxies: key of the planes.
        geometry: passes over frequency and local geometry; empty where they are not asked for.
        geometry_corpus: the text of these, in the model's tokens.
        tokens: of single tokens; entries of their own, and no captures.
    """

    outline: ModelOutline
    corpus: Corpus
    early: tuple[PlannedCapture, ...]
    late: tuple[PlannedCapture, ...]
    measured: tuple[PlannedCapture, ...]
    untrained: PlannedCapture | None
    proxies: str
    geometry: tuple[PlannedCapture, ...] = ()
    geometry_corpus: Corpus | None = None
    tokens: tuple[PlannedCapture, ...] = ()

    @property
    def name(self) -> str:
        """What results call the model."""
        return self.outline.entry.name

    @property
    def captures(self) -> tuple[PlannedCapture, ...]:
        """All of them, in the order in which they are made."""
        twin = () if self.untrained is None else (self.untrained,)
        return (*self.early, *self.late, *twin, *self.measured, *self.geometry)

    def frame_key(self, measured: PlannedCapture, config: StudyConfig) -> str:
        """Key of the rows that a measured capture answers with."""
        twin = None if self.untrained is None else self.untrained.key
        asked = {"rank": config.rank, "n_controls": config.n_controls, "seed": config.seed}
        return digest_of([measured.key, self.proxies, twin, asked, __version__])

    def geometry_members(self, config: StudyConfig) -> list[tuple[Chosen, PlannedCapture, PlannedCapture]]:
        """Of each pass over frequency and local geometry its checkpoint, itself, and the measured capture beside it."""
        places = geometry_places(self.outline.chosen, config)
        chosen, measured = self.outline.chosen, self.measured
        return [(chosen[i], taken, measured[i]) for i, taken in zip(places, self.geometry, strict=True)]

    def frequency_key(self, config: StudyConfig) -> str | None:
        """Key of the rows of frequency over checkpoints; None where they are not asked for."""
        if config.geometry is None:
            return None
        # Which checkpoints are another's copy is told by the fingerprints beside measured captures.
        held = [
            [one.checkpoint.name, one.checkpoint.step, one.checkpoint.tokens_seen, taken.key, measured.key]
            for one, taken, measured in self.geometry_members(config)
        ]
        return digest_of(["frequency", held, config.geometry.n_min, config.n_controls, config.seed, __version__])

    def differences_key(self, config: StudyConfig) -> str | None:
        """Key of early less late; None where one of the phases has nothing, or several trainings give the intervals."""
        phases = {chosen.phase for chosen in self.outline.chosen if chosen.checkpoint.step != 0}
        several = any(self.name in members and len(members) > 1 for _, members in config.trainings)
        if not {"early", "late"} <= phases or several:
            return None
        names = [chosen.checkpoint.name for chosen in self.outline.chosen]
        return digest_of(["early less late", names, [self.frame_key(capture, config) for capture in self.measured]])


@dataclass(frozen=True, eq=False)
class StudyPlan:
    """Everything that a study does."""

    config: StudyConfig
    models: tuple[ModelPlan, ...]

    def captures(self) -> tuple[PlannedCapture, ...]:
        """Every pass over a checkpoint once, those over single tokens last."""
        every = (capture for model in self.models for capture in (*model.captures, *model.tokens))
        return tuple({capture.key: capture for capture in every}.values())

    def as_json(self) -> dict[str, Any]:
        """The content of ``plan.json``."""
        return {
            "format": PLAN_FORMAT,
            "library_version": __version__,
            "capture_format": FORMAT_VERSION,
            "config": _known(asdict(self.config)),
            "models": [_as_json(model, self.config) for model in self.models],
        }


def plan_of(found: Outline, corpora: Sequence[Corpus], geometry: Sequence[Corpus | None] = ()) -> StudyPlan:
    """The keys of everything, from the checkpoints and the frozen text of each model.

    Args:
        found: the checkpoints.
        corpora: the text of each model.
        geometry: that of frequency and local geometry, of each model; by default the same.
    """
    models = zip(found.models, corpora, geometry or corpora, strict=True)
    return StudyPlan(found.config, tuple(_planned(model, text, other, found.config) for model, text, other in models))


def _planned(model: ModelOutline, corpus: Corpus, other: Corpus | None, config: StudyConfig) -> ModelPlan:
    asked = config.all_controls
    # Neither device nor batch size: they change the last digits at most, and a run that ran out of memory goes on.
    shared = {
        "format": FORMAT_VERSION,
        "library": __version__,
        "text": corpus.hash,
        "tokenizer": corpus.tokenizer,
        "seq_len": config.seq_len,
        "objective": config.objective,
        "sites": config.sites,
        "dtype": config.dtype,
        "seed": config.seed,
        "n_shards": config.n_shards,
    }

    def made(kind: CaptureKind, checkpoint: Checkpoint, **more: Any) -> PlannedCapture:
        key = digest_of({"kind": kind, "weights": checkpoint.key, **shared, **more})
        return PlannedCapture(key, kind, model.entry.name, checkpoint)

    planes = [name for name in PLANE_CONTROLS if name in asked]
    fitting = {"permuted": PERMUTED_TOKENS in planes, "planes": bool(config.sites) and planes}
    early = tuple(made("fit", checkpoint, **fitting) for checkpoint in model.early)
    late = tuple(made("fit", checkpoint, **fitting) for checkpoint in model.late) if config.late_fitted else ()
    rank = max(config.rank) if config.rank else None
    proxies = digest_of(
        {
            "early": [capture.key for capture in early],
            LATE_FITTED: [capture.key for capture in late],
            "rank": rank,
            "planes": planes,
            "strict": config.strict,
            "seed": config.seed,
            "library": __version__,
        }
    )
    gradients = {"gradients": config.gradients}
    passes = [name for name in (*CLOSED_FORMS, *LABEL_PASSES) if name in asked]
    measured = tuple(
        made("measure", chosen.checkpoint, proxies=proxies, controls=passes, **gradients) for chosen in model.chosen
    )
    # Its weights are drawn anew, so that any checkpoint gives the same one.
    untrained = made("untrained", model.early[0], rank=rank, **gradients) if UNTRAINED in asked else None
    amounts = {"n_tokens": N_TOKENS, "n_context_tokens": N_CONTEXT_TOKENS}
    tokens = tuple(
        made("tokens", model.chosen[i].checkpoint, proxies=proxies, **amounts, **gradients)
        for i in token_places(model.chosen, config)
    )
    if config.geometry is None:
        return ModelPlan(model, corpus, early, late, measured, untrained, proxies, tokens=tokens)
    geometry = config.geometry
    text = corpus if other is None else other
    about = {name: getattr(geometry, name) for name in ("sites", "n_min", "n_types", "n_local")}
    taken = tuple(
        made("geometry", model.chosen[i].checkpoint, **about, text=text.hash, **gradients)
        for i in geometry_places(model.chosen, config)
    )
    return ModelPlan(model, corpus, early, late, measured, untrained, proxies, taken, text, tokens)


def _as_json(model: ModelPlan, config: StudyConfig) -> dict[str, Any]:
    found, corpus = model.outline, model.corpus
    halves = {half: len(corpus.half(half)) for half in ("A", "B")}
    tokens = [{"key": taken.key, "checkpoint": taken.checkpoint.name} for taken in model.tokens]
    return {
        "name": model.name,
        "source": found.entry.source,
        "n_published": found.n_published,
        "early": f"the first {config.early_fraction:g} of the {config.early_unit}",
        "checkpoints": [
            {
                "name": chosen.checkpoint.name,
                "step": chosen.checkpoint.step,
                "tokens_seen": chosen.checkpoint.tokens_seen,
                "phase": chosen.phase,
                "key": chosen.checkpoint.key,
            }
            for chosen in found.chosen
        ],
        "text": {
            "key": corpus.key,
            "hash": corpus.hash,
            "tokenizer": corpus.tokenizer,
            "n_documents": halves,
            "n_tokens": corpus.n_tokens,
            "dropped": corpus.dropped,
            "sources": _counted(corpus.sources),
            "languages": _counted(corpus.languages),
        },
        "captures": [
            {"key": capture.key, "kind": capture.kind, "checkpoint": capture.checkpoint.name}
            for capture in model.captures
        ],
        **({"tokens": tokens} if tokens else {}),
        "proxies": model.proxies,
        "differences": model.differences_key(config),
        "notes": list(found.notes),
        "listing": list(found.listing),
        "estimate": None if found.estimate is None else _known(asdict(found.estimate)),
    }


def _known(entries: dict[str, Any]) -> dict[str, Any]:
    """Without what is said of geometry and tokens where nobody asked for it: plans without them stay as they were."""
    return {name: value for name, value in entries.items() if value or not name.startswith(("geometry", "token_views"))}


def _counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}
