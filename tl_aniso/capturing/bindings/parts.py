"""Find a module of a model by its path, or say that it is missing."""

from typing import Any

from torch import nn

from tl_aniso.errors import ModelError

__all__ = ["part"]


def part(root: nn.Module, path: str, where: str) -> nn.Module:
    """The module at a dotted path.

    Raises:
        ModelError: there is none, as where a sublayer was exchanged for another.
    """
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name, None)
        if not isinstance(found, nn.Module):
            raise ModelError(
                f"{where} has no module {path}; was a part of the model exchanged (for a mixture of experts, say)? "
                "Only the architecture as published is supported"
            )
    return found
