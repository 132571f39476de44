"""Listings on file: as JSON, written whole or not at all, read again without a connection."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tl_aniso.checks import as_path
from tl_aniso.errors import ModelError, TlAnisoError
from tl_aniso.models.cache import COMMIT
from tl_aniso.models.listed import Listing, Missing, checkpoint_of, in_order
from tl_aniso.models.registry import REGISTRY, Entry
from tl_aniso.staging import staging

__all__ = ["read_listings", "save_listings", "store_listing", "stored_listing"]

_KIND, _FORMAT = "tl_aniso listings", 1
_SOURCES = ("hub", "cache", "directory", "naming rules")
_FACTS = (
    "name",
    "hub_id",
    "final_id",
    "class_name",
    "objective",
    "published",
    "tokens_per_step",
    "parameters",
    "local",
)


def save_listings(path: str | Path, listings: Iterable[Listing]) -> None:
    """Write listings into one JSON file, which appears whole or stays as it was.

    Args:
        path: of the file; an older one is replaced.
        listings: at most one a model.

    Raises:
        TlAnisoError: the file cannot be written.
    """
    target = as_path("path", path)
    content = {"kind": _KIND, "format": _FORMAT, "listings": [_plain(listing) for listing in listings]}
    try:
        with staging(target) as directory:
            (directory / "listing").write_text(_lines(content), encoding="utf-8")
            os.replace(directory / "listing", target)
    except OSError as error:
        raise TlAnisoError(f"cannot write {target}: {error.strerror}") from error


def read_listings(path: str | Path) -> dict[str, Listing]:
    """Listings of a file, by name of the model.

    Raises:
        ModelError: no such file, or none that `save_listings` wrote; the message says where.

    Example:
        >>> from tl_aniso.models.rules import RECORDED_RULES
        >>> listing = read_listings(RECORDED_RULES)["pythia-160m"]
        >>> len(listing), listing.nearest(5400).gap, listing.source
        (155, -400, 'naming rules')
    """
    path = as_path("path", path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read the listings {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ModelError(f"{path} holds no listings of tl_aniso")
    if content.get("format") != _FORMAT:
        raise ModelError(f"{path} has format {content.get('format')!r}, this version reads {_FORMAT}; list anew")
    try:
        found = [_listing(plain) for plain in content["listings"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path} is damaged: {type(error).__name__} {error}; list anew") from error
    return {listing.entry.name: listing for listing in found}


def store_listing(listing: Listing) -> None:
    """Keep a listing of the hub among the hub's own assets on this machine, for later without a connection."""
    save_listings(_store(listing.entry), [listing])


def stored_listing(entry: Entry) -> Listing | None:
    """What `store_listing` kept of a model, if it did.

    Raises:
        ModelError: the file is damaged.
    """
    path = _store(entry)
    return read_listings(path).get(entry.name) if path.is_file() else None


def _store(entry: Entry) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE) / "tl_aniso" / "listings" / f"{entry.hub_id.replace('/', '--')}.json"


def _plain(listing: Listing) -> dict[str, Any]:
    """As JSON has it; what is unknown is left out."""
    checkpoints = []
    for one in listing:
        facts = {"name": one.name, "commit": one.commit, "files": None if one.files is None else dict(one.files)}
        facts["repo"] = None if one.repo == listing.entry.hub_id else one.repo
        checkpoints.append({key: value for key, value in facts.items() if value is not None})
    return {
        "model": {fact: value for fact in _FACTS if (value := getattr(listing.entry, fact)) is not None},
        "source": listing.source,
        "note": listing.note,
        "listed": listing.listed,
        "checkpoints": checkpoints,
        "missing": [{"name": one.name, "reason": one.reason} for one in listing.missing],
        "unread": list(listing.unread),
    }


def _listing(plain: Mapping[str, Any]) -> Listing:
    if plain["source"] not in _SOURCES:
        raise ValueError(f"source {plain['source']!r}")
    entry = Entry(**plain["model"])
    current = REGISTRY.get(entry.name)
    if current is not None and (current.hub_id, current.final_id) == (entry.hub_id, entry.final_id):
        entry = current  # what is known of it may have grown since
    checkpoints = [
        checkpoint_of(
            entry,
            _text(one.get("repo", entry.hub_id)),
            _text(one["name"]),
            commit=_commit(one.get("commit")),
            files={_text(name): int(size) for name, size in one["files"].items()} if "files" in one else None,
            local=entry.local,
        )
        for one in plain["checkpoints"]
    ]
    return Listing(
        entry,
        plain["source"],
        _text(plain["note"]),
        _text(plain["listed"]),
        in_order(checkpoints),
        tuple(Missing(_text(one["name"]), _text(one["reason"])) for one in plain["missing"]),
        tuple(map(_text, plain["unread"])),
        recorded=True,
    )


def _commit(value: Any) -> str | None:
    """A commit becomes part of a path, so nothing else may stand in its place."""
    if value is not None and not COMMIT.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is no commit")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _lines(content: Mapping[str, Any]) -> str:
    """One line a checkpoint: a file that people can read and compare."""
    listings = []
    for listing in content["listings"]:
        checkpoints = ",\n    ".join(json.dumps(one) for one in listing["checkpoints"])
        head = {key: value for key, value in listing.items() if key != "checkpoints"}
        listings.append(f'  {json.dumps(head)[:-1]}, "checkpoints": [\n    {checkpoints}\n  ]}}')
    frame = {key: value for key, value in content.items() if key != "listings"}
    return f'{json.dumps(frame)[:-1]}, "listings": [\n' + ",\n".join(listings) + "\n]}\n"
