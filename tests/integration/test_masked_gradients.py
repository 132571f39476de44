"""The masked-language objective against autograd and Hugging Face's own loss on the same masks, site by site."""

import copy
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.encoder_models import MASK
from tests.masked_models import DOCUMENTS, SPECIAL, encoder, masked_by_hand, masked_reference
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import Capture, MaskedLM, capture, fit_tangent_proxies
from tl_aniso.capturing.objectives import Targets, shuffled_targets
from tl_aniso.text import document_hash, half_of, make_batches, make_sequences

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3}
CONTROLS = ("input_energy", "sign_flip", "shuffled_g")
SHAPES: list[dict[str, Any]] = [{}, {"rate": 0.15, "replacement": "mask"}]
LAST = 2  # the tiny encoder has three blocks
# Behind the last attention a position's gradient is its own loss' alone.
OWN = {"unembed.W_U", *(f"blocks.{LAST}.{w}" for w in ("attn.W_Q", "attn.W_O", "mlp.W_in", "mlp.W_gate", "mlp.W_out"))}
OWN_RESIDUALS = {f"blocks.{LAST}.hook_resid_mid", f"blocks.{LAST}.hook_resid_post"}


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


@cache
def captured() -> Capture:
    return capture(encoder(), DOCUMENTS, **OPTIONS)


def assert_gradients(got: Any, reference: Reference) -> None:
    assert set(got.weight_gradients) == set(reference.weights)
    for site in reference.weights:
        assert got.weight_gradients[site].count == len(DOCUMENTS)
        assert relative(got.weight_gradients[site].second_moment(), reference.second_moment(site)) < 1e-5, site
    assert set(got.activation_gradients) == set(reference.residuals)
    for site in reference.residuals:
        moments, rows = got.activation_gradients[site], torch.cat(reference.residual_gradients[site])
        assert relative(moments.second_moment(), reference.row_moment(site)) < 1e-5, site
        assert float((moments.mean - rows.mean(0)).norm() / rows.norm() * len(rows) ** 0.5) < 1e-6, site


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_autograd(shape: dict[str, Any]) -> None:
    got = capture(encoder(), DOCUMENTS, objective=MaskedLM(**shape), **OPTIONS)
    reference = masked_reference(**shape)
    assert_gradients(got, reference)
    for site, values in reference.residuals.items():
        assert relative(got.activations[site].covariance(), torch.cov(torch.cat(values).T)) < 1e-5, site


@pytest.mark.parametrize("shape", SHAPES)
def test_loss_is_that_of_hugging_face_on_the_same_masks(shape: dict[str, Any]) -> None:
    fed, labels = masked_by_hand(DOCUMENTS, **shape)
    width = max(map(len, fed))
    ids, mask, wanted = (torch.full((len(fed), width), fill) for fill in (0, 0, -100))
    for row, (read, label) in enumerate(zip(fed, labels, strict=True)):
        ids[row, : len(read)], mask[row, : len(read)] = torch.tensor(read), 1
        wanted[row, : len(read)] = torch.tensor(label)
    with torch.no_grad():
        mean = copy.deepcopy(encoder()).double()(ids, attention_mask=mask, labels=wanted).loss
    n_masked = int((wanted != -100).sum())
    got = capture(encoder(), DOCUMENTS, objective=MaskedLM(**shape), **OPTIONS)
    assert got._tallied("targets") == n_masked
    assert got._tallied("loss|main") == pytest.approx(float(mean) * n_masked, rel=1e-6)
    assert got.loss == pytest.approx(float(mean), rel=1e-6)


def test_the_embedding_goes_by_what_was_fed() -> None:
    # Of the original ids, the gradient of masked positions would be written to the rows of their own tokens.
    reference = masked_reference()
    original = []
    for rows, ids in zip(reference.rows["embed.W_E"], DOCUMENTS, strict=True):
        one_hot = torch.nn.functional.one_hot(torch.tensor(ids), 97).double()
        original.append((one_hot.T @ rows).T @ (one_hot.T @ rows))
    assert relative(torch.stack(original).mean(0), reference.second_moment("embed.W_E")) > 0.1
    got = captured().weight_gradients["embed.W_E"].second_moment()
    assert relative(got, reference.second_moment("embed.W_E")) < 1e-5


def places(site: str, number: int, own: bool) -> list[int]:
    labels = masked_by_hand(DOCUMENTS)[1][number]
    return [i for i, label in enumerate(labels) if label != -100 or not own]


