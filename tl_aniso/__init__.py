"""Geometry of language models while they learn: gradient energy in tangent directions, isotropy, and their controls.

Public names load on first use, so that ``import tl_aniso`` is quick and needs no transformer_lens.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tl_aniso.capturing import Capture, capture
    from tl_aniso.capturing.masked_lm import MaskedLM
    from tl_aniso.energy import energy_null, energy_share
    from tl_aniso.errors import TlAnisoError
    from tl_aniso.frequency import frequency_variance
    from tl_aniso.isotropy import isoscore, isoscore_star, participation_ratio
    from tl_aniso.moments import Moments
    from tl_aniso.neighbourhoods.ask import local_geometry
    from tl_aniso.questions import ablation_isotropy, tangent_energy
    from tl_aniso.questions.spectra import ablation_spectra
    from tl_aniso.study import Study
    from tl_aniso.subspace import TangentProxies, TangentProxy, fit_tangent_proxies, normal_controls

__version__ = "0.1.0"

__all__ = [
    "Capture",
    "MaskedLM",
    "Moments",
    "Study",
    "TangentProxies",
    "TangentProxy",
    "TlAnisoError",
    "ablation_isotropy",
    "ablation_spectra",
    "capture",
    "energy_null",
    "energy_share",
    "fit_tangent_proxies",
    "frequency_variance",
    "isoscore",
    "isoscore_star",
    "local_geometry",
    "normal_controls",
    "participation_ratio",
    "tangent_energy",
]

_HOMES = {
    "Capture": "tl_aniso.capturing.store",
    "capture": "tl_aniso.capturing.run",
    "MaskedLM": "tl_aniso.capturing.masked_lm",
    "Moments": "tl_aniso.moments",
    "Study": "tl_aniso.study.study",
    "TangentProxies": "tl_aniso.subspace",
    "TangentProxy": "tl_aniso.subspace",
    "TlAnisoError": "tl_aniso.errors",
    "ablation_isotropy": "tl_aniso.questions.ask",
    "ablation_spectra": "tl_aniso.questions.spectra",
    "energy_null": "tl_aniso.energy",
    "energy_share": "tl_aniso.energy",
    "fit_tangent_proxies": "tl_aniso.subspace",
    "frequency_variance": "tl_aniso.frequency.variance",
    "isoscore": "tl_aniso.isotropy",
    "isoscore_star": "tl_aniso.isotropy",
    "local_geometry": "tl_aniso.neighbourhoods.ask",
    "normal_controls": "tl_aniso.subspace",
    "participation_ratio": "tl_aniso.isotropy",
    "tangent_energy": "tl_aniso.questions.ask",
}


_ROOMS = ("adapters",)  # of these, the module is what is public


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"tl_aniso.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tl_aniso' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
