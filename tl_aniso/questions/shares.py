"""Shares of gradient energy of one site, from projected energies or from d x d sums, with what is known per shard."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tl_aniso.capturing.store import Capture
from tl_aniso.capturing.sums import MAIN, Energies, Kind
from tl_aniso.controls.planes import Columns, columns_of
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.moments import Moments
from tl_aniso.statistics import Interval, odds_ratio_interval, share_interval
from tl_aniso.subspace import TangentProxy

__all__ = ["Shares", "first_columns", "gradient_moments", "shares_in_planes", "shares_of"]

_NO_INTERVAL = Interval(float("nan"), float("nan"))


@dataclass(frozen=True)
class Shares:
    """Energy in a plane and in all, by shard where that is known.

    Attributes:
        selected: energy in the plane, one number a shard (one in all where shards were not kept apart).
        total: energy in all directions, alike.
        by_shard: whether the entries are shards.
    """

    selected: Float[np.ndarray, " shards"]
    total: Float[np.ndarray, " shards"]
    by_shard: bool

    @property
    def share(self) -> float:
        """E of all shards together."""
        return float(min(max(self.selected.sum() / self.total.sum(), 0.0), 1.0))

    def interval(self) -> Interval:
        """Jackknife interval of the share; NaN where shards were not kept apart."""
        return share_interval(self.selected, self.total) if self.by_shard else _NO_INTERVAL

    def excess_interval(self, control: "Shares") -> Interval:
        """Paired jackknife interval of the odds ratio over a control."""
        if not (self.by_shard and control.by_shard):
            return _NO_INTERVAL
        return odds_ratio_interval(self.selected, self.total, control.selected, control.total)


def gradient_moments(
    capture: Capture, kind: Kind, site: str, *, control: str = "none", variant: str = MAIN
) -> Moments | None:
    """The d x d second moment of a site's gradient or control, None where it was not kept."""
    source = capture if variant == MAIN else capture.variants[variant]
    if control != "none":
        sites = capture.controls.get(control)
    else:
        sites = source.weight_gradients if kind == "weight_gradient" else source.activation_gradients
    return sites.get(site) if sites is not None else None


def shares_of(
    capture: Capture,
    kind: Kind,
    site: str,
    proxy: TangentProxy,
    rank: int,
    *,
    control: str = "none",
    variant: str = MAIN,
) -> Shares | None:
    """Energy of a site's gradient, or of a control, in the first `rank` directions of a proxy.

    Projected energies serve where the capture projected on this very plane; else d x d sums, by shard if kept.

    Returns:
        None where the capture holds neither for this control or pass.

    Raises:
        UndefinedMeasureError: the gradient is exactly zero.
        TlAnisoError: the capture projected on another plane and holds no d x d sums.
    """
    held = capture.facts["options"]["proxies"].get(capture.canonical(site))
    table = capture.energies(kind, site, control=control, variant=variant)
    if table is not None and held == proxy.proxy_id:
        return first_columns(table, rank, site, control)
    basis = proxy.basis[:, :rank]
    shares = _from_sums(capture, kind, site, [basis], control, variant)
    if shares is None and table is not None:
        raise TlAnisoError(
            f"the capture holds energies at {site} along the proxy {held}, not along {proxy.proxy_id}; capture "
            "again with these proxies, or with pooled='all'"
        )
    return None if shares is None else shares[0]


def shares_in_planes(
    capture: Capture, kind: Kind, site: str, proxy: TangentProxy, rank: int, control: str, columns: Columns | None
) -> list[Shares] | None:
    """Energy of the effect in the planes of a control, one entry a plane (see `tl_aniso.controls.columns_of`).

    Args:
        columns: the planes, for captures that kept d x d sums; those that were projected hold the energies.

    Returns:
        None where the capture holds no energies in the control's planes and the planes are not at hand either; an
        empty list where the planes have fewer directions than `rank` asks for.

    Raises:
        UndefinedMeasureError: the gradient is exactly zero.
    """
    held = capture.facts["options"]["proxies"].get(capture.canonical(site))
    table = capture.energies(kind, site, control=control)
    if table is not None and held == proxy.proxy_id:
        by_shard = table.sum(0).numpy()
        chosen = columns_of(control, rank, by_shard.shape[1] - 1)
        return [_checked(by_shard[:, c].sum(1), by_shard[:, -1], True, site, "none") for c in chosen]
    if columns is None:
        return None
    return _from_sums(
        capture, kind, site, [columns[:, c] for c in columns_of(control, rank, columns.shape[1])], "none", MAIN
    )


def first_columns(table: Energies, rank: int, site: str, control: str) -> Shares:
    """Projected energies in the first `rank` columns of a table, by shard."""
    by_shard = table.sum(0).numpy()
    return _checked(by_shard[:, :rank].sum(1), by_shard[:, -1], True, site, control)


def _from_sums(
    capture: Capture, kind: Kind, site: str, bases: Sequence[Columns], control: str, variant: str
) -> list[Shares] | None:
    """Energies in several planes, from d x d sums by shard if kept, else from the pooled one; None without either."""
    parts = capture.shard_moments(kind, site, control=control, variant=variant)
    is_sharded, n = bool(parts), capture.facts["options"]["n_shards"]
    if not parts:
        pooled = gradient_moments(capture, kind, site, control=control, variant=variant)
        if pooled is None:
            return None
        parts, n = {0: pooled}, 1
    # In the order of the shards, those without text empty, so that results pair shard by shard.
    selected, total = np.zeros((len(bases), n)), np.zeros(n)
    for shard, moments in parts.items():
        second = moments.second_moment() * moments.count
        total[shard] = float(second.trace())
        for plane, basis in enumerate(bases):
            selected[plane, shard] = float(((second @ basis) * basis).sum())
    return [_checked(part, total, is_sharded, site, control) for part in selected]


def _checked(selected: np.ndarray, total: np.ndarray, by_shard: bool, site: str, control: str) -> Shares:
    if not total.sum() > 0:
        what = "the gradient" if control == "none" else f"the control {control}"
        raise UndefinedMeasureError(
            f"{what} at {site} is exactly zero, so it has no share in any direction; leave it out with sites=..."
        )
    # Float32 products leave energies a rounding error below zero or above the total.
    return Shares(np.clip(selected, 0.0, total), total, by_shard)
