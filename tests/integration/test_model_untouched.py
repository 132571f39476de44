"""After a capture, and after one that failed, a user's model and the random state are as they were."""

import contextlib
import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import as_bridge, random_documents, tiny_model
from tests.reference.gradients import reference_gradients
from tl_aniso import TlAnisoError, capture
from tl_aniso.capturing import hooks, run
from tl_aniso.errors import SiteError, UndefinedMeasureError

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((12, 9, 20, 15))
OPTIONS: dict[str, Any] = {"progress": False, "batch_size": 2, "exclude": ()}
KINDS = ("neox-parallel", "llama-tied")


def make(kind: str, wrapper: str) -> Any:
    dropout = (
        {"hidden_dropout": 0.5, "attention_dropout": 0.5} if kind.startswith("neox") else {"attention_dropout": 0.5}
    )
    model = tiny_model(kind, **dropout)
    if wrapper == "huggingface":
        return model
    bridge = as_bridge(model)
    with torch.no_grad():
        bridge.original_model(input_ids=torch.tensor([DOCUMENTS[0]]))  # its own first pass leaves notes on its modules
    return bridge


def root_of(model: Any) -> nn.Module:
    return model.original_model if hasattr(model, "original_model") else model


def hook_ids(root: nn.Module) -> list[Any]:
    names = [name for name in vars(nn.Module()) if "hooks" in name]
    return [(path, name, list(vars(module)[name])) for path, module in root.named_modules() for name in names]


def state(root: nn.Module) -> dict[str, Any]:
    parameters = dict(root.named_parameters())
    return {
        "modes": {name: module.training for name, module in root.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in root.named_modules()},
        "hooks": hook_ids(root),
        "flags": {name: p.requires_grad for name, p in parameters.items()},
        "identity": {name: (id(p), p.data_ptr(), p._version) for name, p in parameters.items()},
        "grads": {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in parameters.items()},
        "values": {name: value.clone() for name, value in root.state_dict().items()},
        "rng": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),
        "threads": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()),
    }


def assert_unchanged(root: nn.Module, before: dict[str, Any]) -> None:
    after = state(root)
    for part in ("modes", "attributes", "hooks", "flags", "identity", "threads"):
        assert after[part] == before[part], part
    for part in ("grads", "values"):
        for name, value in before[part].items():
            torch.testing.assert_close(after[part][name], value, rtol=0, atol=0)
    for got, expected in zip(after["rng"], before["rng"], strict=True):
        same = got == expected
        assert same if isinstance(same, bool) else same.all()


