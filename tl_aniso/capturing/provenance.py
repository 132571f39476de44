"""What a capture is of: enough to refuse a merge of unlike runs, and to fill the columns of a result."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tl_aniso import __version__
from tl_aniso.capturing.feeding import positions_by_kind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.options import Options
from tl_aniso.capturing.plan import Plan
from tl_aniso.capturing.prepare import PreparedText
from tl_aniso.capturing.sums import HALVES
from tl_aniso.text import Batch
from tl_aniso.text.masking import Masking

__all__ = ["FORMAT_VERSION", "describe", "fingerprint"]

FORMAT_VERSION = 3

# Per tensor: enough elements that two checkpoints of one model differ in some, few enough to hash in a moment.
_SAMPLED = 4096


def fingerprint(layout: Layout) -> str:
    """Sixteen hex digits of the model's weights, from a strided sample of each measured matrix and its shape."""
    digest = hashlib.sha256()
    for name, weight in sorted(layout.weights(), key=lambda pair: pair[0]):
        flat = weight.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLED)
        sample = flat[::step].to("cpu", torch.float32).contiguous()
        digest.update(f"{name}|{tuple(weight.shape)}|".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def describe(
    layout: Layout,
    model: Any,
    options: Options,
    plan: Plan,
    prepared: PreparedText,
    batches: Sequence[Batch],
    batch_size: int,
) -> dict[str, Any]:
    """The metadata of a capture, of plain JSON values."""
    config: Any = getattr(layout.root, "config", None)
    wanted = plan.wanted
    # A HookedTransformer has a cfg instead, in which models made by hand are called "custom".
    given = str(getattr(getattr(layout.root, "cfg", None), "model_name", "")).removeprefix("custom")
    name = getattr(config, "_name_or_path", "") or given or layout.class_name
    commit = getattr(config, "_commit_hash", None)
    found = prepared.sequences
    return {
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "model": {
            "name": str(name),
            "family": layout.family,
            "class": layout.class_name,
            "wrapper": layout.wrapper,
            "revision": commit if commit is not None else "unknown",
            "step": None,
            "tokens_seen": None,
            "n_layers": len(layout.blocks),
            "d_model": layout.d_model,
            "vocab_size": layout.vocab_size,
            "weights": fingerprint(layout),
        },
        "options": {
            "gradients": list(options.gradients),
            "controls": list(options.controls),
            "extra_passes": list(options.extra_passes),
            "objective": options.objective,
            "objective_id": options.objective_id,
            "masking": _masking(prepared.masking),
            # Most have none; absent, captures of earlier versions still merge with these.
            **({"mask_remark": prepared.mask_remark} if prepared.mask_remark else {}),
            "unit": options.unit,
            # The batch size decides what a batch's gradient is, and nothing else.
            "batch_size": batch_size if options.unit == "batch" else None,
            "basis": options.basis,
            "heads": options.heads,
            "keep_rows": options.keep_rows,
            "exclude": list(options.exclude),
            "weight_exclude": list(options.weight_exclude),
            "n_shards": options.n_shards,
            "shard_sites": sorted(wanted.by_shard),
            "pooled": wanted.pooled,
            "dtype": options.dtype,
            "seed": options.seed,
            "seq_len": prepared.seq_len,
            "tokenizer": prepared.tokenizer,
            "special": list(prepared.special),
            "sites": list(plan.sites),
            "proxies": dict(plan.proxy_ids),
            "proxy_sites": dict(plan.proxy_sites),
            "planes": dict(plan.plane_ids),
        },
        "text": {
            "documents": sorted(found.documents),
            "halves": {s.document: s.half for s in found.sequences},
            "n_sequences": _units(found.sequences),
            "n_units": _units(found.sequences if options.unit == "sequence" else batches),
            "n_tokens": found.n_tokens,
            "positions": positions_by_kind(prepared, options.seed),
            "dropped": dict(found.dropped),
            "n_with_bos": prepared.n_with_bos,
            "n_doubled_bos": prepared.n_doubled_bos,
            "given": asdict(prepared.counts),
        },
        "versions": {package: _version(package) for package in ("torch", "transformers", "transformer_lens")},
        "device": layout.device.type,
    }


def _masking(masking: Masking | None) -> dict[str, Any] | None:
    """How tokens were masked; the special ones are among the options already."""
    if masking is None:
        return None
    return {name: value for name, value in asdict(masking).items() if name != "special"}


def _units(units: Sequence[Any]) -> dict[str, int]:
    return {half: sum(unit.half == half for unit in units) for half in HALVES}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
