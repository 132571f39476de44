"""Fingerprints of what was measured: checkpoints with equal weights, or with tensors of another."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tl_aniso.models import Fingerprint, compare
from tl_aniso.models.tensor_hashes import hash_of_tensor

__all__ = ["compared", "read_print", "write_print"]

_FILE = "fingerprint.json"


def write_print(place: Path, model: Any, name: str) -> None:
    """Hash every tensor of a loaded model, in float32 as it is measured, beside its capture."""
    tensors = {key: hash_of_tensor(value) for key, value in model.state_dict().items()}
    (place / _FILE).write_text(json.dumps(Fingerprint(name, tensors).to_plain()), encoding="utf-8")


def read_print(place: Path, name: str) -> Fingerprint:
    """What `write_print` wrote, under the name of the checkpoint that it is compared as.

    Raises:
        ModelError: it is no fingerprint.
    """
    held = Fingerprint.from_plain(json.loads((place / _FILE).read_text(encoding="utf-8")))
    return Fingerprint(name, held.tensors)


def compared(places: Sequence[Path], names: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Which checkpoints of one model are equal to another, or hold tensors of it.

    Args:
        places: directories of measured captures.
        names: of their checkpoints.

    Returns:
        `duplicate_of`, `mixed_with` and `note` by checkpoint, empty where all is well; and notes for a reader.
    """
    found = compare(read_print(place, name) for place, name in zip(places, names, strict=True))
    frame = found.frame.set_index("checkpoint")
    notes = []
    for name, row in frame.iterrows():
        if row["duplicate_of"]:
            notes.append(
                f"{name} has the weights of {row['duplicate_of']} ({row['note']}); it is in the table, marked, and no "
                "point of figures or claims"
            )
        elif row["mixed_with"]:
            notes.append(f"{name} holds tensors of {row['mixed_with']}: {row['note']}; do not trust its numbers")
    return frame, notes
