"""Captured sums against autograd on an untouched Hugging Face model, site by site."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import KINDS, as_bridge, random_documents, tiny_model
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import capture, fit_tangent_proxies
from tl_aniso.text import document_hash, half_of, shard_of

WRAPPERS = ("huggingface", "bridge")
CONTROLS = ("input_energy", "sign_flip", "shuffled_g")
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


@cache
def proxies_of(kind: str) -> Any:
    return fit_tangent_proxies(capture_of(kind, "huggingface"), RANK)


def relative(got: Tensor, expected: Tensor) -> float:
    # A query that can see one position only has gradient zero, exactly or up to rounding as the processor has it.
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


def control_by_hand(reference: Reference, site: str, number: int, control: str) -> Tensor:
    """R^T E[K] R of one sequence with the expected kernel of the control written out as a matrix."""
    # The last position predicts nothing; its factor would be zero (readers) or its gradient is (writers).
    rows, factor = reference.rows[site][number][:-1], reference.factors[site][number][:-1]
    kernel, n = factor @ factor.T, len(rows)
    if control == "input_energy":
        expected = torch.eye(n, dtype=kernel.dtype)
    elif control == "sign_flip":
        expected = kernel.diagonal().diag()
    else:
        off = (kernel.sum() - kernel.trace()) / (n * (n - 1)) if n > 1 else torch.zeros(())
        expected = torch.full_like(kernel, float(off))
        expected.diagonal().fill_(float(kernel.trace()) / n)
    return rows.T @ expected @ rows


@pytest.mark.parametrize("kind", KINDS)
def test_reference_is_consistent(kind: str) -> None:
    # G = F^T R at every site: the fused projections are taken apart alike on both ways.
    reference = reference_of(kind)
    for site, gradients in reference.weights.items():
        for number, gradient in enumerate(gradients):
            by_rows = reference.factors[site][number].T @ reference.rows[site][number]
            assert relative(by_rows, gradient) < 1e-12, site


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", KINDS)
class TestSecondMoments:
    def test_weight_gradients(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper).weight_gradients, reference_of(kind)
        assert set(got) == set(reference.weights)
        for site in got:
            assert got[site].count == len(random_documents())
            assert relative(got[site].second_moment(), reference.second_moment(site)) < 1e-5, site

    def test_activation_gradients(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper).activation_gradients, reference_of(kind)
        assert set(got) == set(reference.residuals)
        for site in got:
            assert relative(got[site].second_moment(), reference.row_moment(site)) < 1e-5, site
            # Second moments do not see the sign of the loss, means do.
            rows = torch.cat(reference.residual_gradients[site])
            assert float((got[site].mean - rows.mean(0)).norm() / rows.norm() * len(rows) ** 0.5) < 1e-6, site
            assert relative(got[site].covariance(), torch.cov(rows.T)) < 1e-5, site

    def test_activations(self, kind: str, wrapper: str) -> None:
        got, reference = capture_of(kind, wrapper).activations, reference_of(kind)
        tokens = sum(len(document) for document in random_documents())
        for site, values in reference.residuals.items():
            rows = torch.cat(values)
            assert got[site].count == tokens == len(rows)
            assert relative(got[site].mean, rows.mean(0)) < 1e-5, site
            assert relative(got[site].covariance(), torch.cov(rows.T)) < 1e-5, site

    def test_what_proxies_are_fitted_on(self, kind: str, wrapper: str) -> None:
        # A reader's proxy lives on its input; a writer's on its output, which the residual sites give by difference.
        got, reference = capture_of(kind, wrapper).activations, reference_of(kind)
        readers = {"blocks.1.attn.input": "blocks.1.attn.W_Q", "blocks.1.mlp.input": "blocks.1.mlp.W_in"}
        tokens = sum(len(document) for document in random_documents())
        assert {site: moments.count for site, moments in got.items() if moments.count != tokens} == {}
        for site, reader in {**readers, "unembed.input": "unembed.W_U"}.items():
            assert relative(got[site].covariance(), torch.cov(torch.cat(reference.rows[reader]).T)) < 1e-5, site
        if kind != "neox-parallel":
            for site, after, before in (
                ("blocks.1.attn.W_O.output", "mid", "pre"),
                ("blocks.1.mlp.W_out.output", "post", "mid"),
            ):
                streams = [torch.cat(reference.residuals[f"blocks.1.hook_resid_{p}"]) for p in (after, before)]
                assert relative(got[site].covariance(), torch.cov((streams[0] - streams[1]).T)) < 1e-5, site

    @pytest.mark.parametrize("control", CONTROLS)
    def test_controls(self, kind: str, wrapper: str, control: str) -> None:
        got, reference = capture_of(kind, wrapper).controls[control], reference_of(kind)
        assert set(got) == set(reference.weights)
        n = len(random_documents())
        for site in got:
            expected = sum(control_by_hand(reference, site, number, control) for number in range(n)) / n
            assert relative(got[site].second_moment(), expected) < 1e-5, site


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", KINDS)
def test_projected_energies_equal_full_matrices(kind: str, wrapper: str) -> None:
    proxies, reference = proxies_of(kind), reference_of(kind)
    got = capture(model_of(kind, wrapper), random_documents(), proxies=proxies, **OPTIONS)
    assert not got.weight_gradients  # nothing d x d was summed
    places = [document_hash(document) for document in random_documents()]
    for site in reference.weights:
        basis = proxies[site].basis
        for control in ("none", *CONTROLS):
            expected = torch.zeros(2, 8, RANK + 1, dtype=torch.float64)
            for number, digest in enumerate(places):
                gradient = reference.weights[site][number]
                whole = (
                    gradient.T @ gradient if control == "none" else control_by_hand(reference, site, number, control)
                )
                row = torch.cat([(basis.T @ whole @ basis).diagonal(), whole.trace()[None]])
                expected["AB".index(half_of(digest)), shard_of(digest)] += row
            energies = got.energies("weight_gradient", site, control=control)
            assert relative(energies, expected) < 1e-5, (site, control)
            shares = [e[..., :-1].sum((0, 1)) / e[..., -1].sum() for e in (energies, expected)]
            assert float((shares[0] - shares[1]).abs().max()) < 1e-6, (site, control)


@pytest.mark.parametrize("kind", KINDS)
def test_projected_energies_equal_the_sums_of_the_same_pass(kind: str) -> None:
    proxies = proxies_of(kind)
    options = {**OPTIONS, "pooled": "all", "extra_passes": "shuffled_labels", "proxies": proxies}
    got = capture(model_of(kind, "huggingface"), random_documents(), **options).half("B")
    pairs = [("weight_gradient", s, c, "main", got.controls[c][s]) for c in CONTROLS for s in got.controls[c]]
    for name, moments in (("main", got), ("shuffled_labels", got.variants["shuffled_labels"])):
        pairs += [("weight_gradient", s, "none", name, m) for s, m in moments.weight_gradients.items()]
    assert len(pairs) == 5 * len(got.weight_gradients)
    for kind_of_row, site, control, variant, moments in pairs:
        basis, whole = proxies[site].basis, moments.second_moment() * moments.count
        energies = got.energies(kind_of_row, site, control=control, variant=variant).sum((0, 1))
        expected = torch.cat([(basis.T @ whole @ basis).diagonal(), whole.trace()[None]])
        assert float((energies - expected).abs().max() / whole.trace()) < 1e-6, (site, control, variant)


def test_activation_gradients_are_projected_where_their_site_has_a_proxy() -> None:
    proxies = proxies_of("llama")
    got = capture(model_of("llama", "huggingface"), random_documents(), proxies=proxies, **OPTIONS)
    for site, moments in got.activation_gradients.items():
        basis, whole = proxies[site].basis, moments.second_moment() * moments.count
        energies = got.energies("activation_gradient", site).sum((0, 1))
        expected = torch.cat([(basis.T @ whole @ basis).diagonal(), whole.trace()[None]])
        assert float((energies - expected).abs().max() / whole.trace()) < 1e-6, site


def test_long_sequences_and_one_narrow_kv_head_form_the_gradient() -> None:
    # 150 tokens against a K and V of 4 rows: here G is formed, in the block of 2 tokens the kernel is.
    model = tiny_model("llama", num_attention_heads=8, num_key_value_heads=1)
    documents = random_documents((150, 130, 2, 140), seed=3)
    reference = reference_gradients(model, documents)
    got = capture(model, documents, **{**OPTIONS, "batch_size": 1})
    proxies = fit_tangent_proxies(got, RANK)
    projected = capture(model, documents, proxies=proxies, **OPTIONS)
    for site in ("blocks.0.attn.W_K", "blocks.1.attn.W_V", "blocks.1.attn.W_O", "blocks.0.mlp.W_in"):
        moments = got.weight_gradients[site]
        assert relative(moments.second_moment(), reference.second_moment(site)) < 1e-5, site
        basis, whole = proxies[site].basis, reference.second_moment(site)
        energies = projected.energies("weight_gradient", site).sum((0, 1))
        shares = (basis.T @ whole @ basis).diagonal() / whole.trace()
        assert float((energies[:-1] / energies[-1] - shares).abs().max()) < 1e-6, site
    assert reference.weights["blocks.0.attn.W_K"][0].shape == (4, 32)


@pytest.mark.parametrize("kind", ["neox-sequential", "llama-tied"])
def test_shuffled_labels_are_the_gradient_of_permuted_targets(kind: str) -> None:
    from tl_aniso.capturing.objectives import causal_targets, shuffled_targets
    from tl_aniso.text import make_batches, make_sequences

    documents = random_documents()
    got = capture(model_of(kind, "huggingface"), documents, extra_passes="shuffled_labels", seed=5, **OPTIONS)
    shuffled = {}
    for batch in make_batches(make_sequences(documents, 160).sequences, 4):
        targets = causal_targets(batch.ids, batch.mask)
        ids = shuffled_targets(targets, batch.sequences, 5).ids
        for row, sequence in enumerate(batch.sequences):
            shuffled[sequence.document] = ids[row, : len(sequence) - 1].tolist()
    orders = [shuffled[document_hash(document)] for document in documents]
    assert all(sorted(order) == sorted(document[1:]) for order, document in zip(orders, documents, strict=True))
    assert sum(order != document[1:] for order, document in zip(orders, documents, strict=True)) >= 8
    reference = reference_gradients(model_of(kind, "huggingface"), documents, targets=orders)
    variant = got.variants["shuffled_labels"]
    for site in reference.weights:
        assert relative(variant.weight_gradients[site].second_moment(), reference.second_moment(site)) < 1e-5, site
    for site in reference.residuals:
        assert relative(variant.activation_gradients[site].second_moment(), reference.row_moment(site)) < 1e-5, site
    # The pass with the true targets is not disturbed by the one after it.
    for site, moments in got.weight_gradients.items():
        assert relative(moments.second_moment(), reference_of(kind).second_moment(site)) < 1e-5, site


def test_tied_embeddings_are_told_apart() -> None:
    # Added up in one parameter, as autograd does without a clone, both would hold the sum.
    got = capture_of("llama-tied", "huggingface").weight_gradients
    both = [got[site].second_moment() for site in ("embed.W_E", "unembed.W_U")]
    assert relative(*both) > 0.5


def test_sites_and_their_pieces_can_be_asked_for_alone() -> None:
    whole = capture_of("neox-parallel", "huggingface")
    model = model_of("neox-parallel", "huggingface")
    for site in ("embed.W_E", "blocks.1.attn.W_V", "blocks.0.mlp.W_out", "unembed.W_U"):
        got = capture(model, random_documents(), sites=site, **OPTIONS)
        assert list(got.weight_gradients) == [site]
        assert not got.activation_gradients
        assert torch.equal(got.weight_gradients[site].scatter, whole.weight_gradients[site].scatter)
    only = capture(model, random_documents(), gradients="activation", **OPTIONS)
    assert not only.weight_gradients
    assert set(only.activation_gradients) == set(whole.activation_gradients)
    forward = capture(model, random_documents(), gradients=(), **OPTIONS)
    assert not forward.activation_gradients
    assert set(forward.activations) == set(whole.activations)


def test_bfloat16_autocast_stays_close() -> None:
    got = capture(model_of("llama", "huggingface"), random_documents(), dtype="bfloat16", **OPTIONS)
    for site, moments in got.weight_gradients.items():
        assert 0 < relative(moments.second_moment(), reference_of("llama").second_moment(site)) < 0.2, site


def test_loss_is_the_mean_over_predicted_tokens() -> None:
    model, documents = tiny_model("neox-sequential"), random_documents()
    total = 0.0
    for ids in documents:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
    got = capture_of("neox-sequential", "huggingface")
    assert got.loss == pytest.approx(total / sum(len(ids) - 1 for ids in documents), rel=1e-6)
