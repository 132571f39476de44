"""From kept rows to rows of the geometry frame: curvature at residual sites, gradient energy at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.intrinsic import DimensionMethod
from tl_aniso.neighbourhoods.collect import KeptRows
from tl_aniso.neighbourhoods.curvature import (
    Measured,
    common_rank,
    measure_rows,
    measure_surrogates,
    measured_names,
)
from tl_aniso.neighbourhoods.energies import EnergyShares, Neighbourhood, energy_shares
from tl_aniso.neighbourhoods.gradient_energy import GradientRows
from tl_aniso.neighbourhoods.groups import Groups
from tl_aniso.neighbourhoods.rows import Row, curvature_rows, energy_rows
from tl_aniso.neighbourhoods.types import ChosenTypes
from tl_aniso.sites import layer_of, output_site, proxy_site, role_of

__all__ = ["Plan", "measure"]


@dataclass(frozen=True)
class Plan:
    """What is measured; fields are arguments of `local_geometry`, `gradients` being those of activations."""

    residual: tuple[str, ...]
    weights: tuple[str, ...]
    n_half: int
    rank: int | None
    neighbourhood: str
    gradients: bool
    dimensions: tuple[DimensionMethod, ...]
    seed: int
    n_surrogates: int
    n_permutations: int


def measure(kept: KeptRows, types: ChosenTypes, plan: Plan) -> tuple[list[Row], tuple[str, ...]]:
    """Rows of the frame, and what a reader must know.

    Raises:
        UndefinedMeasureError: no type with enough rows once filters have taken theirs, or all rows equal at a site.
    """
    order = [t for t in types.all if min(kept.count(t, "A"), kept.count(t, "B")) >= plan.n_half]
    rare = np.array([t in set(types.rare) for t in order], dtype=bool)
    if rare.sum() < 2 or (~rare).sum() < 2:
        raise UndefinedMeasureError(
            f"{int((~rare).sum())} frequent and {int(rare.sum())} rare types keep {plan.n_half} occurrences in each "
            "half behind the row filters, and two of each are the least; give more text, or lower n_min"
        )
    notes = _notes(types, order, plan)
    groups = Groups(rare)
    rows: list[Row] = []
    for site in plan.residual:
        where = _Where(kept, tuple(order), "activations", site, plan)
        rank = plan.rank or common_rank([where.matched(i) for i in range(len(order))])
        found, remarks = _curvature(where, groups, rank)
        rows += found
        notes += remarks
        if plan.gradients:
            rows += _energies(where, groups, rank, "activation", site)
    for site in plan.weights:
        source = output_site(site) if role_of(site) == "writer" else proxy_site(site)
        where = _Where(kept, tuple(order), "activations", source, plan)
        rank = plan.rank or common_rank([where.matched(i) for i in range(len(order))])
        rows += _energies(where, groups, rank, "weight", site)
    return rows, tuple(notes)


@dataclass(frozen=True)
class _Where:
    """Rows of one activation site, by type."""

    kept: KeptRows
    order: tuple[int, ...]
    kind: str
    site: str
    plan: Plan

    def half(self, i: int, half: str) -> Float64[Tensor, "n d"]:
        """The rows of a neighbourhood in one half: as many for every type."""
        return self.of(i, half, self.kind, self.site)

    def of(self, i: int, half: str, kind: str, site: str) -> Float64[Tensor, "n d"]:
        """Rows of another kind or site, of the same occurrences."""
        n = self.plan.n_half
        if self.plan.neighbourhood == "type":
            return self.kept.rows(self.order[i], half, kind, site, n)
        pool = self._pool(half, kind, site)
        return pool[self._nearest(i, half)]

    def matched(self, i: int) -> Float64[Tensor, "n d"]:
        """Both halves' rows, as many of every type."""
        return torch.cat([self.half(i, "A"), self.half(i, "B")])

    def unmatched(self, i: int) -> Float64[Tensor, "n d"]:
        """Every row that was kept of a type."""
        return torch.cat([self.kept.rows(self.order[i], half, self.kind, self.site) for half in "AB"])

    def _pool(self, half: str, kind: str, site: str) -> Float64[Tensor, "n d"]:
        return torch.cat([self.kept.rows(t, half, kind, site, self.plan.n_half) for t in self.order])

    def _nearest(self, i: int, half: str) -> Tensor:
        """Rows of the pool nearest to the type's first occurrence, which is of half A in either half."""
        anchor = self.kept.rows(self.order[i], "A", self.kind, self.site, 1)[0]
        distances = (self._pool(half, self.kind, self.site) - anchor).square().sum(1)
        return torch.argsort(distances, stable=True)[: self.plan.n_half]