@contextlib.contextmanager
def lived_in(model: Any) -> Any:
    """A model in use: partly training, partly frozen, some gradients there, the user's hooks of every kind set."""
    root = root_of(model)
    modules, parameters = list(root.modules()), list(root.parameters())
    for number, module in enumerate(modules):
        module.training = number % 3 != 0
    for number, parameter in enumerate(parameters):
        parameter.requires_grad_(number % 2 == 0)
        if number % 4 == 0:
            parameter.grad = torch.full_like(parameter, float(number))
    block = next(module for name, module in root.named_modules() if name.endswith("layers.1"))
    fired: list[str] = []
    handles = [
        block.register_forward_pre_hook(lambda *_: fired.append("forward_pre")),
        block.register_forward_hook(lambda *_: fired.append("forward")),
        block.register_full_backward_hook(lambda *_: fired.append("backward")),
    ]
    yield root, fired
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
@pytest.mark.parametrize("kind", KINDS)
class TestUntouched:
    def test_after_a_capture(self, kind: str, wrapper: str) -> None:
        model = make(kind, wrapper)
        expected = capture(model, DOCUMENTS, **OPTIONS)
        with lived_in(model) as (root, fired):
            before = state(root)
            got = capture(model, DOCUMENTS, extra_passes="shuffled_labels", **OPTIONS)
            assert_unchanged(root, before)
            assert {"forward_pre", "forward", "backward"} == set(fired)
        # Dropout of modules in training mode was off, and the user's hooks changed nothing.
        for site, moments in expected.weight_gradients.items():
            torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("where", ["forward", "backward", "reduce"])
    def test_after_an_exception(self, kind: str, wrapper: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = make(kind, wrapper)

        class Stop(RuntimeError):
            pass

        def fail(*_: Any) -> None:
            raise Stop

        with lived_in(model) as (root, _):
            block = next(module for name, module in root.named_modules() if name.endswith("layers.0"))
            if where == "forward":
                block.register_forward_hook(fail)
            elif where == "backward":
                block.register_forward_hook(
                    lambda _m, _a, out: [(out if torch.is_tensor(out) else out[0]).register_hook(fail), None][1]
                )
            else:
                monkeypatch.setattr(run.Reducer, "embedding_gradient", fail)
            before = state(root)
            with pytest.raises(Stop):
                capture(model, DOCUMENTS, **OPTIONS)
            assert_unchanged(root, before)
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_under_the_users_own_grad_mode(self, kind: str, wrapper: str, mode: Any) -> None:
        model = make(kind, wrapper)
        expected = capture(model, DOCUMENTS, **OPTIONS)
        before = state(root_of(model))
        with mode():
            ids = [torch.tensor(document) for document in DOCUMENTS]
            got = capture(model, ids, extra_passes="shuffled_labels", **OPTIONS)
            assert not torch.is_grad_enabled()
        assert_unchanged(root_of(model), before)
        for site, moments in expected.weight_gradients.items():
            torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)
        # What was summed inside can be added to outside.
        got.activations["blocks.0.hook_resid_pre"].merge(expected.activations["blocks.0.hook_resid_pre"])

    def test_frozen_models_and_gradient_checkpointing(self, kind: str, wrapper: str) -> None:
        model = make(kind, wrapper)
        expected = capture(model, DOCUMENTS, **OPTIONS)
        root = root_of(model)
        root.requires_grad_(False)
        # Renamed in later versions of transformers.
        getattr(root, "activation_checkpointing_enable", root.gradient_checkpointing_enable)()
        root.train()
        before = state(root)
        got = capture(model, DOCUMENTS, **OPTIONS)
        assert_unchanged(root, before)
        for site, moments in expected.weight_gradients.items():
            torch.testing.assert_close(got.weight_gradients[site].scatter, moments.scatter, rtol=1e-12, atol=0)


def test_nothing_of_a_batch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    alive: list[int] = []
    seen: list[Any] = []
    original = hooks.Tap.forward

    def watched(self: Any, ids: Any, mask: Any = None) -> Any:
        alive.append(sum(reference() is not None for reference in seen[:-1]))
        hidden = original(self, ids, mask)
        seen.append(weakref.ref(hidden))
        return hidden

    monkeypatch.setattr(hooks.Tap, "forward", watched)
    capture(make("llama", "huggingface"), random_documents((12,) * 8), **{**OPTIONS, "batch_size": 1})
    assert len(alive) == 8
    assert set(alive) == {0}


