"""Captures with planted inputs and gradients: the library's own sums, planes and tables, and a known answer.

Only the model's forward and backward pass is replaced: a `Reducer` receives chosen tensors for chosen matrices. Each
document is one sequence; halves and shards come from its hash, as always.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.models import WIDTH, random_documents, tiny_model
from tl_aniso import Capture, TangentProxies, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.objectives import Targets
from tl_aniso.capturing.reduce import Reducer, Wanted
from tl_aniso.capturing.sums import Sums
from tl_aniso.controls import ControlPlanes, fit_control_planes
from tl_aniso.text import Batch, document_hash, half_of, make_batches, shard_of
from tl_aniso.text import Sequence as Piece

D, RANK, LENGTH, SIDE = WIDTH, 4, 24, 16
READERS = ("blocks.0.attn.W_Q", "blocks.1.attn.W_Q")
# Fixed axes that are no coordinate axes: direction i of a spectrum below is AXES[:, i].
AXES = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(99), dtype=torch.float64)).Q

Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]


def spectrum(*parts: tuple[int, float]) -> Tensor:
    """Variances by direction: pairs of how many and how much."""
    return torch.cat([torch.full((n,), value) for n, value in parts]).double()


def rows_of(variances: Tensor, *, mean: float = 0.0) -> Callable[[torch.Generator], Tensor]:
    """LENGTH rows from N(mean along the first axis, variances)."""

    def draw(generator: torch.Generator) -> Tensor:
        z = torch.randn(LENGTH, D, generator=generator, dtype=torch.float64) * variances.sqrt()
        z[:, 0] += mean
        return z @ AXES.T

    return draw


def white(generator: torch.Generator) -> Tensor:
    """Gradients at the matrix' output that know nothing of its inputs."""
    return torch.randn(LENGTH, SIDE, generator=generator, dtype=torch.float64)


@dataclass
class Planted:
    """What is planted at the readers of layers 0 and 1.

    Attributes:
        fit: rows of half A, by layer: where planes are fitted.
        measure: rows and output gradients of half B, by layer.
        labels: output gradients of the pass `shuffled_labels`, given the rows; None for no such pass.
        permuted: rows of half A of the pass `permuted_tokens`.
    """

    fit: Sequence[Callable[[torch.Generator], Tensor]]
    measure: Sequence[Draw]
    labels: Callable[[torch.Generator, Tensor], Tensor] | None = None
    permuted: Sequence[Callable[[torch.Generator], Tensor]] = ()
    n_documents: int = 320
    seed: int = 0
    controls: tuple[str, ...] = field(default=("input_energy", "sign_flip", "shuffled_g"))

    def capture(self, proxies: TangentProxies | None = None, planes: ControlPlanes | None = None) -> Capture:
        """With d x d sums by shard, or projected where proxies are given."""
        layout = _layout()
        bases, columns = {}, {}
        if proxies is not None:
            bases = {site: proxies[site].basis.float() for site in READERS}
            columns = {
                control: {s: planes.at(control, proxies[s].site).float() for s in READERS} for control in planes or {}
            }
        wanted = Wanted(
            activations=frozenset() if proxies else frozenset(_matrix(site).activation for site in READERS),
            weights=frozenset(READERS),
            pooled="none" if proxies else "all",
            controls=self.controls,
            bases=bases,
            planes=columns,
            by_shard=frozenset() if proxies else frozenset(READERS),
            exclude=(),
        )
        sums, permuted = Sums(), Sums()
        for batch in _batches(self.n_documents):
            self._reduce(Reducer(layout, wanted, sums), batch, permuted=False)
            if self.permuted and batch.half == "A" and proxies is None:
                self._reduce(Reducer(layout, replace(wanted, weights=frozenset()), permuted), batch, permuted=True)
        for key, moments in permuted.moments.items():
            sums.moments[replace(key, variant="permuted_tokens")] = moments
        passes = ["shuffled_labels"] * (self.labels is not None) + ["permuted_tokens"] * bool(self.permuted)
        return Capture(sums, self._metadata(passes, proxies, planes), layout.aliases)

    def _reduce(self, reducer: Reducer, batch: Batch, *, permuted: bool) -> None:
        generators = [
            torch.Generator().manual_seed(int(p.document[:12], 16) + self.seed + 10**15 * permuted)
            for p in batch.sequences
        ]
        reducer.begin(batch, Targets(batch.ids, batch.mask))
        for layer, site in enumerate(READERS):
            matrix = _matrix(site)
            if batch.half == "A":
                source = self.permuted if permuted else self.fit
                rows = torch.stack([source[layer](g) for g in generators]).float()
                reducer.residual(matrix.residual, rows)
                reducer.matrix(matrix, rows, rows)
                continue
            drawn = [self.measure[layer](g) for g in generators]
            rows = torch.stack([x for x, _ in drawn]).float()
            reducer.matrix_gradient(matrix, rows, torch.stack([g for _, g in drawn]).float())
            if self.labels is not None:
                other = [self.labels(g, x) for g, (x, _) in zip(generators, drawn, strict=True)]
                reducer.start_variant("shuffled_labels")
                reducer.matrix_gradient(matrix, rows, torch.stack(other).float())
                reducer.start_variant("main")

    def _metadata(self, passes: list[str], proxies: TangentProxies | None, planes: ControlPlanes | None) -> Any:
        found = copy.deepcopy(_metadata())
        found["options"].update(
            sites=list(READERS),
            controls=list(self.controls),
            extra_passes=passes,
            shard_sites=[] if proxies else list(READERS),
            proxies={site: proxies[site].proxy_id for site in READERS} if proxies else {},
            planes=planes.ids() if planes else {},
            seq_len=LENGTH,
        )
        documents = [piece.document for piece in _pieces(self.n_documents)]
        halves = {document: half_of(document) for document in documents}
        found["text"].update(documents=sorted(documents), halves=halves)
        return found

    def frame(self, control: str, *, route: str) -> Any:
        """The table of `tangent_energy` at layer 0, from d x d sums or from projections."""
        held = self.capture()
        if route == "sums":
            result = tangent_energy(held, rank=RANK, controls=control, n_controls=0)
        else:
            proxies = fit_tangent_proxies(held, RANK)
            kinds = [c for c in (control,) if c in ("permuted_tokens", "other_layer", "covariance_drawn", "next_k")]
            planes = fit_control_planes(held, proxies, kinds)
            projected = self.capture(proxies, planes)
            asked = {"proxies": proxies, "planes": planes, "controls": control, "n_controls": 0}
            result = tangent_energy(projected, **asked)
        frame = result.frame
        return frame[(frame["site"] == READERS[0])].set_index(["measure", "control"])

    def excess(self, control: str, *, route: str) -> Any:
        """The row of the excess over a control."""
        return self.frame(control, route=route).loc[("excess", control)]


@cache
def _layout() -> Any:
    return bind(tiny_model("llama"))


@cache
def _metadata() -> dict[str, Any]:
    return capture(tiny_model("llama"), random_documents(), progress=False, gradients=()).metadata


def _matrix(site: str) -> Any:
    return next(matrix for matrix in _layout().matrices if site in matrix.sites)


@cache
def _pieces(n: int) -> tuple[Piece, ...]:
    ids = [np.full(LENGTH, 3 + i % 40, dtype=np.int64) for i in range(n)]
    hashes = [document_hash([i]) for i in range(n)]
    return tuple(Piece(i, h, 0, half_of(h), shard_of(h)) for i, h in zip(ids, hashes, strict=True))


@cache
def _batches(n: int) -> tuple[Batch, ...]:
    return tuple(make_batches(_pieces(n), 40))
