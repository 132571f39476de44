"""The masked-language objective of every encoder, plain and bridged: Hugging Face's own loss, gradients by autograd."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.comparisons import activation_errors, assert_small, gradient_errors, weight_errors
from tests.encoder_models import ALL_KINDS, IMPLEMENTATIONS, MASK, tiny_encoder
from tests.masked_models import masked_by_hand
from tests.models import as_bridge, random_documents
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import MaskedLM, TlAnisoError, capture
from tl_aniso.adapters import register
from tl_aniso.capturing.bind import bind

pytestmark = pytest.mark.usefixtures("one_thread")

WRAPPERS = ("huggingface", "bridge")
# Longer than ModernBERT's window, as long, shorter, and one with a single token that can be masked.
DOCUMENTS = [[1, *ids, 2] for ids in random_documents((38, 21, 6, 1), seed=3, low=MASK + 1)]
OPTIONS: dict[str, Any] = {"exclude": (), "progress": False, "batch_size": 3}
SHAPE: dict[str, Any] = {"rate": 0.3, "replacement": "bert"}  # what None stands for


@cache
def model_of(kind: str, wrapper: str, implementation: str) -> Any:
    model = tiny_encoder(kind, implementation, mask_token_id=MASK)
    if wrapper == "huggingface":
        return model
    register()
    return as_bridge(model)


@cache
def reference_of(kind: str) -> Reference:
    fed, labels = masked_by_hand(DOCUMENTS, **SHAPE)
    return reference_gradients(tiny_encoder(kind), fed, labels=labels)


@cache
def capture_of(kind: str, wrapper: str, implementation: str) -> Any:
    return capture(model_of(kind, wrapper, implementation), DOCUMENTS, **OPTIONS)


def padded(rows: list[list[int]], fill: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


@cache
def hugging_face_loss(kind: str, rate: float, replacement: str) -> tuple[float, int]:
    """Summed loss of a padded batch through `labels=`, and the number of labels.

    By SDPA always: in float64, ModernBERT's eager attention makes NaN of padding beyond its window.
    """
    fed, labels = masked_by_hand(DOCUMENTS, rate=rate, replacement=replacement)
    ids, wanted = padded(fed, 0), padded(labels, -100)
    mask = padded([[1] * len(row) for row in fed], 0)
    model = tiny_encoder(kind, "sdpa").double()
    with torch.no_grad():
        mean = model(ids, attention_mask=mask, labels=wanted).loss
    n = int((wanted != -100).sum())
    return float(mean) * n, n


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ALL_KINDS)
class TestEveryEncoder:
    def test_loss_is_that_of_hugging_face_on_the_same_masks(self, kind: str, wrapper: str, implementation: str) -> None:
        got = capture_of(kind, wrapper, implementation)
        summed, n = hugging_face_loss(kind, **SHAPE)
        assert got.metadata["options"]["objective"] == "masked"
        assert got._tallied("targets") == n
        assert got._tallied("loss|main") == pytest.approx(summed, rel=1e-6)
        assert sum(reference_of(kind).losses) == pytest.approx(summed, rel=1e-6)  # one by one, without padding

    def test_gradients_equal_autograd_at_every_site(self, kind: str, wrapper: str, implementation: str) -> None:
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        assert set(got.weight_gradients) == set(reference.weights)
        assert set(got.activation_gradients) == set(reference.residuals)
        assert len(reference.residuals) == 9
        assert {moments.count for moments in got.weight_gradients.values()} == {len(DOCUMENTS)}
        assert_small(weight_errors(got, reference))
        assert_small(gradient_errors(got, reference))

    def test_activations_are_of_the_masked_text(self, kind: str, wrapper: str, implementation: str) -> None:
        got, reference = capture_of(kind, wrapper, implementation), reference_of(kind)
        assert_small(activation_errors(got, reference.residuals))

    def test_logits_are_those_of_hugging_face(self, kind: str, wrapper: str, implementation: str) -> None:
        """Those that a capture forms from the body, the head's transform and the decoder matrix, of masked text."""
        seen: dict[tuple[int, ...], Tensor] = {}

        def target_logit(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
            seen[tuple(ids[0].tolist())] = logits[0].detach().clone()
            return logits[..., 7]

        fed, _ = masked_by_hand(DOCUMENTS, **SHAPE)
        model = model_of(kind, wrapper, implementation)
        capture(model, fed, objective=target_logit, sites="unembed.W_U", **OPTIONS)
        untouched = tiny_encoder(kind, implementation)
        with torch.no_grad():
            errors = {
                str(ids): float((seen[tuple(ids)] - untouched(torch.tensor([ids])).logits[0]).abs().max())
                for ids in fed
            }
        assert_small(errors)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_other_rates_and_the_mask_token_alone(kind: str) -> None:
    shape: dict[str, Any] = {"rate": 0.15, "replacement": "mask"}
    got = capture(
        model_of(kind, "huggingface", "sdpa"), DOCUMENTS, objective=MaskedLM(**shape), gradients=("weight",), **OPTIONS
    )
    summed, n = hugging_face_loss(kind, **shape)
    assert (got._tallied("targets"), n != hugging_face_loss(kind, **SHAPE)[1]) == (n, True)
    assert got._tallied("loss|main") == pytest.approx(summed, rel=1e-6)
    fed, labels = masked_by_hand(DOCUMENTS, **shape)
    assert_small(weight_errors(got, reference_gradients(tiny_encoder(kind), fed, labels=labels)))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_next_token_loss_is_refused_for_every_encoder(kind: str) -> None:
    model = model_of(kind, "huggingface", "eager")
    assert bind(model).attends == "both"
    with pytest.raises(TlAnisoError, match=f"'causal' on {kind}ForMaskedLM"):
        capture(model, DOCUMENTS, objective="causal", **OPTIONS)
