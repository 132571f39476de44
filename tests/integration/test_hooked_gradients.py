"""Captures of a HookedTransformer (TransformerLens 3.9) against autograd on the Hugging Face model it was made from."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hooked_models import HOOKED_KINDS, hooked_model, peer_of
from tests.models import random_documents
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.capturing.bind import bind
from tl_aniso.sites import proxy_site, role_of

pytestmark = [pytest.mark.hooked, pytest.mark.usefixtures("one_thread")]

OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3}


@cache
def reference_of(kind: str) -> Reference:
    return reference_gradients(peer_of(kind), random_documents())


@cache
def capture_of(kind: str) -> Any:
    return capture(hooked_model(kind), random_documents(), **OPTIONS)


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


def assert_same_sums(got: Any, expected: Any, tolerance: float = 1e-6) -> None:
    assert got.sites == expected.sites
    for kind in ("activations", "activation_gradients", "weight_gradients"):
        for site, moments in getattr(expected, kind).items():
            assert relative(getattr(got, kind)[site].scatter, moments.scatter) < tolerance, (kind, site)


@pytest.mark.parametrize("kind", HOOKED_KINDS)
class TestEveryArchitecture:
    def test_it_is_the_same_model(self, kind: str) -> None:
        ids = torch.tensor([random_documents()[4]])
        with torch.no_grad():
            got, expected = hooked_model(kind)(ids), peer_of(kind)(input_ids=ids).logits
        assert float((got - expected).abs().max() / expected.abs().max()) < 1e-5

    def test_weight_gradients(self, kind: str) -> None:
        got, reference = capture_of(kind).weight_gradients, reference_of(kind)
        assert set(got) == set(reference.weights)
        for site in got:
            assert got[site].count == len(random_documents())
            assert relative(got[site].second_moment(), reference.second_moment(site)) < 1e-5, site

    def test_activation_gradients(self, kind: str) -> None:
        got, reference = capture_of(kind).activation_gradients, reference_of(kind)
        assert set(got) == set(reference.residuals)
        for site in got:
            assert relative(got[site].second_moment(), reference.row_moment(site)) < 1e-5, site
            # Second moments do not see the sign of the loss, means do.
            rows = torch.cat(reference.residual_gradients[site])
            assert float((got[site].mean - rows.mean(0)).norm() / rows.norm() * len(rows) ** 0.5) < 1e-6, site

    def test_activations(self, kind: str) -> None:
        got, reference = capture_of(kind).activations, reference_of(kind)
        tokens = sum(len(document) for document in random_documents())
        expected = dict(reference.residuals)
        for site in reference.weights:
            if role_of(site) == "reader":
                expected[proxy_site(site)] = reference.rows[site]
            elif role_of(site) == "writer":
                expected[proxy_site(site)] = reference.outputs[site]
        assert set(got) == set(expected)
        for site, values in expected.items():
            rows = torch.cat(values)
            assert got[site].count == tokens == len(rows)
            assert relative(got[site].mean, rows.mean(0)) < 1e-5, site
            assert relative(got[site].covariance(), torch.cov(rows.T)) < 1e-5, site

    def test_layout(self, kind: str) -> None:
        mine, theirs = bind(hooked_model(kind)), bind(peer_of(kind))
        assert mine.wrapper == "hooked_transformer"
        for field in ("family", "class_name", "d_model", "vocab_size", "context", "embed_scale", "softcap"):
            assert getattr(mine, field) == getattr(theirs, field), field
        for sites in ("residual_sites", "weight_sites", "matrix_sites"):
            assert set(getattr(mine, sites)) == set(getattr(theirs, sites))

        def heads(layout: Any) -> dict[str, int]:
            pairs = [zip(m.sites, m.head_counts, strict=True) for m in layout.matrices if m.head_counts]
            return {site: count for pair in pairs for site, count in pair}

        assert heads(mine) == heads(theirs)


def test_the_questions_give_what_the_hugging_face_model_gives() -> None:
    documents = random_documents(tuple(range(12, 36)))
    for ask in (tangent_energy, ablation_isotropy):
        frames = [
            ask(model, documents, rank=3, progress=False).frame.select_dtypes("number")
            for model in (hooked_model("llama"), peer_of("llama"))
        ]
        assert frames[0].shape == frames[1].shape
        torch.testing.assert_close(
            torch.tensor(frames[0].to_numpy(float)),
            torch.tensor(frames[1].to_numpy(float)),
            rtol=1e-3,
            atol=1e-5,
            equal_nan=True,
        )


def test_loss() -> None:
    expected = capture(peer_of("gpt2"), random_documents(), **OPTIONS).loss
    assert capture_of("gpt2").loss == pytest.approx(expected, rel=1e-6)


def test_projected_energies_and_permuted_labels() -> None:
    # Known planes: nothing d x d is summed, and a second pass goes back through the same hooks.
    options = {**OPTIONS, "proxies": fit_tangent_proxies(capture_of("neox-parallel"), 3)}
    got, expected = (
        capture(model, random_documents(), extra_passes="shuffled_labels", **options)
        for model in (hooked_model("neox-parallel"), peer_of("neox-parallel"))
    )
    for site in reference_of("neox-parallel").weights:
        for variant in ("main", "shuffled_labels"):
            energies = [c.energies("weight_gradient", site, variant=variant) for c in (got, expected)]
            assert relative(*energies) < 1e-5, (site, variant)


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        ("llama", "use_attn_result"),
        ("llama", "use_hook_mlp_in"),
        # Keys and values are then repeated for every query head, but the parameter is not.
        ("llama", "ungroup_grouped_query_attention"),
        ("neox-parallel", "use_hook_mlp_in"),
    ],
)
def test_switches_that_only_show_more(kind: str, switch: str) -> None:
    model = hooked_model(kind)
    getattr(model, f"set_{switch}")(True)
    assert_same_sums(capture(model, random_documents(), **OPTIONS), capture_of(kind), 1e-5)


def test_a_model_without_norms() -> None:
    # As in the small models of interpretability; W_Q then reads the residual stream itself.
    model = hooked_model("neox-sequential", normalization_type=None)
    got = capture(model, random_documents(), **OPTIONS).activations
    assert relative(got["blocks.1.attn.input"].scatter, got["blocks.1.hook_resid_pre"].scatter) == 0
    assert relative(got["unembed.input"].scatter, got["blocks.1.hook_resid_post"].scatter) == 0
    ids = torch.tensor([random_documents()[0]])
    _, cache = model.run_with_cache(ids)
    one = capture(model, [random_documents()[0]], **OPTIONS).activations["unembed.input"]
    assert relative(one.mean, cache["blocks.1.hook_resid_post"][0].mean(0)) < 1e-6


def test_bfloat16_under_autocast_is_near() -> None:
    got = capture(hooked_model("llama"), random_documents(), dtype="bfloat16", **OPTIONS)
    errors = [
        relative(m.scatter, capture_of("llama").weight_gradients[s].scatter) for s, m in got.weight_gradients.items()
    ]
    assert 1e-5 < max(errors) < 0.2


def test_float64() -> None:
    peer = peer_of("gpt2").double()
    got = capture(hooked_model("gpt2", peer=peer), random_documents(), **OPTIONS)
    assert_same_sums(got, capture_of("gpt2"), 1e-5)


def test_shifting_all_logits_of_a_token_changes_nothing() -> None:
    # What center_unembed does, and why it is the one processing that is let pass.
    model = hooked_model("gpt2")
    before = model.unembed.W_U.detach().clone()
    model.load_and_process_state_dict(
        model.state_dict(), fold_ln=False, center_writing_weights=False, center_unembed=True, fold_value_biases=False
    )
    assert float((model.unembed.W_U.detach() - before).norm()) > 0.1
    assert_same_sums(capture(model, random_documents(), **OPTIONS), capture_of("gpt2"), 1e-5)


class TestUsersHooks:
    """What a user's hooks make of the model is the model that is measured."""

    def pair(self) -> tuple[Any, Any]:
        return hooked_model("llama"), peer_of("llama")

    def check(self, model: Any, peer: Any) -> None:
        reference = reference_gradients(peer, random_documents())
        got = capture(model, random_documents(), **OPTIONS)
        for site, moments in got.weight_gradients.items():
            assert relative(moments.second_moment(), reference.second_moment(site)) < 1e-5, site
        for site, moments in got.activation_gradients.items():
            assert relative(moments.second_moment(), reference.row_moment(site)) < 1e-5, site
            assert relative(got.activations[site].mean, torch.cat(reference.residuals[site]).mean(0)) < 1e-5, site

    def test_on_both_sides_of_matrices(self) -> None:
        model, peer = self.pair()
        attention, mlp = peer.model.layers[0].self_attn, peer.model.layers[1].mlp
        attention.q_proj.register_forward_hook(lambda _m, _a, out: out * 2)
        attention.o_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 3,))
        mlp.down_proj.register_forward_hook(lambda _m, _a, out: out * 0.5)
        mlp.down_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 0.8,))
        peer.model.embed_tokens.register_forward_hook(lambda _m, _a, out: out * 1.5)
        peer.model.layers[1].post_attention_layernorm.register_forward_hook(lambda _m, _a, out: out * 1.2)
        model.add_hook("blocks.0.attn.hook_q", lambda value, hook: value * 2)
        model.add_hook("blocks.0.attn.hook_z", lambda value, hook: value * 3)
        model.add_hook("blocks.1.hook_mlp_out", lambda value, hook: value * 0.5)
        model.add_hook("blocks.1.mlp.hook_post", lambda value, hook: value * 0.8)
        model.add_hook("hook_embed", lambda value, hook: value * 1.5)
        model.add_hook("blocks.1.ln2.hook_normalized", lambda value, hook: value * 1.2)
        self.check(model, peer)

    def test_on_the_stream(self) -> None:
        model, peer = self.pair()
        peer.model.layers[0].register_forward_hook(lambda _m, _a, out: out * 1.5)
        peer.model.norm.register_forward_hook(lambda _m, _a, out: out * 0.7)
        peer.model.layers[1].register_forward_pre_hook(lambda _m, args: (args[0] * 1.1,))
        model.add_hook("blocks.0.hook_resid_post", lambda value, hook: value * 1.5)
        model.add_hook("blocks.1.hook_resid_pre", lambda value, hook: value * 1.1)
        model.ln_final.register_forward_hook(lambda _m, _a, out: out * 0.7)
        self.check(model, peer)

    def test_in_place(self) -> None:
        model, peer = self.pair()
        peer.model.layers[0].self_attn.q_proj.register_forward_hook(lambda _m, _a, out: out * 2)
        peer.model.embed_tokens.register_forward_hook(lambda _m, _a, out: out * 1.5)
        model.add_hook("blocks.0.attn.hook_q", lambda value, hook: value.mul_(2))
        model.embed.register_forward_hook(lambda _m, _a, out: [out.mul_(1.5), None][1])
        self.check(model, peer)
