"""Controls of a HookedTransformer (TransformerLens 3.9): planes, permuted tokens, and its own initialisation anew."""

import pytest
import torch

from tests.hooked_models import hooked_model
from tests.models import random_documents
from tl_aniso import capture, tangent_energy
from tl_aniso.controls import CONTROLS, reinitialised

pytestmark = [pytest.mark.hooked, pytest.mark.usefixtures("one_thread")]

DOCUMENTS = random_documents(tuple(20 + i % 17 for i in range(48)))


def test_it_is_reinitialised_by_its_own_rule_and_left_alone():
    model = hooked_model("gpt2")
    model.cfg.initializer_range, model.cfg.init_weights, model.cfg.seed = 0.07, False, 3
    before, state = {name: v.clone() for name, v in model.state_dict().items()}, torch.get_rng_state()
    one, two, three = (reinitialised(model, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert (model.cfg.init_weights, model.cfg.seed) == (False, 3)
    assert torch.equal(one.W_E, two.W_E)
    assert not torch.equal(one.W_E, three.W_E)
    assert one.W_E.std().item() == pytest.approx(0.07, rel=0.1)


def test_every_control_can_be_had():
    model = hooked_model("gpt2")
    result = tangent_energy(model, DOCUMENTS, controls="all", n_controls=0, progress=False)
    assert {*CONTROLS} < set(result.frame["control"])
    stored = capture(model, DOCUMENTS, extra_passes="permuted_tokens", progress=False)
    other = tangent_energy(stored, controls=["permuted_tokens", "other_layer", "next_k"], n_controls=0).frame
    key = ["site", "control", "measure"]
    both = other.merge(result.frame, on=key, suffixes=("", "_2"))
    assert len(both) > 60
    assert (both["value"] / both["value_2"]).to_numpy() == pytest.approx(1, rel=1e-4)


def test_untrained_equals_the_effect_where_the_model_is_untrained():
    fresh = reinitialised(hooked_model("gpt2"), seed=0)
    frame = tangent_energy(fresh, DOCUMENTS, controls="untrained", n_controls=0, progress=False).frame
    found = frame.loc[frame["measure"] == "excess", ["value", "ci_low", "ci_high"]]
    assert found.to_numpy() == pytest.approx(1, abs=1e-6)
