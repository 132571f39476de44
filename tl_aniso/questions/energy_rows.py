"""Rows of `tangent_energy`: E, R and excess of one site, with every control beside them."""

import math
from collections.abc import Iterator, Sequence

from tl_aniso.capturing.sums import Kind
from tl_aniso.controls.names import CONTROLS, GIVEN_PLANES, NEXT_K
from tl_aniso.energy import energy_null, excess, odds, p_value_of_share, r_energy
from tl_aniso.errors import TlAnisoError
from tl_aniso.questions.control_shares import ControlShares, control_shares, controls_for, variance_shares
from tl_aniso.questions.frame import Row, capture_fields, site_fields
from tl_aniso.questions.shares import Shares, gradient_moments, shares_of
from tl_aniso.questions.source import Measured
from tl_aniso.sites import layer_of
from tl_aniso.statistics import Interval
from tl_aniso.subspace import TangentProxy

__all__ = ["ENERGY_CONTROLS", "KINDS", "energy_rows", "ranks_of"]

ENERGY_CONTROLS = (*CONTROLS, *GIVEN_PLANES)

KINDS: dict[str, Kind] = {"weight": "weight_gradient", "activation": "activation_gradient"}


def ranks_of(proxy: TangentProxy, ranks: Sequence[int] | None) -> tuple[int, ...]:
    """The ranks to measure at: those asked for, or the proxy's; one that shrank while fitting stands for higher ones.

    Raises:
        TlAnisoError: a rank above what the proxy was fitted with.
    """
    if ranks is None:
        return (proxy.rank,)
    too_high = [rank for rank in ranks if rank > max(proxy.requested_rank, proxy.rank)]
    if too_high:
        raise TlAnisoError(
            f"rank {too_high[0]} is above {proxy.requested_rank}, with which the proxy at {proxy.site} was fitted; fit "
            "proxies of that rank"
        )
    return tuple(sorted({min(rank, proxy.rank) for rank in ranks}))


def energy_rows(
    found: Measured,
    site: str,
    gradient: str,
    ranks: Sequence[int] | None,
    controls: Sequence[str],
    *,
    n_controls: int,
    seed: int,
    undefined: dict[str, list[str]] | None = None,
) -> Iterator[Row]:
    """Every row of one site; those of energy_share also carry their `Shares` and the width, as ``shares`` and ``d``.

    `undefined` collects, by control, sites where it has no plane of the rank asked for.
    """
    capture, proxy = found.capture, found.proxy(site)
    kind = KINDS[gradient]
    moments = gradient_moments(capture, kind, site)
    base = {
        **capture_fields(capture, found.held_out),
        **site_fields(capture, site, gradient, site),
        "centred": proxy.centred,
        "proxy_id": proxy.proxy_id,
    }
    base["n_rows"] = capture.n_units if moments is None else moments.count
    for rank in ranks_of(proxy, ranks):
        effect = shares_of(capture, kind, site, proxy, rank)
        if effect is None:
            raise TlAnisoError(
                f"the capture holds no {gradient} gradient at {site}; capture again with gradients={gradient!r}"
            )
        common = {**base, "rank": rank}
        yield from _against_normal(common, effect, proxy, rank, moments, n_controls, seed)
        for control in controls_for(gradient, tuple(controls)):
            other = control_shares(found, kind, site, proxy, rank, control)
            if other is None:
                if undefined is not None and layer_of(site) is not None:
                    undefined.setdefault(control, []).append(site)
                continue
            yield from _against(common, effect, other, control, rank, proxy.d)
            if control == NEXT_K:
                variances = variance_shares(found, proxy, rank)
                yield _per_variance({**common, "control": control}, effect, other.shares, variances)


def _against_normal(
    common: Row, effect: Shares, proxy: TangentProxy, rank: int, moments: object, n_controls: int, seed: int
) -> Iterator[Row]:
    share, d = effect.share, proxy.d
    low, high = effect.interval()
    mean, std, z, p = rank * (1 - share) / (d - rank), math.nan, math.nan, math.nan
    if moments is not None:
        second = moments.second_moment()  # type: ignore[attr-defined]
        std = energy_null(second, proxy.basis[:, :rank]).std
        z = (share - mean) / std if std > 0 else math.nan
        p = p_value_of_share(second, share, rank, n=n_controls, seed=seed) if n_controls else math.nan
    null = {"null_mean": mean, "null_std": std, "z": z, "p_value": p}
    yield {
        **common,
        "measure": "energy_share",
        "control": "none",
        "value": share,
        "ci_low": low,
        "ci_high": high,
        **null,
        "shares": effect,
        "d": d,
    }
    yield {
        **common,
        "measure": "r_energy",
        "control": "normal",
        "value": r_energy(share, rank, d),
        # By definition: the ratio of the mean normal plane to itself.
        "control_value": 1.0,
        **_interval(Interval(_ratio(low, rank, d), _ratio(high, rank, d))),
        "z": z,
        "p_value": p,
    }


def _against(common: Row, effect: Shares, other: ControlShares, control: str, rank: int, d: int) -> Iterator[Row]:
    mine, theirs = effect.share, other.shares.share
    named = {**common, "control": control}
    yield {
        **named,
        "measure": "energy_share",
        "value": mine,
        "control_value": theirs,
        "null_mean": other.mean,
        "null_std": other.std,
        **_interval(effect.interval()),
        "shares": other.shares,
        "d": d,
    }
    low, high = effect.interval()
    ratios = Interval(_ratio(low, rank, d), _ratio(high, rank, d))
    yield {
        **named,
        "measure": "r_energy",
        "value": r_energy(mine, rank, d),
        "control_value": r_energy(theirs, rank, d),
        **_interval(ratios),
    }
    yield {
        **named,
        "measure": "excess",
        "value": excess(mine, theirs),
        "control_value": 1.0,
        **_interval(effect.excess_interval(other.shares)),
    }


def _per_variance(named: Row, effect: Shares, other: Shares, variances: tuple[float, float]) -> Row:
    """E over the share of variance that the same components explain, of the first k and of the next k."""
    first, following = variances
    low, high = effect.interval()
    return {
        **named,
        "measure": "share_per_variance",
        "value": effect.share / first,
        "control_value": other.share / following if following > 0 else math.nan,
        **_interval(Interval(low / first, high / first)),
    }


def _interval(interval: Interval) -> Row:
    return {"ci_low": interval.low, "ci_high": interval.high}


def _ratio(share: float, rank: int, d: int) -> float:
    return math.nan if math.isnan(share) else odds(share) / odds(rank / d)
