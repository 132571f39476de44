"""Losses of the user's own: against autograd on untouched models, against the built-in loss, and clear refusals."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from tests.models import random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import TlAnisoError, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.errors import MergeError, UndefinedMeasureError

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3}
DOCUMENTS = random_documents()


def target_logit(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Minus the logit of token 7 at the last position alone: every gradient before it comes through attention."""
    last = mask & (torch.arange(ids.shape[1]) == ids.shape[1] - 1)
    return -logits[..., 7] * last


def kl_to_uniform(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1) + torch.log(torch.tensor(float(logits.shape[-1])))


def log_odds(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    return (logits[..., 3] - logits[..., 11]) * (ids % 2 == 0)


def kl_to_model(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        other = tiny_model("llama", seed=9)(input_ids=ids, use_cache=False).logits.to(logits.dtype)
    return kl_div(logits.log_softmax(-1), other.log_softmax(-1), log_target=True, reduction="none").sum(-1)


def next_token(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    losses = torch.zeros_like(logits[..., 0])
    losses[:, :-1] = cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return losses


OBJECTIVES = (target_logit, kl_to_uniform, log_odds, kl_to_model)


@cache
def reference_of(kind: str, objective: Any) -> Reference:
    return reference_gradients(tiny_model(kind), DOCUMENTS, losses=objective)


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])
def test_gradients_equal_autograd(kind: str, objective: Any) -> None:
    got, reference = capture(tiny_model(kind), DOCUMENTS, objective=objective, **OPTIONS), reference_of(kind, objective)
    for site in reference.weights:
        moments = got.weight_gradients[site]
        assert moments.count == len(DOCUMENTS)
        assert relative(moments.second_moment(), reference.second_moment(site)) < 1e-5, site
    for site in reference.residuals:
        assert relative(got.activation_gradients[site].second_moment(), reference.row_moment(site)) < 1e-5, site
    assert got._tallied("loss|main") == pytest.approx(sum(reference.losses), rel=1e-5)
    assert got.metadata["options"]["objective"] == objective.__name__


def test_controls_count_the_positions_before_the_last_loss() -> None:
    # The loss stands at the last position alone, but keys and values before it carry gradient, so all N do.
    got = capture(tiny_model("llama"), DOCUMENTS, objective=target_logit, **OPTIONS)
    reference = reference_of("llama", target_logit)
    for site in ("blocks.0.attn.W_V", "blocks.1.mlp.W_out", "unembed.W_U"):
        for control in ("input_energy", "sign_flip", "shuffled_g"):
            expected = torch.zeros(32, 32, dtype=torch.float64)
            for rows, factor in zip(reference.rows[site], reference.factors[site], strict=True):
                kernel, n = factor @ factor.T, len(rows)
                middle = {"input_energy": torch.eye(n).double(), "sign_flip": kernel.diagonal().diag()}.get(control)
                if middle is None:
                    middle = torch.full_like(kernel, float(kernel.sum() - kernel.trace()) / (n * (n - 1)))
                    middle.diagonal().fill_(float(kernel.trace()) / n)
                expected += rows.T @ middle @ rows
            assert relative(got.controls[control][site].scatter, expected) < 1e-5, (site, control)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_next_token_cross_entropy_is_the_causal_objective(batch_size: int) -> None:
    options = {**OPTIONS, "batch_size": batch_size, "weight_exclude": "special"}
    documents = [[1, *document] for document in DOCUMENTS]
    mine, theirs = (
        capture(tiny_model("llama"), documents, objective=o, **options) for o in (lambda *args: next_token(*args), None)
    )
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)
    groups = [
        (mine.weight_gradients, theirs.weight_gradients),
        (mine.activation_gradients, theirs.activation_gradients),
    ]
    groups += [(mine.controls[name], theirs.controls[name]) for name in theirs.controls]
    for got, expected in groups:
        assert set(got) == set(expected)
        for site in expected:
            assert got[site].count == expected[site].count
            assert relative(got[site].second_moment(), expected[site].second_moment()) < 1e-6, site
    assert mine.metadata["options"]["objective"] == "<lambda>"


def test_the_batch_size_changes_nothing_even_for_a_careless_objective() -> None:
    # `next_token` never looks at the mask: with padding it would predict it.
    got = [
        capture(tiny_model("llama"), DOCUMENTS, objective=next_token, **{**OPTIONS, "batch_size": size})
        for size in (1, 5)
    ]
    for site, moments in got[0].weight_gradients.items():
        assert relative(got[1].weight_gradients[site].second_moment(), moments.second_moment()) < 1e-6, site


