"""Tangent proxies: leading directions of activations at a site, frozen once, used everywhere."""

from tl_aniso.angles import compare_proxies, principal_angles, projection_kernel
from tl_aniso.fitting import fit_tangent_proxies
from tl_aniso.pca import check_rank, default_rank, fit_pca
from tl_aniso.planes import normal_controls, principal_cosines, random_planes
from tl_aniso.proxies import TangentProxies, TangentProxy
from tl_aniso.proxy_steps import compare_over_steps

__all__ = [
    "TangentProxies",
    "TangentProxy",
    "check_rank",
    "compare_over_steps",
    "compare_proxies",
    "default_rank",
    "fit_pca",
    "fit_tangent_proxies",
    "normal_controls",
    "principal_angles",
    "principal_cosines",
    "projection_kernel",
    "random_planes",
]
