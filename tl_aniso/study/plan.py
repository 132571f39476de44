"""What a study will do, before it does it: every capture with its key, and what it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tl_aniso import __version__
from tl_aniso.capturing.provenance import FORMAT_VERSION
from tl_aniso.controls.names import CLOSED_FORMS, LABEL_PASSES, LATE_FITTED, PERMUTED_TOKENS, PLANE_CONTROLS, UNTRAINED
from tl_aniso.errors import ConfigError
from tl_aniso.models import Downloads
from tl_aniso.study.checkpoints import Checkpoint, CheckpointSource, DirectoryCheckpoints
from tl_aniso.study.config import ModelEntry, StudyConfig
from tl_aniso.study.corpus import Corpus
from tl_aniso.study.estimate import Estimate, estimate
from tl_aniso.study.phases import Chosen, choose
from tl_aniso.study.published import PublishedCheckpoints
from tl_aniso.study.store import digest_of

__all__ = ["ModelOutline", "ModelPlan", "Outline", "PlannedCapture", "StudyPlan", "find_source", "outline", "plan_of"]

CaptureKind = Literal["fit", "measure", "untrained", "geometry"]
PLAN_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ModelOutline:
    """One model's checkpoints, chosen and told apart by phase; nothing was loaded.

    Attributes:
        entry: of the config.
        source: where the checkpoints come from.
        chosen: those to measure.
        n_published: how many there are to choose from.
        estimate: sizes; None where the config does not tell.
        notes: for the reader of results.
        listing: where the list of checkpoints comes from, for the plan and the page; it may differ between two runs.
    """

    entry: ModelEntry
    source: CheckpointSource
    chosen: tuple[Chosen, ...]
    n_published: int
    estimate: Estimate | None
    notes: tuple[str, ...] = ()
    listing: tuple[str, ...] = ()

    @property
    def early(self) -> tuple[Checkpoint, ...]:
        """What planes are fitted on: the early checkpoints, or a model's only one."""
        return tuple(chosen.checkpoint for chosen in self.chosen if chosen.phase != "late")

    @property
    def late(self) -> tuple[Checkpoint, ...]:
        """What late-fitted planes are fitted on."""
        return tuple(chosen.checkpoint for chosen in self.chosen if chosen.phase == "late")

    def downloads(self) -> int | None:
        """Bytes to fetch for what is chosen, once; None where some are not known."""
        sizes = [chosen.checkpoint.download for chosen in self.chosen]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


