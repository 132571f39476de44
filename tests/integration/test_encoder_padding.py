"""A document's numbers in an encoder: alone, in a ragged batch, padded on either side, and with pads in its text."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.comparisons import activation_errors, assert_small, gradient_errors, relative, weight_errors
from tests.encoder_models import ALL_KINDS, IMPLEMENTATIONS, VOCAB, WINDOW, tiny_encoder
from tests.models import as_bridge, random_documents
from tests.reference.gradients import reference_gradients
from tl_aniso import capture
from tl_aniso.adapters import register
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.hooks import tapped

# Batched, the pads of the short ones lie far outside the window of any real token.
DOCUMENTS = random_documents((90, 3, 40, 2), seed=3)
PADS = (0, 5)  # batches are padded with id 0, whatever the model's own pad is

pytestmark = pytest.mark.usefixtures("one_thread")


def unshifted(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    n = ids.shape[1]
    places = torch.arange(n)
    losses = -logits.log_softmax(-1).gather(-1, ((7 * ids + 3) % VOCAB)[..., None])[..., 0]
    return losses * ((places % 3 == 0) & (places < (n + 1) // 2))


OPTIONS: dict[str, Any] = {"objective": unshifted, "exclude": (), "progress": False, "controls": ()}


@cache
def model_of(kind: str, wrapper: str, implementation: str = "sdpa", pad: int = 0) -> Any:
    model = tiny_encoder(kind, implementation, pad_token_id=pad)
    if wrapper == "huggingface":
        return model
    register()
    return as_bridge(model)


def with_pads(pad: int) -> list[list[int]]:
    """The documents with the id of the model's pad inside, in front and at the end: text, as far as a batch goes."""
    documents = [list(ids) for ids in DOCUMENTS]
    documents[0][10] = documents[2][0] = documents[2][-1] = pad
    return documents


def differences(got: Any, other: Any) -> dict[str, float]:
    errors = {}
    for name in ("activations", "activation_gradients", "weight_gradients"):
        found, expected = getattr(got, name), getattr(other, name)
        assert set(found) == set(expected)
        for site in found:
            assert found[site].count == expected[site].count
            errors[f"{name} {site}"] = relative(found[site].second_moment(), expected[site].second_moment())
    return errors


@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_alone_and_in_a_ragged_batch(kind: str, implementation: str, wrapper: str) -> None:
    pad = 5 if wrapper == "huggingface" else 0
    model, documents = model_of(kind, wrapper, implementation, pad), with_pads(pad)
    together, alone = (capture(model, documents, batch_size=size, **OPTIONS) for size in (4, 1))
    assert_small(differences(together, alone), 1e-6)


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_pads_inside_a_document_are_tokens(kind: str, pad: int) -> None:
    """As Hugging Face has them without a mask; RoBERTa gives them the position of a pad, and so is its reference.

    Torch leaves the row of a table's `padding_idx` out of the table's gradient. A capture does not: the gradient of the
    embedding is that of what was looked up.
    """
    model = model_of(kind, "huggingface", "sdpa", pad)
    reference = reference_gradients(model, with_pads(pad), losses=unshifted)
    got = capture(model, with_pads(pad), batch_size=4, **OPTIONS)
    assert_small(activation_errors(got, reference.residuals))
    assert_small(gradient_errors(got, reference))
    errors = weight_errors(got, reference)
    rows = [f.T @ r for f, r in zip(reference.factors["embed.W_E"], reference.rows["embed.W_E"], strict=True)]
    whole = torch.stack([g.T @ g for g in rows]).mean(0)
    errors["embed.W_E"] = relative(got.weight_gradients["embed.W_E"].second_moment(), whole)
    assert_small(errors)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "EuroBert", "ModernBert"])
def test_ids_with_an_attention_mask(kind: str, side: str) -> None:
    """A batch as a tokenizer pads it, on either side, is the list of its documents."""
    model, longest = model_of(kind, "huggingface"), max(map(len, DOCUMENTS))
    ids, mask = torch.zeros(len(DOCUMENTS), longest, dtype=torch.long), torch.zeros(len(DOCUMENTS), longest)
    for row, document in enumerate(DOCUMENTS):
        places = slice(0, len(document)) if side == "right" else slice(longest - len(document), longest)
        ids[row, places], mask[row, places] = torch.tensor(document), 1
    got = capture(model, {"input_ids": ids, "attention_mask": mask.long()}, batch_size=4, **OPTIONS)
    expected = capture(model, DOCUMENTS, batch_size=4, **OPTIONS)
    assert max(differences(got, expected).values()) == 0


class Everything:
    """A consumer that keeps what it is given, pads too."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def residual(self, site: str, value: Tensor) -> None:
        self.seen.append(value)

    def residual_gradient(self, site: str, gradient: Tensor) -> None:
        self.seen.append(gradient)

    def matrix(self, matrix: Any, inputs: Tensor, outputs: Tensor) -> None:
        self.seen.extend((inputs, outputs))

    def matrix_gradient(self, matrix: Any, inputs: Tensor, gradient: Tensor) -> None:
        self.seen.append(gradient)

    def embedding_gradient(self, gradient: Tensor) -> None:
        self.seen.append(gradient)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
def test_pads_whose_window_holds_no_token(wrapper: str, implementation: str, dtype: Any) -> None:
    """Nothing is left to attend to: no NaN comes of it, which would spread from pads to every sum."""
    layout = bind(model_of("ModernBert", wrapper, implementation))
    ids = torch.full((2, 12 * WINDOW), 7)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 2:] = False
    consumer = Everything()
    everything = {"matrices": frozenset(layout.weight_sites), "residuals": frozenset(layout.aliases.values())}
    with tapped(layout, consumer, gradients=True, dtype=dtype, **everything) as tap:
        hidden = tap.forward(ids, mask)
        tap.backward(hidden, torch.ones_like(hidden) * mask[..., None], again=False)
    assert len(consumer.seen) > 50
    assert all(bool(torch.isfinite(value).all()) for value in consumer.seen)
    assert bool(torch.isfinite(hidden).all())


@pytest.mark.parametrize("wrapper", ["huggingface", "bridge"])
@pytest.mark.parametrize(("kind", "pad"), [("Roberta", 1), ("Camembert", 5), ("XLMRoberta", 0), ("Bert", 5)])
def test_the_longest_sequence(kind: str, pad: int, wrapper: str) -> None:
    """RoBERTa's positions begin behind the padding index; one token more would have none."""
    model = model_of(kind, wrapper, "sdpa", pad)
    context = bind(model).context
    assert context == (160 if kind == "Bert" else 160 - pad - 1)
    documents = random_documents((context + 20, 4), low=7)
    got = capture(model, documents, gradients=(), seq_len=context, batch_size=3, **OPTIONS)
    assert got.activations["blocks.0.hook_resid_pre"].count == context + 20 + 4
    body = model if wrapper == "huggingface" else model.original_model
    if kind != "Bert":
        with pytest.raises((IndexError, RuntimeError)):
            body(torch.tensor([documents[0][: context + 1]]))