def control_by_hand(reference: Reference, site: str, control: str) -> Tensor:
    """Mean over documents of R^T E[K] R, the expected kernel written out over the positions that can carry gradient."""
    total = torch.zeros(32, 32, dtype=torch.float64)
    for number, (rows, factor) in enumerate(zip(reference.rows[site], reference.factors[site], strict=True)):
        carrying = places(site, number, own=site in OWN)
        rows, factor = rows[carrying], factor[carrying]
        kernel, n = factor @ factor.T, len(rows)
        if control == "input_energy":
            expected = torch.eye(n, dtype=kernel.dtype)
        elif control == "sign_flip":
            expected = kernel.diagonal().diag()
        else:
            off = float(kernel.sum() - kernel.trace()) / (n * (n - 1)) if n > 1 else 0.0
            expected = torch.full_like(kernel, off)
            expected.diagonal().fill_(float(kernel.trace()) / n)
        total += rows.T @ expected @ rows
    return total / len(DOCUMENTS)


@pytest.mark.parametrize("control", CONTROLS)
def test_controls_count_what_can_carry_gradient(control: str) -> None:
    got, reference = captured().controls[control], masked_reference()
    assert set(got) == set(reference.weights)
    for site in got:
        assert relative(got[site].second_moment(), control_by_hand(reference, site, control)) < 1e-5, site


def test_positions_without_a_loss_carry_gradient_up_to_the_last_attention() -> None:
    reference = masked_reference()
    _, labels = masked_by_hand(DOCUMENTS)
    without = [torch.tensor(label) == -100 for label in labels]
    for site, gradients in reference.residual_gradients.items():
        rows = torch.cat([g[w] for g, w in zip(gradients, without, strict=True)])
        assert (float(rows.abs().max()) == 0) == (site in OWN_RESIDUALS), site
    for site, factors in reference.factors.items():
        # A writer's factor is its input; its output's gradient is what a position carries.
        carried = reference.rows[site] if site.endswith(("W_O", "W_out", "W_E")) else factors
        rows = torch.cat([g[w] for g, w in zip(carried, without, strict=True)])
        assert (float(rows.abs().max()) == 0) == (site in OWN), site


def test_last_residual_gradients_are_zero_at_unmasked_positions() -> None:
    got = capture(encoder(), DOCUMENTS, exclude=("masked",), progress=False)
    for site, moments in got.activation_gradients.items():
        assert (float(moments.second_moment().abs().max()) == 0) == (site in OWN_RESIDUALS), site
    # Zeros that are so by construction are no underflow, and are not counted as such.
    assert all(captured().zero_share(site) == 0 for site in captured().activation_gradients)
    assert all(got.zero_share(site) != 0 for site in OWN_RESIDUALS)  # NaN: nothing there can carry gradient


def test_shuffled_g_is_the_mean_over_permutations_of_the_masked_positions() -> None:
    document = [1, *range(10, 24), 2]
    fed, labels = masked_by_hand([document], rate=0.4)
    reference = reference_gradients(encoder(), fed, labels=labels)
    masked = [i for i, label in enumerate(labels[0]) if label != -100]
    assert 3 <= len(masked) <= 6
    for site in ("unembed.W_U", "blocks.2.attn.W_Q", "blocks.2.mlp.W_out"):
        rows, factor = reference.rows[site][0][masked], reference.factors[site][0][masked]
        gradients = [factor[list(order)].T @ rows for order in permutations(range(len(masked)))]
        expected = torch.stack([g.T @ g for g in gradients]).mean(0)
        got = capture(encoder(), [document], objective=MaskedLM(0.4), **OPTIONS).controls["shuffled_g"][site]
        assert relative(got.second_moment(), expected) < 1e-5, site


@pytest.mark.parametrize("batch_size", [1, 4])
def test_unit_batch_sums_over_masked_positions(batch_size: int) -> None:
    got = capture(encoder(), DOCUMENTS, unit="batch", **{**OPTIONS, "batch_size": batch_size})
    sequences = make_sequences(DOCUMENTS, 160).sequences
    batches = make_batches(sequences, batch_size, by_shard=True)
    order = {document_hash(ids): number for number, ids in enumerate(DOCUMENTS)}
    reference = masked_reference()
    for site in ("embed.W_E", "unembed.W_U", "blocks.2.attn.W_Q", "blocks.0.attn.W_K", "blocks.1.mlp.W_out"):
        members = [[order[s.document] for s in batch.sequences] for batch in batches]
        whole = [sum(reference.weights[site][n] for n in numbers) for numbers in members]
        expected = torch.stack([g.T @ g for g in whole]).mean(0)
        assert relative(got.weight_gradients[site].second_moment(), expected) < 1e-5, site
        total = torch.zeros(32, 32, dtype=torch.float64)
        for numbers in members:
            carrying = [places(site, n, own=site in OWN) for n in numbers]
            rows, factor = (
                torch.cat([parts[site][n][c] for n, c in zip(numbers, carrying, strict=True)])
                for parts in (reference.rows, reference.factors)
            )
            kernel, n = factor @ factor.T, len(rows)
            off = float(kernel.sum() - kernel.trace()) / (n * (n - 1)) if n > 1 else 0.0
            middle = torch.full_like(kernel, off)
            middle.diagonal().fill_(float(kernel.trace()) / n)
            total += rows.T @ middle @ rows
        found = got.controls["shuffled_g"][site]
        assert relative(found.second_moment() * found.count, total) < 1e-5, site


