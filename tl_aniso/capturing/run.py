"""The pass: documents through a model, forward and backward, into sums."""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor

from tl_aniso.capturing.bind import bind, check_finite
from tl_aniso.capturing.callable_head import callable_head
from tl_aniso.capturing.feeding import feed
from tl_aniso.capturing.head import Head, Inner, Unembedding, cross_entropy_head
from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.objectives import Targets, shuffled_targets
from tl_aniso.capturing.options import Options, check_options
from tl_aniso.capturing.permuted import add_permuted_activations
from tl_aniso.capturing.plan import Plan, Pooled, check_size, make_plan
from tl_aniso.capturing.prepare import PreparedText, default_batch_size, prepare_text
from tl_aniso.capturing.provenance import describe
from tl_aniso.capturing.reduce import Reducer
from tl_aniso.capturing.store import Capture
from tl_aniso.capturing.sums import MAIN, Sums
from tl_aniso.checks import as_integer, as_names
from tl_aniso.controls.names import PERMUTED_TOKENS
from tl_aniso.controls.planes import ControlPlanes
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.progress import say, track
from tl_aniso.sites import UNEMBEDDING, UNEMBEDDING_INPUT
from tl_aniso.subspace import TangentProxies
from tl_aniso.text import Batch, make_batches
from tl_aniso.text.masking import Masking
from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = ["batch_head", "capture", "kept_random_state", "run_capture"]


