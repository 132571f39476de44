"""What a study will measure, before its text is frozen: checkpoints, phases, and what they take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tl_aniso.controls.names import UNTRAINED
from tl_aniso.errors import ConfigError
from tl_aniso.models import Downloads
from tl_aniso.study.checkpoints import Checkpoint, CheckpointSource, DirectoryCheckpoints
from tl_aniso.study.config import ModelEntry, StudyConfig
from tl_aniso.study.devices import check_device
from tl_aniso.study.estimate import Estimate, estimate, layout_of
from tl_aniso.study.geometry_sites import geometry_places
from tl_aniso.study.phases import Chosen, choose
from tl_aniso.study.published import PublishedCheckpoints
from tl_aniso.study.tokens import N_CONTEXT_TOKENS, N_TOKENS, token_places
from tl_aniso.study.usable import check_texts, check_with_layout

__all__ = ["ModelOutline", "Outline", "find_source", "outline"]


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
        """Forward captures for planes, a measured one of each checkpoint, passes over geometry and over tokens."""
        measured = len(model.chosen) + len(geometry_places(model.chosen, self.config))
        measured += len(token_places(model.chosen, self.config))
        return self._fitted(model) + measured + (UNTRAINED in self.config.all_controls)

    def memory(self, model: ModelOutline) -> int | None:
        """Most bytes at once; None where unknown.

        A model with its sums, as planes are fitted site by site; or what distances over checkpoints are taken from.
        """
        found = model.estimate
        if found is None:
            return None
        over = len(geometry_places(model.chosen, self.config)) * found.geometry_bytes
        return max(found.running_bytes + max(found.fit_bytes, found.measure_bytes, found.geometry_bytes), over)

    def disk(self, model: ModelOutline) -> int | None:
        """Bytes of a model's captures; None where unknown."""
        found = model.estimate
        if found is None:
            return None
        # Of a vocabulary that is mostly not seen, less is written than what is held.
        types = len(geometry_places(model.chosen, self.config)) * found.geometry_bytes
        return self._fitted(model) * found.fit_bytes + len(model.chosen) * found.measure_bytes + types

    def seconds(self, model: ModelOutline, n_tokens: int, rate: float) -> float | None:
        """Rough time of a model's captures at `rate` floating-point operations a second; None where unknown."""
        found = model.estimate
        if found is None:
            return None
        work = self._fitted(model) * found.fit_flops + len(model.chosen) * found.measure_flops
        geometry = len(geometry_places(model.chosen, self.config)) * found.geometry_flops
        asked = self.config.geometry
        own = n_tokens if asked is None or asked.n_tokens is None else asked.n_tokens
        # Forward and backward for true and for shuffled labels; forward alone for contexts.
        each = 2 * 6 * min(N_TOKENS, n_tokens / 2) + 2 * min(N_CONTEXT_TOKENS, n_tokens / 2)
        tokens = len(token_places(model.chosen, self.config)) * found.n_parameters * each
        return (n_tokens / 2 * work + own * geometry + tokens) / rate  # a pass reads one half, those of geometry both

    def _fitted(self, model: ModelOutline) -> int:
        return len(model.early) + (len(model.late) if self.config.late_fitted else 0)


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
    *,
    elsewhere: bool = False,
) -> Outline:
    """Find and choose every model's checkpoints, and refuse what could not be measured: nothing is loaded.

    Args:
        config: of the study.
        sources: model's name -> where its checkpoints come from; by default as `find_source` says.
        downloads: keeps the last of what is downloaded.
        elsewhere: captures are made by workers of an executor, whose devices are not known here.

    Raises:
        ConfigError: a name that no model has, a model without checkpoints, a text or device that is not there, values
            that a model of known config cannot be measured with, and all that `choose` raises.
    """
    check_device(config.device, elsewhere=elsewhere)
    check_texts(config)
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
    described = source.config()
    layout = layout_of(described)
    if layout is not None:
        recorded = isinstance(source, PublishedCheckpoints) and source.by_recorded_sizes
        check_with_layout(layout, config, entry.name, context=not recorded)
    sizes = estimate(described, config, layout)
    listing = source.notes if isinstance(source, PublishedCheckpoints) else ()
    if isinstance(source, DirectoryCheckpoints):
        notes = (*source.notes, *notes)
    return ModelOutline(entry, source, chosen, len(published), sizes, notes, listing)


def _with_steps(published: Sequence[Checkpoint]) -> tuple[list[Checkpoint], tuple[str, ...]]:
    """Checkpoints that have a place on the axis of training; all of them where none has one."""
    placed = [checkpoint for checkpoint in published if checkpoint.step is not None]
    left = [checkpoint.name for checkpoint in published if checkpoint.step is None]
    if not placed or not left:
        return list(published), ()
    return placed, (f"left out, since their steps are not known: {', '.join(left)}",)