def test_the_cap_on_logits_is_seen_by_the_objective_and_by_its_gradient() -> None:
    from tl_aniso.capturing.callable_head import callable_head
    from tl_aniso.capturing.head import Unembedding, cross_entropy_head
    from tl_aniso.capturing.objectives import causal_targets
    from tl_aniso.text import make_batches, make_sequences

    (batch,) = make_batches(make_sequences([d for d in DOCUMENTS if len(d) > 10][:1], 160).sequences, 4)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(*batch.ids.shape, 8, generator=generator)
    unembedding = Unembedding(torch.randn(97, 8, generator=generator), None, 1.5)
    got = callable_head(unembedding, hidden, batch, next_token, inner="kernel", counted=batch.mask).head
    expected = cross_entropy_head(unembedding, hidden, causal_targets(batch.ids, batch.mask), inner="kernel")
    torch.testing.assert_close(got.gradient, expected.gradient, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.kernel, expected.kernel, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.loss, expected.loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize("objective", [None, kl_to_uniform])
def test_soft_capped_logits_of_a_whole_model(objective: Any) -> None:
    model = tiny_model("gemma3", final_logit_softcapping=3.0)
    got = capture(model, DOCUMENTS, objective=objective, **OPTIONS)
    reference = reference_gradients(model, DOCUMENTS, losses=objective)
    plain = capture(tiny_model("gemma3"), DOCUMENTS, objective=objective, **OPTIONS)
    for site in reference.weights:
        assert relative(got.weight_gradients[site].second_moment(), reference.second_moment(site)) < 1e-5, site
    uncapped = plain.weight_gradients["unembed.W_U"].second_moment()
    assert relative(uncapped, reference.second_moment("unembed.W_U")) > 0.1


def test_tangent_energy_names_the_objective() -> None:
    result = tangent_energy(tiny_model("llama"), random_documents((20,) * 12), objective=log_odds, progress=False)
    assert set(result.frame["objective"]) == {"log_odds"}


def test_a_forward_pass_alone_does_not_call_the_objective() -> None:
    def never(*_: Any) -> Tensor:
        raise AssertionError

    got = capture(tiny_model("llama"), DOCUMENTS, gradients=(), objective=never, **OPTIONS)
    assert fit_tangent_proxies(got)["unembed.W_U"].rank > 0
    assert got.loss != got.loss


def test_unlike_objectives_do_not_merge() -> None:
    first, second = (
        capture(tiny_model("llama"), d, objective=o, **OPTIONS)
        for d, o in ((DOCUMENTS[:5], log_odds), (DOCUMENTS[5:], None))
    )
    with pytest.raises(MergeError, match=r"objective: 'log_odds' and 'causal'"):
        first.merge(second)


class TestRefusals:
    @pytest.mark.parametrize(
        ("objective", "error", "message"),
        [
            (lambda z, i, m: z.sum(-1).mean(), TlAnisoError, r"one loss a token, of shape \(1, .*got shape \(\)"),
            (lambda z, i, m: z, TlAnisoError, r"one loss a token.*got shape \(1, \d+, 97\)"),
            (lambda z, i, m: 3.0, TlAnisoError, "one loss a token.*got float"),
            (lambda z, i, m: z.detach()[..., 0], TlAnisoError, "keep no graph to the logits for piece 0 of document"),
            (lambda z, i, m: torch.ones(i.shape, requires_grad=True), TlAnisoError, "keep no graph"),
            (lambda z, i, m: i, TlAnisoError, "keep no graph"),
            (lambda z, i, m: z[..., 0] * torch.nan, UndefinedMeasureError, "losses that are not finite for piece 0"),
            (lambda z, i, m: (z[..., 0] * 0).sqrt(), UndefinedMeasureError, "gradient of the objective.*not finite"),
        ],
    )
    def test_what_an_objective_returns(self, objective: Any, error: Any, message: str) -> None:
        model = tiny_model("llama")
        with pytest.raises(error, match=message):
            capture(model, DOCUMENTS, objective=objective, **OPTIONS)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    def test_running_the_measured_model_itself(self) -> None:
        model = tiny_model("llama")

        def itself(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
            return (logits - model(input_ids=ids).logits)[..., 0]

        with pytest.raises(TlAnisoError, match="embedding ran more than once"):
            capture(model, DOCUMENTS, objective=itself, **OPTIONS)

    def test_labels_of_ones_own_cannot_be_shuffled(self) -> None:
        with pytest.raises(TlAnisoError, match="labels of objective log_odds are its own business"):
            capture(tiny_model("llama"), DOCUMENTS, objective=log_odds, extra_passes="shuffled_labels", progress=False)

    def test_names(self) -> None:
        class Loss:
            def __call__(self, logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
                return logits[..., 0]

        named = Loss()
        named.objective_name = "causal"  # type: ignore[attr-defined]
        with pytest.raises(TlAnisoError, match="cannot be named 'causal'"):
            capture(tiny_model("llama"), DOCUMENTS, objective=named, **OPTIONS)
        got = capture(tiny_model("llama"), DOCUMENTS[:2], objective=Loss(), **OPTIONS)
        assert got.metadata["options"]["objective"] == "Loss"
        with pytest.raises(TlAnisoError, match="objective 'mlm' is not supported"):
            capture(tiny_model("llama"), DOCUMENTS, objective="mlm", **OPTIONS)
