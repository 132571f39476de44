"""Captures on disk: one directory of safetensors and JSON, written under a temporary name and renamed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from tl_aniso.capturing.kept_rows import RowsKey
from tl_aniso.capturing.provenance import FORMAT_VERSION
from tl_aniso.capturing.store import Capture
from tl_aniso.capturing.stored_moments import StoredMoments, restored_moments
from tl_aniso.capturing.sums import EnergyKey, SumKey, Sums
from tl_aniso.errors import TlAnisoError
from tl_aniso.reservoir import Reservoir
from tl_aniso.staging import staging

__all__ = ["load_capture", "save_capture"]

_TENSORS = "sums.safetensors"
_METADATA = "capture.json"
_OF_MOMENTS = ("scatter|", "mean|")
# Options that earlier formats did not know, with the value that they had.
_NEW_OPTIONS: dict[str, Any] = {
    "batch_size": None,
    "heads": False,
    "keep_rows": 0,
    "masking": None,
    "objective_id": None,
    "proxy_sites": {},
}


def save_capture(capture: Capture, directory: Path) -> Path:
    """See `Capture.save`."""
    try:
        taken = directory.exists()
    except OSError as error:
        raise TlAnisoError(f"the capture could not be written to {directory}: {error}") from error
    if taken:
        raise TlAnisoError(f"{directory} exists; captures are not overwritten: choose another directory or remove it")
    tensors: dict[str, torch.Tensor] = {}
    moments: dict[str, dict[str, Any]] = {}
    for key, value in capture._sums.moments.items():
        moments[key.text()] = {"count": value.count, "centred": value.is_centred, "eps": value.eps}
        tensors[f"scatter|{key.text()}"] = value.scatter.cpu()
        if value.is_centred and value.count:
            tensors[f"mean|{key.text()}"] = value.mean.cpu()
    for energy, table in capture._sums.energies.items():
        tensors[f"energy|{energy.text()}"] = table.contiguous()
    rows: dict[str, dict[str, int]] = {}
    for place, kept in capture._sums.rows.items():
        rows[place.text()] = {"n_seen": kept.n_seen, "capacity": kept.capacity, "seed": kept.seed}
        tensors[f"rows|{place.text()}"] = kept.rows
        tensors[f"keys|{place.text()}"] = torch.from_numpy(kept.keys.view(np.int64))
    document = {
        "metadata": capture._metadata,
        "aliases": capture._aliases,
        "halves": list(capture._halves),
        "tallies": capture._sums.tallies,
        "moments": moments,
        "rows": rows,
    }
    try:
        with staging(directory) as temporary:
            save_file(tensors, temporary / _TENSORS)
            document["sha256"] = _checksum(document, temporary / _TENSORS)
            (temporary / _METADATA).write_text(json.dumps(document, indent=1), encoding="utf-8")
            temporary.rename(directory)
    except (OSError, SafetensorError) as error:
        raise TlAnisoError(f"the capture could not be written to {directory}: {error}") from error
    return directory


def load_capture(directory: Path, *, lazy: bool = False) -> Capture:
    """See `Capture.load`."""
    try:
        document = json.loads((directory / _METADATA).read_text(encoding="utf-8"))
        found = document["metadata"]["format_version"]
        if found not in range(1, FORMAT_VERSION + 1):
            raise TlAnisoError(
                f"{directory} has format {found}; this version of tl_aniso reads formats 1 to {FORMAT_VERSION}"
            )
        if document.pop("sha256") != _checksum(document, directory / _TENSORS):
            raise TlAnisoError(f"the capture in {directory} is damaged: its files are not as they were written")
        if found < FORMAT_VERSION:
            _update(document)
        stored = StoredMoments(directory / _TENSORS, document["moments"]) if lazy else None
        return _restored(document, _tensors(directory / _TENSORS, lazy=lazy), stored)
    except FileNotFoundError as error:
        raise TlAnisoError(f"{directory} holds no capture ({error.filename} is missing)") from error
    except OSError as error:
        raise TlAnisoError(f"the capture in {directory} cannot be read: {error}") from error
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise TlAnisoError(f"the capture in {directory} is damaged: {error}") from error


def _update(document: dict[str, Any]) -> None:
    """Say what earlier formats left unsaid: where there was one choice only, that; how many positions were special is
    not known."""
    metadata = document["metadata"]
    metadata["format_version"] = FORMAT_VERSION
    for option, value in _NEW_OPTIONS.items():
        metadata["options"].setdefault(option, value)
    metadata["text"].setdefault("n_units", dict(metadata["text"]["n_sequences"]))
    metadata["text"].setdefault("positions", None)
    document.setdefault("rows", {})


def _tensors(path: Path, *, lazy: bool) -> dict[str, torch.Tensor]:
    """What the file holds; without the moments where these are read later."""
    if not lazy:
        return load_file(path)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if not name.startswith(_OF_MOMENTS)}  # noqa: SIM118


def _restored(document: dict[str, Any], tensors: dict[str, torch.Tensor], stored: StoredMoments | None) -> Capture:
    sums = Sums()
    if stored is not None:
        sums.moments = stored
    else:
        for text, kept in document["moments"].items():
            found = restored_moments(kept, tensors[f"scatter|{text}"], tensors.get(f"mean|{text}"))
            sums.moments[SumKey.parse(text)] = found
    for name, table in tensors.items():
        if name.startswith("energy|"):
            sums.energies[EnergyKey.parse(name.removeprefix("energy|"))] = table
    for text, kept in document["rows"].items():
        rows, keys = tensors[f"rows|{text}"], tensors[f"keys|{text}"]
        sums.rows[RowsKey.parse(text)] = Reservoir.from_state(
            rows, keys, kept["n_seen"], kept["capacity"], seed=kept["seed"]
        )
    sums.tallies = document["tallies"]
    return Capture(sums, document["metadata"], document["aliases"], tuple(document["halves"]))


def _checksum(document: dict[str, Any], tensors: Path) -> str:
    """Of both files: safetensors alone would not notice a changed byte, nor sums that belong to another run."""
    with tensors.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(document, sort_keys=True).encode())
    return digest.hexdigest()
