"""Checkpoints of a published model: listed by `tl_aniso.models`, pinned to commits, downloaded one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tl_aniso.errors import ConfigError, ModelError, TlAnisoError
from tl_aniso.models import Downloads, ListedCheckpoint, Listing, LoadedModel, discover, find, with_sizes
from tl_aniso.models.cache import is_cached, snapshot
from tl_aniso.models.rules import from_naming_rules
from tl_aniso.models.shapes import config_by_shape
from tl_aniso.study.checkpoints import Checkpoint, directory_key, later_stages, shortened

__all__ = ["PublishedCheckpoints"]


@dataclass(frozen=True, eq=False)
class _Loading:
    """Loads a listed checkpoint; a class, so that it can be sent to another process."""

    listed: ListedCheckpoint
    downloads: Downloads

    def __call__(self) -> LoadedModel:
        return self.downloads.load(self.listed)


class PublishedCheckpoints:
    """The checkpoints of a model of the registry, of any other on the hub, or of a directory that holds one.

    Of a model that was trained in stages, the first stage alone: later ones begin to count anew. Where the hub cannot
    be asked and the cache holds nothing, checkpoints of the registry's models are listed by their naming rules, which
    is enough for a plan; loading one is then an error that says so.

    Args:
        model: name of the registry, hub id, or a directory; or a listing.
        downloads: fetches checkpoints and keeps the last ones; by default all of them.
        recorded: a file of `tl_aniso.models.save_listings` to use instead of asking the hub.
        tokens_per_step: tokens that a step sees, where neither registry nor names say.

    Raises:
        ConfigError: no such model, or nothing is known of its checkpoints.

    Example:
        >>> from tl_aniso.models.rules import RECORDED_RULES
        >>> source = PublishedCheckpoints("smollm2-1.7b", recorded=RECORDED_RULES)
        >>> [(c.name, c.step, c.tokens_seen) for c in source.checkpoints()[:1]]
        [('step-125000', 125000, 262144000000)]
    """

    def __init__(
        self,
        model: str | Listing,
        *,
        downloads: Downloads | None = None,
        recorded: str | Path | None = None,
        tokens_per_step: int | None = None,
    ) -> None:
        self._downloads = Downloads() if downloads is None else downloads
        self._tokens_per_step = tokens_per_step
        self._notes: list[str] = []
        try:
            self.listing = model if isinstance(model, Listing) else self._listed(model, recorded)
        except ModelError as error:
            name = "" if isinstance(model, Listing) else str(model)
            told = not name or "no directory" in str(error) or Path(name).exists()
            hint = "" if told else f"; and there is no directory {name!r} here or beside the config"
            raise ConfigError(f"models: {error}{hint}") from error
        self._sized = False
        self.by_recorded_sizes = False  # whether `config` last gave sizes alone, with defaults of the class beside them

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the listing comes from, and what of it was left out."""
        listing = self.listing
        recorded = f", recorded {listing.listed}" if listing.recorded else ""
        missing = [f"{one.name} cannot be measured: {one.reason}" for one in listing.missing]
        unread = [name for name in listing.unread if not name.startswith(".")]
        others = [f"not read, since these names are no checkpoint's: {shortened(unread)}"] if unread else []
        return (f"checkpoints: {listing.note}{recorded}", *self._notes, *missing, *others)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Those of the first stage, and the finished model; the keys of published ones are their commits."""
        return [self._checkpoint(one) for one in self._first_stage()]

    def sized(self, chosen: Sequence[Checkpoint]) -> Sequence[Checkpoint] | None:
        """The same checkpoints with the bytes of their downloads; None where one turns out to have no weights.

        Then `checkpoints` no longer has it, and the choice is to be made again. Where nobody can be asked, sizes stay
        unknown.
        """
        try:
            self.listing = with_sizes(self.listing, [one.name for one in chosen], progress=False)
        except TlAnisoError as error:
            if not self._sized:
                self._notes.append(f"sizes of downloads are not known: {error}")
            self._sized = True
            return chosen
        known = {one.name: self._checkpoint(one) for one in self.listing}
        if any(one.name not in known for one in chosen):
            return None
        return [known[one.name] for one in chosen]

    def tokenizer(self) -> Any:
        """That of a checkpoint on this machine, else of the first, by commit.

        Raises:
            ModelError: it has none, or it cannot be read.
        """
        return self._from_first("the tokenizer", "AutoTokenizer")

    def config(self) -> Any:
        """That of a checkpoint on this machine, else of the first; by recorded sizes where none is at hand.

        None of a model without such.
        """
        listing = self.listing
        if listing.source != "naming rules" and (listing.source == "hub" or self._place() is not None):
            try:
                return self._from_first("the config", "AutoConfig")
            except ModelError:
                pass
        found = config_by_shape(listing.entry)
        self.by_recorded_sizes = found is not None
        if found is not None:
            self._notes.append("memory and time are estimated from recorded sizes of the model")
        return found

    def _listed(self, model: str, recorded: str | Path | None) -> Listing:
        entry = find(model)
        try:
            return discover(entry, recorded=recorded)
        except ModelError as error:
            if recorded is not None or not entry.known:
                raise
            # The same words for every model, so that a plan of ten says it once; `error` names one model's repository.
            empty = "and the cache holds no checkpoint of" in str(error)
            why = "the hub cannot be asked, and the cache holds none of these" if empty else str(error)
            self._notes.append(f"{why}: nothing can be loaded until they are listed")
            return from_naming_rules(entry)

    def _first_stage(self) -> list[ListedCheckpoint]:
        stages = [one.stage for one in self.listing if one.stage is not None]
        if not stages:
            return list(self.listing)
        kept = [one for one in self.listing if one.stage == min(stages) or one.step is None]
        left = len(self.listing) - len(kept)
        note = later_stages(left)
        if left and note not in self._notes:
            self._notes.append(note)
        return kept

    def _checkpoint(self, one: ListedCheckpoint) -> Checkpoint:
        seen = one.tokens_seen
        if seen is None and one.step is not None and self._tokens_per_step is not None:
            seen = one.step * self._tokens_per_step
        if one.local:
            key = directory_key(Path(one.repo))
        else:
            # A name without a commit can be planned, and not loaded.
            key = one.commit or f"{one.repo} {one.name}"
        there = one.local or one.cached
        return Checkpoint(
            one.name, one.step, seen, key, _Loading(one, self._downloads), None, 0 if there else one.n_bytes
        )

    def _nearby(self) -> ListedCheckpoint:
        stage = self._first_stage()
        return next((one for one in stage if one.local or one.cached), stage[0])

    def _place(self) -> Path | None:
        """The directory of a checkpoint on this machine, if there is one."""
        first = self._nearby()
        if first.local:
            return Path(first.repo)
        if first.commit is None or not is_cached(first.repo, first.commit, first.files):
            return None
        return snapshot(first.repo, first.commit)

    def _from_first(self, what: str, auto: str) -> Any:
        import transformers

        first, place = self._nearby(), self._place()
        where = {"revision": first.pinned()} if place is None else {}
        try:
            return getattr(transformers, auto).from_pretrained(str(place or first.repo), **where)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"cannot load {what} of {first.repo} {first.name}: {' '.join(str(error).split())[:300]}"
            ) from error
