"""How each architecture's modules are found: families, plain models, bridges, and what is refused.

Import `bind` from `tl_aniso.capturing.bind`; these files are its parts.
"""

__all__: list[str] = []