def capture(
    model: Any,
    text: Any,
    *,
    gradients: str | Sequence[str] = ("activation", "weight"),
    proxies: TangentProxies | None = None,
    controls: str | Sequence[str] = CONTROL_NAMES,
    extra_passes: str | Sequence[str] = (),
    sites: str | Sequence[str] | None = None,
    objective: Any = None,
    unit: str = "sequence",
    basis: str = "own",
    heads: bool = False,
    exclude: str | Sequence[str] = ("special", "sink"),
    weight_exclude: str | Sequence[str] = (),
    keep_rows: int = 0,
    seq_len: int | None = None,
    batch_size: int | None = None,
    n_shards: int = 8,
    shard_sites: str | Sequence[str] = (),
    max_bytes: int | None = None,
    dtype: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
    tokenizer: Any = None,
    pooled: Pooled | None = None,
    planes: ControlPlanes | None = None,
) -> Capture:
    """Run documents through a model once and keep the sums that every later question needs.

    Residual-stream activations and their gradients give one row a token; a weight's gradient G counts per sequence,
    through ``G^T G``. Sums merge by addition, so ranks, planes and scores can be asked afterwards, without the model.
    Nothing on the model changes. Method: arXiv:2604.08764; ``docs/method.md``, sections 2 to 4.

    Args:
        model: a decoder or encoder of Hugging Face (`tl_aniso.capturing.bind.SUPPORTED_CLASSES` lists the classes), a
            TransformerBridge (TransformerLens 4) of one, or a HookedTransformer (TransformerLens 3.9) as
            ``from_pretrained_no_processing`` loads it.
        text: a string, token ids, a list of either, dataset rows, or a Path to .txt or .jsonl.
        gradients: "activation" and/or "weight"; empty for a forward pass alone.
        proxies: known tangent proxies; weight gradients are then projected on them, shard by shard, instead of
            being summed as d x d matrices.
        controls: closed-form controls of weight gradients: "input_energy", "sign_flip", "shuffled_g".
        extra_passes: "shuffled_labels" sends a second gradient back, of targets permuted within each sequence;
            "permuted_tokens" runs forward over each document with its tokens permuted, and keeps the activations in
            ``.variants["permuted_tokens"].activations``.
        sites: names or shell-style patterns; None for every site.
        objective: None for what the model was made for: "causal", summed next-token cross-entropy, of decoders;
            "masked", summed cross-entropy of masked tokens, of encoders, or `tl_aniso.MaskedLM` with another rate or
            replacement: the model then reads masked text, the same at every checkpoint. Or a callable
            ``(logits, ids, mask) -> losses`` of one sequence at a time, without padding (1 x length x vocabulary in
            float32, 1 x length, 1 x length), to one loss a token, zero where there is none; their sum is
            differentiated by autograd, and all logits of a sequence are held. Its ``objective_name`` or ``__name__``
            is recorded, and a digest of its code. It must not run the measured model itself (a copy may be run). It
            may draw random numbers of torch, whose state is afterwards as before, and write into what it is given.
        unit: "sequence": G is the gradient of one sequence. "batch": of a whole batch, as an optimiser's step has it;
            batches then keep within a half and a shard, and `batch_size` is part of what is measured.
        basis: "own": a reader's proxy lives on its own input, a writer's on its own output. "residual": on the
            residual stream, where the reader reads it (before its norm) or the writer has written into it.
        heads: measure W_Q, W_K, W_V and W_O of every chosen site head by head too, as ``blocks.0.attn.W_Q.3``; single
            heads can be named in `sites`.
        exclude: row filters for activations and their gradients: "special" tokens, and "sink" positions, whose
            residual norm exceeds 10 times the median of their sequence; under a masked objective also "masked" or
            "unmasked" tokens.
        weight_exclude: "special", "masked" or "unmasked" leaves such tokens out of weight gradients, which are then no
            longer dL/dW.
        keep_rows: rows kept of every activation site and half, in ``.rows``, for what sums cannot answer: a uniform
            sample of the rows that the filters leave, at the same places of a text in every model and batch size.
        seq_len: tokens in a sequence, min(512, context) by default.
        batch_size: sequences in a batch; changes speed, not results (but see `unit`).
        n_shards: shards of documents for jackknife intervals.
        shard_sites: sites whose d x d sums are kept shard by shard.
        max_bytes: refuse to hold more than this; by default 60% of the free memory.
        dtype: None or "float32"; "bfloat16" runs under autocast.
        device: checked against where the model is, which is never moved.
        seed: seed of masks, of permuted labels and tokens, and of kept rows.
        progress: show the size, and progress with an estimate.
        tokenizer: the model's tokenizer, found by itself where the model was loaded from a path or id and the text is
            no ids. It names the special tokens, the mask token among them.
        pooled: d x d sums of weight gradients: "all" of them, of the "effect" without its controls, or "none"; by
            default "all" without proxies and "none" with them.
        planes: of controls, as `tl_aniso.controls.fit_control_planes` returns them: with `proxies`, gradients are
            projected on these too.

    Returns:
        A `Capture`.

    Raises:
        TlAnisoError: an unsupported model, unusable text, an unknown site or option, or sums above `max_bytes`.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> got = capture(LlamaForCausalLM(config), [list(range(3, 23)), list(range(9, 39))], progress=False)
        >>> got.weight_gradients["blocks.0.attn.W_Q"].second_moment().shape
        torch.Size([16, 16])
    """
    layout = bind(model)
    options = check_options(
        layout,
        gradients=gradients,
        controls=controls,
        extra_passes=extra_passes,
        objective=objective,
        unit=unit,
        basis=basis,
        heads=heads,
        exclude=exclude,
        weight_exclude=weight_exclude,
        keep_rows=keep_rows,
        n_shards=n_shards,
        dtype=dtype,
        seed=seed,
    )
    if device is not None and _device(device).type != layout.device.type:
        raise TlAnisoError(
            f"the model is on {layout.device}, not on {device}; move it first with model.to({str(device)!r})"
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
    return run_capture(
        model,
        layout,
        prepared,
        options,
        proxies=proxies,
        sites=sites,
        shard_sites=shard_sites,
        batch_size=batch_size,
        max_bytes=max_bytes,
        pooled=pooled,
        planes=planes,
        progress=progress,
    )


def run_capture(
    model: Any,
    layout: Layout,
    prepared: PreparedText,
    options: Options,
    *,
    proxies: TangentProxies | None = None,
    sites: str | Sequence[str] | None = None,
    shard_sites: str | Sequence[str] = (),
    batch_size: int | None = None,
    max_bytes: int | None = None,
    pooled: Pooled | None = None,
    planes: ControlPlanes | None = None,
    progress: bool = True,
    description: str = "capture",
) -> Capture:
    """`capture` on text that was prepared, and options that were checked, before.

    Raises:
        TlAnisoError: arguments of the wrong kind, or text that was prepared without the masks of the objective.
    """
    if (options.masked_lm is None) != (prepared.masking is None):
        raise TlAnisoError(
            f"the text was not prepared for the objective {options.objective}; prepare it with masked_lm"
        )
    if proxies is not None and not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    if planes is not None and not isinstance(planes, ControlPlanes):
        raise TlAnisoError(f"planes must be ControlPlanes, as fit_control_planes returns them, got {planes!r}")
    if not isinstance(progress, bool):
        raise TlAnisoError(f"progress must be True or False, got {progress!r}")
    if pooled is not None and not isinstance(pooled, str):
        raise TlAnisoError(f"pooled must be one of {', '.join(get_args(Pooled))}, got {pooled!r}")
    names = None if sites is None else as_names("sites", sites)
    if names == ():
        raise TlAnisoError("sites is empty: there is nothing to capture; leave it out for every site")
    size = default_batch_size(layout, prepared.seq_len)
    size = size if batch_size is None else as_integer("batch_size", batch_size, least=1)
    limit = None if max_bytes is None else as_integer("max_bytes", max_bytes, least=0)
    plan = make_plan(
        layout,
        options,
        sites=names,
        proxies=proxies,
        shard_sites=as_names("shard_sites", shard_sites),
        special=prepared.special,
        pooled=("all" if proxies is None else "none") if pooled is None else pooled,
        n_halves=len(prepared.halves),
        planes=planes,
    )
    say(
        f"{description}: {len(prepared.sequences.sequences)} sequences, {prepared.sequences.n_tokens} tokens; "
        f"{plan.n_sums} sums of {layout.d_model} x {layout.d_model}, {plan.n_bytes / 1e6:.0f} MB",
        enabled=progress,
    )
    check_size(plan, limit)
    batches = make_batches(prepared.sequences.sequences, size, by_shard=options.unit == "batch")
    try:
        with kept_random_state(layout, options):
            sums = _run(layout, batches, options, prepared.masking, plan, progress, description)
    except UndefinedMeasureError:
        check_finite(layout)  # a broken checkpoint is the cause to name, not the first site it reached
        raise
    metadata = describe(layout, model, options, plan, prepared, batches, size)
    return Capture(sums, metadata, layout.aliases)


def _run(
    layout: Layout,
    batches: list[Batch],
    options: Options,
    masking: Masking | None,
    plan: Plan,
    progress: bool,
    description: str,
) -> Sums:
    sums = Sums()
    reducer = Reducer(layout, plan.wanted, sums)
    backward = bool(plan.wanted.activation_gradients or plan.wanted.weights)
    unembed = Unembedding.of(layout.unembed.module, layout.softcap)
    joined = options.unit == "batch"
    inner: Inner = "none" if UNEMBEDDING not in plan.wanted.weights else "cheapest" if joined else "kernel"
    # A loss of the user's is not called for nothing; cross-entropy costs little and is reported.
    needs_head = backward or (UNEMBEDDING_INPUT in plan.wanted.activations and options.losses is None)
    with tapped(
        layout,
        reducer,
        gradients=backward,
        matrices=plan.matrices,
        residuals=plan.wanted.activation_gradients,
        dtype=options.autocast,
    ) as tap:
        for batch in track(batches, description, total=len(batches), enabled=progress):
            on_device = dataclasses.replace(batch, ids=batch.ids.to(layout.device), mask=batch.mask.to(layout.device))
            fed = feed(on_device, masking, options.seed)
            targets = fed.targets
            reducer.begin(on_device, targets, fed.ids, fed.masked)
            hidden = tap.forward(fed.ids, on_device.mask)
            reducer.hidden(hidden)
            if not needs_head:
                continue
            if options.losses is None:
                head = batch_head(unembed, hidden, targets, inner, reducer.counted, joined)
                n_losses = int(targets.carries.sum())
            else:
                called = callable_head(unembed, hidden, on_device, options.losses, inner=inner, counted=reducer.counted)
                head, n_losses = called.head, called.n_losses
                reducer.carry(called.carries)
            reducer.start_variant(MAIN)
            reducer.head(hidden, head)
            sums.tally(f"loss|{MAIN}|{batch.half}", float(head.loss.sum()))
            sums.tally(f"targets|{batch.half}", n_losses)
            if not backward:
                continue
            tap.backward(hidden, head.gradient, again=bool(options.label_passes))
            for left, name in enumerate(reversed(options.label_passes)):
                shuffled = shuffled_targets(targets, batch.sequences, options.seed)
                head = batch_head(unembed, hidden, shuffled, inner, reducer.counted, joined)
                reducer.start_variant(name)
                reducer.head(hidden, head)
                sums.tally(f"loss|{name}|{batch.half}", float(head.loss.sum()))
                tap.backward(hidden, head.gradient, again=left + 1 < len(options.label_passes))
            reducer.start_variant(MAIN)
    if PERMUTED_TOKENS in options.extra_passes:
        add_permuted_activations(
            layout,
            batches,
            plan.wanted,
            sums,
            masking=masking,
            seed=options.seed,
            dtype=options.autocast,
            progress=progress,
        )
    return sums


def kept_random_state(layout: Layout, options: Options) -> AbstractContextManager[None]:
    """Whatever an objective of the user's draws, torch's random numbers go on afterwards as if it had not."""
    if options.losses is None:
        return nullcontext()
    devices = {parameter.device for parameter in layout.root.parameters() if parameter.is_cuda}
    return torch.random.fork_rng(sorted(devices, key=str), device_type="cuda")


def batch_head(
    unembed: Unembedding, hidden: Tensor, targets: Targets, inner: Inner, counted: Tensor, joined: bool
) -> Head:
    """The head of a batch; joined, the batch goes through it as one sequence."""
    # Of a model on several devices the unembedding may be elsewhere than the last block.
    place = unembed.weight.device
    hidden, counted = hidden.to(place), counted.to(place)
    targets = Targets(targets.ids.to(place), targets.carries.to(place))
    if not joined:
        return cross_entropy_head(unembed, hidden, targets, inner=inner)
    flat, ids, carries, kept = (t.flatten(0, 1)[None] for t in (hidden, targets.ids, targets.carries, counted))
    head = cross_entropy_head(unembed, flat, Targets(ids, carries), inner=inner, counted=kept)
    return dataclasses.replace(head, gradient=head.gradient.reshape(hidden.shape))


def _device(device: Any) -> Any:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise TlAnisoError(f"unknown device {device!r}") from error
