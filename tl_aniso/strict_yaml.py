"""YAML as configs, recipes and rules are read: plain values alone, and no key twice."""

from typing import Any

import yaml

__all__ = ["RepeatedKey", "load_yaml"]


class RepeatedKey(yaml.constructor.ConstructorError):
    """A mapping that has a key twice, of which the safe loader would let the second win in silence."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            name = str(key.value)  # of a key that is no scalar the reader says what is wrong
            if name in seen:
                raise RepeatedKey(None, None, f"the key {name} is repeated", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The data of a YAML text.

    Raises:
        RepeatedKey: a key twice in one mapping.
        yaml.YAMLError, ValueError, RecursionError: no YAML, or values that it cannot have.

    Example:
        >>> load_yaml("rank: [4, 8]")
        {'rank': [4, 8]}
        >>> load_yaml("rank: 4\\nseed: 1\\nrank: 8")
        Traceback (most recent call last):
        tl_aniso.strict_yaml.RepeatedKey: the key rank is repeated
        ...
    """
    return yaml.load(text, Loader=_Loader)
