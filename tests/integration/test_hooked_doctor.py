"""The doctor on a HookedTransformer (TransformerLens 3.9): sound ones pass, a norm without its gain is found."""

import pytest
import torch

from tests.hooked_models import HOOKED_KINDS, hooked_model
from tl_aniso.doctor import diagnose

pytestmark = [pytest.mark.hooked, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("kind", HOOKED_KINDS)
def test_sound_models_pass(kind: str) -> None:
    found = diagnose(hooked_model(kind), progress=False)
    assert found.passed, found
    assert not [check.name for check in found.checks if check.status in ("warn", "skip")], found
    (gradients,) = [check for check in found.checks if "autograd" in check.name]
    assert "6 sites in layers 0, 1" in gradients.found


def test_a_norm_that_ignores_its_gain() -> None:
    model = hooked_model("llama")
    model.blocks[1].ln1.forward = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    (failed,) = diagnose(model, progress=False).failures
    assert "blocks.1.ln1 (RMSNorm) ignores its gain" in failed.found
