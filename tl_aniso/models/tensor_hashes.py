"""SHA-256 of every tensor in a file of weights."""

import hashlib
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tl_aniso.errors import ModelError

__all__ = ["TensorHash", "hash_of_tensor", "hashes_of_bin", "hashes_of_safetensors"]

_PIECE = 2**24  # bytes read at a time; a multiple of every element's size
_MOST_HEADER = 10**8  # as safetensors itself allows
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Names of safetensors for torch's types, so that the same tensor has the same hash in both formats.
_TORCH = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class TensorHash:
    """Hash of type, shape and bytes of a tensor.

    Attributes:
        sha256: 64 hexadecimal digits.
        telling: whether no two checkpoints share it by chance: a matrix of floats that is not constant.
    """

    sha256: str
    telling: bool


def hashes_of_safetensors(path: Path) -> dict[str, TensorHash]:
    """Hashes of a safetensors file, read in pieces of 16 MiB.

    Raises:
        ModelError: the file is damaged or cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= _MOST_HEADER:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            return {name: _of_span(file, 8 + size, facts) for name, facts in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no readable safetensors file: {error}") from error


def hashes_of_bin(path: Path) -> dict[str, TensorHash]:
    """Hashes of a file of `torch.save`, read without running what it may hold.

    Raises:
        ModelError: the file is damaged, or holds something else than tensors.
    """
    import torch

    try:
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format from before torch 1.6 cannot be mapped
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): hash_of_tensor(tensor) for name, tensor in tensors.items()}
    except (OSError, RuntimeError, ValueError, EOFError, AttributeError, TypeError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path} is no readable file of weights: {str(error).splitlines()[0]}") from error


def _of_span(file: IO[bytes], start: int, facts: dict[str, Any]) -> TensorHash:
    begin, end = facts["data_offsets"]
    if not 0 <= begin <= end:
        raise ValueError(f"offsets {begin} to {end}")

    def pieces() -> Iterator[memoryview]:
        file.seek(start + begin)
        left = end - begin
        while left:
            piece = file.read(min(left, _PIECE))
            if not piece:
                raise ValueError("it ends before its last tensor")
            left -= len(piece)
            yield memoryview(piece)

    return _hash(facts["dtype"], tuple(facts["shape"]), pieces())


def hash_of_tensor(tensor: Any) -> TensorHash:
    """Hash of a torch tensor, wherever it is."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
    pieces = (data[i : i + _PIECE] for i in range(0, len(data), _PIECE))
    return _hash(_TORCH.get(kind, kind), tuple(tensor.shape), pieces)


def _hash(kind: str, shape: tuple[int, ...], pieces: Iterator[memoryview]) -> TensorHash:
    digest = hashlib.sha256(f"{kind}{list(shape)}".encode())
    width = _FLOATS.get(kind)
    varied, first = False, None
    for piece in pieces:
        digest.update(piece)
        if width is not None and not varied and len(piece) % width == 0:
            elements = np.frombuffer(piece, dtype=f"u{width}")
            first = elements[0] if first is None else first
            varied = bool((elements != first).any())
    matrix = sum(n > 1 for n in shape) >= 2 and math.prod(shape) > 3
    return TensorHash(digest.hexdigest(), telling=varied and matrix)
