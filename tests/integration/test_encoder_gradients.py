"""Every supported encoder, plain and bridged: sums at every site against autograd on an untouched copy in float64."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.comparisons import activation_errors, assert_small, gradient_errors, relative, weight_errors
from tests.encoder_models import ALL_KINDS, IMPLEMENTATIONS, VOCAB, WINDOW, tiny_encoder
from tests.models import as_bridge, random_documents
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import capture
from tl_aniso.adapters import register
from tl_aniso.capturing import run
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout, fused_heads, fused_thirds

WRAPPERS = ("huggingface", "bridge")
LAYERS = 3
# Longer than ModernBERT's window of 8, as long, and shorter.
DOCUMENTS = random_documents((23, 9, 40, 2, WINDOW), seed=1)
BERTS = ("Bert", "Roberta", "Camembert", "XLMRoberta")

pytestmark = pytest.mark.usefixtures("one_thread")


def unshifted(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Of every third token of the first half: those behind get their gradient by attention alone."""
    n = ids.shape[1]
    places = torch.arange(n)
    losses = cross_entropy(logits.transpose(1, 2), (7 * ids + 3) % VOCAB, reduction="none")
    return losses * ((places % 3 == 0) & (places < (n + 1) // 2))


OPTIONS: dict[str, Any] = {"objective": unshifted, "exclude": (), "progress": False, "batch_size": 3}


@cache
def model_of(kind: str, wrapper: str, implementation: str, **changes: Any) -> Any:
    model = tiny_encoder(kind, implementation, **changes)
    if wrapper == "huggingface":
        return model
    register()
    return as_bridge(model)


@cache
def reference_of(kind: str, **changes: Any) -> Reference:
    return reference_gradients(tiny_encoder(kind, **changes), DOCUMENTS, losses=unshifted)


@cache
def capture_of(kind: str, wrapper: str, implementation: str, **changes: Any) -> Any:
    return capture(model_of(kind, wrapper, implementation, **changes), DOCUMENTS, **OPTIONS)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ALL_KINDS)
class TestEverySite:
    def test_weight_gradients(self, kind: str, wrapper: str, implementation: str) -> None:
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        names = ["attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_in", "mlp.W_out"]
        names += ["mlp.W_gate"] if kind in ("EuroBert", "ModernBert") else []
        sites = {f"blocks.{i}.{name}" for i in range(LAYERS) for name in names} | {"embed.W_E", "unembed.W_U"}
        assert set(got.weight_gradients) == set(reference.weights) == sites
        assert {moments.count for moments in got.weight_gradients.values()} == {len(DOCUMENTS)}
        assert_small(weight_errors(got, reference))

    def test_activation_gradients(self, kind: str, wrapper: str, implementation: str) -> None:
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        sites = {f"blocks.{i}.hook_resid_{p}" for i in range(LAYERS) for p in ("pre", "mid", "post")}
        assert set(got.activation_gradients) == set(reference.residuals) == sites
        assert_small(gradient_errors(got, reference))
        for site, moments in got.activation_gradients.items():  # second moments do not see the sign of the loss
            rows = torch.cat(reference.residual_gradients[site])
            assert moments.count == len(rows)
            assert float((moments.mean - rows.mean(0)).norm() / rows.norm() * len(rows) ** 0.5) < 1e-5, site

    def test_activations(self, kind: str, wrapper: str, implementation: str) -> None:
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        expected = dict(reference.residuals)
        for site, values in reference.inputs.items():
            if not site.endswith(("W_O", "W_out")):
                expected[site.rsplit(".", 1)[0] + ".input"] = values
        expected |= {f"{s}.output": v for s, v in reference.outputs.items() if s.endswith(("W_O", "W_out"))}
        assert len(expected) == 7 * LAYERS + 1
        assert_small(activation_errors(got, expected))

    def test_controls(self, kind: str, wrapper: str, implementation: str) -> None:
        """All tokens of a sequence carry gradient, those behind its last loss too."""
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        for site in reference.weights:
            last = f"blocks.{LAYERS - 1}."
            if site == "unembed.W_U" or (site.startswith(last) and not site.endswith(("W_K", "W_V"))):
                continue  # behind the last attention, a token's gradient is that of its own loss
            energy, flipped, shuffled = 0.0, 0.0, 0.0
            for rows, factor in zip(reference.rows[site], reference.factors[site], strict=True):
                kernel, n = factor @ factor.T, len(rows)
                other = (kernel.sum() - kernel.trace()) / (n * (n - 1))
                expected = torch.full_like(kernel, float(other)).fill_diagonal_(float(kernel.trace()) / n)
                energy += rows.T @ rows / len(DOCUMENTS)
                flipped += rows.T @ (kernel.diagonal()[:, None] * rows) / len(DOCUMENTS)
                shuffled += rows.T @ expected @ rows / len(DOCUMENTS)
            wanted = {"input_energy": energy, "sign_flip": flipped, "shuffled_g": shuffled}
            errors = {name: relative(got.controls[name][site].second_moment(), m) for name, m in wanted.items()}
            assert_small({f"{site} {name}": error for name, error in errors.items()})


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_reference_is_consistent(kind: str) -> None:
    # G = F^T R at every site, the parts of fused projections too; and the residual after attention is what the MLP (or
    # its norm) reads, in BERT's block itself.
    reference = reference_of(kind)
    for site, gradients in reference.weights.items():
        for number, gradient in enumerate(gradients):
            by_rows = reference.factors[site][number].T @ reference.rows[site][number]
            assert relative(by_rows, gradient) < 1e-12, site
    if kind in BERTS:
        for i in range(LAYERS):
            for read, mid in zip(
                reference.inputs[f"blocks.{i}.mlp.W_in"], reference.residuals[f"blocks.{i}.hook_resid_mid"], strict=True
            ):
                assert torch.equal(read, mid)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["EuroBert", "ModernBert", "Bert", "Roberta"])
