"""A view of plain JSON values that cannot be changed: cheap where a copy of thousands of documents is not."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ReadOnly"]


class ReadOnly(Mapping[str, Any]):
    """A mapping whose inner mappings are read-only too, and whose lists are tuples.

    Example:
        >>> view = ReadOnly({"options": {"sites": ["a", "b"]}})
        >>> view["options"]["sites"], view["options"] == {"sites": ("a", "b")}
        (('a', 'b'), True)
        >>> view["options"]["sites"] = []
        Traceback (most recent call last):
        TypeError: 'ReadOnly' object does not support item assignment
    """

    __slots__ = ("_data",)

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def __getitem__(self, key: str) -> Any:
        return _shown(self._data[key])

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"ReadOnly({self._data!r})"


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ReadOnly(value)
    return tuple(_shown(part) for part in value) if isinstance(value, list) else value
