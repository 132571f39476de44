"""The hub's cache on this machine: which branches and commits it holds, complete or not."""

import re
from collections.abc import Collection
from pathlib import Path

from tl_aniso.models.weights import needed_files

__all__ = ["COMMIT", "cached_commits", "cached_refs", "is_cached", "repository", "sizes_in", "snapshot"]

COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)


def repository(repo: str, cache_dir: str | Path | None = None) -> Path:
    """The directory of a model in the cache (`HF_HUB_CACHE`, read when asked)."""
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def snapshot(repo: str, commit: str, cache_dir: str | Path | None = None) -> Path:
    """The directory of one commit, whether or not it is there."""
    return repository(repo, cache_dir) / "snapshots" / commit


def cached_refs(repo: str) -> dict[str, str]:
    """Branches and tags that the cache knows, with their commits; a file that holds no commit is passed over."""
    root = repository(repo) / "refs"
    found = {}
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith("refs/"):  # of pull requests and conversions
            commit = path.read_text(encoding="utf-8", errors="replace").strip()
            if COMMIT.fullmatch(commit):
                found[name] = commit
    return found


def cached_commits(repo: str) -> set[str]:
    """Commits of which the cache holds a snapshot, complete or not."""
    root = repository(repo) / "snapshots"
    return {path.name for path in root.iterdir() if COMMIT.fullmatch(path.name)} if root.is_dir() else set()


def is_cached(repo: str, commit: str, files: Collection[str] | None, cache_dir: str | Path | None = None) -> bool:
    """Whether a snapshot holds these files, or, where nobody knows them, weights that are complete by their names."""
    directory = snapshot(repo, commit, cache_dir)
    if not directory.is_dir():
        return False
    held = sizes_in(directory)
    return set(files) <= set(held) if files is not None else needed_files(held)[1] is None


def sizes_in(directory: Path) -> dict[str, int]:
    """Files of a directory, links followed, with their sizes; broken links are not there."""
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
