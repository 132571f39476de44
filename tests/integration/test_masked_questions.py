"""Both questions of an encoder, with every control: its objective is followed by all that runs a model on the way."""

import math

import numpy as np
import pandas as pd
import pytest

from tests.encoder_models import MASK
from tests.masked_models import encoder
from tests.models import random_documents, tiny_model
from tl_aniso import MaskedLM, TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.controls import CONTROLS, reinitialised
from tl_aniso.controls.names import PLANE_CONTROLS
from tl_aniso.energy import energy_share
from tl_aniso.viz.report_facts import methods_of

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = [[1, *ids, 2] for ids in random_documents(tuple(20 + i % 17 for i in range(48)), low=MASK + 1)]
BOTH = ("weight", "activation")


def rows(result, measure, control):
    frame = result.frame
    return frame[(frame["measure"] == measure) & (frame["control"] == control)].set_index(["gradient", "site"])


@pytest.fixture(scope="module")
def everything():
    return tangent_energy(encoder(), DOCUMENTS, gradients=BOTH, controls="all", progress=False)


@pytest.fixture(scope="module")
def held():
    return capture(
        encoder(), DOCUMENTS, extra_passes=("shuffled_labels", "permuted_tokens"), progress=False, keep_rows=50
    )


def test_every_control_stands_beside_both_gradients(everything):
    for control in CONTROLS:
        shown = rows(everything, "excess", control)
        kinds = {"weight"} if control in CONTROLS[:3] else set(BOTH)
        assert set(shown.index.get_level_values("gradient")) == kinds, control
        assert shown[shown.index.get_level_values("site") != "unembed.W_U"]["ci_low"].notna().all(), control
    assert set(everything.frame["objective"]) == {"masked"}


def test_a_model_and_its_capture_give_the_same_numbers(everything, held):
    controls = [*CONTROLS[:3], "shuffled_labels", *PLANE_CONTROLS]
    stored = tangent_energy(held, gradients=BOTH, controls=controls)
    for control in ("none", *controls):
        name = "value" if control == "none" else "control_value"
        mine, theirs = (rows(result, "energy_share", control)[name] for result in (everything, stored))
        assert len(mine) > 20
        np.testing.assert_allclose(mine, theirs.loc[mine.index], rtol=1e-4, err_msg=control)
    assert stored.notes[-1] == everything.notes[-1]


def test_shuffled_labels_are_those_of_the_masked_pass(held):
    shown = rows(tangent_energy(held, controls="shuffled_labels"), "energy_share", "shuffled_labels")
    proxies, half = fit_tangent_proxies(held), held.half("B").variants["shuffled_labels"]
    for site, moments in half.weight_gradients.items():
        expected = energy_share(moments.second_moment(), proxies[site].basis)
        assert shown.loc[("weight", site), "control_value"] == pytest.approx(expected, rel=1e-5)


def test_untrained_equals_the_effect_where_the_model_is_untrained():
    fresh = reinitialised(encoder(), seed=4)
    asked = {"controls": "untrained", "seed": 4, "n_controls": 0, "progress": False}
    for objective in (None, MaskedLM(0.5, "mask")):
        found = rows(tangent_energy(fresh, DOCUMENTS, objective=objective, **asked), "excess", "untrained")
        assert found[["value", "ci_low", "ci_high"]].to_numpy() == pytest.approx(1, abs=1e-6)


def test_what_fits_the_planes_reads_masked_text():
    asked = {"sites": "blocks.0.mlp.W_in", "controls": (), "n_controls": 0, "progress": False, "rank": 4}
    one, other = MaskedLM(), MaskedLM(0.9, "mask")
    found = {}
    for objective in (one, other):
        planes = fit_tangent_proxies(
            capture(encoder(), DOCUMENTS, objective=objective, gradients=(), progress=False), 4
        )
        frame = tangent_energy(encoder(), DOCUMENTS, objective=objective, **asked).frame
        given = tangent_energy(encoder(), DOCUMENTS, objective=objective, proxies=planes, **asked).frame
        np.testing.assert_allclose(frame["value"], given["value"], rtol=1e-5)
        found[str(objective)] = set(frame["proxy_id"])
    assert not found["masked"] & found["masked(rate=0.9, replacement=mask)"]


