"""Turn the tensors of a batch into sums, at once, so that nothing of the batch is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from tl_aniso.capturing.head import Head
from tl_aniso.capturing.kept_rows import RowsKey, batch_keys
from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.capturing.objectives import Targets
from tl_aniso.capturing.reach import Reach, own_loss_sites
from tl_aniso.capturing.row_filters import kinds_of, not_sinks, without
from tl_aniso.capturing.sums import HALVES, MAIN, EnergyKey, SumKey, Sums
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.projection import Factor, Rows, control_energy, embedding_factor, energy_along, gradient_energy
from tl_aniso.reservoir import Reservoir
from tl_aniso.sites import EMBEDDING, head_site, whole_site
from tl_aniso.text.sequences import Batch
from tl_aniso.weight_moments import (
    RowWeights,
    control_weights,
    token_kernel,
    weighted_second_moment,
)

__all__ = ["Pooled", "Reducer", "Wanted"]

Pooled = Literal["all", "effect", "none"]


@dataclass(frozen=True)
class Wanted:
    """What to sum, decided before the pass.

    Attributes:
        activations: activation sites whose moments are kept (residual ones by canonical name).
        activation_gradients: residual sites, by canonical name.
        weights: weight sites.
        pooled: d x d sums of weight gradients: "all", the "effect" without its controls, or "none".
        controls: names of the closed-form controls of weight gradients.
        bases: gradient site -> orthonormal proxy basis, d x k, moved to the site's device; projected energies are kept.
        planes: control -> gradient site -> columns, d x n: the effect's energies along them are kept beside.
        by_shard: sites whose d x d sums are kept by shard.
        n_shards: number of shards.
        special: token ids whose rows are left out.
        exclude: row filters of activations and their gradients, of "special", "sink", "masked" and "unmasked".
        weight_exclude: row filters of weight gradients: the same without "sink".
        unit: whose gradient G is: one "sequence"'s, or one "batch"'s, which then counts as one long sequence.
        keep_rows: rows kept of each activation site and half.
        seed: of the choice of rows.
    """

    activations: frozenset[str] = frozenset()
    activation_gradients: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    pooled: Pooled = "all"
    controls: tuple[str, ...] = ()
    bases: Mapping[str, Float[Tensor, "d k"]] = field(default_factory=dict)
    planes: Mapping[str, Mapping[str, Float[Tensor, "d n"]]] = field(default_factory=dict)
    by_shard: frozenset[str] = frozenset()
    n_shards: int = 8
    special: tuple[int, ...] = ()
    exclude: tuple[str, ...] = ("special", "sink")
    weight_exclude: tuple[str, ...] = ()
    unit: str = "sequence"
    keep_rows: int = 0
    seed: int = 0


def _in_float32(method: Callable[..., None]) -> Callable[..., None]:
    """The model may run under autocast, the hooks inside it then do too; sums are taken in float32 all the same."""

    @wraps(method)
    def precise(self: "Reducer", *args: Any) -> None:
        with torch.autocast(self.layout.device.type, enabled=False):
            method(self, *args)

    return precise


class Reducer:
    """Consumes the tensors of one batch after another; see `hooks.Consumer`."""

    def __init__(self, layout: Layout, wanted: Wanted, sums: Sums) -> None:
        self.layout = layout
        self.wanted = wanted
        self.sums = sums
        self.variant = MAIN
        self._outputs: dict[str, list[tuple[str, Tensor]]] = {}
        self._summed: set[str] = set()
        self._keep: dict[str, Tensor] = {}
        self._shared: dict[tuple[str, bool], Rows] = {}
        self._keys: np.ndarray | None = None
        # Under causal attention none is told apart: the positions up to the last loss are counted everywhere.
        self._own = own_loss_sites(len(layout.blocks)) if layout.attends == "both" else frozenset()

    # -- one batch ---------------------------------------------------------------------------------------------

    def begin(
        self,
        batch: Batch,
        targets: Targets,
        fed: Integer[Tensor, "batch length"] | None = None,
        masked: Bool[Tensor, "batch length"] | None = None,
    ) -> None:
        """Take up a batch (already on the device), with the ids that the model reads if they are others."""
        self._batch = batch
        self._fed = batch.ids if fed is None else fed
        self._half = batch.half
        self._shards = torch.tensor([s.shard for s in batch.sequences])
        self._kinds = kinds_of(batch.ids, self.wanted.special, masked)
        self._counted = without(batch.mask, self._kinds, self.wanted.weight_exclude)
        self.carry(targets.carries)
        self._outputs.clear()
        self._summed.clear()
        self._keep.clear()
        self._shared.clear()
        self._keys = None

    @property
    def counted(self) -> Bool[Tensor, "batch length"]:
        """Positions that the filters leave in weight gradients."""
        return self._counted

    def carry(self, losses: Bool[Tensor, "batch length"]) -> None:
        """Say which positions have a loss, where that is known only after it was computed."""
        self._reach = Reach.of(self.layout, losses, self._batch.mask, self._own)

    def start_variant(self, name: str) -> None:
        """Gradients from here on belong to another pass over the same batch (inputs are the same)."""
        self.variant = name

    # -- forward -----------------------------------------------------------------------------------------------

    @_in_float32
    def residual(self, site: str, value: Float[Tensor, "batch length d"]) -> None:
        """A residual stream value: find its sinks, sum it, and what was waiting for its sinks."""
        self._keep[site] = self._kept_rows(site, value)
        if site in self.wanted.activations:
            self._add_rows("activation", site, value, self._keep[site])
        for name, waiting in self._outputs.pop(site, []):
            self._add_rows("activation", name, waiting, self._keep[site])

    @_in_float32
    def matrix(self, matrix: Matrix, inputs: Tensor, outputs: Tensor) -> None:
        """A matrix ran: sum its residual side where proxies will be fitted on it."""
        if matrix.activation not in self.wanted.activations or matrix.activation in self._summed:
            return
        self._summed.add(matrix.activation)  # readers of one input come one after another with the same rows
        value = inputs if matrix.role == "reader" else outputs
        residual = self.layout.canonical(matrix.residual)
        if residual in self._keep:
            self._add_rows("activation", matrix.activation, value, self._keep[residual])
        else:
            # A copy: the model may add the stream to this very tensor in place before its sinks are known.
            self._outputs.setdefault(residual, []).append((matrix.activation, value.clone()))

    # -- backward ----------------------------------------------------------------------------------------------

    @_in_float32
    def residual_gradient(self, site: str, gradient: Float[Tensor, "batch length d"]) -> None:
        """dL/dh at a residual site, one row a token."""
        keep = self._keep[site].to(gradient.device)
        self._add_rows("activation_gradient", site, gradient, keep)
        if self.variant == MAIN:
            counted = keep & self._reach.at(site).to(keep.device)
            entries = int(counted.sum()) * gradient.shape[-1]
            # All entries at once, less those of the rows that do not count, is many times as fast as by row.
            apart = torch.count_nonzero(gradient.flatten(0, 1)[~counted.flatten()])
            self.sums.tally(f"gradient_entries|{site}|{self._half}", entries)
            self.sums.tally(f"gradient_zeros|{site}|{self._half}", entries - int(torch.count_nonzero(gradient) - apart))
        basis = self.wanted.bases.get(site)
        if basis is not None:
            rows = gradient.float() * keep[..., None]
            along, total = (rows @ basis.to(rows.device)).square().sum(1), rows.square().sum((1, 2))
            self._add_energy("activation_gradient", "none", site, along, total)
            for control, columns in self._planes(site):
                along = (rows @ columns.to(rows.device)).square().sum(1)
                self._add_energy("activation_gradient", control, site, along, total)

    @_in_float32
    def matrix_gradient(self, matrix: Matrix, inputs: Tensor, gradient: Tensor) -> None:
        """The gradient at a matrix's output: with its input, all that the weight gradient is made of."""
        writer = matrix.role == "writer"
        parts = matrix.split(gradient) if matrix.split else (gradient,)
        for number, (site, values) in enumerate(zip(matrix.sites, (inputs,) if writer else parts, strict=True)):
            heads = matrix.head_counts[number] if matrix.head_counts else 0
            names = [head_site(site, head) for head in range(heads)]
            if not self.wanted.weights.intersection((site, *names)):
                continue
            rows = self._rows(gradient, None, site) if writer else self._rows(inputs, matrix.activation, site)
            factor = self._factor(values.float(), site, always=writer)
            if site in self.wanted.weights:
                self._add_weight(site, rows, Factor(factor))
            # A head holds neighbouring columns of the factor, so its rows of G are a gradient of their own.
            for name, part in zip(names, factor.unflatten(-1, (heads, -1)).unbind(-2) if heads else (), strict=True):
                if name in self.wanted.weights:
                    self._add_weight(name, rows, Factor(part))

    @_in_float32
    def embedding_gradient(self, gradient: Float[Tensor, "batch length d"]) -> None:
        """The gradient at the embedding's output: rows with the same token add up in the table."""
        if self.layout.embed_scale != 1:
            gradient = gradient * self.layout.embed_scale  # the table is in front of the factor, the output behind it
        rows = self._rows(gradient, None, EMBEDDING)
        if self.wanted.unit == "batch":
            factor = embedding_factor(rows, self._joined(self._fed).to(gradient.device))
        else:
            carries = self._carries(EMBEDDING, gradient.device)
            factor = Factor(None, token_kernel(self._fed.to(gradient.device), carries, torch.float32))
        self._add_weight(EMBEDDING, rows, factor)

    @_in_float32
    def hidden(self, hidden: Float[Tensor, "batch length d"]) -> None:
        """What the unembedding reads."""
        matrix = self.layout.unembed
        if matrix.activation in self.wanted.activations:
            keep = self._keep[self.layout.canonical(matrix.residual)]
            self._add_rows("activation", matrix.activation, hidden, keep)

    @_in_float32
    def head(self, hidden: Float[Tensor, "batch length d"], head: Head) -> None:
        """The unembedding, whose logit gradients are known only by their inner products."""
        matrix = self.layout.unembed
        if matrix.sites[0] not in self.wanted.weights:
            return
        rows = self._rows(hidden.detach().to(head.gradient.device), matrix.activation, matrix.sites[0])
        kernel = head.kernel
        if kernel is not None and self.wanted.weight_exclude:
            kernel = kernel * (rows.carries[:, :, None] & rows.carries[:, None, :])
        self._add_weight(matrix.sites[0], rows, Factor(None, kernel, head.formed))

    # -- the sums ----------------------------------------------------------------------------------------------

    def _kept_rows(self, site: str, value: Tensor) -> Bool[Tensor, "batch length"]:
        mask = self._batch.mask.to(value.device)
        keep = without(self._batch.mask, self._kinds, self.wanted.exclude).to(value.device)
        norms = value.float().norm(dim=-1)
        if "sink" in self.wanted.exclude:
            keep = keep & not_sinks(norms, mask)
        energy = norms.double().square() * mask
        self.sums.tally(f"rows|{site}|{self._half}", int(mask.sum()))
        self.sums.tally(f"rows_kept|{site}|{self._half}", int(keep.sum()))
        self.sums.tally(f"energy|{site}|{self._half}", float(energy.sum()))
        self.sums.tally(f"energy_kept|{site}|{self._half}", float((energy * keep).sum()))
        return keep

    def _carries(self, site: str, device: torch.device) -> Bool[Tensor, "batch length"]:
        """Positions that can carry gradient at a weight site, filters applied, where the site's layer is."""
        return (self._reach.at(whole_site(site)) & self._counted).to(device)

    def _factor(self, values: Tensor, site: str, *, always: bool) -> Tensor:
        """Zero where nothing is carried; without filters a reader's output gradient is zero there by itself."""
        if always or self.wanted.weight_exclude:
            values = values * self._carries(site, values.device)[..., None]
        return self._joined(values)

    def _joined(self, values: Tensor) -> Tensor:
        """The tensor of a batch as that of its units: as it is, or as of one sequence of all its tokens."""
        return values.flatten(0, 1)[None] if self.wanted.unit == "batch" else values

    def _shards_of(self, kind: str) -> Tensor:
        """Shard of each unit of a kind; a batch that counts as one lies in one."""
        joined = kind == "weight_gradient" and self.wanted.unit == "batch"
        return self._shards[:1] if joined else self._shards

    def _parts(self, kind: str, control: str, site: str) -> list[tuple[Tensor | slice, SumKey]]:
        """Which rows of the batch go into which accumulator: all into one, or shard by shard."""
        key = SumKey(self.variant, kind, control, site, self._half)
        if site not in self.wanted.by_shard:
            return [(slice(None), key)]
        found = self._shards_of(kind)
        return [((found == s).nonzero()[:, 0], replace(key, shard=s)) for s in found.unique().tolist()]

    def _sample_rows(self, site: str, value: Tensor, keep: Bool[Tensor, "batch length"]) -> None:
        """Offer rows to the site's reservoir; `_add_rows` may overwrite its own copy of them."""
        key = RowsKey(site, self._half)
        if key not in self.sums.rows:
            self.sums.rows[key] = Reservoir(value.shape[-1], self.wanted.keep_rows, seed=self.wanted.seed)
        if self._keys is None:
            self._keys = batch_keys(self._batch)
        places = keep.flatten().nonzero()[:, 0]
        rows = value.flatten(0, 1)
        try:
            chosen = rows if len(places) == len(rows) else rows.index_select(0, places)
            self.sums.rows[key].update(chosen, self._keys.reshape(-1)[places.cpu().numpy()])
        except UndefinedMeasureError as error:
            raise UndefinedMeasureError(f"activation at {site}: {error}") from error

    def _add_rows(self, kind: str, site: str, value: Tensor, keep: Bool[Tensor, "batch length"]) -> None:
        keep = keep.to(value.device)
        if kind == "activation" and self.wanted.keep_rows:
            self._sample_rows(site, value, keep)
        for rows, key in self._parts(kind, "none", site):
            moments = self.sums.moment(key, value.shape[-1], value.device)
            try:
                chosen, mask = value[rows].flatten(0, 1), keep[rows].flatten()
                if bool(mask.all()):
                    moments.update(chosen.float())
                else:
                    # Whole rows by index: a boolean mask over both dimensions copies six times as slowly.
                    moments.update(chosen.index_select(0, mask.nonzero()[:, 0]).float(), scratch=True)
            except UndefinedMeasureError as error:
                raise UndefinedMeasureError(f"{kind.replace('_', ' ')} at {site}: {error}") from error

    def _add_energy(self, kind: str, control: str, site: str, along: Tensor, total: Tensor) -> None:
        key = EnergyKey(self.variant, kind, control, site)
        columns = torch.cat([along, total[:, None]], dim=1)
        if not bool(torch.isfinite(columns).all()):
            raise UndefinedMeasureError(f"{kind.replace('_', ' ')} at {site}: energies are not finite")
        self.sums.add_energy(key, HALVES.index(self._half), self._shards_of(kind), columns, self.wanted.n_shards)

    def _planes(self, site: str) -> list[tuple[str, Float[Tensor, "d n"]]]:
        """The planes of controls at a gradient site; other passes are not compared in them."""
        if self.variant != MAIN:
            return []
        return [(control, sites[site]) for control, sites in self.wanted.planes.items() if site in sites]

    def _rows(self, values: Tensor, group: str | None, site: str) -> Rows:
        """The residual side; matrices that read one input, and carry alike, share what is derived from it."""
        if group is None:
            return Rows(self._joined(values.float()), self._joined(self._carries(site, values.device)))
        key = (group, whole_site(site) in self._own)
        if key not in self._shared:
            self._shared[key] = Rows(self._joined(values.float()), self._joined(self._carries(site, values.device)))
        return self._shared[key]

    def _add_weight(self, site: str, rows: Rows, factor: Factor) -> None:
        """Second moment and projected energies of one matrix' gradient, and of its controls."""
        basis, place = self.wanted.bases.get(site), rows.values.device
        if basis is not None:
            basis = basis.to(place)
            along, total = gradient_energy(rows, factor, basis)
            self._add_energy("weight_gradient", "none", site, along, total)
            for control, columns in self._planes(site):
                along = energy_along(rows, factor, columns.to(place))
                self._add_energy("weight_gradient", control, site, along, total)
        if self._sums_wanted(site, control=False):
            for part, key in self._parts("weight_gradient", "none", site):
                self._add_sum(key, rows.values[part], factor.moment(rows, part))
        for control in self.wanted.controls if self.variant == MAIN else ():
            weights = control_weights(control, factor.norms, factor.total, rows.carries)
            if basis is not None:
                self._add_energy("weight_gradient", control, site, *control_energy(rows, weights, basis))
            if self._sums_wanted(site, control=True):
                self._add_control_sums(control, site, rows, weights)

    def _add_control_sums(self, control: str, site: str, rows: Rows, weights: RowWeights) -> None:
        for part, key in self._parts("weight_gradient", control, site):
            chosen = RowWeights(weights.row[part], None if weights.outer is None else weights.outer[part])
            values = rows.values[part]
            self._add_sum(key, values, weighted_second_moment(values, chosen, rows.carries[part]))

    def _sums_wanted(self, site: str, *, control: bool) -> bool:
        kept = ("all",) if control else ("all", "effect")
        return self.wanted.pooled in kept or site in self.wanted.by_shard

    def _add_sum(self, key: SumKey, rows: Tensor, total: Tensor) -> None:
        try:
            self.sums.moment(key, rows.shape[2], rows.device).add_sums(rows.shape[0], total)
        except UndefinedMeasureError as error:
            raise UndefinedMeasureError(f"weight gradient at {key.site}: {error}") from error
