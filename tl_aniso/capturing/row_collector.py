"""Receive the tensors of one batch and keep the rows of its real tokens, in float32 on the CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.capturing.reach import Reach, own_loss_sites
from tl_aniso.capturing.row_filters import kinds_of, not_sinks, without
from tl_aniso.capturing.row_sites import RowSites
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.sites import EMBEDDING, output_site
from tl_aniso.text import Batch

__all__ = ["CollectedRows", "Reduce", "RowCollector"]

# (field of `CollectedRows`, site, rows of all real tokens on the site's device) -> as many rows, of any width
Reduce = Callable[[str, str, Float[Tensor, "n d"]], Float[Tensor, "n columns"]]


@dataclass(frozen=True)
class CollectedRows:
    """The mappings of `tl_aniso.capturing.token_rows.TokenRows`."""

    kept: Mapping[str, Bool[Tensor, " n"]]
    reaches: Mapping[str, Bool[Tensor, " n"]]
    activations: Mapping[str, Float32[Tensor, "n d"]]
    gradients: Mapping[str, Float32[Tensor, "n d"]]
    outputs: Mapping[str, Float32[Tensor, "n d_out"]]


class RowCollector:
    """Consumes the tensors of one batch; see `hooks.Consumer`. Each is copied at once: models change them in place."""

    def __init__(
        self,
        layout: Layout,
        chosen: RowSites,
        batch: Batch,
        special: tuple[int, ...],
        masked: Bool[Tensor, "batch length"] | None,
        exclude: tuple[str, ...],
        reduce: Reduce | None = None,
    ) -> None:
        self._layout = layout
        self._chosen = chosen
        self._mask = batch.mask
        self._sinks = "sink" in exclude
        self._reduce = reduce
        kinds = kinds_of(batch.ids, special, masked)
        self._left = without(batch.mask, kinds, exclude)
        self.special: Bool[Tensor, " n"] = kinds["special"][batch.mask].cpu()
        self._own = own_loss_sites(len(layout.blocks)) if layout.attends == "both" else frozenset()
        self._keep: dict[str, Tensor] = {}
        self._activations: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}  # gradients at outputs of writers and of the embedding
        self._outputs: dict[str, Tensor] = {}
        self._residuals = frozenset(chosen.activations.values())

    def residual(self, site: str, value: Float[Tensor, "batch length d"]) -> None:
        """A residual value: its row filters, and its rows where they are wanted."""
        keep = self._left.to(value.device)
        if self._sinks:
            keep = keep & not_sinks(value.float().norm(dim=-1), self._mask.to(value.device))
        self._keep[site] = self._take(keep)
        if site in self._residuals:
            self._activations[site] = self._numbers("activations", site, value)

    def matrix(self, matrix: Matrix, inputs: Float[Tensor, "..."], outputs: Float[Tensor, "..."]) -> None:
        """What a reader was given or a writer made; readers of one input bring the same rows."""
        site = matrix.activation
        if site in self._chosen.activations and site not in self._activations:
            self._activations[site] = self._numbers("activations", site, inputs if matrix.role == "reader" else outputs)

    def hidden(self, hidden: Float[Tensor, "batch length d"]) -> None:
        """What the unembedding reads."""
        site = self._layout.unembed.activation
        if site in self._chosen.activations:
            self._activations[site] = self._numbers("activations", site, hidden.detach())

    def residual_gradient(self, site: str, gradient: Float[Tensor, "batch length d"]) -> None:
        """dL/dh at a residual site."""
        self._gradients[site] = self._numbers("gradients", site, gradient)

    def matrix_gradient(self, matrix: Matrix, inputs: Float[Tensor, "..."], gradient: Float[Tensor, "..."]) -> None:
        """The gradient at a matrix's output: a reader's own side, the residual side of a writer."""
        writer = matrix.role == "writer"
        parts = matrix.split(gradient) if matrix.split else (gradient,)
        for site, values in zip(matrix.sites, (inputs,) if writer else parts, strict=True):
            if site in self._chosen.weights:
                self._outputs[site] = self._numbers("outputs", site, values)
                if writer:
                    self._rows[output_site(site)] = self._numbers("gradients", output_site(site), gradient)

    def embedding_gradient(self, gradient: Float[Tensor, "batch length d"]) -> None:
        """The gradient at the embedding's output, as the table has it: in front of the embedding's own factor."""
        scaled = gradient * self._layout.embed_scale if self._layout.embed_scale != 1 else gradient
        self._rows[output_site(EMBEDDING)] = self._numbers("gradients", output_site(EMBEDDING), scaled)

    def found(self, losses: Bool[Tensor, "batch length"]) -> CollectedRows:
        """Everything under the names that were asked for; `losses` are the positions with a loss."""
        chosen = self._chosen
        activations = {name: self._activations[site] for name, site in chosen.activations.items()}
        gradients = {name: self._gradients[site] for name, site in chosen.gradient_names.items()}
        gradients |= self._rows
        outputs = {site: self._outputs[site] for site in chosen.weights if site in self._outputs}
        reach = Reach.of(self._layout, losses, self._mask, self._own)
        places = dict(chosen.gradient_names)
        places |= {name: name for name in chosen.weights}
        places |= {name: name.removesuffix(".output") for name in self._rows}
        return CollectedRows(
            kept={
                name: self._keep[chosen.filters[name]]
                for name in dict.fromkeys((*activations, *gradients, *chosen.weights))
            },
            reaches={name: self._take(reach.at(place)) for name, place in places.items()},
            activations=activations,
            gradients=gradients,
            outputs=outputs,
        )

    def _take(self, values: Tensor) -> Tensor:
        return values[self._mask.to(values.device)].cpu()

    def _numbers(self, field: str, site: str, values: Tensor) -> Float32[Tensor, "n side"]:
        rows = values.detach()[self._mask.to(values.device)].to(torch.float32)
        if self._reduce is not None:
            with torch.autocast(rows.device.type, enabled=False):
                rows = self._reduce(field, site, rows)
        rows = rows.cpu()
        if not bool(torch.isfinite(rows).all()):
            raise UndefinedMeasureError(f"{field} at {site}: rows are not finite")
        return rows
