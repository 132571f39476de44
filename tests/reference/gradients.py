"""Weight and activation gradients by `torch.autograd.grad` on an untouched Hugging Face model, one sequence at a time.

Nothing here knows tl_aniso: the full forward pass with logits, torch's own cross-entropy, every parameter gradient
formed, fused projections taken apart by slicing, float64 throughout.
"""

import copy
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
    """

    residuals: dict[str, list[Tensor]] = field(default_factory=dict)
    residual_gradients: dict[str, list[Tensor]] = field(default_factory=dict)
    weights: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    factors: dict[str, list[Tensor]] = field(default_factory=dict)

    def second_moment(self, site: str) -> Tensor:
        """Mean over sequences of G^T G."""
        return torch.stack([g.T @ g for g in self.weights[site]]).mean(0)

    def row_moment(self, site: str) -> Tensor:
        """Uncentred second moment of activation gradient rows."""
        rows = torch.cat(self.residual_gradients[site])
        return rows.T @ rows / len(rows)


def reference_gradients(model: Any, sequences: list[list[int]], *, targets: list[list[int]] | None = None) -> Reference:
    """Everything a capture sums, for a summed next-token loss; `targets` overrides what each position predicts."""
    own = copy.deepcopy(model).double().eval()
    if own.config.tie_word_embeddings:
        own.lm_head.weight = torch.nn.Parameter(own.lm_head.weight.detach().clone())
        assert own.lm_head.weight is not own.get_input_embeddings().weight
    own.requires_grad_(True)
    found = Reference()
    for number, ids in enumerate(sequences):
        _one(own, torch.tensor([ids]), None if targets is None else torch.tensor(targets[number]), found)
    return found


def _one(model: Any, ids: Tensor, targets: Tensor | None, found: Reference) -> None:
    seen: dict[str, Tensor] = {}
    modules = _modules(model)
    residuals = _residual_inputs(model)
    handles = [
        module.register_forward_pre_hook(
            lambda _m, args, kwargs, s=site: seen.__setitem__(f"{s}|in", _first(args, kwargs)), with_kwargs=True
        )
        for site, module in {**modules, **residuals}.items()
    ]
    handles += [
        module.register_forward_hook(
            lambda _m, _a, out, s=site: seen.__setitem__(f"{s}|out", out if isinstance(out, Tensor) else out[0])
        )
        for site, module in {**modules, **residuals}.items()
    ]
    logits = model(input_ids=ids, use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    wanted = ids[0, 1:] if targets is None else targets
    loss = torch.nn.functional.cross_entropy(logits[:-1], wanted, reduction="sum")

    streams = {site: seen[f"{site}|in"] for site in residuals}
    layers = len(_blocks(model))
    for layer in range(layers):
        following = f"blocks.{layer + 1}.hook_resid_pre"
        last = layer + 1 == layers
        streams[f"blocks.{layer}.hook_resid_post"] = (
            seen[f"blocks.{layer}.hook_resid_pre|out"] if last else seen[f"{following}|in"]
        )
    outputs = {site: seen[f"{site}|out"] for site in modules}
    parameters = {site: module.weight for site, module in modules.items()}
    tensors = [*streams.values(), *outputs.values(), *parameters.values()]
    gradients = list(torch.autograd.grad(loss, tensors))
    at_streams = dict(zip(streams, gradients, strict=False))
    at_outputs = dict(zip(outputs, gradients[len(streams) :], strict=False))
    at_weights = dict(zip(parameters, gradients[len(streams) + len(outputs) :], strict=True))

    for site, value in streams.items():
        _keep(found.residuals, site, value[0])
        _keep(found.residual_gradients, site, at_streams[site][0])
    for site in modules:
        inputs, at_output, at_weight = seen[f"{site}|in"], at_outputs[site][0], at_weights[site]
        if site == "embed.W_E":
            one_hot = torch.nn.functional.one_hot(ids[0], len(at_weight)).double()
            _matrix(found, site, at_weight, at_output, one_hot)
        elif site.endswith(("W_O", "W_out")):
            _matrix(found, site, at_weight.T, at_output, inputs[0])
        elif site.endswith("W_QKV"):
            heads = model.config.num_attention_heads
            width = at_weight.shape[0] // (3 * heads)
            for part, letter in enumerate("QKV"):
                # Rows of the fused matrix run head by head: query, key, value of head 0, then of head 1 ...
                places = [h * 3 * width + part * width + j for h in range(heads) for j in range(width)]
                _matrix(found, site[:-3] + letter, at_weight[places], inputs[0], at_output[:, places])
        else:
            _matrix(found, site, at_weight, inputs[0], at_output)


def _matrix(found: Reference, site: str, gradient: Tensor, rows: Tensor, factor: Tensor) -> None:
    _keep(found.weights, site, gradient)
    _keep(found.rows, site, rows)
    _keep(found.factors, site, factor)


def _keep(where: dict[str, list[Tensor]], site: str, value: Tensor) -> None:
    where.setdefault(site, []).append(value.detach().clone())


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _blocks(model: Any) -> Any:
    return model.gpt_neox.layers if hasattr(model, "gpt_neox") else model.model.layers


def _modules(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, block in enumerate(_blocks(model)):
        if hasattr(model, "gpt_neox"):
            found[f"blocks.{i}.attn.W_QKV"] = block.attention.query_key_value
            found[f"blocks.{i}.attn.W_O"] = block.attention.dense
            found[f"blocks.{i}.mlp.W_in"] = block.mlp.dense_h_to_4h
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.dense_4h_to_h
        else:
            for letter in "qkvo":
                found[f"blocks.{i}.attn.W_{letter.upper()}"] = getattr(block.self_attn, f"{letter}_proj")
            found[f"blocks.{i}.mlp.W_in"] = block.mlp.up_proj
            found[f"blocks.{i}.mlp.W_gate"] = block.mlp.gate_proj
            found[f"blocks.{i}.mlp.W_out"] = block.mlp.down_proj
    found["embed.W_E"] = model.get_input_embeddings()
    found["unembed.W_U"] = model.get_output_embeddings()
    return found


def _residual_inputs(model: Any) -> dict[str, Any]:
    """Modules whose input is a residual stream value."""
    found: dict[str, Any] = {}
    for i, block in enumerate(_blocks(model)):
        found[f"blocks.{i}.hook_resid_pre"] = block
        if not getattr(model.config, "use_parallel_residual", False):
            found[f"blocks.{i}.hook_resid_mid"] = block.post_attention_layernorm
    return found
