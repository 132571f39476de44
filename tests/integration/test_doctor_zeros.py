"""The share of exact zeros in activation gradients, counted where a gradient can be."""

import math

import pytest
import torch

from tests.models import random_documents, tiny_model
from tl_aniso import capture, fit_tangent_proxies, tangent_energy

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = (9, 14, 20, 11, 16, 30, 12, 18, 25, 10)


class Zeroed(torch.autograd.Function):
    """The identity, whose gradient is zero in the first 8 of 32 directions."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        kept = gradient.clone()
        kept[..., :8] = 0
        return kept


def underflowing():
    model = tiny_model("llama")
    model.model.norm.register_forward_pre_hook(lambda _m, args: (Zeroed.apply(args[0]), *args[1:]))
    return model


def test_a_planted_share_comes_back_whatever_the_padding():
    # The last position of a document and the pads behind it carry no gradient by construction: no underflow.
    held = capture(underflowing(), random_documents(LENGTHS), exclude=(), progress=False, batch_size=4)
    assert held.zero_share("blocks.1.hook_resid_post") == 0.25
    assert held.zero_share("blocks.0.hook_resid_pre") == 0.0


def test_none_in_a_sound_model_and_names_are_interchangeable():
    documents = random_documents(LENGTHS)
    held = capture(tiny_model("llama"), documents, progress=False)
    assert held.zero_share("blocks.1.hook_resid_post") == 0.0
    assert held.zero_share("blocks.0.hook_resid_post") == held.zero_share("blocks.1.hook_resid_pre")
    assert math.isnan(
        capture(tiny_model("llama"), documents, gradients=(), progress=False).zero_share("blocks.0.hook_resid_pre")
    )


def test_shares_merge_and_are_stored(tmp_path):
    documents = random_documents(LENGTHS)
    options = {"exclude": (), "progress": False, "gradients": "activation"}
    both = capture(underflowing(), documents[:4], **options).merge(capture(underflowing(), documents[4:], **options))
    assert both.zero_share("blocks.1.hook_resid_post") == 0.25
    both.save(tmp_path / "held")
    assert type(both).load(tmp_path / "held").zero_share("blocks.1.hook_resid_post") == 0.25


@pytest.mark.parametrize(("model", "expected"), [(underflowing, True), (lambda: tiny_model("llama"), False)])
def test_results_carry_a_note_above_one_percent(model, expected):
    held = capture(model(), random_documents(LENGTHS), exclude=(), progress=False)
    result = tangent_energy(held, proxies=fit_tangent_proxies(held, rank=2), gradients="activation", n_controls=9)
    notes = [note for note in result.notes if "exactly zero" in note]
    assert bool(notes) is expected
    if expected:
        assert "25% of the activation gradient at blocks.1.hook_resid_post is exactly zero" in notes[0]