def _curvature(where: _Where, groups: Groups, rank: int) -> tuple[list[Row], list[str]]:
    plan, indices = where.plan, range(len(where.order))
    generator = torch.Generator().manual_seed(plan.seed)
    names = (*measured_names(plan.dimensions), ("scale", ""))

    def table(of: Callable[[int], Measured]) -> dict[tuple[str, str], np.ndarray]:
        found = [of(i) for i in indices]
        return {name: np.array([entry[name] for entry in found]) for name in names}

    own = table(lambda i: measure_rows(where.matched(i), rank, dimensions=plan.dimensions))
    flat = table(
        lambda i: measure_surrogates(
            where.matched(i), rank, n=plan.n_surrogates, generator=generator, dimensions=plan.dimensions
        )
    )
    unmatched = None
    if plan.neighbourhood == "type":
        unmatched = table(lambda i: measure_rows(where.unmatched(i), rank, dimensions=plan.dimensions))
    # Curvature of all types at one radius, as normal over tangent energy there.
    scale = float(np.nanmean(own["scale", ""])) if np.isfinite(own["scale", ""]).any() else math.nan
    for found in (own, flat, unmatched):
        if found is not None:
            found["curvature_energy", "raw"] = found["curvature_energy", "raw"] * scale
    fixed = {
        "layer": layer_of(where.site),
        "site": where.site,
        "gradient": "none",
        "rank": rank,
        "radius": math.sqrt(scale),
        "n_rows": 2 * plan.n_half,
    }
    rows = curvature_rows(
        fixed, names[:-1], groups, own, flat, unmatched, n_permutations=plan.n_permutations, seed=plan.seed
    )
    missing = {name: int((~np.isfinite(own[name])).sum()) for name in names[:-1] if not np.isfinite(own[name]).all()}
    if not missing:
        return rows, []
    listed = ", ".join(f"{count} of {len(where.order)} types have no {name[0]}" for name, count in missing.items())
    return rows, [f"{where.site}: {listed} (rows that are equal, or too few for rank {rank})"]


def _energies(where: _Where, groups: Groups, rank: int, gradient: str, site: str) -> list[Row]:
    plan = where.plan
    found: list[EnergyShares] = energy_shares(
        [_neighbourhood(where, i, gradient, site) for i in range(len(where.order))],
        rank,
        n_surrogates=plan.n_surrogates,
        seed=plan.seed,
    )
    d = where.half(0, "A").shape[1]
    fixed = {
        "layer": layer_of(site),
        "site": site,
        "gradient": gradient,
        "rank": rank,
        "radius": math.nan,
        "n_rows": plan.n_half,
    }
    return energy_rows(fixed, groups, found, rank, d)


def _neighbourhood(where: _Where, i: int, gradient: str, site: str) -> Neighbourhood:
    """Rows of half A that give the plane, and the gradient over half B."""
    fitted = where.half(i, "A")
    if gradient == "activation":
        rows = where.of(i, "B", "gradients", site)
        return Neighbourhood(fitted, GradientRows(rows, torch.ones(len(rows), 1, dtype=torch.float64)))
    factors = where.of(i, "B", "outputs", site)
    if role_of(site) == "writer":
        return Neighbourhood(fitted, GradientRows(where.of(i, "B", "gradients", output_site(site)), factors))
    inputs = where.half(i, "B")
    return Neighbourhood(fitted, GradientRows(inputs - fitted.mean(0), factors), inputs)


def _notes(types: ChosenTypes, order: Iterable[int], plan: Plan) -> list[str]:
    lost = len(types.all) - len(list(order))
    frequent, rare = ([types.counts[t] for t in group] for group in (types.frequent, types.rare))
    notes = [
        f"{len(types.frequent)} frequent types ({min(frequent)} to {max(frequent)} occurrences) and {len(types.rare)} "
        f"rare ones ({min(rare)} to {max(rare)}), {2 * plan.n_half} occurrences of each: a rare type here is one that "
        f"occurs often enough to be measured; intervals are over types",
    ]
    if lost:
        notes.append(f"{lost} types keep fewer than {plan.n_half} occurrences in a half behind the row filters")
    if plan.neighbourhood == "knn":
        notes.append(
            "neighbourhoods are nearest rows of any chosen type, so types share rows and intervals are too narrow"
        )
    return notes