def test_tied_and_untied_embeddings(kind: str, wrapper: str) -> None:
    """Tied, both would hold the sum if they were read from the parameter; they are as of two parameters."""
    other = not tiny_encoder(kind).config.tie_word_embeddings
    model = model_of(kind, wrapper, "sdpa", tie_word_embeddings=other)
    hf = model if wrapper == "huggingface" else model.original_model
    layout = bind(model)
    assert hf.config.tie_word_embeddings is other
    assert (layout.embed.weight is layout.unembed.module.weight) is other
    got, reference = (
        capture_of(kind, wrapper, "sdpa", tie_word_embeddings=other),
        reference_of(kind, tie_word_embeddings=other),
    )
    assert_small(weight_errors(got, reference))
    assert_small(gradient_errors(got, reference))
    both = [got.weight_gradients[site].second_moment() for site in ("embed.W_E", "unembed.W_U")]
    assert relative(*both) > 0.5


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_modernbert_has_local_and_global_layers(wrapper: str) -> None:
    assert tiny_encoder("ModernBert").config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    wide = reference_of("ModernBert", local_attention=2 * max(map(len, DOCUMENTS)))
    errors = weight_errors(capture_of("ModernBert", wrapper, "sdpa"), wide)
    assert min(errors.values()) > 1e-3


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["ModernBert", "EuroBert", "Bert"])
def test_heads_add_up(kind: str, wrapper: str) -> None:
    """A head's gradient is its rows of G, in fused projections of each part, and G^T G is the sum over heads."""
    got = capture(
        model_of(kind, wrapper, "sdpa"), DOCUMENTS, heads=True, sites="blocks.1.attn.*", controls=(), **OPTIONS
    )
    counts = {"W_Q": 4, "W_K": 2 if kind == "EuroBert" else 4, "W_V": 2 if kind == "EuroBert" else 4}
    reference = reference_of(kind)
    for name, n in counts.items():
        site = f"blocks.1.attn.{name}"
        heads = [got.weight_gradients[f"{site}.{h}"].second_moment() for h in range(n)]
        assert relative(sum(heads), got.weight_gradients[site].second_moment()) < 1e-6
        for h, found in enumerate(heads):
            parts = [gradient.chunk(n)[h] for gradient in reference.weights[site]]
            assert relative(found, torch.stack([g.T @ g for g in parts]).mean(0)) < 1e-5, (site, h)


