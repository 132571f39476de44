"""Which planes of controls a question needs, and where they come from: a pass over half A, or a stored capture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.store import Capture
from tl_aniso.controls.fit import fit_control_planes
from tl_aniso.controls.names import COVARIANCE_DRAWN, NEXT_K, OTHER_LAYER, PERMUTED_TOKENS, PLANE_CONTROLS
from tl_aniso.controls.planes import ControlPlanes, other_layer_site
from tl_aniso.errors import TlAnisoError
from tl_aniso.subspace import TangentProxies

__all__ = ["fitting_passes", "fitting_sites", "needs_activations", "planes_for_capture", "planes_for_model", "to_fit"]


def to_fit(controls: Sequence[str], planes: ControlPlanes | None, *, n_layers: int, strict: bool) -> tuple[str, ...]:
    """The controls whose planes are still to be fitted.

    Raises:
        TlAnisoError: planes are given, but not of every control asked for; or no other layer.
    """
    wanted = tuple(c for c in PLANE_CONTROLS if c in controls)
    if planes is not None:
        lacking = [c for c in wanted if c not in planes]
        if lacking and strict:
            raise TlAnisoError(
                f"the planes given hold none of {', '.join(lacking)}; fit them too with fit_control_planes, or leave "
                "the control out"
            )
        return ()
    if OTHER_LAYER in wanted and strict:
        other_layer_site("", n_layers)  # raises for a single layer, before anything runs
    return wanted


def needs_activations(wanted: Sequence[str], proxies: TangentProxies) -> bool:
    """Whether planes of controls have to be fitted on activations, beside proxies that are known."""
    if {PERMUTED_TOKENS, COVARIANCE_DRAWN}.intersection(wanted):
        return True
    return NEXT_K in wanted and any(len(proxy.estimator.components_) < 2 * proxy.rank for proxy in proxies.values())


def fitting_sites(
    layout: Layout, sites: Sequence[str], chosen: Iterable[str], wanted: Sequence[str], basis: str
) -> tuple[str, ...]:
    """The sites of the fitting pass: those to be measured, and those whose proxies `other_layer` compares with."""
    if OTHER_LAYER not in wanted or len(layout.blocks) < 2:
        return tuple(sites)
    others = (other_layer_site(layout.proxy_site(site, basis), len(layout.blocks)) for site in chosen)
    return tuple(dict.fromkeys((*sites, *(site for site in others if site is not None))))


def fitting_passes(wanted: Sequence[str]) -> tuple[str, ...]:
    """The extra passes over the half that planes are fitted on."""
    return (PERMUTED_TOKENS,) if PERMUTED_TOKENS in wanted else ()


def planes_for_model(
    layout: Layout,
    fitted: Capture | None,
    proxies: TangentProxies,
    chosen: Iterable[str],
    wanted: Sequence[str],
    *,
    basis: str,
    seed: int,
    strict: bool,
) -> ControlPlanes:
    """Planes for the sites to be measured; without a fitting pass, from what the proxies hold themselves."""
    places = [layout.proxy_site(site, basis) for site in chosen]
    needed = dict.fromkeys(proxies[place].site for place in places if place in proxies)
    source = fitted if fitted is not None else _Depth(len(layout.blocks))
    return fit_control_planes(source, proxies, wanted, sites=needed, seed=seed, strict=strict)


def planes_for_capture(
    capture: Capture,
    proxies: TangentProxies,
    planes: ControlPlanes | None,
    controls: Sequence[str],
    sites: Iterable[str],
    *,
    seed: int,
    strict: bool,
) -> ControlPlanes:
    """Planes given, or fitted on the capture's half A where it was not projected on planes already.

    Raises:
        TlAnisoError: the capture was projected on other planes than those given, and as `fit_control_planes`.
    """
    held = capture.facts["options"].get("planes", {})
    if planes is not None:
        ids = planes.ids()
        other = [control for control in held if control in ids and ids[control] != held[control]]
        if other:
            raise TlAnisoError(
                f"the capture was projected on other planes of {', '.join(other)} than those given; leave planes out, "
                "or capture again with them"
            )
        return planes
    wanted = to_fit(
        [c for c in controls if c not in held], None, n_layers=capture.facts["model"]["n_layers"], strict=strict
    )
    if not wanted:
        return ControlPlanes({})
    return fit_control_planes(capture, proxies, wanted, sites=sites, seed=seed, strict=strict)


@dataclass(frozen=True)
class _Depth:
    """What `fit_control_planes` must know of a model where the proxies hold everything else."""

    n_layers: int

    @property
    def metadata(self) -> dict[str, Any]:
        return {"model": {"n_layers": self.n_layers}}

    def fitting_half(self) -> Any:
        return SimpleNamespace(activations={}, variants={})