class TestHooksThatFindSomethingElse:
    """Faults that would otherwise give a number, and a wrong one."""

    def make(self) -> Any:
        return make("llama-tied", "huggingface")

    def test_a_module_that_runs_twice(self) -> None:
        model = self.make()
        projection = model.model.layers[0].self_attn.q_proj
        model.model.layers[0].self_attn.register_forward_hook(lambda *_: [projection(torch.zeros(1, 1, 32)), None][1])
        with pytest.raises(SiteError, match=r"blocks\.0\.attn\.W_Q delivered 2 tensors in the forward pass"):
            capture(model, DOCUMENTS, gradients=(), sites=["blocks.0.attn.W_Q", "blocks.0.attn.input"], **OPTIONS)
        with pytest.raises(SiteError, match=r"blocks\.0\.attn\.W_Q"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_a_module_that_never_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = self.make()
        mlp = model.model.layers[1].mlp
        monkeypatch.setattr(mlp, "forward", lambda x: mlp.down_proj(mlp.act_fn(mlp.gate_proj(x))))
        with pytest.raises(SiteError, match=r"blocks\.1\.mlp\.W_in delivered 0 tensors in the forward pass"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_an_output_that_goes_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = self.make()
        mlp = model.model.layers[1].mlp
        monkeypatch.setattr(mlp, "forward", lambda x: [mlp.up_proj(x), mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)))][1])
        with pytest.raises(SiteError, match=r"blocks\.1\.mlp\.W_in delivered 0 tensors in the backward pass"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_an_embedding_that_runs_twice(self) -> None:
        model = self.make()
        embedding = model.model.embed_tokens
        model.model.layers[0].register_forward_pre_hook(lambda *_: [embedding(torch.tensor([[3]])), None][1])
        with pytest.raises(SiteError, match=r"embed\.W_E"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_an_input_changed_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = self.make()
        projection = model.model.layers[0].mlp.down_proj
        projection.register_forward_hook(lambda _m, args, _o: [args[0].detach().mul_(2), None][1])
        with pytest.raises(TlAnisoError, match=r"blocks\.0\.mlp\.W_out.*in place"):
            capture(model, DOCUMENTS, sites=["blocks.0.mlp.W_out"], **OPTIONS)

    def test_a_hook_that_cuts_the_stream(self) -> None:
        model = self.make()
        model.model.layers[0].register_forward_hook(lambda _m, _a, out: out.detach())
        with pytest.raises(SiteError, match=r"no gradient reaches blocks\.1\.hook_resid_pre"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_a_gradient_that_is_not_finite(self) -> None:
        model = self.make()
        model.model.layers[0].mlp.register_forward_hook(
            lambda _m, _a, out: [out.register_hook(lambda g: g * float("nan")), None][1]
        )
        with pytest.raises(UndefinedMeasureError, match=r"gradient at blocks\.0\.mlp\.W_(out|in|gate)"):
            capture(model, DOCUMENTS, **OPTIONS)

    def test_users_hooks_on_the_matrices_are_part_of_the_model_too(self) -> None:
        # The gradient is that of the parameter, on whichever side of it a hook acts, in place or not.
        model = self.make()
        attention, mlp = model.model.layers[0].self_attn, model.model.layers[1].mlp
        attention.q_proj.register_forward_hook(lambda _m, _a, out: out * 2)
        attention.o_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 3,))
        mlp.down_proj.register_forward_hook(lambda _m, _a, out: [out.mul_(0.5), None][1])
        model.model.embed_tokens.register_forward_hook(lambda _m, _a, out: [out.mul_(1.5), None][1])
        reference = reference_gradients(model, DOCUMENTS)
        got = capture(model, DOCUMENTS, **OPTIONS)
        for site, moments in got.weight_gradients.items():
            error = (moments.second_moment() - reference.second_moment(site)).norm()
            assert float(error / reference.second_moment(site).norm()) < 1e-5, site

    def test_a_users_hook_that_changes_the_stream_is_part_of_the_model(self) -> None:
        model = self.make()
        plain = capture(model, DOCUMENTS, **OPTIONS)
        model.model.layers[0].register_forward_hook(lambda _m, _a, out: out * 1.5)
        changed = capture(model, DOCUMENTS, **OPTIONS)
        site = "blocks.1.hook_resid_pre"
        torch.testing.assert_close(changed.activations[site].mean, 1.5 * plain.activations[site].mean)


def test_a_deep_copy_gives_the_same_numbers() -> None:
    model = make("neox-parallel", "huggingface")
    first = capture(model, DOCUMENTS, **OPTIONS)
    second = capture(copy.deepcopy(model), DOCUMENTS, **OPTIONS)
    for site, moments in first.weight_gradients.items():
        assert torch.equal(second.weight_gradients[site].scatter, moments.scatter)
