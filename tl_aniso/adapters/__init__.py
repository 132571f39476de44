"""TransformerLens adapters of encoders that it does not know itself; nothing of TransformerLens is imported before use.

`register` makes them known, and `boot` does so first. The entry points of this package (group
``transformer_lens.architectures``) are what TransformerLens reads by itself, but too late for ``boot_transformers``.
"""

from tl_aniso.adapters.registry import ARCHITECTURES, boot, register

__all__ = ["ARCHITECTURES", "boot", "register"]