class TestNearestWrongVariants:
    """What a plausible mistake would measure is far from the reference, so the tests above would show it."""

    @pytest.mark.parametrize("wrong", ["attention.output.LayerNorm", "output.LayerNorm", "attention.self"])
    def test_mid_of_berts_block_elsewhere(self, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def change(layout: Layout) -> Layout:
            blocks = tuple(dataclasses.replace(b, mid=b.module.get_submodule(wrong)) for b in layout.blocks)
            return dataclasses.replace(layout, blocks=blocks)

        got, reference = changed_capture("Bert", change, monkeypatch), reference_of("Bert")
        sites = [f"blocks.{i}.hook_resid_mid" for i in range(LAYERS)]
        assert min(activation_errors(got, {s: reference.residuals[s] for s in sites}).values()) > 0.1
        assert min(gradient_errors(got, reference)[s] for s in sites) > 0.1
        assert_small(weight_errors(got, reference))

    @pytest.mark.parametrize("kind", ["Bert", "Roberta", "ModernBert"])
    def test_without_the_heads_transform(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        got = changed_capture(kind, lambda layout: dataclasses.replace(layout, transform=None), monkeypatch)
        assert min(weight_errors(got, reference_of(kind)).values()) > 0.1

    @pytest.mark.parametrize(("fused", "wrong"), [("attn", fused_heads(4)), ("mlp", "reversed")])
    def test_modernberts_projections_split_otherwise(
        self, fused: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        split = (lambda values: fused_thirds(2)(values)[::-1]) if wrong == "reversed" else wrong

        def change(layout: Layout) -> Layout:
            blocks = []
            for block in layout.blocks:
                matrices = tuple(
                    dataclasses.replace(m, split=split) if m.split and fused in m.sites[0] else m
                    for m in block.matrices
                )
                blocks.append(dataclasses.replace(block, matrices=matrices))
            return dataclasses.replace(layout, blocks=tuple(blocks))

        errors = weight_errors(changed_capture("ModernBert", change, monkeypatch), reference_of("ModernBert"))
        wrong_sites = [
            s for s in errors if s.endswith(("W_Q", "W_K", "W_V") if fused == "attn" else ("W_in", "W_gate"))
        ]
        assert min(errors.pop(site) for site in wrong_sites) > 0.1
        assert_small(errors)

    def test_gradient_only_up_to_the_last_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As under causal attention: writers in front of another attention would miss the tokens behind it."""
        # One at a time there is no padding, so the model runs as before, whatever the layout says.
        causal = changed_capture(
            "Bert", lambda layout: dataclasses.replace(layout, attends="causal"), monkeypatch, batch_size=1
        )
        errors = weight_errors(causal, reference_of("Bert"))
        sites = ["embed.W_E", *(f"blocks.{i}.{name}" for i in (0, 1) for name in ("attn.W_O", "mlp.W_out"))]
        assert min(errors.pop(site) for site in sites) > 1e-3
        assert_small(errors)  # readers have a zero there by themselves, and so has the last block


def changed_capture(
    kind: str, change: Callable[[Layout], Layout], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(run, "bind", lambda model: change(bind(model)))
        return capture(model_of(kind, "huggingface", "sdpa"), DOCUMENTS, **{**OPTIONS, **options})


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_the_model_is_left_as_it_was(kind: str, wrapper: str) -> None:
    model = tiny_encoder(kind).train()
    model = as_bridge(model).train() if wrapper == "bridge" else model
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, DOCUMENTS[:2], **OPTIONS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    if wrapper == "huggingface":
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert hooks == {name: len(module._forward_hooks) for name, module in model.named_modules()}
