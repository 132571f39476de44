"""Checkpoints as a hub publishes them: listed once, pinned to commits, downloaded when a capture needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tl_aniso.errors import ConfigError, ModelError
from tl_aniso.models import Downloads, ListedCheckpoint, Listing, LoadedModel, discover
from tl_aniso.models.cache import snapshot
from tl_aniso.study.checkpoints import Checkpoint

__all__ = ["PublishedCheckpoints"]


class PublishedCheckpoints:
    """The revisions of a model of the registry, or of any hub id.

    Args:
        model: a registry name or a hub id; or a listing.
        downloads: keeps the last ones on disk; all of them by default.
        tokens_per_step: tokens that a step sees, where neither the registry nor the names say.

    Raises:
        ConfigError: no such model, or nothing of it can be listed.
    """

    def __init__(
        self, model: str | Listing, *, downloads: Downloads | None = None, tokens_per_step: int | None = None
    ) -> None:
        try:
            self.listing = model if isinstance(model, Listing) else discover(model)
        except ModelError as error:
            raise ConfigError(f"models: {error}") from error
        self._downloads = Downloads() if downloads is None else downloads
        self._tokens_per_step = tokens_per_step

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Every published checkpoint; its key is its commit."""
        return [self._checkpoint(one) for one in self.listing]

    def tokenizer(self) -> Any:
        """That of a checkpoint on this machine, else of the first.

        Raises:
            ModelError: it cannot be loaded.
        """
        from transformers import AutoTokenizer

        one = self._nearby()
        place, options = _place(one)
        try:
            return AutoTokenizer.from_pretrained(place, **options)
        except (OSError, ValueError, KeyError) as error:
            words = " ".join(str(error).split())[:300]
            raise ModelError(f"cannot load the tokenizer of {one.repo} {one.name}: {words}") from error

    def config(self) -> Any:
        """That of a checkpoint on this machine, else of the first; None where it cannot be had."""
        from transformers import AutoConfig

        try:
            place, options = _place(self._nearby())
            return AutoConfig.from_pretrained(place, **options)
        except (ModelError, OSError, ValueError, KeyError):
            return None

    def _nearby(self) -> ListedCheckpoint:
        return next((one for one in self.listing if one.cached), self.listing.checkpoints[0])

    def _checkpoint(self, one: ListedCheckpoint) -> Checkpoint:
        seen = one.tokens_seen
        if seen is None and self._tokens_per_step is not None and one.step is not None:
            seen = one.step * self._tokens_per_step
        download = 0 if one.cached or one.local else one.n_bytes
        # A name without a commit can be planned, and not loaded.
        key = one.commit or f"{one.repo} {one.name}"
        return Checkpoint(one.name, one.step, seen, key, _Loading(one, self._downloads), download=download)


@dataclass(frozen=True, eq=False)
class _Loading:
    """Loads a commit; a class, so that it can be sent to another process."""

    checkpoint: ListedCheckpoint
    downloads: Downloads

    def __call__(self) -> LoadedModel:
        return self.downloads.load(self.checkpoint)


def _place(one: ListedCheckpoint) -> tuple[str, dict[str, Any]]:
    """What transformers loads: a directory, or a hub id with its commit."""
    if one.local:
        return one.repo, {}
    commit = one.pinned()
    return (str(snapshot(one.repo, commit)), {}) if one.cached else (one.repo, {"revision": commit})
