"""Weight and activation gradients by `torch.autograd.grad` on an untouched Hugging Face model, one sequence at a time.

Nothing here knows tl_aniso: the full forward pass with logits, torch's own cross-entropy, every parameter gradient
formed, fused projections taken apart by slicing, float64 throughout.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Reference:
    """Per site, one entry a sequence.

    Attributes:
        residuals: length x d values.
        residual_gradients: length x d.
        weights: other side x d gradients G.
        rows: the residual side R, length x d, of G = F^T R.
        factors: the other side F, length x other side.
        inputs: what each matrix was given, length x its input side.
        outputs: what each matrix made of it; fused projections as a whole.
        losses: summed loss.
    """

    residuals: dict[str, list[Tensor]] = field(default_factory=dict)
    residual_gradients: dict[str, list[Tensor]] = field(default_factory=dict)
    weights: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    factors: dict[str, list[Tensor]] = field(default_factory=dict)
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def second_moment(self, site: str) -> Tensor:
        """Mean over sequences of G^T G."""
        return torch.stack([g.T @ g for g in self.weights[site]]).mean(0)

    def row_moment(self, site: str) -> Tensor:
        """Uncentred second moment of activation gradient rows."""
        rows = torch.cat(self.residual_gradients[site])
        return rows.T @ rows / len(rows)


def reference_gradients(
    model: Any,
    sequences: list[list[int]],
    *,
    targets: list[list[int]] | None = None,
    labels: list[list[int]] | None = None,
    losses: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Reference:
    """Everything a capture sums, for a summed next-token loss; `targets` overrides what each position predicts.

    `labels` are what each position itself predicts, -100 for nothing, as Hugging Face's masked-language models take
    them; `sequences` are then what the model reads. `losses` replaces the loss by the sum of what it makes of logits,
    ids and mask.
    """
    own = copy.deepcopy(model).double().eval()
    if own.config.tie_word_embeddings:
        head = own.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        assert head.weight is not own.get_input_embeddings().weight
    own.requires_grad_(True)
    found = Reference()
    for number, ids in enumerate(sequences):
        shifted = [*(ids[1:] if targets is None else targets[number]), -100]
        _one(own, torch.tensor([ids]), torch.tensor(shifted if labels is None else labels[number]), losses, found)
    return found


def _one(model: Any, ids: Tensor, labels: Tensor, losses: Any, found: Reference) -> None:
    seen: dict[str, Tensor] = {}
    modules = _modules(model)
    blocks = {f"blocks.{i}.hook_resid_pre": block for i, block in enumerate(_blocks(model))}
    branches = _attention_branches(model)
    handles = [
        module.register_forward_pre_hook(
            lambda _m, args, kwargs, s=site: seen.__setitem__(f"{s}|in", _first(args, kwargs)), with_kwargs=True
        )
        for site, module in {**modules, **blocks}.items()
    ]
    handles += [
        module.register_forward_hook(
            lambda _m, _a, out, s=site: seen.__setitem__(f"{s}|out", out if isinstance(out, Tensor) else out[0])
        )
        for site, module in {**modules, **blocks, **branches}.items()
    ]
    logits = model(input_ids=ids, **({} if _is_encoder(model) else {"use_cache": False})).logits[0]
    for handle in handles:
        handle.remove()
    if losses is None:
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100)
    else:
        loss = losses(logits[None], ids, torch.ones_like(ids, dtype=torch.bool)).sum()
    found.losses.append(float(loss.detach()))

    # The residual after attention is what came in plus what the attention branch adds, whoever reads it later. The
    # branch's last tensor is used in that sum alone, so the loss' gradient there is the gradient at the sum.
    streams = {site: seen[f"{site}|in"] for site in blocks}
    values = {site: value.detach() for site, value in streams.items()}
    for site in branches:
        streams[site] = seen[f"{site}|out"]
        # BERT puts a norm behind the sum, and what the norm puts out is the stream.
        before = 0 if _is_bert(model) else values[site.replace("mid", "pre")]
        values[site] = before + streams[site].detach()
    for layer in range(len(blocks)):
        following = f"blocks.{layer + 1}.hook_resid_pre"
        site = f"blocks.{layer}.hook_resid_post"
        streams[site] = seen.get(f"{following}|in", seen[f"blocks.{layer}.hook_resid_pre|out"])
        values[site] = streams[site].detach()
    outputs = {site: seen[f"{site}|out"] for site in modules}
    parameters = {site: module.weight for site, module in modules.items()}
    tensors = [*streams.values(), *outputs.values(), *parameters.values()]
    gradients = list(torch.autograd.grad(loss, tensors))
    at_streams = dict(zip(streams, gradients, strict=False))
    at_outputs = dict(zip(outputs, gradients[len(streams) :], strict=False))
    at_weights = dict(zip(parameters, gradients[len(streams) + len(outputs) :], strict=True))

    for site, value in values.items():
        _keep(found.residuals, site, value[0])
        _keep(found.residual_gradients, site, at_streams[site][0])
    for site, module in modules.items():
        inputs, at_output, at_weight = seen[f"{site}|in"], at_outputs[site][0], at_weights[site]
        _keep(found.outputs, site, outputs[site][0])
        if site == "embed.W_E":
            one_hot = torch.nn.functional.one_hot(ids[0], len(at_weight)).double()
            # Gemma multiplies what it looks up by the square root of the width.
            scale = at_output.shape[-1] ** 0.5 if "Gemma" in type(model).__name__ else 1
            _matrix(found, site, at_weight, scale * at_output, one_hot)
            continue
        _keep(found.inputs, site, inputs[0])
        if type(module).__name__ == "Conv1D":  # stored input x output
            at_weight = at_weight.T
        if site.endswith(("W_O", "W_out")):
            _matrix(found, site, at_weight.T, at_output, inputs[0])
        elif "+" in site:
            for name, places in _fused_rows(model, site, at_weight.shape[0]).items():
                _matrix(found, name, at_weight[places], inputs[0], at_output[:, places])
        else:
            _matrix(found, site, at_weight, inputs[0], at_output)


def _fused_rows(model: Any, site: str, rows: int) -> dict[str, list[int]]:
    """Which rows of a fused matrix, such as "blocks.0.attn.W_Q+W_K+W_V", belong to each of its parts."""
    place, _, parts = site.rpartition(".")
    names = [f"{place}.{part}" for part in parts.split("+")]
    if not hasattr(model, "gpt_neox"):  # all rows of the first, then all of the second ...
        each = rows // len(names)
        return {name: list(range(part * each, (part + 1) * each)) for part, name in enumerate(names)}
    heads = model.config.num_attention_heads
    width = rows // (3 * heads)
    # NeoX: head by head, query, key and value of head 0, then of head 1 ...
    return {
        name: [h * 3 * width + part * width + j for h in range(heads) for j in range(width)]
        for part, name in enumerate(names)
    }


def _matrix(found: Reference, site: str, gradient: Tensor, rows: Tensor, factor: Tensor) -> None:
    _keep(found.weights, site, gradient)
    _keep(found.rows, site, rows)
    _keep(found.factors, site, factor)


def _keep(where: dict[str, list[Tensor]], site: str, value: Tensor) -> None:
    where.setdefault(site, []).append(value.detach().clone())


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _is_encoder(model: Any) -> bool:
    return type(model).__name__.endswith("ForMaskedLM")


def _is_bert(model: Any) -> bool:
    """BERT's block, which RoBERTa and its heirs share; not EuroBERT's or ModernBERT's."""
    return hasattr(model.base_model, "encoder")


