"""A hub on disk: revisions of models in the layout of the Hugging Face cache, and a way to use it without a network.

For trials that go through the real loading code: ``experiments/*.py --smoke``, and the tests.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["add_revision", "hub_cache", "move_branch", "write_hub_cache"]


def write_hub_cache(
    cache: Path, repo: str, revisions: Mapping[str, Any], tokenizer: Any, *, refs: bool = True, **save: Any
) -> dict[str, str]:
    """Put revisions of a repository into a cache, as a download would leave them.

    Args:
        cache: directory of the cache, `HF_HUB_CACHE`.
        repo: hub id.
        revisions: branch -> a model, saved through `save_pretrained`; a directory, copied; or None: no weights.
        tokenizer: saved with each model.
        refs: whether the cache knows the branches; without, snapshots have their commits alone.
        save: for `save_pretrained`, such as `max_shard_size="50KB"`.

    Returns:
        branch -> commit.
    """
    return {
        name: add_revision(cache, repo, name, model, tokenizer, ref=refs, **save) for name, model in revisions.items()
    }


def add_revision(
    cache: Path, repo: str, name: str, model: Any, tokenizer: Any, *, ref: bool = True, **save: Any
) -> str:
    """Add one revision; its commit is a hash of repository, name and content, so equal content is no equal commit."""
    place = cache / f"models--{repo.replace('/', '--')}"
    staged = place / "staged"
    staged.mkdir(parents=True)
    if model is None:
        (staged / "README.md").write_text("weights follow", encoding="utf-8")
    elif isinstance(model, Path):
        shutil.copytree(model, staged, dirs_exist_ok=True)
    else:
        model.save_pretrained(staged, **save)
        tokenizer.save_pretrained(staged)
    files = sorted(path for path in staged.iterdir() if path.is_file())
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    commit = hashlib.sha1(repr((repo, name, sorted(digests.items()))).encode()).hexdigest()
    snapshot, blobs = place / "snapshots" / commit, place / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir(exist_ok=True)
    for path in files:  # equal files are one blob, as on the hub
        shutil.copy2(path, blobs / digests[path.name])
        (snapshot / path.name).symlink_to(Path("../../blobs") / digests[path.name])
    shutil.rmtree(staged)
    if ref:
        move_branch(cache, repo, name, commit)
    return commit


def move_branch(cache: Path, repo: str, name: str, commit: str) -> None:
    """Let a branch point to another commit."""
    path = cache / f"models--{repo.replace('/', '--')}" / "refs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit, encoding="utf-8")


@contextmanager
def hub_cache(cache: Path, *, endpoint: str | None = None) -> Iterator[Path]:
    """Use a cache in this process: offline, or with the hub at `endpoint`. Assets lie beside it."""
    from huggingface_hub import constants

    settings: dict[str, Any] = {
        "HF_HUB_CACHE": str(cache),
        "HF_ASSETS_CACHE": str(cache.with_name(cache.name + "-assets")),
        "HF_HUB_OFFLINE": endpoint is None,
    }
    if hasattr(constants, "AGENT_HARNESSES_PATH"):
        settings["AGENT_HARNESSES_PATH"] = str(cache.with_name(cache.name + "-agents"))
    if endpoint is not None:
        settings["ENDPOINT"] = endpoint
        settings["HUGGINGFACE_CO_URL_TEMPLATE"] = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    before = {name: getattr(constants, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(constants, name, value)
        yield cache
    finally:
        for name, value in before.items():
            setattr(constants, name, value)
