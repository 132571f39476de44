"""Local geometry: how rows of one neighbourhood bend away from their tangent plane.

The room and its question have one name: where the room was imported first, ``tl_aniso.local_geometry`` is this module,
and calling it calls the function `local_geometry`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tl_aniso.local_geometry.estimate import Estimate
from tl_aniso.local_geometry.planes import LocalPlane, choose_rank, local_plane, nearest_rows
from tl_aniso.local_geometry.quadratic import QuadraticFit, quadratic_fit
from tl_aniso.local_geometry.slope import SlopeFit, curvature_slope
from tl_aniso.local_geometry.surrogates import gaussian_rows
from tl_aniso.local_geometry.visible import smooth_visible_share, visible_share

if TYPE_CHECKING:
    from tl_aniso.local_geometry.ask import local_geometry
    from tl_aniso.local_geometry.result import LocalGeometry

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
_HOMES = {"LocalGeometry": "tl_aniso.local_geometry.result", "local_geometry": "tl_aniso.local_geometry.ask"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


class _Room(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return __getattr__("local_geometry")(*args, **options)


sys.modules[__name__].__class__ = _Room
