"""Checkpoints on this machine's disk: the files that are needed, of the last few checkpoints, and no more.

What is deleted again is what was downloaded here, by the hub's own cache tools. Whatever the cache held before stays.
"""

import glob
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tl_aniso.checks import as_integer, as_path
from tl_aniso.errors import ModelError, TlAnisoError, TlAnisoWarning
from tl_aniso.models.cache import is_cached, repository, snapshot
from tl_aniso.models.hub import files_of, patiently
from tl_aniso.models.listed import ListedCheckpoint
from tl_aniso.models.load import LoadedModel
from tl_aniso.models.weights import needed_files
from tl_aniso.staging import staging

__all__ = ["Downloads"]

_FORMAT = 1


class Downloads:
    """Downloads checkpoints by commit, and keeps the last ones.

    Args:
        keep: how many of the checkpoints downloaded here stay on the disk; all by default.
        ledger: a JSON file that says what was downloaded, so that a later run of the same study goes on with it.

    Raises:
        TlAnisoError: `keep` below 1.
        ModelError: `ledger` is damaged.

    Example:
        >>> from tl_aniso.models import discover
        >>> downloads = Downloads(keep=2)
        >>> for checkpoint in discover("EleutherAI/pythia-160m"):  # doctest: +SKIP
        ...     loaded = downloads.load(checkpoint)
    """

    def __init__(self, *, keep: int | None = None, ledger: str | Path | None = None) -> None:
        self._keep = None if keep is None else as_integer("keep", keep, least=1)
        self._ledger = None if ledger is None else as_path("ledger", ledger)
        # By repository, what the cache held before its first download here.
        self._before: dict[str, dict[str, Any]] = {}
        # (repository, commit) of each snapshot downloaded here, the latest last, with the files it held before.
        self._fetched: dict[tuple[str, str], list[str]] = {}
        if self._ledger is not None and self._ledger.exists():
            self._read(self._ledger)

    def fetch(self, checkpoint: ListedCheckpoint) -> Path:
        """The directory of a checkpoint, downloaded if it is not there; older downloads beyond `keep` are deleted.

        A checkpoint that is complete in the cache costs no request.

        Raises:
            Unreachable: it must be downloaded and there is no connection.
            ModelError: no commit is known, the commit holds no complete weights, or the hub refuses.
            TlAnisoError: the disk is full, or the ledger cannot be written.
        """
        if checkpoint.local:
            return Path(checkpoint.repo)
        repo, commit = checkpoint.repo, checkpoint.pinned()
        if not is_cached(repo, commit, checkpoint.files):
            self._download(checkpoint, commit)
        elif (repo, commit) in self._fetched:
            self._fetched[repo, commit] = self._fetched.pop((repo, commit))  # the latest again
        self._prune()
        return snapshot(repo, commit)

    def load(self, checkpoint: ListedCheckpoint) -> LoadedModel:
        """The model and its tokenizer, downloaded if need be.

        Raises:
            ModelError: as `fetch`, or it does not load.
        """
        self.fetch(checkpoint)
        return checkpoint.load()

    def _download(self, checkpoint: ListedCheckpoint, commit: str) -> None:
        from huggingface_hub import snapshot_download

        repo, what = checkpoint.repo, f"{checkpoint.repo} {checkpoint.name} ({commit[:8]})"
        files = checkpoint.files
        if files is None:
            names, wrong = needed_files(files_of(repo, commit))
            if wrong is not None:
                raise ModelError(f"{what} cannot be measured: {wrong}")
        else:
            names = tuple(files)
        if repo not in self._before:
            self._before[repo] = _held(repo)
        place = snapshot(repo, commit)
        had = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
        # Before the download: a run that is killed in its middle knows its own remains.
        self._fetched[repo, commit] = self._fetched.pop((repo, commit), had)
        self._write()
        patterns = [glob.escape(name) for name in names]
        try:
            patiently(lambda: snapshot_download(repo, revision=commit, allow_patterns=patterns), what)
        except OSError as error:  # a full disk, for one
            raise TlAnisoError(f"cannot download {what}: {error}") from error
        if not is_cached(repo, commit, names):
            raise ModelError(f"{what} was not downloaded completely; try again")

    def _prune(self) -> None:
        if self._keep is None:
            return
        surplus = list(self._fetched)[: -self._keep]
        for repo, commit in surplus:
            _delete(repo, commit, before=self._before[repo], had=self._fetched[repo, commit])
            del self._fetched[repo, commit]
        if surplus:
            self._write()

    def _write(self) -> None:
        if self._ledger is None:
            return
        fetched = [{"repo": repo, "commit": commit, "had": had} for (repo, commit), had in self._fetched.items()]
        content = {"format": _FORMAT, "before": self._before, "fetched": fetched}
        try:
            with staging(self._ledger) as directory:
                (directory / "ledger").write_text(json.dumps(content, indent=1), encoding="utf-8")
                os.replace(directory / "ledger", self._ledger)
        except OSError as error:
            raise TlAnisoError(f"cannot write the ledger {self._ledger}: {error.strerror}") from error

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            self._before = {repo: dict(held) for repo, held in content["before"].items()}
            self._fetched = {(one["repo"], one["commit"]): list(one["had"]) for one in content["fetched"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path} does not say what was downloaded ({type(error).__name__} {error}); remove it, and what was "
                "downloaded stays on the disk"
            ) from error


def _held(repo: str) -> dict[str, Any]:
    place = repository(repo)
    blobs = place / "blobs"
    return {"existed": place.exists(), "blobs": sorted(path.name for path in blobs.iterdir()) if blobs.is_dir() else []}


def _delete(repo: str, commit: str, *, before: Mapping[str, Any], had: list[str]) -> None:
    """Delete one snapshot and the blobs that nothing else refers to, as far as they came with it."""
    from huggingface_hub import scan_cache_dir

    info = scan_cache_dir(repository(repo).parent)
    found = [one for one in info.repos if one.repo_type == "model" and one.repo_id == repo]
    revision = next((one for cached in found for one in cached.revisions if one.commit_hash == commit), None)
    if revision is None:
        if snapshot(repo, commit).exists():
            fault = next((str(one) for one in info.warnings if repository(repo).name in str(one)), "it is not listed")
            warnings.warn(
                f"{repo} {commit[:8]} stays on the disk: the hub's cache tools find its cache at fault: {fault[:200]}",
                TlAnisoWarning,
                stacklevel=4,
            )
        return
    if revision.refs:  # someone gave it a name meanwhile, and may use it
        return
    # The same commit can lie in a copy of the repository, which is none of ours.
    own = replace(info, repos=frozenset(found))
    if had and not hasattr(own, "delete_files"):  # of newer versions: what was added to it stays too
        return
    if had:
        strategy = own.delete_files(*(file for file in revision.files if file.file_name not in had))
    else:
        strategy = own.delete_revisions(commit)
    if strategy.repos and before["existed"]:  # it is the last snapshot, but what else lies there was there before
        blobs = frozenset(file.blob_path for file in revision.files if file.blob_path != file.file_path)
        snapshots = frozenset({revision.snapshot_path})
        strategy = replace(strategy, repos=frozenset(), snapshots=snapshots, blobs=blobs)
    kept = {repository(repo) / "blobs" / name for name in before["blobs"]}
    replace(strategy, blobs=frozenset(blob for blob in strategy.blobs if blob not in kept)).execute()
