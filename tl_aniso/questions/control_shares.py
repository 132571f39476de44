"""The share of a control at one site, whichever way the control is come by."""

import math
from dataclasses import dataclass

import numpy as np

from tl_aniso.capturing.sums import Kind
from tl_aniso.controls.names import (
    CLOSED_FORMS,
    COVARIANCE_DRAWN,
    GIVEN_PLANES,
    LABEL_PASSES,
    OTHER_LAYER,
    PLANE_CONTROLS,
    UNTRAINED,
)
from tl_aniso.controls.planes import columns_of
from tl_aniso.errors import TlAnisoError
from tl_aniso.questions.shares import Shares, first_columns, shares_in_planes, shares_of
from tl_aniso.questions.source import Measured
from tl_aniso.subspace import TangentProxy

__all__ = ["ControlShares", "control_shares", "controls_for", "variance_shares"]


@dataclass(frozen=True)
class ControlShares:
    """A control's energies, and of several planes the mean and spread of their shares."""

    shares: Shares
    mean: float = math.nan
    std: float = math.nan


def controls_for(gradient: str, controls: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `controls` that a kind of gradient has; closed forms are of weights alone."""
    return tuple(c for c in dict.fromkeys(controls) if gradient == "weight" or c not in CLOSED_FORMS)


def control_shares(
    found: Measured, kind: Kind, site: str, proxy: TangentProxy, rank: int, control: str
) -> ControlShares | None:
    """Energy of a control beside the effect's.

    Returns:
        None where the control is not defined: no other layer, or fewer directions than the rank asks for.

    Raises:
        TlAnisoError: the capture does not hold what the control needs.
    """
    capture = found.capture
    if control in (*PLANE_CONTROLS, *GIVEN_PLANES):
        return _in_planes(found, kind, site, proxy, rank, control)
    if control == UNTRAINED:
        table = capture.energies(kind, site, variant=UNTRAINED)
        if table is None:
            raise TlAnisoError(
                f"the capture holds no measurement of an untrained model at {site}; pass the model itself to "
                f"tangent_energy, or leave {UNTRAINED} out of controls"
            )
        if rank >= table.shape[-1]:
            return None
        return ControlShares(first_columns(table, rank, site, UNTRAINED))
    shares = None
    if control in LABEL_PASSES:
        if control in capture.variants:
            shares = shares_of(capture, kind, site, proxy, rank, variant=control)
    else:
        shares = shares_of(capture, kind, site, proxy, rank, control=control)
    if shares is None:
        raise TlAnisoError(
            f"the capture holds no control {control} at {site}; capture again with it, or leave it out of controls"
        )
    return ControlShares(shares)


def variance_shares(found: Measured, proxy: TangentProxy, rank: int) -> tuple[float, float]:
    """Shares of variance of the first `rank` components and of as many after them; NaN where not known."""
    ratios = found.planes.variance.get(proxy.site)
    known = ratios.numpy() if ratios is not None else np.asarray(proxy.pca.explained_variance_ratio_)
    parts = (known[:rank], known[rank : 2 * rank])
    first, following = (float(part.sum()) if len(part) == rank else math.nan for part in parts)
    return first, following


def _in_planes(
    found: Measured, kind: Kind, site: str, proxy: TangentProxy, rank: int, control: str
) -> ControlShares | None:
    columns = found.planes.at(control, proxy.site)
    if columns is not None and not columns_of(control, rank, columns.shape[1]):
        return None
    several = shares_in_planes(found.capture, kind, site, proxy, rank, control, columns)
    if several is None:
        if control == OTHER_LAYER and (control in found.planes or control in _projected(found)):
            return None  # a site of no layer
        raise TlAnisoError(
            f"the capture holds neither the planes of {control} at {site} nor energies in them; capture again with "
            "planes=fit_control_planes(...), or leave it out of controls"
        )
    if not several:
        return None
    mean = Shares(np.mean([s.selected for s in several], axis=0), several[0].total, several[0].by_shard)
    if control != COVARIANCE_DRAWN:
        return ControlShares(mean)
    drawn = np.array([shares.share for shares in several])
    return ControlShares(mean, float(drawn.mean()), float(drawn.std(ddof=1)))


def _projected(found: Measured) -> tuple[str, ...]:
    return tuple(found.capture.facts["options"].get("planes", {}))
