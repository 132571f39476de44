"""Planes of controls on disk: safetensors for the planes, JSON for the notes."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tl_aniso.controls import ControlPlanes

__all__ = ["load_planes", "save_planes"]

_TENSORS, _INDEX = "planes.safetensors", "planes.json"


def save_planes(planes: ControlPlanes, directory: Path) -> None:
    """Write planes into a new directory.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "planes"
        >>> save_planes(ControlPlanes({"other_layer": {"unembed.input": torch.eye(4)[:, :2].double()}}), place)
        >>> load_planes(place)
        ControlPlanes(other_layer at 1 sites)
    """
    directory.mkdir(parents=True)
    tensors = {
        f"{control}|{site}": columns.to(torch.float64).contiguous()
        for control, sites in planes.items()
        for site, columns in sites.items()
    }
    variance = {f"variance|{site}": values.to(torch.float64).contiguous() for site, values in planes.variance.items()}
    save_file({**tensors, **variance}, directory / _TENSORS)
    index = {"controls": list(planes), "notes": list(planes.notes)}
    (directory / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def load_planes(directory: Path) -> ControlPlanes:
    """Read what `save_planes` wrote."""
    index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
    columns: dict[str, dict[str, torch.Tensor]] = {control: {} for control in index["controls"]}
    variance = {}
    for name, tensor in load_file(directory / _TENSORS).items():
        control, site = name.split("|", 1)
        if control == "variance":
            variance[site] = tensor
        else:
            columns[control][site] = tensor
    return ControlPlanes(columns, variance=variance, notes=index["notes"])
