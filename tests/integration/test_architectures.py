"""Every supported decoder, plain and bridged: sums at every site against autograd on an untouched copy in float64."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.comparisons import activation_errors, assert_small, gradient_errors, relative, weight_errors
from tests.models import ARCHITECTURES, WIDTH, WINDOW, as_bridge, random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import capture, fit_tangent_proxies
from tl_aniso.capturing import run
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout, fused_heads, fused_thirds

WRAPPERS = ("huggingface", "bridge")
POST_NORM = ("olmo2", "gemma3")
OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3}
RANK = 4

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def model_of(kind: str, wrapper: str) -> Any:
    model = tiny_model(kind)
    return as_bridge(model) if wrapper == "bridge" else model


@cache
def reference_of(kind: str) -> Reference:
    return reference_gradients(tiny_model(kind), random_documents())


@cache
def capture_of(kind: str, wrapper: str) -> Any:
    return capture(model_of(kind, wrapper), random_documents(), **OPTIONS)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ARCHITECTURES)
class TestEverySite:
    def test_weight_gradients(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper), reference_of(kind)
        assert set(got.weight_gradients) == set(reference.weights)
        assert {moments.count for moments in got.weight_gradients.values()} == {len(random_documents())}
        assert_small(weight_errors(got, reference))

    def test_activation_gradients(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper), reference_of(kind)
        points = ("pre", "post") if kind == "neox-parallel" else ("pre", "mid", "post")
        assert set(got.activation_gradients) == {f"blocks.{i}.hook_resid_{p}" for i in range(2) for p in points}
        assert_small(gradient_errors(got, reference))
        for site, moments in got.activation_gradients.items():  # second moments do not see the sign of the loss
            rows = torch.cat(reference.residual_gradients[site])
            assert float((moments.mean - rows.mean(0)).norm() / rows.norm() * len(rows) ** 0.5) < 1e-5, site

    def test_activations(self, kind: str, wrapper: str) -> None:
        assert_small(activation_errors(capture_of(kind, wrapper), reference_of(kind).residuals))

    def test_inputs_of_readers_and_outputs_of_writers(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper), reference_of(kind)
        expected = {}
        for site, values in reference.inputs.items():
            if not site.endswith(("W_O", "W_out")):
                expected[site.rsplit(".", 1)[0] + ".input"] = values
        expected |= {f"{s}.output": v for s, v in reference.outputs.items() if s.endswith(("W_O", "W_out"))}
        assert len(expected) == 4 * 2 + 1
        assert_small(activation_errors(got, expected))
        post_norm = relative(
            got.activations["blocks.0.attn.W_O.output"].covariance(), branch_covariance(reference, "mid", "pre")
        )
        if kind != "neox-parallel":  # a writer's output is taken in front of the norm behind it, where there is one
            assert post_norm > 0.1 if kind in POST_NORM else post_norm < 1e-5

    def test_head_counts(self, kind: str, wrapper: str) -> None:
        layout = bind(model_of(kind, wrapper))
        grouped = 4 if kind.startswith(("neox", "gpt2")) else 2
        counts = {"W_Q": 4, "W_K": grouped, "W_V": grouped, "W_O": 4}
        reference = reference_of(kind)
        for matrix in layout.matrices:
            expected = tuple(counts[s.rsplit(".", 1)[1]] for s in matrix.sites if ".attn." in s)
            assert matrix.head_counts == expected, matrix.sites
            widths = {len(reference.weights[s][0]) / n for s, n in zip(matrix.sites, expected, strict=False)}
            assert len(widths) <= 1  # one width of a head
        width = 12 if kind.startswith(("gemma3", "qwen3")) else WIDTH / 4
        assert len(reference.weights["blocks.0.attn.W_K"][0]) == grouped * width


def branch_covariance(reference: Reference, after: str, before: str) -> Tensor:
    """Covariance of what was added to the residual stream between two points of block 0."""
    points = [p if f"blocks.0.hook_resid_{p}" in reference.residuals else "post" for p in (after, before)]
    streams = [torch.cat(reference.residuals[f"blocks.0.hook_resid_{p}"]) for p in points]
    return torch.cov((streams[0] - streams[1]).T)


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if not kind.startswith(("neox", "llama"))])
def test_projected_energies_equal_the_full_matrices(kind: str) -> None:
    proxies = fit_tangent_proxies(capture_of(kind, "huggingface"), RANK)
    got = capture(model_of(kind, "huggingface"), random_documents(), proxies=proxies, **OPTIONS)
    for site in reference_of(kind).weights:
        basis, whole = proxies[site].basis, reference_of(kind).second_moment(site) * len(random_documents())
        expected = torch.cat([(basis.T @ whole @ basis).diagonal(), whole.trace()[None]])
        assert relative(got.energies("weight_gradient", site).sum((0, 1)), expected) < 1e-5, site


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_reference_is_consistent(kind: str) -> None:
    # G = F^T R at every site; and the residual after attention that is read later is the sum that it is taken for.
    reference = reference_of(kind)
    for site, gradients in reference.weights.items():
        for number, gradient in enumerate(gradients):
            by_rows = reference.factors[site][number].T @ reference.rows[site][number]
            # Gemma keeps the scale of its embedding in float32.
            assert relative(by_rows, gradient) < (1e-7 if (site, kind[:5]) == ("embed.W_E", "gemma") else 1e-12), site
    if kind == "olmo2":
        for i in range(2):
            for read, summed in zip(
                reference.inputs[f"blocks.{i}.mlp.W_in"], reference.residuals[f"blocks.{i}.hook_resid_mid"], strict=True
            ):
                assert relative(read, summed) < 1e-12


class TestNearestWrongVariants:
    """What a plausible mistake would measure is far from the reference, so the tests above would show it."""

    @pytest.mark.parametrize(
        ("kind", "wrong"),
        [
            ("olmo2", "post_attention_layernorm"),
            ("olmo2", "post_feedforward_layernorm"),
            ("gemma3", "post_attention_layernorm"),
            ("gemma3", "post_feedforward_layernorm"),
            ("gpt2", "mlp"),
            ("olmo", "mlp"),
        ],
    )
    def test_mid_elsewhere(self, kind: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def change(layout: Layout) -> Layout:
            blocks = tuple(dataclasses.replace(b, mid=getattr(b.module, wrong)) for b in layout.blocks)
            return dataclasses.replace(layout, blocks=blocks)

        got = changed_capture(kind, change, monkeypatch)
        sites = [f"blocks.{i}.hook_resid_mid" for i in range(2)]
        reference = reference_of(kind)
        errors = activation_errors(got, {site: reference.residuals[site] for site in sites})
        assert min(errors.values()) > 0.1
        assert min(gradient_errors(got, reference)[site] for site in sites) > 0.1
        assert_small(weight_errors(got, reference))

    def test_embedding_without_its_scale(self, monkeypatch: pytest.MonkeyPatch) -> None:
        got = changed_capture("gemma3", lambda layout: dataclasses.replace(layout, embed_scale=1.0), monkeypatch)
        errors = weight_errors(got, reference_of("gemma3"))
        assert errors.pop("embed.W_E") == pytest.approx(1 - 1 / WIDTH, abs=1e-5)  # second moments scale by its square
        assert_small(errors)

    @pytest.mark.parametrize(
        ("kind", "split"), [("gpt2", fused_heads(4)), ("neox-sequential", fused_thirds()), ("gpt2", "reversed")]
    )
    def test_fused_projections_split_otherwise(self, kind: str, split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = (lambda fused: fused_thirds()(fused)[::-1]) if split == "reversed" else split

        def change(layout: Layout) -> Layout:
            blocks = []
            for block in layout.blocks:
                matrices = tuple(dataclasses.replace(m, split=m.split and wrong) for m in block.matrices)
                blocks.append(dataclasses.replace(block, matrices=matrices))
            return dataclasses.replace(layout, blocks=tuple(blocks))

        errors = weight_errors(changed_capture(kind, change, monkeypatch), reference_of(kind))
        middle = ["blocks.0.attn.W_K", "blocks.1.attn.W_K"] if split == "reversed" else []  # keys stay where they are
        wrong_sites = [s for s in errors if s.endswith(("W_Q", "W_K", "W_V")) and s not in middle]
        assert min(errors.pop(site) for site in wrong_sites) > 0.1
        assert_small(errors)


def changed_capture(kind: str, change: Callable[[Layout], Layout], monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(run, "bind", lambda model: change(bind(model)))
        return capture(model_of(kind, "huggingface"), random_documents(), **OPTIONS)


class TestDetails:
    @pytest.mark.parametrize("wrapper", WRAPPERS)
    @pytest.mark.parametrize("kind", ["gemma3", "mistral", "qwen2"])
    def test_windows_slide_without_an_attention_mask(self, kind: str, wrapper: str) -> None:
        # Shorter than the window, as long, and far longer, in one batch and alone; and the window matters.
        documents = random_documents((5, WINDOW, WINDOW + 1, 70, 33), seed=4)
        assert max(map(len, documents)) > 8 * WINDOW
        reference = reference_gradients(tiny_model(kind), documents)
        for size in (1, 5):
            got = capture(model_of(kind, wrapper), documents, **{**OPTIONS, "batch_size": size})
            assert_small(weight_errors(got, reference))
            assert_small(gradient_errors(got, reference))
        wide = reference_gradients(tiny_model(kind, sliding_window=128), documents)
        assert relative(wide.second_moment("embed.W_E"), reference.second_moment("embed.W_E")) > 1e-3

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    @pytest.mark.parametrize("kind", ["gemma3", "mistral", "gpt2", "olmo2"])
    def test_eager_attention(self, kind: str, wrapper: str) -> None:
        model = tiny_model(kind, attn_implementation="eager")  # as boot_transformers loads models
        got = capture(as_bridge(model) if wrapper == "bridge" else model, random_documents(), **OPTIONS)
        assert_small(weight_errors(got, reference_of(kind)))

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_olmo_clips_queries_keys_and_values_in_place(self, wrapper: str) -> None:
        model = tiny_model("olmo", clip_qkv=0.8)
        reference = reference_gradients(model, random_documents())
        clipped = reference.second_moment("blocks.0.attn.W_V")
        assert relative(clipped, reference_of("olmo").second_moment("blocks.0.attn.W_V")) > 0.1
        got = capture(as_bridge(model) if wrapper == "bridge" else model, random_documents(), **OPTIONS)
        assert_small(weight_errors(got, reference))
        assert_small(gradient_errors(got, reference))

    def test_the_scale_of_an_embedding_has_the_precision_of_its_weight(self) -> None:
        assert bind(tiny_model("gemma3")).embed_scale == pytest.approx(WIDTH**0.5, rel=1e-6)
        assert bind(tiny_model("gemma3").bfloat16()).embed_scale == 5.65625
        assert {bind(tiny_model(kind)).embed_scale for kind in ARCHITECTURES if "gemma" not in kind} == {1.0}

    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_tied_embeddings_are_told_apart(self, wrapper: str) -> None:
        for kind in ("gpt2", "gemma3"):
            assert tiny_model(kind).config.tie_word_embeddings
            got = capture_of(kind, wrapper).weight_gradients
            assert relative(got["embed.W_E"].second_moment(), got["unembed.W_U"].second_moment()) > 0.5

    @pytest.mark.parametrize("kind", ["olmo2", "gpt2", "gemma3"])
    def test_the_model_is_left_as_it_was(self, kind: str) -> None:
        model = tiny_model(kind).train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        capture(model, random_documents(), **OPTIONS)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(module.training for module in model.modules())
        assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
