"""Arrays of numbers as text that a page can hold: 32-bit floats, bytes of equal weight together, deflated, base64."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = ["Packer", "unpack"]


class Packer:
    """Collects arrays and packs them into one text; equal arrays are held once, constant ones in the list alone.

    The first bytes of all floats of an array come first, then the second ones, and so on: signs and exponents of
    neighbours are alike, which deflate can use.

    Example:
        >>> import numpy as np
        >>> packer = Packer()
        >>> packer.add(np.array([1.0, np.nan])), packer.add(np.ones(3)), packer.add(np.array([1.0, np.nan]))
        (0, 1, 0)
        >>> [array.tolist() for array in unpack(packer.index, packer.text())]
        [[1.0, nan], [1.0, 1.0, 1.0]]
    """

    def __init__(self) -> None:
        self.index: list[dict[str, Any]] = []
        self._parts: list[bytes] = []
        self._seen: dict[tuple[int, bytes], int] = {}
        self._size = 0

    def add(self, values: Float[Any, "n"]) -> int:
        """The number of the array in `index`; rounded to 32 bits."""
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(values, dtype="<f4")
        numbers[np.isnan(numbers)] = np.nan  # one pattern of bits for all that is missing
        data = numbers.tobytes()
        key = (len(numbers), data)
        if key not in self._seen:
            self._seen[key] = len(self.index)
            if len(numbers) and data == data[:4] * len(numbers):
                # JSON has no NaN and no infinity.
                first = float(numbers[0])
                self.index.append({"n": len(numbers), "all": first if np.isfinite(first) else str(first)})
            else:
                self.index.append({"n": len(numbers), "at": self._size})
                self._parts.append(numbers.view(np.uint8).reshape(-1, 4).T.tobytes())
                self._size += len(data)
        return self._seen[key]

    def text(self) -> str:
        """Everything that was added, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 9)).decode("ascii")


def unpack(index: Sequence[Mapping[str, Any]], text: str) -> list[Float[Any, "n"]]:
    """What a `Packer` packed, as a page reads it.

    Args:
        index: of the packer.
        text: of its `Packer.text`.

    Returns:
        32-bit floats.
    """
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    found = []
    for entry in index:
        n = entry["n"]
        if "all" in entry:
            found.append(np.full(n, float(entry["all"]), dtype=np.float32))
        else:
            planes = data[entry["at"] : entry["at"] + 4 * n].reshape(4, n)
            found.append(np.ascontiguousarray(planes.T).view("<f4").reshape(n))
    return found
