"""The pass: whatever the model does in place, recomputes or was made under, numbers are right or one error says why."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models import random_documents, tiny_model
from tl_aniso import Capture, TlAnisoError, capture
from tl_aniso.capturing import hooks
from tl_aniso.capturing.reduce import Reducer
from tl_aniso.errors import ModelError, SiteError
from tl_aniso.text import document_hash, half_of

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((12, 9, 20, 15))
OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 2, "exclude": ()}


@cache
def plain() -> Capture:
    return capture(tiny_model("llama"), DOCUMENTS, **OPTIONS)


def assert_equal(got: Capture, expected: Capture) -> None:
    for group in ("activations", "activation_gradients", "weight_gradients"):
        mine, theirs = getattr(got, group), getattr(expected, group)
        assert set(mine) == set(theirs)
        for site, moments in theirs.items():
            assert mine[site].count == moments.count
            torch.testing.assert_close(mine[site].scatter, moments.scatter, rtol=1e-10, atol=0, msg=f"{group} {site}")


def assert_clean(model: nn.Module) -> None:
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def with_blocks(make: Callable[[Any], Callable[..., Tensor]]) -> Any:
    """A Llama whose blocks run what `make` returns for each."""
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.forward = make(layer)
    return model


class TestInPlace:
    def test_outputs_to_which_the_stream_is_added_in_place(self) -> None:
        # A writer's output waits for the residual that tells its sinks; by then it holds the residual itself.
        def block(layer: Any) -> Callable[..., Tensor]:
            def forward(hidden_states: Tensor, **options: Any) -> Tensor:
                attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
                attended += hidden_states
                written: Tensor = layer.mlp(layer.post_attention_layernorm(attended))
                written += attended
                return written

            return forward

        assert_equal(capture(with_blocks(block), DOCUMENTS, **OPTIONS), plain())

    def test_activations_computed_in_place(self) -> None:
        model = tiny_model("llama")
        for layer in model.model.layers:
            layer.mlp.act_fn = nn.SiLU(inplace=True)
        assert_equal(capture(model, DOCUMENTS, **OPTIONS), plain())

    def test_the_users_full_backward_hooks_beside_in_place_operations(self) -> None:
        model = tiny_model("llama")
        fired: list[str] = []
        handle = model.model.layers[1].mlp.down_proj.register_full_backward_hook(lambda *_: fired.append("mine"))
        model.model.layers[0].register_forward_hook(lambda _m, _a, output: output.mul_(1.0))
        assert_equal(capture(model, DOCUMENTS, **OPTIONS), plain())
        assert fired
        handle.remove()

    def test_a_stream_that_autograd_itself_cannot_go_back_through(self) -> None:
        def block(layer: Any) -> Callable[..., Tensor]:
            def forward(hidden_states: Tensor, **options: Any) -> Tensor:
                attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
                hidden_states.add_(attended)  # the norm had kept it for its own gradient
                return hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))

            return forward

        model = with_blocks(block)
        with pytest.raises(ModelError, match="changed in place"):
            capture(model, DOCUMENTS, **OPTIONS)
        assert_clean(model)


class TestCheckpointing:
    """Recomputed blocks run their hooks twice."""

    def test_switched_on_as_hugging_face_does(self) -> None:
        for reentrant in (False, True):
            model = tiny_model("llama")
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.train()
            got = capture(model, DOCUMENTS, **OPTIONS)
            assert_equal(got, plain())
            assert model.training
            assert model.model.gradient_checkpointing

    @pytest.mark.parametrize(
        ("reentrant", "message"),
        [(False, r"delivered 2 tensors in the backward pass.*checkpointing"), (True, r"no gradient.*checkpointing")],
    )
    def test_in_the_models_own_code(self, reentrant: bool, message: str) -> None:
        def block(layer: Any) -> Callable[..., Tensor]:
            original = layer.forward

            def forward(hidden_states: Tensor, **options: Any) -> Tensor:
                return checkpoint(lambda x: original(x, **options), hidden_states, use_reentrant=reentrant)

            return forward

        model = with_blocks(block)
        with pytest.raises(SiteError, match=message):
            capture(model, DOCUMENTS, **OPTIONS)
        assert_clean(model)


class TestInferenceMode:
    @pytest.mark.parametrize(
        "name", ["model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.1.mlp.up_proj.weight"]
    )
    def test_one_parameter_of_it_is_named_before_anything_changes(self, name: str) -> None:
        model = tiny_model("llama")
        owner, attribute = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        with torch.inference_mode():
            setattr(owner, attribute, nn.Parameter(getattr(owner, attribute).clone()))
        with pytest.raises(ModelError, match=rf"{name} was made under torch\.inference_mode"):
            capture(model, DOCUMENTS, **OPTIONS)
        assert_clean(model)

    def test_ids_and_buffers_of_it_do_no_harm(self) -> None:
        model = tiny_model("llama")
        with torch.inference_mode():
            ids = [torch.tensor(document) for document in DOCUMENTS]
            model.model.rotary_emb = tiny_model("llama").model.rotary_emb
        assert_equal(capture(model, ids, **OPTIONS), plain())


def test_everything_frozen_under_a_global_no_grad() -> None:
    model = tiny_model("llama").requires_grad_(False)
    torch.set_grad_enabled(False)
    try:
        got = capture(model, DOCUMENTS, **OPTIONS)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert_equal(got, plain())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_sites_may_be_asked_for_in_any_order() -> None:
    names = list(plain().sites)
    for sites in (names[::-1], names[1::2] + names[::2], [*names, *names]):
        got = capture(tiny_model("llama"), DOCUMENTS, sites=sites, **OPTIONS)
        for group in ("activation_gradients", "weight_gradients"):
            for site, moments in getattr(plain(), group).items():
                assert torch.equal(getattr(got, group)[site].scatter, moments.scatter), (group, site)


def test_every_site_delivers_once_a_batch() -> None:
    seen: dict[str, int] = {}

    class Counting(Reducer):
        def residual_gradient(self, site: str, gradient: Tensor) -> None:
            seen[site] = seen.get(site, 0) + 1
            super().residual_gradient(site, gradient)

    from tl_aniso.capturing import run

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Reducer", Counting)
        got = capture(tiny_model("llama"), DOCUMENTS, **{**OPTIONS, "batch_size": 1})
    assert set(seen.values()) == {len(DOCUMENTS)}
    assert set(seen) == {got.canonical(site) for site in got.sites if "resid" in site}


@contextmanager
def only_new_objects() -> Iterator[None]:
    """Inside, the garbage collector knows objects made since: few enough to go through at every batch."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def new_tensors() -> list[Tensor]:
    gc.collect()
    return [entry for entry in gc.get_objects() if issubclass(type(entry), Tensor)]


