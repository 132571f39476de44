"""Rows of single tokens, batch by batch: what `capture` sums, handed out for questions that sums cannot answer."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from tl_aniso.capturing.bind import bind, check_finite
from tl_aniso.capturing.callable_head import callable_head
from tl_aniso.capturing.feeding import feed
from tl_aniso.capturing.head import Head, Unembedding
from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.objectives import shuffled_targets
from tl_aniso.capturing.options import Options, check_options
from tl_aniso.capturing.prepare import PreparedText, default_batch_size, prepare_text
from tl_aniso.capturing.row_collector import Reduce, RowCollector
from tl_aniso.capturing.row_sites import RowSites, choose_row_sites
from tl_aniso.capturing.run import batch_head, kept_random_state
from tl_aniso.checks import as_integer
from tl_aniso.errors import TextError, TlAnisoError, UndefinedMeasureError
from tl_aniso.progress import track
from tl_aniso.text import Batch, make_batches

__all__ = ["LABELS", "RowPass", "TokenRows", "plan_rows", "token_rows"]

LABELS = ("true", "shuffled")


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The real tokens of one batch, in the order of sequence and position; every tensor is on the CPU.

    A weight's gradient of one sequence is ``G = F^T R`` with one row a token (`tl_aniso.weight_moments`). Of a reader,
    R is ``activations[its input]`` and F ``outputs[site]``, the gradients g of its outputs. Of a writer, R is
    ``gradients[site + ".output"]`` and F ``outputs[site]``, its inputs h. Of the embedding, R is
    ``gradients["embed.W_E.output"]`` and F one-hot in `fed`.

    Attributes:
        ids: token ids of the text.
        fed: what the model read, which differs where the objective masks.
        sequence: number of the sequence, counted over the whole pass.
        position: place in the sequence, which is one piece of a document.
        document: hash of the document of each sequence of the batch; entry i is of sequence ``sequence[0] + i``.
        piece: which piece of its document each sequence is.
        shard: shard of each sequence.
        half: half of each sequence.
        carries: positions with a loss of their own.
        special: special tokens.
        kept: site -> rows that the row filters leave, as `capture` counts them for activations.
        reaches: gradient or weight site -> positions that some loss can send gradient to.
        activations: activation site -> rows; inputs of readers whose weight was asked for are among them.
        gradients: residual site -> dL/dh, L being the summed loss of the sequence; ``{writer}.output`` -> the same at
            the output of a writer whose weight was asked for.
        outputs: weight site -> F, above; its own width.
    """

    ids: Int64[Tensor, " n"]
    fed: Int64[Tensor, " n"]
    sequence: Int64[Tensor, " n"]
    position: Int64[Tensor, " n"]
    document: tuple[str, ...]
    piece: tuple[int, ...]
    shard: tuple[int, ...]
    half: tuple[str, ...]
    carries: Bool[Tensor, " n"]
    special: Bool[Tensor, " n"]
    kept: Mapping[str, Bool[Tensor, " n"]] = field(default_factory=dict)
    reaches: Mapping[str, Bool[Tensor, " n"]] = field(default_factory=dict)
    activations: Mapping[str, Float32[Tensor, "n d"]] = field(default_factory=dict)
    gradients: Mapping[str, Float32[Tensor, "n d"]] = field(default_factory=dict)
    outputs: Mapping[str, Float32[Tensor, "n d_out"]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Tokens."""
        return len(self.ids)

    def by_sequence(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows of this batch (n x anything), taken apart sequence by sequence."""
        if len(rows) != len(self):
            raise TlAnisoError(f"{len(rows)} rows do not match the {len(self)} tokens of the batch")
        return rows.split(torch.bincount(self.sequence - self.sequence[0]).tolist())


def token_rows(
    model: Any,
    text: Any,
    *,
    sites: str | Sequence[str],
    gradients: str | Sequence[str] = (),
    labels: str = "true",
    objective: Any = None,
    exclude: str | Sequence[str] = ("special", "sink"),
    half: str | None = None,
    tokenizer: Any = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    n_shards: int = 8,
    dtype: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Iterator[TokenRows]:
    """Run documents through a model and hand out the rows of every token, one batch at a time.

    What `tl_aniso.capture` sums is made of these rows, by the same hooks, objectives, masks and filters. Nothing on the
    model changes: between two batches, after an exception, and when the caller stops early, it is as it was. Batches
    come in an order of their own (by half and length); `TokenRows.document` and `TokenRows.piece` say what is what.
    Method: arXiv:2604.08764; ``docs/method.md``, sections 2 to 4.

    Args:
        model: as of `tl_aniso.capture`.
        text: as of `tl_aniso.capture`.
        sites: names or patterns of residual sites, inputs of readers, outputs of writers, and weights. A weight brings
            both sides of its gradient along. ``unembed.W_U`` is none of them: its side is as wide as the vocabulary.
        gradients: residual sites (or patterns) whose gradients are wanted, or "activation" for those among `sites`;
            "weight" changes nothing, as weight sites bring their gradients anyway.
        labels: "true", or "shuffled" for gradients of targets permuted within each sequence.
        objective: as of `tl_aniso.capture`.
        exclude: row filters that `TokenRows.kept` goes by; the rows themselves are all there.
        half: "A" or "B" for the documents of one half.
        tokenizer: as of `tl_aniso.capture`.
        seq_len: tokens in a sequence, min(512, context) by default.
        batch_size: sequences in a batch.
        n_shards: shards of documents.
        dtype: None or "float32"; "bfloat16" runs under autocast. Rows are float32 in any case.
        seed: of masks and of permuted labels.
        progress: show progress with an estimate.

    Returns:
        An iterator over `TokenRows`. Arguments are checked at once, the model runs as it is iterated.

    Raises:
        TlAnisoError: an unsupported model, unusable text, an unknown site or option; shuffled labels of an objective of
            the user's own.
        TextError: no document in the half that was asked for.
        UndefinedMeasureError: while iterating, rows that are not finite.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso.capturing.token_rows import token_rows
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> for rows in token_rows(LlamaForCausalLM(config), [list(range(3, 23))], sites="blocks.0.attn.W_Q",
        ...                        progress=False):
        ...     x, g = rows.activations["blocks.0.attn.input"], rows.outputs["blocks.0.attn.W_Q"]
        ...     print(len(rows), tuple(x.shape), tuple((g.T @ x).shape))
        20 (20, 16) (16, 16)
    """
    return plan_rows(
        model,
        text,
        sites=sites,
        gradients=gradients,
        labels=labels,
        objective=objective,
        exclude=exclude,
        half=half,
        tokenizer=tokenizer,
        seq_len=seq_len,
        batch_size=batch_size,
        n_shards=n_shards,
        dtype=dtype,
        seed=seed,
        progress=progress,
    ).iterate()


@dataclass(frozen=True, eq=False)
class RowPass:
    """A pass over a text whose arguments were checked; `iterate` runs it.

    Attributes:
        layout: of the model.
        prepared: the text.
        options: as of a capture.
        chosen: whose rows are handed out.
        shuffled: whether gradients are of permuted targets.
        batch_size: sequences in a batch.
        progress: whether progress is shown.
    """

    layout: Layout
    prepared: PreparedText
    options: Options
    chosen: RowSites
    shuffled: bool
    batch_size: int
    progress: bool

    def iterate(self, reduce: Reduce | None = None) -> Iterator[TokenRows]:
        """Run the model batch by batch; with `reduce`, rows are replaced by what it makes of them, at once."""
        batches = make_batches(self.prepared.sequences.sequences, self.batch_size)
        first = 0
        for batch in track(batches, "token rows", total=len(batches), enabled=self.progress):
            try:
                # Hooks and gradient mode end before rows are handed out: whoever iterates may use the model meanwhile.
                found = _rows(self, batch, first, reduce)
            except UndefinedMeasureError:
                check_finite(self.layout)  # a broken checkpoint is the cause to name, not the first site it reached
                raise
            first += len(batch.sequences)
            yield found


def plan_rows(
    model: Any,
    text: Any,
    *,
    sites: str | Sequence[str],
    gradients: str | Sequence[str] = (),
    labels: str = "true",
    objective: Any = None,
    exclude: str | Sequence[str] = ("special", "sink"),
    half: str | None = None,
    tokenizer: Any = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    n_shards: int = 8,
    dtype: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> RowPass:
    """What `token_rows` iterates over, checked and ready to run.

    Raises:
        TlAnisoError: as `token_rows`.
    """
    if labels not in LABELS:
        raise TlAnisoError(f"labels must be one of {', '.join(LABELS)}, got {labels!r}")
    if half not in (None, "A", "B"):
        raise TlAnisoError(f"half must be 'A', 'B' or None for both, got {half!r}")
    if not isinstance(progress, bool):
        raise TlAnisoError(f"progress must be True or False, got {progress!r}")
    layout = bind(model)
    options = check_options(
        layout,
        gradients=(),
        controls=(),
        extra_passes=("shuffled_labels",) if labels == "shuffled" else (),
        objective=objective,
        unit="sequence",
        basis="own",
        exclude=exclude,
        weight_exclude=(),
        keep_rows=0,
        n_shards=n_shards,
        dtype=dtype,
        seed=seed,
    )
    chosen = choose_row_sites(layout, sites, gradients)
    if labels == "shuffled" and not chosen.backward:
        raise TlAnisoError(
            "labels='shuffled' changes gradients alone, and none is asked for; name weight sites, or gradients="
        )
    prepared = prepare_text(
        model,
        layout,
        text,
        tokenizer=tokenizer,
        seq_len=seq_len,
        n_shards=options.n_shards,
        masked_lm=options.masked_lm,
    )
    if half is not None:
        if half not in prepared.halves:
            raise TextError(f"no document of the text lies in half {half}; give more documents, or half=None for all")
        prepared = prepared.restricted(half)
    size = default_batch_size(layout, prepared.seq_len)
    size = size if batch_size is None else as_integer("batch_size", batch_size, least=1)
    return RowPass(layout, prepared, options, chosen, labels == "shuffled", size, progress)


def _rows(plan: RowPass, batch: Batch, first: int, reduce: Reduce | None) -> TokenRows:
    layout, options, chosen, prepared = plan.layout, plan.options, plan.chosen, plan.prepared
    on_device = dataclasses.replace(batch, ids=batch.ids.to(layout.device), mask=batch.mask.to(layout.device))
    fed = feed(on_device, prepared.masking, options.seed)
    collector = RowCollector(layout, chosen, on_device, prepared.special, fed.masked, options.exclude, reduce)
    carries = fed.targets.carries
    with (
        kept_random_state(layout, options),
        tapped(
            layout,
            collector,
            gradients=chosen.backward,
            matrices=chosen.matrices,
            residuals=chosen.gradients,
            dtype=options.autocast,
        ) as tap,
    ):
        hidden = tap.forward(fed.ids, on_device.mask)
        collector.hidden(hidden)
        unembed = Unembedding.of(layout.unembed.module, layout.softcap)
        head: Head | None = None
        if options.losses is not None:  # which positions have a loss of the user's, its gradient says
            called = callable_head(unembed, hidden, on_device, options.losses, inner="none", counted=on_device.mask)
            head, carries = called.head, called.carries
        elif chosen.backward:
            targets = shuffled_targets(fed.targets, batch.sequences, options.seed) if plan.shuffled else fed.targets
            head = batch_head(unembed, hidden, targets, "none", on_device.mask, False)
        if chosen.backward and head is not None:
            tap.backward(hidden, head.gradient, again=False)
    mask = batch.mask
    row, position = mask.nonzero(as_tuple=True)
    found = collector.found(carries)
    return TokenRows(
        ids=batch.ids[mask],
        fed=fed.ids.cpu()[mask],
        sequence=row + first,
        position=position,
        document=tuple(s.document for s in batch.sequences),
        piece=tuple(s.index for s in batch.sequences),
        shard=tuple(s.shard for s in batch.sequences),
        half=tuple(s.half for s in batch.sequences),
        carries=carries.cpu()[mask],
        special=collector.special,
        kept=found.kept,
        reaches=found.reaches,
        activations=found.activations,
        gradients=found.gradients,
        outputs=found.outputs,
    )
