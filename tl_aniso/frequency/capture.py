"""One forward pass over a text into counts, tables and contextual moments by token type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.feeding import feed
from tl_aniso.capturing.head import Unembedding
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import check_options
from tl_aniso.capturing.prepare import PreparedText, find_tokenizer, prepare_text
from tl_aniso.capturing.provenance import fingerprint
from tl_aniso.capturing.token_rows import TokenRows, token_rows
from tl_aniso.checks import as_integer, as_names
from tl_aniso.errors import SiteError, TextError, UndefinedMeasureError
from tl_aniso.frequency.store import FORMAT_VERSION, SiteRows, TypeCapture
from tl_aniso.frequency.type_moments import TypeMoments
from tl_aniso.moments import Moments
from tl_aniso.sites import EMBEDDING, UNEMBEDDING, residual_site, select_sites
from tl_aniso.text import iter_documents, make_batches

__all__ = ["N_MIN", "type_capture"]

# Fewer occurrences tell little of a type's spread.
N_MIN = 8


def type_capture(
    model: Any,
    text: Any,
    *,
    sites: str | Sequence[str] | None = None,
    n_min: int = N_MIN,
    objective: Any = None,
    exclude: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> TypeCapture:
    """Run a text forward through a model and keep, by token type, what `frequency_variance` asks for.

    Counts of all tokens of the text; the input and the output table; at each site count, mean and spread of the rows of
    each type, and the same of `n_min` occurrences of each type that has so many, drawn before the pass. Nothing on the
    model changes. Method: arXiv:2604.08764; ``docs/method.md``, frequency and variance.

    Args:
        model: as of `tl_aniso.capture`.
        text: as of `tl_aniso.capture`.
        sites: residual sites, names or patterns; by default the output of the first, the middle and the last block.
        n_min: occurrences of a type in the size-matched sample.
        objective: as of `tl_aniso.capture`. Under one of masked tokens the model reads masked text.
        exclude: row filters; by default "special" and "sink", and "masked" where tokens are masked, whose rows are of
            the mask token.
        tokenizer: as of `tl_aniso.capture`.
        seq_len: tokens in a sequence, min(512, context) by default.
        batch_size: sequences in a batch; changes speed, not results.
        dtype: None or "float32"; "bfloat16" runs under autocast.
        seed: of masks and of the size-matched sample.
        progress: show progress with an estimate.

    Returns:
        A `TypeCapture`.

    Raises:
        TlAnisoError: an unsupported model, unusable text, an unknown site or option.
        SiteError: a site that is no residual site.
        UndefinedMeasureError: rows that are not finite, with the name of the site.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso.frequency import type_capture
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> held = type_capture(LlamaForCausalLM(config), [[3, 4, 5, 3, 4, 3], [7, 8, 7]], progress=False)
        >>> held.counts[:9].tolist(), held.sites
        ([0, 0, 0, 3, 2, 1, 0, 2, 1], ('blocks.0.hook_resid_post', 'blocks.1.hook_resid_post'))
    """
    layout = bind(model)
    n_min = as_integer("n_min", n_min, least=2)
    options = check_options(
        layout,
        gradients=(),
        controls=(),
        extra_passes=(),
        objective=objective,
        unit="sequence",
        basis="own",
        exclude=("special", "sink") if exclude is None else exclude,
        weight_exclude=(),
        keep_rows=0,
        n_shards=8,
        dtype=dtype,
        seed=seed,
    )
    filters = options.exclude
    if exclude is None and options.masked_lm is not None:
        filters = (*filters, "masked")
    chosen = _sites(layout, sites)
    documents = list(iter_documents(text))
    prepared = prepare_text(
        model, layout, documents, tokenizer=tokenizer, seq_len=seq_len, n_shards=8, masked_lm=options.masked_lm
    )
    matched = _sample(prepared, filters, n_min, options.seed)
    sums = {site: _empty(layout) for site in chosen}
    counts = torch.zeros(layout.vocab_size, dtype=torch.int64)
    found = token_rows(
        model,
        documents,
        sites=chosen,
        objective=objective,
        exclude=filters,
        tokenizer=tokenizer,
        seq_len=seq_len,
        batch_size=batch_size,
        dtype=dtype,
        seed=options.seed,
        progress=progress,
    )
    for rows in found:
        counts += torch.bincount(rows.ids, minlength=layout.vocab_size)
        in_sample = torch.cat([matched[place] for place in zip(rows.document, rows.piece, strict=True)])
        for site in chosen:
            _add(sums[site], site, rows, in_sample)
    tables, tied = _tables(layout)
    # The smaller of two origins wins in a merge, whatever it is.
    origin = int(min(prepared.sequences.documents)[:15], 16)
    kept = {
        site: SiteRows(held, some, torch.full((layout.vocab_size,), origin), pooled)
        for site, (held, some, pooled) in sums.items()
    }
    metadata = {
        "format_version": FORMAT_VERSION,
        "model": {**_model(layout), "tied": tied},
        "options": {
            "n_min": n_min,
            "special": list(prepared.special),
            "objective": options.objective,
            "exclude": list(filters),
            "sites": list(chosen),
            "seed": options.seed,
            "dtype": options.dtype,
            "seq_len": prepared.seq_len,
            "tokenizer": prepared.tokenizer,
        },
        "text": {"documents": sorted(prepared.sequences.documents), "n_tokens": prepared.sequences.n_tokens},
    }
    return TypeCapture(counts, tables, kept, metadata, _tokens(model, documents, tokenizer, layout.vocab_size))


def _sites(layout: Layout, sites: str | Sequence[str] | None) -> tuple[str, ...]:
    last = len(layout.blocks) - 1
    if sites is None:
        return tuple(residual_site(layer, "post") for layer in sorted({0, (last + 1) // 2, last}))
    names = as_names("sites", sites)
    # A pattern may select others beside; a name that is another site's is told from one that is none.
    others = {*layout.matrix_sites, *layout.weight_sites}
    wrong = [name for name in names if name in others]
    if wrong:
        raise SiteError(
            f"{wrong[0]} is no residual site; rows of token types are taken from the residual stream, such as "
            f"{layout.residual_sites[-1]}"
        )
    return tuple(select_sites(names, layout.residual_sites))


def _empty(layout: Layout) -> tuple[TypeMoments, TypeMoments, Moments]:
    n, d = layout.vocab_size, layout.d_model
    return TypeMoments(n, d), TypeMoments(n, d), Moments(d)


def _add(sums: tuple[TypeMoments, TypeMoments, Moments], site: str, rows: TokenRows, in_sample: Tensor) -> None:
    held, some, pooled = sums
    keep, values = rows.kept[site], rows.activations[site]
    try:
        held.update(rows.ids[keep], values[keep])
        pooled.update(values[keep])
        keep = keep & in_sample
        some.update(rows.ids[keep], values[keep])
    except UndefinedMeasureError as error:
        raise UndefinedMeasureError(f"{site}: {error}") from error


def _sample(prepared: PreparedText, filters: tuple[str, ...], n_min: int, seed: int) -> dict[tuple[str, int], Tensor]:
    """(document, piece) -> which of its tokens are in the size-matched sample: `n_min` of each type that has so many.

    Drawn among the positions that filters of tokens leave; that a row will turn out a sink is not known before.
    """
    places: list[tuple[str, int]] = []
    ids, keys, open_, lengths = [], [], [], []
    for batch in make_batches(prepared.sequences.sequences, 64):
        masked = feed(batch, prepared.masking, seed).masked
        for number, sequence in enumerate(batch.sequences):
            n = len(sequence)
            free = ~np.isin(sequence.ids, prepared.special) if "special" in filters else np.ones(n, dtype=bool)
            if masked is not None and "masked" in filters:
                free &= ~masked[number, :n].numpy()
            if masked is not None and "unmasked" in filters:
                free &= masked[number, :n].numpy()
            draw = np.random.default_rng([seed, int(sequence.document[:15], 16), sequence.index])
            places.append((sequence.document, sequence.index))
            ids.append(sequence.ids)
            keys.append(draw.random(n))
            open_.append(free)
            lengths.append(n)
    kinds, order_key, free = np.concatenate(ids), np.concatenate(keys), np.concatenate(open_)
    where = np.flatnonzero(free)
    order = where[np.lexsort((order_key[where], kinds[where]))]
    _, first, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    chosen = np.zeros(len(kinds), dtype=bool)
    chosen[order[(rank < n_min) & (np.repeat(counts, counts) >= n_min)]] = True
    return dict(zip(places, torch.from_numpy(chosen).split(lengths), strict=True))


def _tables(layout: Layout) -> tuple[dict[str, Tensor], bool]:
    """Copies of both tables in float32, or of the one that is both."""
    head: Any = Unembedding.of(layout.unembed.module, layout.softcap).weight
    body: Any = layout.embed.weight
    tables = {EMBEDDING: body, UNEMBEDDING: head}
    copies = {}
    for site, table in tables.items():
        if len(table) < layout.vocab_size:
            raise SiteError(f"{site} has {len(table)} rows, fewer than the vocabulary of {layout.vocab_size} ids")
        copies[site] = table.detach()[: layout.vocab_size].to("cpu", torch.float32, copy=True).contiguous()
    tied = torch.equal(copies[EMBEDDING], copies[UNEMBEDDING])
    return ({EMBEDDING: copies[EMBEDDING]} if tied else copies), tied


def _model(layout: Layout) -> dict[str, Any]:
    config: Any = getattr(layout.root, "config", None)
    given = str(getattr(getattr(layout.root, "cfg", None), "model_name", "")).removeprefix("custom")
    commit = getattr(config, "_commit_hash", None)
    return {
        "name": str(getattr(config, "_name_or_path", "") or given or layout.class_name),
        "family": layout.family,
        "revision": commit if commit is not None else "unknown",
        "step": None,
        "tokens_seen": None,
        "n_layers": len(layout.blocks),
        "d_model": layout.d_model,
        "vocab_size": layout.vocab_size,
        "weights": fingerprint(layout),
    }


def _tokens(model: Any, documents: list[Any], tokenizer: Any, n: int) -> tuple[str, ...] | None:
    """Strings of all types, where the text came with a tokenizer."""
    if tokenizer is None and documents and documents[0].text is not None:
        try:
            tokenizer = find_tokenizer(model)
        except TextError:
            return None
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    if convert is None:
        return None
    known = min(n, len(tokenizer)) if hasattr(tokenizer, "__len__") else n
    return tuple("" if token is None else str(token) for token in convert(list(range(known)))) + ("",) * (n - known)