def _blocks(model: Any) -> Any:
    if _is_bert(model):
        return model.base_model.encoder.layer
    if hasattr(model, "transformer"):
        return model.transformer.h
    return model.gpt_neox.layers if hasattr(model, "gpt_neox") else model.model.layers


def _modules(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, block in enumerate(_blocks(model)):
        if _is_bert(model):
            for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
                found[f"blocks.{i}.attn.W_{letter}"] = getattr(block.attention.self, name)
            found[f"blocks.{i}.attn.W_O"] = block.attention.output.dense
            found[f"blocks.{i}.mlp.W_in"] = block.intermediate.dense
            found[f"blocks.{i}.mlp.W_out"] = block.output.dense
        elif type(model).__name__.startswith("ModernBert"):
            found[f"blocks.{i}.attn.W_Q+W_K+W_V"] = block.attn.Wqkv
            found[f"blocks.{i}.attn.W_O"] = block.attn.Wo
            found[f"blocks.{i}.mlp.W_in+W_gate"] = block.mlp.Wi
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.Wo
        elif hasattr(model, "gpt_neox"):
            found[f"blocks.{i}.attn.W_Q+W_K+W_V"] = block.attention.query_key_value
            found[f"blocks.{i}.attn.W_O"] = block.attention.dense
            found[f"blocks.{i}.mlp.W_in"] = block.mlp.dense_h_to_4h
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.dense_4h_to_h
        elif hasattr(model, "transformer"):
            found[f"blocks.{i}.attn.W_Q+W_K+W_V"] = block.attn.c_attn
            found[f"blocks.{i}.attn.W_O"] = block.attn.c_proj
            found[f"blocks.{i}.mlp.W_in"] = block.mlp.c_fc
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.c_proj
        else:
            for letter in "qkvo":
                found[f"blocks.{i}.attn.W_{letter.upper()}"] = getattr(block.self_attn, f"{letter}_proj")
            found[f"blocks.{i}.mlp.W_in"] = block.mlp.up_proj
            found[f"blocks.{i}.mlp.W_gate"] = block.mlp.gate_proj
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.down_proj
    found["embed.W_E"] = model.get_input_embeddings()
    found["unembed.W_U"] = model.get_output_embeddings()
    return found


def _attention_branches(model: Any) -> dict[str, Any]:
    """The last module of each attention branch: the residual stream has its output added or, in BERT, is its output."""
    if _is_bert(model):
        return {
            f"blocks.{i}.hook_resid_mid": block.attention.output.LayerNorm for i, block in enumerate(_blocks(model))
        }
    if getattr(model.config, "use_parallel_residual", False):
        return {}
    found: dict[str, Any] = {}
    for i, block in enumerate(_blocks(model)):
        attention = next(getattr(block, name) for name in ("self_attn", "attention", "attn") if hasattr(block, name))
        # With a norm behind attention, the norm; otherwise dropout does nothing, and the projection is last.
        norm = block.post_attention_layernorm if type(model).__name__.startswith(("Olmo2", "Gemma3")) else None
        projection = next(getattr(attention, n) for n in ("o_proj", "dense", "c_proj", "Wo") if hasattr(attention, n))
        found[f"blocks.{i}.hook_resid_mid"] = norm or projection
    return found
