"""Local geometry: how rows of one neighbourhood bend away from their tangent plane.

The question asked of a model is the public function `tl_aniso.local_geometry`.
"""

from typing import TYPE_CHECKING, Any

from tl_aniso.neighbourhoods.estimate import Estimate
from tl_aniso.neighbourhoods.planes import LocalPlane, choose_rank, local_plane, nearest_rows
from tl_aniso.neighbourhoods.quadratic import QuadraticFit, quadratic_fit
from tl_aniso.neighbourhoods.slope import SlopeFit, curvature_slope
from tl_aniso.neighbourhoods.surrogates import gaussian_rows
from tl_aniso.neighbourhoods.visible import smooth_visible_share, visible_share

if TYPE_CHECKING:
    from tl_aniso.neighbourhoods.ask import local_geometry
    from tl_aniso.neighbourhoods.result import LocalGeometry

__all__ = [
    "Estimate",
    "LocalGeometry",
    "LocalPlane",
    "QuadraticFit",
    "SlopeFit",
    "choose_rank",
    "curvature_slope",
    "gaussian_rows",
    "local_geometry",
    "local_plane",
    "nearest_rows",
    "quadratic_fit",
    "smooth_visible_share",
    "visible_share",
]

# These know models; the numerics above do not.
_HOMES = {"LocalGeometry": "tl_aniso.neighbourhoods.result", "local_geometry": "tl_aniso.neighbourhoods.ask"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
