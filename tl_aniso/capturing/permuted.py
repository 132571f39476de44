"""The extra pass `permuted_tokens`: activations of the same documents with their tokens in another order."""

import dataclasses

import torch

from tl_aniso.capturing.feeding import feed
from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.reduce import Reducer, Wanted
from tl_aniso.capturing.sums import Sums
from tl_aniso.controls.names import PERMUTED_TOKENS
from tl_aniso.progress import track
from tl_aniso.text import Batch, make_batches
from tl_aniso.text.masking import Masking
from tl_aniso.text.permuted import permuted_sequences

__all__ = ["add_permuted_activations"]


def add_permuted_activations(
    layout: Layout,
    batches: list[Batch],
    wanted: Wanted,
    sums: Sums,
    *,
    masking: Masking | None,
    seed: int,
    dtype: torch.dtype | None,
    progress: bool,
) -> None:
    """A forward pass over the permuted documents; the moments of its activations join `sums` under their own name.

    Only planes are fitted on them, so nothing is kept by shard and nothing is tallied.

    Args:
        batches: of the true documents.
        wanted: of the true pass: the same activations, under the same filters.
        sums: where the moments go.
        masking: of the true pass. Special tokens keep their places and each place has its own draw, so the permuted
            text is masked at the places where the true text is.
        seed: of the permutations and masks.
        dtype: as of the true pass.
        progress: show it.
    """
    if not wanted.activations:
        return
    forward = Wanted(
        activations=wanted.activations, n_shards=wanted.n_shards, special=wanted.special, exclude=wanted.exclude
    )
    apart = Sums()
    reducer = Reducer(layout, forward, apart)
    true = [sequence for batch in batches for sequence in batch.sequences]
    size = max(len(batch.sequences) for batch in batches)
    permuted = make_batches(permuted_sequences(true, seed=seed, fixed=wanted.special), size)
    with tapped(
        layout,
        reducer,
        gradients=False,
        matrices=frozenset(wanted.activations),
        residuals=frozenset(),
        dtype=dtype,
    ) as tap:
        for batch in track(permuted, "permuted tokens", total=len(permuted), enabled=progress):
            on_device = dataclasses.replace(batch, ids=batch.ids.to(layout.device), mask=batch.mask.to(layout.device))
            fed = feed(on_device, masking, seed)
            reducer.begin(on_device, fed.targets, fed.ids, fed.masked)
            hidden = tap.forward(fed.ids, on_device.mask)
            reducer.hidden(hidden)
    for key, moments in apart.moments.items():
        sums.moments[dataclasses.replace(key, variant=PERMUTED_TOKENS)] = moments
