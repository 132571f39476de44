"""Decide what a capture sums, and how much memory that takes, before the model runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import psutil
import torch
from jaxtyping import Float
from torch import Tensor

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import Options
from tl_aniso.capturing.reduce import Pooled, Wanted
from tl_aniso.controls.names import PERMUTED_TOKENS
from tl_aniso.controls.planes import ControlPlanes
from tl_aniso.errors import TlAnisoError
from tl_aniso.sites import role_of, select_sites, whole_site
from tl_aniso.subspace import TangentProxies, TangentProxy

__all__ = ["Plan", "Pooled", "available_sites", "check_size", "make_plan"]

_BYTES = 8  # accumulators are float64
# Without max_bytes, refuse what would not leave the model room to run.
_SHARE_OF_FREE = 0.6


@dataclass(frozen=True)
class Plan:
    """What to sum, what runs, and how large it gets.

    Attributes:
        wanted: for the reducer.
        sites: every site name that the capture will answer to.
        matrices: weight sites and matrix activations whose modules are hooked.
        n_sums: number of d x d sums.
        n_bytes: their size, with that of the rows that are kept.
        proxy_sites: weight site -> where its proxy lives, where that is not on its own input or output.
        proxy_ids: gradient site -> the proxy that its gradients are projected on.
        plane_ids: control -> what its planes are, for those that gradients are projected on beside the proxies'.
    """

    wanted: Wanted
    sites: tuple[str, ...]
    matrices: frozenset[str]
    n_sums: int
    n_bytes: int
    proxy_sites: Mapping[str, str] = field(default_factory=dict)
    proxy_ids: Mapping[str, str] = field(default_factory=dict)
    plane_ids: Mapping[str, str] = field(default_factory=dict)


def available_sites(layout: Layout, *, heads: bool) -> tuple[str, ...]:
    """Every site that a user may name.

    Raises:
        TlAnisoError: heads are asked for and the layout does not know them.
    """
    if heads and not layout.head_sites:
        raise TlAnisoError(f"heads=True: it is not known how this {layout.class_name} divides its attention into heads")
    return (*layout.residual_sites, *layout.weight_sites, *layout.matrix_sites, *(layout.head_sites if heads else ()))


def make_plan(
    layout: Layout,
    options: Options,
    *,
    sites: Sequence[str] | None,
    proxies: TangentProxies | None,
    shard_sites: Sequence[str],
    special: tuple[int, ...],
    pooled: Pooled,
    n_halves: int,
    planes: ControlPlanes | None = None,
) -> Plan:
    """Choose sites and sums.

    Without `sites`, everything the gradients asked for touches. Inputs of readers and outputs of writers are summed
    where proxies may still have to be fitted on them: without proxies, or where they are asked for by name.

    Args:
        pooled: which d x d sums of weight gradients are kept.
        n_halves: halves of the text that hold documents.
        planes: of controls, to project gradients on beside the proxies' own.

    Raises:
        SiteError: an unknown site, or a site without a proxy.
        TlAnisoError: proxies of another width.
    """
    if pooled not in get_args(Pooled):
        raise TlAnisoError(f"pooled must be one of {', '.join(get_args(Pooled))}, got {pooled!r}")
    if planes is not None and proxies is None:
        raise TlAnisoError("planes of controls stand beside known proxies; pass those too: proxies=...")
    known = available_sites(layout, heads=options.heads)
    chosen = select_sites(sites, known)
    if options.heads:
        picked = set(chosen)
        chosen += [s for s in layout.head_sites if whole_site(s) in picked and s not in picked]
    matrices = [s for s in chosen if role_of(s) in ("reader", "writer", "embedding")]
    residual = [s for s in chosen if role_of(s) == "residual"]
    weights = matrices if "weight" in options.gradients else []
    inner = [s for s in chosen if role_of(s) in ("input", "output")] if sites is not None else []
    if proxies is None and (weights or not options.gradients):
        inner += dict.fromkeys(layout.proxy_site(site, options.basis) for site in matrices)
    activations = {layout.canonical(s) for s in (*residual, *inner)}
    gradients = {layout.canonical(s) for s in residual} if "activation" in options.gradients else set()
    places = {site: layout.proxy_site(site, options.basis) for site in weights} if options.basis != "own" else {}
    chosen_proxies = _proxies(layout, proxies, places, weights, gradients)
    by_shard = {layout.canonical(s) for s in select_sites(tuple(shard_sites), known)} if shard_sites else set()
    wanted = Wanted(
        activations=frozenset(activations),
        activation_gradients=frozenset(gradients),
        weights=frozenset(weights),
        pooled=pooled,
        controls=options.controls,
        bases=_bases(layout, chosen_proxies),
        planes=_planes(layout, planes, chosen_proxies),
        by_shard=frozenset(by_shard),
        n_shards=options.n_shards,
        special=special,
        exclude=options.exclude,
        weight_exclude=options.weight_exclude,
        unit=options.unit,
        keep_rows=options.keep_rows,
        seed=options.seed,
    )
    passes = 1 + len(options.label_passes)
    # Activations of permuted tokens are never kept by shard: one sum a half.
    permuted = n_halves * len(activations) if PERMUTED_TOKENS in options.extra_passes else 0
    summed = [(s, 1) for s in activations] + [(s, passes) for s in gradients]
    for site in weights:
        whole = pooled == "all" or site in by_shard
        summed.append((site, passes * (whole or pooled == "effect") + len(options.controls) * whole))
    n_sums = permuted + n_halves * sum(n * (options.n_shards if s in by_shard else 1) for s, n in summed)
    names = tuple(dict.fromkeys((*residual, *inner, *weights)))
    return Plan(
        wanted,
        names,
        frozenset((*(whole_site(s) for s in weights), *inner)),
        n_sums,
        n_sums * layout.d_model**2 * _BYTES + n_halves * len(activations) * options.keep_rows * layout.d_model * 4,
        places,
        {site: chosen_proxies[site].proxy_id for site in sorted(chosen_proxies)},
        planes.ids() if planes is not None else {},
    )


def check_size(plan: Plan, max_bytes: int | None) -> None:
    """Refuse a capture that would not fit.

    Raises:
        TlAnisoError: larger than `max_bytes`, or than most of the free memory.
    """
    limit = int(_SHARE_OF_FREE * psutil.virtual_memory().available) if max_bytes is None else max_bytes
    if plan.n_bytes > limit:
        raise TlAnisoError(
            f"this capture would hold {plan.n_sums} d x d sums, {_readable(plan.n_bytes)}, above the limit "
            f"of {_readable(limit)}; name fewer sites or shard_sites, pass proxies (weight gradients are then "
            "projected), keep fewer rows, or raise max_bytes"
        )


def _readable(n_bytes: int) -> str:
    """Bytes in the unit that shows them: 0.00 GB would say nothing.

    Example:
        >>> _readable(999), _readable(70_656), _readable(12_300_000), _readable(4_560_000_000)
        ('999 bytes', '70.7 kB', '12.3 MB', '4.56 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"


def _proxies(
    layout: Layout,
    proxies: TangentProxies | None,
    places: Mapping[str, str],
    weights: Iterable[str],
    gradients: Iterable[str],
) -> dict[str, TangentProxy]:
    """The proxy of each gradient site."""
    if proxies is None:
        return {}
    # A residual site without a proxy is no fault: its d x d sums are kept, and energies can be asked of them.
    wanted = [*weights, *(site for site in gradients if site in proxies)]
    found = {site: proxies.at(site, places.get(site)) for site in wanted}
    for site, proxy in found.items():
        if proxy.d != layout.d_model:
            raise TlAnisoError(f"the proxy at {site} has width {proxy.d}, the model has d_model {layout.d_model}")
    return found


def _bases(layout: Layout, proxies: Mapping[str, TangentProxy]) -> dict[str, Float[Tensor, "d k"]]:
    """Basis per gradient site, one tensor per proxy, so that what is computed with it can be shared."""
    tensors: dict[str, Float[Tensor, "d k"]] = {}
    for proxy in proxies.values():
        if proxy.site not in tensors:
            tensors[proxy.site] = proxy.basis.to(layout.device, torch.float32)
    return {site: tensors[proxy.site] for site, proxy in proxies.items()}


def _planes(
    layout: Layout, planes: ControlPlanes | None, proxies: Mapping[str, TangentProxy]
) -> dict[str, dict[str, Float[Tensor, "d columns"]]]:
    """Columns per control and gradient site, one tensor per control and proxy, as `_bases` has them."""
    tensors: dict[tuple[str, str], Float[Tensor, "d columns"]] = {}
    found: dict[str, dict[str, Float[Tensor, "d columns"]]] = {control: {} for control in planes or ()}
    for control in found:
        for site, proxy in proxies.items():
            key = (control, proxy.site)
            columns = None if planes is None else planes.at(*key)
            if columns is None:
                continue  # the control has no plane there, as other_layer has none at the unembedding
            if columns.shape[0] != layout.d_model:
                raise TlAnisoError(
                    f"the planes of {control} at {proxy.site} have width {columns.shape[0]}, the model has d_model "
                    f"{layout.d_model}"
                )
            if key not in tensors:
                tensors[key] = columns.to(layout.device, torch.float32)
            found[control][site] = tensors[key]
    return found
