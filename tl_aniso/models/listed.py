"""What a listing of checkpoints is made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tl_aniso.errors import ModelError
from tl_aniso.models.cache import is_cached, snapshot
from tl_aniso.models.load import LoadedModel, load_model
from tl_aniso.models.registry import Entry
from tl_aniso.models.revisions import Nearest, Revision, nearest, parse_revision

__all__ = ["ListedCheckpoint", "Listing", "Missing", "Source", "checkpoint_of", "in_order"]

Source = Literal["hub", "cache", "directory", "naming rules"]


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint as it is published, pinned to a commit.

    Attributes:
        repo: hub id, or the directory of a checkpoint on this machine.
        name: of the branch, tag or subdirectory.
        commit: 40 hexadecimal digits, which is what gets loaded, so that a branch moved later is not followed; None on
            this machine, and where names alone are known.
        tokens_seen: by the size of a step, else as rounded in the name; None where unknown.
        files: what would be downloaded, with sizes in bytes; None where nobody asked.
        cached: whether all of it is on this machine.
        local: whether `repo` is a directory.
    """

    repo: str
    name: str
    commit: str | None = None
    tokens_seen: int | None = None
    files: Mapping[str, int] | None = field(default=None, compare=False)
    cached: bool = field(default=False, compare=False)
    local: bool = False

    @property
    def revision(self) -> Revision | None:
        """What the name says."""
        return parse_revision(self.name)

    @property
    def step(self) -> int | None:
        """Optimiser steps from the start of the stage; None where the name does not say, as `main`."""
        return self.revision.step if self.revision else None

    @property
    def stage(self) -> int | None:
        """Of staged training."""
        return self.revision.stage if self.revision else None

    @property
    def ingredient(self) -> int | None:
        """One of several runs of a stage."""
        return self.revision.ingredient if self.revision else None

    @property
    def n_bytes(self) -> int | None:
        """Bytes of `files`; None where they are unknown."""
        return None if self.files is None else sum(self.files.values())

    def load(self) -> LoadedModel:
        """The model of this very commit, and its tokenizer; without a request where all of it is in the cache.

        Raises:
            ModelError: its commit is unknown, or it does not load.
        """
        if self.local:
            return load_model(self.repo)
        commit = self.pinned()
        if not is_cached(self.repo, commit, self.files):
            return load_model(self.repo, revision=commit)
        # By its directory: by name, transformers asks the hub for a handful of optional files at every load.
        loaded = load_model(str(snapshot(self.repo, commit)))
        loaded.model.config._name_or_path = self.repo
        loaded.model.config._commit_hash = commit
        loaded.tokenizer.name_or_path = self.repo
        return replace(loaded, name=self.repo, revision=commit)

    def pinned(self) -> str:
        """The commit.

        Raises:
            ModelError: names alone are known.
        """
        if self.commit is None:
            raise ModelError(
                f"the commit of {self.repo} {self.name} is not known: its name comes from naming rules, not from the "
                "hub. List it again with a connection (tl-aniso models NAME --refresh)"
            )
        return self.commit


@dataclass(frozen=True)
class Missing:
    """A branch that cannot be measured, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """The checkpoints of one model, in the order of training, and where that is known from.

    Attributes:
        entry: the model.
        source: the hub, the cache, a directory, or naming rules alone.
        note: where it comes from, in words.
        listed: when, as an ISO date and time in UTC.
        checkpoints: by stage, ingredient and step, the finished model last.
        missing: branches without weights, and the like.
        unread: names that are no checkpoint's.
        recorded: whether it was read from a file.
    """

    entry: Entry
    source: Source
    note: str
    listed: str
    checkpoints: tuple[ListedCheckpoint, ...]
    missing: tuple[Missing, ...] = ()
    unread: tuple[str, ...] = ()
    recorded: bool = False

    def __iter__(self) -> Iterator[ListedCheckpoint]:
        return iter(self.checkpoints)

    def __len__(self) -> int:
        return len(self.checkpoints)

    def __getitem__(self, name: str) -> ListedCheckpoint:
        """The checkpoint of a name, as it was published.

        Raises:
            ModelError: there is none.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.name == name:
                return checkpoint
        for missing in self.missing:
            if missing.name == name:
                raise ModelError(f"{self.entry.name} {name} cannot be measured: {missing.reason}")
        shown = [one.name for one in self.checkpoints]
        shown = shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]]
        raise ModelError(f"{self.entry.name} has no checkpoint {name!r}; it has {', '.join(shown) or 'none'}")

    @property
    def final(self) -> ListedCheckpoint | None:
        """The finished model, `main`, where it is there."""
        last = self.checkpoints[-1] if self.checkpoints else None
        return last if last and last.revision and last.step is None else None

    def nearest(self, step: int, **stage: Any) -> Nearest:
        """As `tl_aniso.models.revisions.nearest`, of these checkpoints.

        Raises:
            TlAnisoError: none has a step in its name.
        """
        return nearest(self.checkpoints, step, **stage)


def in_order(checkpoints: list[ListedCheckpoint]) -> tuple[ListedCheckpoint, ...]:
    """By what the names say; a name that says nothing comes last."""

    def order(one: ListedCheckpoint) -> tuple[bool, Revision]:
        return one.revision is None, one.revision or Revision(one.name)

    return tuple(sorted(checkpoints, key=order))


def checkpoint_of(entry: Entry, repo: str, name: str, **facts: Any) -> ListedCheckpoint:
    """A checkpoint with the tokens that entry and name tell."""
    revision = parse_revision(name)
    tokens = entry.tokens_seen(revision.step, revision.tokens) if revision else None
    return ListedCheckpoint(repo, name, tokens_seen=tokens, **facts)