class TestMemory:
    """20 batches of one shape under the same hooks: what is alive as each begins is the same from the third on."""

    BATCHES, BATCH, LENGTH = 20, 2, 24

    @classmethod
    def documents(cls) -> list[list[int]]:
        found: list[list[int]] = []
        seed = 0
        while len(found) < cls.BATCHES * cls.BATCH:
            (ids,) = random_documents((cls.LENGTH,), seed=seed)
            seed += 1
            if half_of(document_hash(ids)) == "A":
                found.append(ids)
        return found

    def alive(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[tuple[int, int]]:
        """Tensors that Python still reaches, and their bytes, as each batch begins."""
        counts: list[tuple[int, int]] = []
        original = hooks.Tap.forward

        def watched(tap: Any, ids: Any, mask: Any = None) -> Any:
            tensors = new_tensors()
            counts.append((len(tensors), sum(t.numel() * t.element_size() for t in tensors)))
            return original(tap, ids, mask)

        monkeypatch.setattr(hooks.Tap, "forward", watched)
        model, documents = tiny_model("llama"), self.documents()
        with only_new_objects():
            capture(model, documents, progress=False, batch_size=self.BATCH, **options)
        assert len(counts) == self.BATCHES
        return counts

    def test_constant_after_the_second_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counts = self.alive(monkeypatch, extra_passes="shuffled_labels")
        assert len(set(counts[2:])) == 1, counts

    def test_a_kept_graph_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept: list[Tensor] = []
        original = Reducer.head

        def keeping(reducer: Reducer, hidden: Tensor, head: Any) -> None:
            kept.append(hidden)
            original(reducer, hidden, head)

        monkeypatch.setattr(Reducer, "head", keeping)
        counts = self.alive(monkeypatch)
        assert len(set(counts[2:])) == self.BATCHES - 2

    def test_captures_one_after_another_leave_nothing_on_the_model(self) -> None:
        model = tiny_model("llama")
        with only_new_objects():
            capture(model, DOCUMENTS, **OPTIONS)
            with pytest.raises(TlAnisoError):
                capture(model, DOCUMENTS, max_bytes=1, **OPTIONS)
            assert new_tensors() == []
        assert_clean(model)
