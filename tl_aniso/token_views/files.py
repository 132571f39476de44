"""Token shares on disk: safetensors for numbers, JSON for the rest, complete or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tl_aniso.errors import TlAnisoError
from tl_aniso.staging import staging

if TYPE_CHECKING:
    from tl_aniso.token_views.shares import TokenShares

__all__ = ["load_shares", "save_shares"]

_FORMAT, _VERSION = "tl-aniso token shares", 1
_NUMBERS, _INDEX = "shares.safetensors", "shares.json"
_BY_TOKEN = ("ids", "fed", "sequence", "position", "special", "carries")


def save_shares(shares: TokenShares, target: Path) -> Path:
    """Write shares to a new directory, and return it.

    Raises:
        TlAnisoError: the directory is there already, or cannot be written.
    """
    arrays = {name: np.ascontiguousarray(getattr(shares, name)) for name in _BY_TOKEN}
    series: list[dict[str, Any]] = []
    for number, one in enumerate(shares.series):
        arrays[f"{number}|sink"] = np.ascontiguousarray(one.sink)
        for labels in one.share:
            arrays[f"{number}|share|{labels}"] = np.ascontiguousarray(one.share[labels], dtype=np.float32)
            arrays[f"{number}|energy|{labels}"] = np.ascontiguousarray(one.energy[labels], dtype=np.float32)
        series.append(
            {
                "quantity": one.quantity,
                "place": one.place,
                "sites": list(one.sites),
                "layers": list(one.layers),
                "rank": list(one.rank),
                "d": one.d,
                "labels": list(one.share),
            }
        )
    index = {
        "format": _FORMAT,
        "version": _VERSION,
        "tokens": list(shares.tokens),
        "document": list(shares.document),
        "objective": shares.objective,
        "notes": list(shares.notes),
        "series": series,
    }
    if target.exists():
        raise TlAnisoError(f"{target} is there already; choose a new directory")
    try:
        with staging(target) as directory:
            save_file(arrays, directory / _NUMBERS)
            # In ASCII: a token's text may hold lone surrogates, which have no bytes in UTF-8.
            (directory / _INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="ascii")
            directory.rename(target)
    except OSError as error:
        raise TlAnisoError(f"token shares could not be written to {target}: {error}") from error
    return target


def load_shares(source: Path) -> TokenShares:
    """Read what `save_shares` wrote.

    Raises:
        TlAnisoError: no such directory, another format or version, or files that were cut or altered.
    """
    from tl_aniso.token_views.shares import ShareSeries, TokenShares

    try:
        index = json.loads((source / _INDEX).read_text(encoding="ascii"))
        if not isinstance(index, dict) or index.get("format") != _FORMAT or index.get("version") != _VERSION:
            raise TlAnisoError(f"{source / _INDEX} is not of {_FORMAT}, version {_VERSION}")
        arrays = load_file(source / _NUMBERS)
        series = tuple(
            ShareSeries(
                quantity=held["quantity"],
                place=held["place"],
                sites=tuple(held["sites"]),
                layers=tuple(held["layers"]),
                rank=tuple(held["rank"]),
                d=held["d"],
                share={labels: arrays[f"{number}|share|{labels}"] for labels in held["labels"]},
                energy={labels: arrays[f"{number}|energy|{labels}"] for labels in held["labels"]},
                sink=arrays[f"{number}|sink"],
            )
            for number, held in enumerate(index["series"])
        )
        return TokenShares(
            tokens=tuple(index["tokens"]),
            document=tuple(index["document"]),
            series=series,
            objective=index["objective"],
            notes=tuple(index["notes"]),
            **{name: arrays[name] for name in _BY_TOKEN},
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TlAnisoError(f"cannot read token shares from {source}: {error!r}") from error
