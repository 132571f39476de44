"""How planes turn while a model learns: proxies of several steps compared with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tl_aniso.angles import principal_angles, projection_kernel
from tl_aniso.checks import as_names
from tl_aniso.errors import SiteError, TlAnisoError

if TYPE_CHECKING:
    from tl_aniso.subspace import TangentProxies

__all__ = ["compare_over_steps"]


def compare_over_steps(
    proxies: Mapping[float, TangentProxies], *, sites: Any = None, against: float | None = None
) -> Any:
    """Overlap and principal angles of the planes of every two steps, site by site.

    Args:
        proxies: training step -> proxies of that checkpoint.
        sites: to compare; by default every site that some step holds.
        against: compare with this step alone, such as the one whose planes were frozen; by default every two steps.

    Returns:
        A pandas frame, one row for each site and pair of steps, with columns site, step_a, step_b, d, rank_a,
        rank_b, kernel (mean squared cosine), null_mean, null_std (of random planes), smallest_angle, mean_angle
        (whose squared cosine is the kernel), largest_angle (degrees). NaN where one of the two steps has no proxy at
        the site.

    Raises:
        TlAnisoError: no mapping of steps to proxies, `against` is none of the steps, different widths at a site.
        SiteError: a site that no step holds.

    Example:
        >>> import torch
        >>> from tl_aniso import Moments, TangentProxies
        >>> from tl_aniso.proxy_steps import compare_over_steps
        >>> from tl_aniso.subspace import TangentProxy, fit_pca
        >>> def proxies(seed):
        ...     rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
        ...     pca = fit_pca(Moments(8).update(rows), 2)
        ...     return TangentProxies([TangentProxy.from_pca("unembed.input", pca, centred=True, requested_rank=2)])
        >>> table = compare_over_steps({0: proxies(0), 100: proxies(1)})
        >>> table[["step_a", "step_b"]].to_numpy().tolist(), table["kernel"].round(3).tolist()[0]
        ([[0.0, 0.0], [0.0, 100.0], [100.0, 0.0], [100.0, 100.0]], 1.0)
    """
    import pandas as pd

    given: Any = proxies
    if not isinstance(given, Mapping) or not given or not all(isinstance(held, Mapping) for held in given.values()):
        raise TlAnisoError("proxies must map training steps to TangentProxies, as fit_tangent_proxies returns them")
    steps = sorted(float(step) for step in proxies)
    if not all(math.isfinite(step) for step in steps):
        raise TlAnisoError("the steps of proxies must be finite numbers")
    if against is not None and float(against) not in steps:
        raise TlAnisoError(f"against is {against}, which is none of the steps {', '.join(f'{s:g}' for s in steps[:8])}")
    by_step = {float(step): held for step, held in proxies.items()}
    every = list(dict.fromkeys(site for step in steps for site in by_step[step]))
    names = every if sites is None else list(as_names("sites", sites))
    unknown = [name for name in names if not any(name in held for held in by_step.values())]
    if unknown:
        raise SiteError(f"no step holds a proxy for {', '.join(unknown[:5])}; there are: {', '.join(every[:8])}")
    pairs = [(a, b) for a in (steps if against is None else [float(against)]) for b in steps]
    rows = []
    for name in names:
        known: dict[tuple[float, float], dict[str, Any]] = {}
        for a, b in pairs:
            # Every number but the order of ranks is the same the other way round.
            if (b, a) not in known:
                known[a, b] = _compared(by_step[a], by_step[b], name)
                found = known[a, b]
            else:
                other = known[b, a]
                found = {**other, "rank_a": other["rank_b"], "rank_b": other["rank_a"]}
            rows.append({"site": name, "step_a": a, "step_b": b, **found})
    return pd.DataFrame(rows)


def _compared(first: TangentProxies, second: TangentProxies, site: str) -> dict[str, Any]:
    names = (
        "d",
        "rank_a",
        "rank_b",
        "kernel",
        "null_mean",
        "null_std",
        "smallest_angle",
        "mean_angle",
        "largest_angle",
    )
    if site not in first or site not in second:
        return dict.fromkeys(names, math.nan)
    one, other = first[site], second[site]
    if one.d != other.d:
        raise TlAnisoError(f"the proxies at {site} have different widths, {one.d} and {other.d}")
    kernel = projection_kernel(one.basis, other.basis)
    angles = torch.rad2deg(principal_angles(one.basis, other.basis))
    mean = math.degrees(math.acos(math.sqrt(kernel.value)))
    values = (
        one.d,
        one.rank,
        other.rank,
        kernel.value,
        kernel.mean,
        kernel.std,
        float(angles[0]),
        mean,
        float(angles[-1]),
    )
    return dict(zip(names, values, strict=True))
