"""Which checkpoints of a model there are: asked of the hub, of its cache on this machine, or of a directory."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tl_aniso.checks import as_names
from tl_aniso.errors import ModelError
from tl_aniso.models.cache import cached_commits, cached_refs, is_cached, sizes_in, snapshot
from tl_aniso.models.hub import Unreachable, files_of, refs_of
from tl_aniso.models.listed import ListedCheckpoint, Listing, Missing, checkpoint_of, in_order
from tl_aniso.models.recorded import read_listings, stored_listing
from tl_aniso.models.registry import Entry, find
from tl_aniso.models.revisions import MAIN, parse_revision
from tl_aniso.models.weights import needed_files
from tl_aniso.progress import track

__all__ = ["ListedCheckpoint", "Listing", "Missing", "discover", "with_sizes"]


def discover(model: str | Entry, *, recorded: str | Path | Listing | None = None) -> Listing:
    """The checkpoints of a model, each pinned to a commit.

    The hub is asked once, for the names of all branches and the commits they point to. Where it cannot be reached, or
    `HF_HUB_OFFLINE` is set, the cache on this machine is listed, and the listing's `note` says so.

    Args:
        model: as `find` takes it, or its entry. A directory that holds saved models in `step*/` is listed too.
        recorded: a file of `save_listings`, or an earlier listing, used instead of asking anybody.

    Raises:
        ModelError: no such model; neither a connection nor anything of it in the cache; or `recorded` lacks it.
    """
    entry = find(model) if isinstance(model, str) else model
    if isinstance(recorded, Listing):
        return _seen_here(recorded)
    if recorded is not None:
        found = read_listings(recorded)
        if entry.name not in found:
            raise ModelError(f"{recorded} does not list {entry.name}; it lists {', '.join(found) or 'nothing'}")
        return _seen_here(found[entry.name])
    if entry.local:
        return _of_directory(entry)
    try:
        return _of_hub(entry)
    except Unreachable as error:
        return _of_cache(entry, str(error))


def with_sizes(listing: Listing, names: Collection[str] | None = None, *, progress: bool = True) -> Listing:
    """The listing with the files that would be downloaded; branches without weights are moved to `missing`.

    Asks the hub once a checkpoint, so ask for those that are to be measured.

    Args:
        listing: of the hub.
        names: of checkpoints; all by default. Those with known files are not asked for again.
        progress: whether to show how far it has come.

    Raises:
        Unreachable: no connection.
        ModelError: a name that the listing does not have, or the hub refuses.
    """
    wanted = [listing[name] for name in (as_names("names", names) if names is not None else [c.name for c in listing])]
    # Those of naming rules have no commit to ask for.
    asked = [one for one in wanted if one.files is None and one.commit is not None and not one.local]
    files: dict[ListedCheckpoint, tuple[dict[str, int], str | None]] = {}
    for one in track(asked, f"asking the hub for files of {listing.entry.name}", total=len(asked), enabled=progress):
        files[one] = _needed(files_of(one.repo, one.pinned()))
    kept, missing = [], list(listing.missing)
    for one in listing:
        sizes, wrong = files.get(one, (one.files, None))
        if wrong is None:
            kept.append(replace(one, files=sizes))
        else:
            missing.append(Missing(one.name, wrong))
    return _seen_here(replace(listing, checkpoints=tuple(kept), missing=tuple(missing)))


def _of_hub(entry: Entry) -> Listing:
    commits, unread = _read(refs_of(entry.hub_id))
    found = [checkpoint_of(entry, entry.hub_id, name, commit=commit) for name, commit in commits.items()]
    if entry.final_id != entry.hub_id:
        found = [one for one in found if one.name != MAIN]  # of a repository of checkpoints, `main` is no checkpoint
        final = refs_of(entry.final_id).get(MAIN)
        if final is not None:
            found.append(checkpoint_of(entry, entry.final_id, MAIN, commit=final))
    note = f"branches of {' and '.join(dict.fromkeys((entry.hub_id, entry.final_id)))} on the hub"
    return _seen_here(Listing(entry, "hub", note, _now(), in_order(found), unread=unread))


def _of_cache(entry: Entry, why: str) -> Listing:
    """Snapshots of this machine under the names that refs and an earlier listing give them."""
    found: list[ListedCheckpoint] = []
    missing: list[Missing] = []
    unread: list[str] = []
    for repo in dict.fromkeys((entry.final_id, entry.hub_id)):
        refs = {**_names_from_earlier(entry, repo), **cached_refs(repo)}
        commits, foreign = _read(refs)
        unread += foreign
        for name, commit in commits.items():
            if entry.final_id != entry.hub_id and (repo == entry.final_id) != (name == MAIN):
                continue
            directory = snapshot(repo, commit)
            files, wrong = _needed(sizes_in(directory) if directory.is_dir() else {})
            if wrong is None:
                found.append(checkpoint_of(entry, repo, name, commit=commit, files=files, cached=True))
            else:
                missing.append(Missing(name, f"{wrong} in the cache"))
        nameless = cached_commits(repo) - set(refs.values())
        unread += sorted(nameless)
    if not found:
        raise ModelError(f"{why}; and the cache holds no checkpoint of {entry.name} ({entry.hub_id})")
    return Listing(
        entry, "cache", f"{why}; listed is the cache alone", _now(), in_order(found), tuple(missing), tuple(unread)
    )


def _names_from_earlier(entry: Entry, repo: str) -> dict[str, str]:
    """What is downloaded by commit has no name in the cache; a listing of the hub that was kept has it."""
    earlier, held = stored_listing(entry), cached_commits(repo)
    return {one.name: one.commit for one in earlier or () if one.repo == repo and one.commit in held and one.commit}


def _of_directory(entry: Entry) -> Listing:
    root = Path(entry.hub_id)
    places = {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}
    if (root / "config.json").exists() or _gguf(root):
        places[MAIN] = root  # as training leaves it: checkpoints in a directory that holds the finished model
    known, unread = _read(dict.fromkeys(places, ""))
    found, missing = [], []
    for name in known:
        files, wrong = (_gguf(places[name]), None) if _gguf(places[name]) else _needed(sizes_in(places[name]))
        if wrong is None:
            facts = {"files": files, "cached": True, "local": True}
            found.append(checkpoint_of(entry, str(places[name]), name, **facts))
        else:
            missing.append(Missing(name, wrong))
    if not found:
        raise ModelError(f"{root} holds no saved model, neither itself nor in directories named step0, step1000, ...")
    return Listing(entry, "directory", f"directories in {root}", _now(), in_order(found), tuple(missing), unread)


def _gguf(directory: Path) -> dict[str, int]:
    """The one GGUF file of a directory without a config, as `load_model` takes it."""
    held = sizes_in(directory)
    found = {name: size for name, size in held.items() if name.endswith(".gguf")}
    return found if len(found) == 1 and "config.json" not in held else {}


def _read(refs: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Refs whose names are a checkpoint's, and the names of the others."""
    known = {name: commit for name, commit in refs.items() if parse_revision(name) is not None}
    return known, tuple(sorted(set(refs) - set(known)))


def _needed(held: Mapping[str, int]) -> tuple[dict[str, int], str | None]:
    names, wrong = needed_files(held)
    return {name: held[name] for name in names}, wrong


def _seen_here(listing: Listing) -> Listing:
    """With what of it is on this machine already."""
    checkpoints = tuple(
        one if one.local or one.commit is None else replace(one, cached=is_cached(one.repo, one.commit, one.files))
        for one in listing
    )
    return replace(listing, checkpoints=checkpoints)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