@pytest.mark.parametrize("exclude", [("special", "sink"), ("special", "unmasked"), ("special", "masked")])
def test_isotropy_of_every_kind(exclude):
    result = ablation_isotropy(
        encoder(),
        DOCUMENTS,
        gradients=("activation", "weight", "none"),
        sites=["blocks.1.hook_resid_pre", "blocks.1.mlp.W_out"],
        exclude=exclude,
        keep_rows=60,
        n_controls=8,
        progress=False,
    )
    assert {"none", "activation", "weight"} == set(result.frame["gradient"])
    assert {"isoscore_star", "mean_cosine", "delta_isoscore_star"} <= set(result.frame["measure"])
    of_rows = result.frame[(result.frame["gradient"] != "weight") & (result.frame["measure"] == "isoscore_star")]
    assert set(of_rows["exclude"]) == {"+".join(exclude)}
    kept = {("special", "sink"): "masked and unmasked", ("special", "unmasked"): "masked"}.get(exclude, "unmasked")
    assert any(f"gradients are of {kept} positions, weight gradients of masked and" in note for note in result.notes)


def test_sites_without_a_gradient_are_left_out_and_named():
    asked = {"gradients": BOTH, "n_controls": 0, "progress": False}
    left = {"blocks.2.hook_resid_mid", "blocks.2.hook_resid_post"}
    weights = {
        "unembed.W_U",
        *(f"blocks.2.{w}" for w in ("attn.W_Q", "attn.W_O", "mlp.W_in", "mlp.W_gate", "mlp.W_out")),
    }
    whole = set(tangent_energy(encoder(), DOCUMENTS, **asked).frame["site"])
    result = tangent_energy(encoder(), DOCUMENTS, exclude=("special", "masked"), **asked)
    assert whole - set(result.frame["site"]) == left
    (note,) = [note for note in result.notes if "carry the loss" in note]
    assert "have a gradient, so blocks.2.hook_resid_mid, blocks.2.hook_resid_post are left out" in note
    result = tangent_energy(encoder(), DOCUMENTS, weight_exclude=("special", "masked"), heads=True, **asked)
    assert whole - set(result.frame["site"]) == weights
    assert "blocks.2.attn.W_K.1" in set(result.frame["site"])
    assert "blocks.2.attn.W_Q.1" not in set(result.frame["site"])
    with pytest.raises(TlAnisoError, match="nothing to measure"):
        tangent_energy(encoder(), DOCUMENTS, weight_exclude="masked", sites="unembed.W_U", progress=False)


def test_results_say_which_positions_were_measured(held, everything):
    counts = held.half("B").metadata["text"]["positions"]["B"]
    n = sum(counts.values())
    assert n == sum(len(ids) for ids in DOCUMENTS) - sum(held.metadata["text"]["positions"]["A"].values())
    (note,) = [note for note in everything.notes if "carry the loss" in note]
    assert f"of {n} positions measured, {counts['masked']} are masked and carry the loss" in note
    facts = dict(methods_of(everything.frame))
    assert facts["objective"].startswith("cross-entropy of masked tokens (30% of all but special ones, 80% of them as")
    only = tangent_energy(
        encoder(),
        DOCUMENTS,
        gradients="activation",
        objective=MaskedLM(0.15, "mask"),
        exclude=("special", "unmasked"),
        sites="blocks.1.hook_resid_pre",  # at block 0 all masked rows are the mask token's, and have no directions
        progress=False,
    )
    facts = dict(methods_of(only.frame))
    assert facts["objective"] == "cross-entropy of masked tokens (15% of all but special ones, each as the mask token)"
    assert facts["tokens left out"] == "special tokens and tokens that were not masked"
    assert dict(methods_of(pd.DataFrame({"objective": ["causal"]}))) == {"objective": "next-token cross-entropy"}


def test_differences_say_that_masks_or_objectives_differ(everything):
    asked = {"controls": (), "n_controls": 0, "sites": "*.W_in", "progress": False}
    one = tangent_energy(encoder(), DOCUMENTS, **asked)
    same, seeded = (tangent_energy(encoder(1), DOCUMENTS, seed=seed, **asked) for seed in (0, 1))
    assert not any("masked at different" in note or "different objectives" in note for note in (one - same).notes)
    assert any("masked at different positions (seeds 0 and 1)" in note for note in (one - seeded).notes)
    decoder = tangent_energy(tiny_model("llama", layers=3), DOCUMENTS, **asked)
    found = one - decoder
    assert any("different objectives" in note for note in found.notes)
    assert set(found.frame["objective"]) == {"masked - causal"}
    assert not any(math.isnan(value) for value in found.frame.loc[found.frame["measure"] == "r_energy", "value"])