@dataclass(frozen=True, eq=False)
class Outline:
    """A study's models, before its text is frozen."""

    config: StudyConfig
    models: tuple[ModelOutline, ...]

    def n_captures(self, model: ModelOutline) -> int:
        """Forward captures of what planes are fitted on, a measured one of each checkpoint, and a pass for geometry."""
        each = 1 + (self.config.geometry is not None)
        return self._fitted(model) + each * len(model.chosen) + (UNTRAINED in self.config.all_controls)

    def memory(self, model: ModelOutline) -> int | None:
        """Most bytes at once: a model with its sums, or the sums that planes are fitted on; None where unknown."""
        found = model.estimate
        if found is None:
            return None
        pooled = max(len(model.early), len(model.late) if self.config.late_fitted else 0)
        most = max(found.fit_bytes, found.measure_bytes, found.geometry_bytes)
        return max(found.running_bytes + most, pooled * found.fit_bytes)

    def disk(self, model: ModelOutline) -> int | None:
        """Bytes of a model's captures; None where unknown."""
        found = model.estimate
        if found is None:
            return None
        # Of a vocabulary that is mostly not seen, less is written than what is held.
        each = found.measure_bytes + found.geometry_bytes
        return self._fitted(model) * found.fit_bytes + len(model.chosen) * each

    def seconds(self, model: ModelOutline, n_tokens: int, rate: float) -> float | None:
        """Rough time of a model's captures at `rate` floating-point operations a second; None where unknown."""
        found = model.estimate
        if found is None:
            return None
        work = self._fitted(model) * found.fit_flops + len(model.chosen) * found.measure_flops
        both = len(model.chosen) * found.geometry_flops
        return n_tokens / rate * (work / 2 + both)  # each pass reads one half, those of geometry both

    def _fitted(self, model: ModelOutline) -> int:
        return len(model.early) + (len(model.late) if self.config.late_fitted else 0)


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
        words = {"fit": "fitting capture", "measure": "measured capture", "untrained": "untrained twin"}
        return f"{words.get(self.kind, 'types and local geometry')} of {self.model} at {self.checkpoint.name}"


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
        geometry: passes over frequency and local geometry, one a checkpoint; empty where they are not asked for.
    """

    outline: ModelOutline
    corpus: Corpus
    early: tuple[PlannedCapture, ...]
    late: tuple[PlannedCapture, ...]
    measured: tuple[PlannedCapture, ...]
    untrained: PlannedCapture | None
    proxies: str
    geometry: tuple[PlannedCapture, ...] = ()

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

    def frequency_key(self) -> str | None:
        """Key of the rows of frequency over checkpoints; None where they are not asked for."""
        if not self.geometry:
            return None
        places = [[c.checkpoint.name, c.checkpoint.step, c.phase] for c in self.outline.chosen]
        # Which checkpoints are another's copy is told by the measured captures' fingerprints.
        held = [[c.key for c in several] for several in (self.geometry, self.measured)]
        return digest_of(["frequency", places, held, __version__])

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
        """Every capture once, in the order in which they are made."""
        every = (capture for model in self.models for capture in model.captures)
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


def find_source(
    entry: ModelEntry, downloads: Downloads | None = None, *, listings: str | None = None
) -> CheckpointSource:
    """Where a model's checkpoints come from: a directory, else the registry and the hub (offline: its cache).

    Raises:
        ConfigError: no such directory, registry name or hub id.
    """
    place = Path(entry.source)
    if place.is_dir() and not (place / "config.json").is_file():
        return DirectoryCheckpoints(entry.source, tokens_per_step=entry.tokens_per_step)
    return PublishedCheckpoints(
        entry.source, downloads=downloads, recorded=listings, tokens_per_step=entry.tokens_per_step
    )


def outline(
    config: StudyConfig,
    sources: Mapping[str, CheckpointSource] | None = None,
    downloads: Downloads | None = None,
) -> Outline:
    """Find and choose every model's checkpoints.

    Args:
        config: of the study.
        sources: model's name -> where its checkpoints come from; by default as `find_source` says.
        downloads: keeps the last of what is downloaded.

    Raises:
        ConfigError: a name that no model has, a model without checkpoints, and all that `choose` raises.
    """
    given = dict(sources or {})
    unknown = sorted(set(given) - {entry.name for entry in config.models})
    if unknown:
        raise ConfigError(f"sources holds {unknown[0]!r}, which is not among the models of the config")
    downloads = Downloads(keep=config.keep_last) if downloads is None else downloads
    found = (given.get(e.name) or find_source(e, downloads, listings=config.listings) for e in config.models)
    return Outline(config, tuple(_outlined(e, s, config) for e, s in zip(config.models, found, strict=True)))


def _outlined(entry: ModelEntry, source: CheckpointSource, config: StudyConfig) -> ModelOutline:
    while True:
        published, notes = _with_steps(source.checkpoints())
        if not published:
            raise ConfigError(f"models: {entry.name} has no checkpoints")
        chosen = choose(
            published,
            config.checkpoints,
            fraction=config.early_fraction,
            unit=config.early_unit,
            model=entry.name,
        )
        if not isinstance(source, PublishedCheckpoints):
            break
        sized = source.sized([one.checkpoint for one in chosen])
        if sized is not None:  # else one of them has no weights, and the choice is made among the others
            chosen = tuple(replace(one, checkpoint=other) for one, other in zip(chosen, sized, strict=True))
            break
    sizes = estimate(source.config(), config)
    listing = source.notes if isinstance(source, PublishedCheckpoints) else ()
    return ModelOutline(entry, source, chosen, len(published), sizes, notes, listing)


def _with_steps(published: Sequence[Checkpoint]) -> tuple[list[Checkpoint], tuple[str, ...]]:
    """Checkpoints that have a place on the axis of training; all of them where none has one."""
    placed = [checkpoint for checkpoint in published if checkpoint.step is not None]
    left = [checkpoint.name for checkpoint in published if checkpoint.step is None]
    if not placed or not left:
        return list(published), ()
    return placed, (f"left out, since their steps are not known: {', '.join(left)}",)


def plan_of(found: Outline, corpora: Sequence[Corpus]) -> StudyPlan:
    """The keys of everything, from the checkpoints and the frozen text of each model."""
    models = zip(found.models, corpora, strict=True)
    return StudyPlan(found.config, tuple(_planned(model, corpus, found.config) for model, corpus in models))


def _planned(model: ModelOutline, corpus: Corpus, config: StudyConfig) -> ModelPlan:
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
    geometry: tuple[PlannedCapture, ...] = ()
    if config.geometry is not None:
        also = {**asdict(config.geometry), "rank": config.rank, "gradients": config.gradients}
        geometry = tuple(made("geometry", chosen.checkpoint, **also) for chosen in model.chosen)
    return ModelPlan(model, corpus, early, late, measured, untrained, proxies, geometry)


def _as_json(model: ModelPlan, config: StudyConfig) -> dict[str, Any]:
    found, corpus = model.outline, model.corpus
    halves = {half: len(corpus.half(half)) for half in ("A", "B")}
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
        "proxies": model.proxies,
        "differences": model.differences_key(config),
        "notes": list(found.notes),
        "listing": list(found.listing),
        "estimate": None if found.estimate is None else _known(asdict(found.estimate)),
    }


def _known(entries: dict[str, Any]) -> dict[str, Any]:
    """Without what is said of geometry where nobody asked for it, so that plans without it stay as they are."""
    return {name: value for name, value in entries.items() if value or not name.startswith("geometry")}


def _counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}
