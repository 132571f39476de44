"""A text coloured by the tangent shares of its tokens, layer by layer, true beside shuffled labels."""

from tl_aniso.viz.token_views.circuits import circuits_script, circuits_tokens
from tl_aniso.viz.token_views.parts import TokenViewParts, token_view_parts
from tl_aniso.viz.token_views.section import TokenPart, fitted_sections, token_sections
from tl_aniso.viz.token_views.view import TokenView

__all__ = [
    "TokenPart",
    "TokenView",
    "TokenViewParts",
    "circuits_script",
    "circuits_tokens",
    "fitted_sections",
    "token_sections",
    "token_view_parts",
]