def test_shuffled_labels_are_the_masked_tokens_in_another_order() -> None:
    got = capture(encoder(), DOCUMENTS, extra_passes="shuffled_labels", seed=5, **OPTIONS)
    fed, labels = masked_by_hand(DOCUMENTS, seed=5)
    shuffled = []
    for piece, label in zip(make_sequences(DOCUMENTS, 160).sequences, labels, strict=True):
        ids = torch.tensor(label)[None]
        found = shuffled_targets(Targets(ids, ids != -100), (piece,), 5).ids[0].tolist()
        assert [t == -100 for t in found] == [t == -100 for t in label]
        assert sorted(found) == sorted(label)
        shuffled.append(found)
    assert sum(a != b for a, b in zip(shuffled, labels, strict=True)) >= 7
    assert_gradients(got.variants["shuffled_labels"], reference_gradients(encoder(), fed, labels=shuffled))
    assert_gradients(got, masked_reference(seed=5))


@pytest.mark.parametrize("filters", [("masked",), ("unmasked",), ("special", "masked"), ("special", "unmasked")])
def test_weight_filters_leave_positions_out(filters: tuple[str, ...]) -> None:
    got = capture(encoder(), DOCUMENTS, weight_exclude=filters, **OPTIONS)
    reference = masked_reference()
    _, labels = masked_by_hand(DOCUMENTS)
    for site in ("embed.W_E", "unembed.W_U", "blocks.2.attn.W_V", "blocks.2.attn.W_Q", "blocks.0.mlp.W_out"):
        total = torch.zeros(32, 32, dtype=torch.float64)
        for number, (ids, label) in enumerate(zip(DOCUMENTS, labels, strict=True)):
            kinds = [
                "masked" if t != -100 else "special" if i in SPECIAL else "unmasked"
                for i, t in zip(ids, label, strict=True)
            ]
            keep = [i for i, kind in enumerate(kinds) if kind not in filters]
            gradient = reference.factors[site][number][keep].T @ reference.rows[site][number][keep]
            total += gradient.T @ gradient
        error = (got.weight_gradients[site].second_moment() * len(DOCUMENTS) - total).norm()
        assert float(error) < 1e-5 * float(reference.second_moment(site).norm()) * len(DOCUMENTS), site


@pytest.mark.parametrize("objective", ["first", "even"])
def test_a_callable_on_an_encoder_reads_the_text_as_it_is(objective: str) -> None:
    def losses(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        chosen = torch.arange(ids.shape[1]) == 1 if objective == "first" else ids % 2 == 0
        return -logits[..., 7] * (chosen & mask)

    got = capture(encoder(), DOCUMENTS, objective=losses, **OPTIONS)
    reference = reference_gradients(encoder(), DOCUMENTS, losses=losses)
    assert_gradients(got, reference)
    # A loss at one position reaches all of them, behind it too; behind the last attention it stays its own.
    for site in ("blocks.0.attn.W_V", "unembed.W_U", "blocks.2.mlp.W_in"):
        total = torch.zeros(32, 32, dtype=torch.float64)
        for number, ids in enumerate(DOCUMENTS):
            own = [i for i in range(len(ids)) if (i == 1 if objective == "first" else ids[i] % 2 == 0)]
            carrying = own if site in OWN else range(len(ids))
            rows = reference.rows[site][number][list(carrying)]
            total += rows.T @ rows
        assert relative(got.controls["input_energy"][site].scatter, total) < 1e-5, site


def test_projected_energies_equal_full_matrices() -> None:
    proxies = fit_tangent_proxies(captured(), 4)
    got = capture(encoder(), DOCUMENTS, proxies=proxies, pooled="all", **OPTIONS)
    for site in got.weight_gradients:
        basis = proxies[site].basis
        for control in ("none", *CONTROLS):
            moments = (got.weight_gradients if control == "none" else got.controls[control])[site]
            whole = moments.second_moment() * moments.count
            energies = got.energies("weight_gradient", site, control=control).sum((0, 1))
            expected = torch.cat([(basis.T @ whole @ basis).diagonal(), whole.trace()[None]])
            assert float((energies - expected).abs().max() / whole.trace()) < 1e-6, (site, control)


def test_halves_are_of_the_original_text() -> None:
    halves = captured().metadata["text"]["halves"]
    assert halves == {document_hash(ids): half_of(document_hash(ids)) for ids in DOCUMENTS}
    assert MASK not in np.concatenate(DOCUMENTS)
