"""Type captures on disk: a directory of safetensors and JSON, written under a temporary name and renamed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tl_aniso.errors import TlAnisoError
from tl_aniso.frequency.store import FORMAT_VERSION, SiteRows, TypeCapture
from tl_aniso.frequency.type_moments import TypeMoments
from tl_aniso.moments import Moments
from tl_aniso.staging import staging

__all__ = ["load_type_capture", "save_type_capture"]

_TENSORS = "types.safetensors"
_METADATA = "types.json"


def save_type_capture(capture: TypeCapture, directory: Path) -> Path:
    """See `TypeCapture.save`."""
    if directory.exists():
        raise TlAnisoError(f"{directory} exists; captures are not overwritten: choose another directory or remove it")
    tensors: dict[str, torch.Tensor] = {"counts": capture.counts}
    pooled: dict[str, dict[str, Any]] = {}
    for site, table in capture.tables.items():
        tensors[f"table|{site}"] = table.contiguous()
    for site, rows in capture.rows.items():
        for part, moments in (("all", rows.all), ("matched", rows.matched)):
            tensors.update({f"{part}|{site}|{name}": value for name, value in moments.state().items()})
        tensors[f"origin|{site}"] = rows.origin
        pooled[site] = {"count": rows.pooled.count, "eps": rows.pooled.eps}
        tensors[f"scatter|{site}"] = rows.pooled.scatter
        if rows.pooled.count:
            tensors[f"mean|{site}"] = rows.pooled.mean
    tokens = None if capture.tokens is None else list(capture.tokens)
    document: dict[str, Any] = {
        "metadata": capture.metadata,
        "pooled": pooled,
        "tables": list(capture.tables),
        "tokens": tokens,
    }
    try:
        with staging(directory) as temporary:
            save_file(tensors, temporary / _TENSORS)
            document["sha256"] = _checksum(document, temporary / _TENSORS)
            (temporary / _METADATA).write_text(json.dumps(document, indent=1), encoding="utf-8")
            temporary.rename(directory)
    except (OSError, SafetensorError) as error:
        raise TlAnisoError(f"the type capture could not be written to {directory}: {error}") from error
    return directory


def load_type_capture(directory: Path) -> TypeCapture:
    """See `TypeCapture.load`."""
    try:
        document = json.loads((directory / _METADATA).read_text(encoding="utf-8"))
        found = document["metadata"]["format_version"]
        if found != FORMAT_VERSION:
            raise TlAnisoError(
                f"{directory} has format {found}; this version of tl_aniso reads format {FORMAT_VERSION}"
            )
        if document.pop("sha256") != _checksum(document, directory / _TENSORS):
            raise TlAnisoError(f"the type capture in {directory} is damaged: its files are not as they were written")
        tensors = load_file(directory / _TENSORS)
        tables = {site: tensors[f"table|{site}"] for site in document["tables"]}
        rows = {site: _rows(site, kept, tensors) for site, kept in document["pooled"].items()}
        return TypeCapture(tensors["counts"], tables, rows, document["metadata"], document["tokens"])
    except FileNotFoundError as error:
        raise TlAnisoError(f"{directory} holds no type capture ({error.filename} is missing)") from error
    except OSError as error:
        raise TlAnisoError(f"the type capture in {directory} cannot be read: {error}") from error
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise TlAnisoError(f"the type capture in {directory} is damaged: {error}") from error


def _rows(site: str, kept: dict[str, Any], tensors: dict[str, torch.Tensor]) -> SiteRows:
    def moments(part: str) -> TypeMoments:
        prefix = f"{part}|{site}|"
        return TypeMoments.from_state({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})

    scatter = tensors[f"scatter|{site}"]
    mean = tensors.get(f"mean|{site}", torch.zeros(len(scatter)))
    pooled = Moments.from_sums(kept["count"], mean, scatter, eps=kept["eps"])
    return SiteRows(moments("all"), moments("matched"), tensors[f"origin|{site}"], pooled)


def _checksum(document: dict[str, Any], tensors: Path) -> str:
    """Of both files: safetensors alone would not notice a changed byte, nor sums that belong to another run."""
    with tensors.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(document, sort_keys=True).encode())
    return digest.hexdigest()
