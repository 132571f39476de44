"""Which tokenizer reads a user's strings: the model's own, never silently another."""

import pytest

from tests.models import as_bridge, tiny_model
from tl_aniso import capture
from tl_aniso.capturing.prepare import find_tokenizer
from tl_aniso.errors import TextError, TlAnisoWarning
from tl_aniso.training import train_tokenizer

TEXTS = ["the cat sat on the mat and looked at the dog " * 2, "a dog ran over the hill and looked back once " * 2]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


@pytest.fixture
def directory(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def model_from(place, **changes):
    model = tiny_model("llama", vocab_size=280, **changes)
    model.config._name_or_path = str(place)
    return model


def test_it_is_found_where_the_model_came_from(directory, tokenizer):
    held = capture(model_from(directory), TEXTS, progress=False, exclude=(), gradients=())
    expected = sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    assert held.activations["blocks.0.hook_resid_pre"].count == expected
    assert held.metadata["options"]["tokenizer"] == str(directory)


def test_a_bridge_gets_the_models_own_back(directory, tokenizer):
    bridge = as_bridge(model_from(directory))
    bridge.tokenizer = type(tokenizer).from_pretrained(directory)
    bridge.tokenizer.name_or_path = str(directory)
    found = find_tokenizer(bridge)
    assert found is not bridge.tokenizer
    assert found(TEXTS[0])["input_ids"] == tokenizer(TEXTS[0])["input_ids"]


def test_falling_back_on_a_bridges_tokenizer_is_said(tmp_path, tokenizer):
    bridge = as_bridge(model_from(tmp_path / "gone"))
    bridge.tokenizer = tokenizer
    with pytest.warns(TlAnisoWarning, match="may add a BOS"):
        assert find_tokenizer(bridge) is tokenizer


def test_strings_without_any_tokenizer_are_an_error():
    with pytest.raises(TextError, match="pass tokenizer="):
        capture(tiny_model("llama"), TEXTS, progress=False)
