"""Docstrings of this library head their one example "Example:", which Google's style knows as "Examples:"."""

import re
from typing import Any

import griffe

__all__ = ["Examples"]


class Examples(griffe.Extension):
    """Reads "Example:" as "Examples:", so that the interactive session in it is shown as one."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute as it is collected."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
