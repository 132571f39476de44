"""tangent_energy and ablation_isotropy: known answers, agreement between routes, and what their tables say."""

import math

import numpy as np
import pytest
import torch

from tests.models import WIDTH, random_documents, tiny_model
from tl_aniso import Capture, TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.energy import energy_null, energy_share, excess, odds, r_energy
from tl_aniso.questions.by_step import energy_by_step
from tl_aniso.questions.frame import COLUMNS
from tl_aniso.results import geometric_mean
from tl_aniso.weight_moments import CONTROL_NAMES

LENGTHS = tuple(20 + i % 17 for i in range(48))


@pytest.fixture(scope="module")
def model():
    return tiny_model("neox-sequential")


@pytest.fixture(scope="module")
def documents():
    return random_documents(LENGTHS)


@pytest.fixture(scope="module")
def held(model, documents):
    return capture(model, documents, progress=False)


@pytest.fixture(scope="module")
def result(model, documents):
    return tangent_energy(model, documents, progress=False, gradients=("weight", "activation"))


def rows(frame, measure, control, **fields):
    chosen = frame[(frame["measure"] == measure) & (frame["control"] == control)]
    for name, value in fields.items():
        chosen = chosen[chosen[name] == value]
    return chosen.set_index(["gradient", "site"])


def test_the_frame_has_the_contracts_columns_in_order(result):
    assert tuple(result.frame.columns) == COLUMNS


def test_shares_are_those_of_half_b_in_planes_fitted_on_half_a(model, documents, held, result):
    proxies = fit_tangent_proxies(held)
    measured = held.half("B")
    frame = rows(result.frame, "energy_share", "none")
    for site, moments in measured.weight_gradients.items():
        expected = energy_share(moments.second_moment(), proxies[site].basis)
        assert frame.loc[("weight", site), "value"] == pytest.approx(expected, rel=2e-5)
        wrong_half = energy_share(held.half("A").weight_gradients[site].second_moment(), proxies[site].basis)
        assert frame.loc[("weight", site), "value"] != pytest.approx(wrong_half, rel=2e-5)
    for site, moments in measured.activation_gradients.items():
        expected = energy_share(moments.second_moment(), proxies[site].basis)
        assert frame.loc[("activation", site), "value"] == pytest.approx(expected, rel=2e-5)
    assert frame["held_out"].all()


def test_a_capture_answers_as_the_model_does(held, result):
    from_sums = tangent_energy(held).frame
    mine = rows(from_sums, "r_energy", "normal")["value"]
    theirs = rows(result.frame, "r_energy", "normal")["value"]
    assert np.allclose(mine, theirs.loc[mine.index], rtol=2e-5)
    # Without sums by shard there is no interval; by projection there is.
    assert rows(from_sums, "energy_share", "none")["ci_low"].isna().all()
    assert rows(result.frame, "energy_share", "none")["ci_low"].notna().all()


def test_every_row_keeps_the_definitions(result):
    frame, k = result.frame, 8
    shares = rows(frame, "energy_share", "none")
    for key, row in rows(frame, "r_energy", "normal").iterrows():
        assert row["value"] == pytest.approx(odds(shares.loc[key, "value"]) / odds(k / WIDTH))
        assert row["control_value"] == 1.0
        assert row["ci_low"] < row["value"] < row["ci_high"]
    for control in CONTROL_NAMES:
        with_control = rows(frame, "energy_share", control)
        assert set(with_control.index.get_level_values("gradient")) == {"weight"}
        for key, row in rows(frame, "excess", control).iterrows():
            theirs = with_control.loc[key, "control_value"]
            assert row["value"] == pytest.approx(excess(shares.loc[key, "value"], theirs))
            assert row["ci_low"] < row["value"] < row["ci_high"]
        for key, row in rows(frame, "r_energy", control).iterrows():
            assert row["control_value"] == pytest.approx(r_energy(with_control.loc[key, "control_value"], k, WIDTH))


def test_null_and_p_value_stand_beside_the_share(held):
    frame = rows(tangent_energy(held, n_controls=99).frame, "energy_share", "none")
    proxies = fit_tangent_proxies(held)
    for (_, site), row in frame.iterrows():
        null = energy_null(held.half("B").weight_gradients[site].second_moment(), proxies[site].basis)
        assert row["null_mean"] == pytest.approx(null.mean, rel=1e-9)
        assert row["null_std"] == pytest.approx(null.std, rel=1e-9)
        assert row["z"] == pytest.approx((row["value"] - null.mean) / null.std)
        assert 0.01 <= row["p_value"] <= row["p_holm"] <= 1.0
        assert (row["p_value"] * 100) == pytest.approx(round(row["p_value"] * 100))


def test_several_ranks_in_one_call_are_those_of_single_calls(held):
    both = tangent_energy(held, rank=[2, 5]).frame
    for rank in (2, 5):
        alone = rows(tangent_energy(held, rank=rank).frame, "energy_share", "none")["value"]
        assert np.allclose(rows(both, "energy_share", "none", rank=rank)["value"], alone)


def test_projected_captures_give_every_lower_rank(model, documents, held):
    proxies = fit_tangent_proxies(held, 6)
    projected = capture(model, documents, proxies=proxies, progress=False)
    mine = rows(tangent_energy(projected, proxies=proxies, rank=[3, 6]).frame, "energy_share", "none", rank=3)["value"]
    sums = rows(tangent_energy(held, proxies=proxies, rank=3).frame, "energy_share", "none")["value"]
    assert np.allclose(mine, sums.loc[mine.index], rtol=2e-5)
    # Projection knows no second moment: the mean of the null is exact, its spread is missing, not made up.
    frame = rows(tangent_energy(projected, proxies=proxies).frame, "energy_share", "none")
    assert frame["null_mean"].notna().all()
    assert frame[["null_std", "z", "p_value"]].isna().all(axis=None)


def test_energies_along_other_planes_are_refused(model, documents, held):
    projected = capture(model, documents, proxies=fit_tangent_proxies(held, 4), progress=False)
    with pytest.raises(TlAnisoError, match="capture again with these proxies"):
        tangent_energy(projected, proxies=fit_tangent_proxies(held, 5))


def test_ablation_of_the_three_kinds(held):
    from tl_aniso.ablation import ablate

    frame = ablation_isotropy(held, gradients=("none", "activation", "weight"), n_controls=20).frame
    proxies, half = fit_tangent_proxies(held), held.half("B")
    matrices = {
        ("none", "blocks.1.hook_resid_mid"): half.activations["blocks.1.hook_resid_mid"].covariance(),
        ("activation", "blocks.0.hook_resid_post"): half.activation_gradients["blocks.0.hook_resid_post"].covariance(),
        ("weight", "blocks.1.mlp.W_out"): half.weight_gradients["blocks.1.mlp.W_out"].second_moment(),
    }
    for key, matrix in matrices.items():
        expected = ablate(matrix, proxies[key[1]].basis, n_controls=20)
        assert rows(frame, "isoscore_star", "none").loc[key, "value"] == pytest.approx(expected.before)
        after = rows(frame, "isoscore_star", "normal").loc[key]
        assert after["value"] == pytest.approx(expected.without_tangent)
        assert after["control_value"] == pytest.approx(expected.without_normal_mean)
        assert after["null_std"] == pytest.approx(expected.without_normal_std)
        assert rows(frame, "isoscore", "normal").loc[key, "value"] == pytest.approx(expected.raw_without_tangent)
        assert rows(frame, "delta_isoscore_star", "normal").loc[key, "value"] == pytest.approx(expected.delta)


def test_one_document_is_measured_in_sample_and_flagged(model):
    result = tangent_energy(model, random_documents((150,)), progress=False, seq_len=20)
    assert not result.frame["held_out"].any()
    assert any("in-sample" in note for note in result.notes)


def test_shuffled_labels_are_a_pass_of_their_own(model, documents):
    frame = tangent_energy(model, documents, controls="shuffled_labels", progress=False).frame
    other = rows(frame, "energy_share", "shuffled_labels")
    assert (other["control_value"] != other["value"]).all()
    again = tangent_energy(model, documents[::-1], controls="shuffled_labels", progress=False, batch_size=3).frame
    assert np.allclose(
        rows(again, "energy_share", "shuffled_labels")["control_value"], other["control_value"], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 17}, "rank 17 is outside"),
        ({"rank": 0}, "at least 1"),
        ({"rank": 8.0}, "integer"),
        ({"rank": True}, "integer"),
        ({"seq_len": 8.5}, "seq_len must be an integer"),
        ({"batch_size": "4"}, "batch_size must be an integer"),
        ({"batch_size": 0}, "at least 1"),
        ({"seed": 2**70}, "seed must be between"),
        ({"sites": [3]}, "sites must be a name"),
        ({"sites": "blocks.0.hook_resid_pre"}, "none of the sites"),
        ({"n_controls": 2.5}, "n_controls must be an integer"),
        ({"max_bytes": "1GB"}, "max_bytes must be an integer"),
        ({"max_bytes": 10}, "above the limit"),
        ({"n_shards": 10**6}, "n_shards must be between"),
        ({"proxies": {}}, "must be TangentProxies"),
        ({"rank": "8"}, "integer"),
        ({"gradients": "weights"}, "choose from"),
        ({"controls": "shuffled"}, "known are"),
        ({"n_controls": -1}, "at least 0"),
        ({"sequence_length": 9}, "unknown option sequence_length"),
        ({"sites": "blocks.0.attn.W_X"}, "near matches: .*W_Q"),
    ],
)
def test_wrong_arguments_are_one_clear_error(model, documents, arguments, message):
    with pytest.raises(TlAnisoError, match=message):
        tangent_energy(model, documents, progress=False, **arguments)


def test_a_capture_takes_no_text_and_no_options(held):
    with pytest.raises(TlAnisoError, match="batch_size would be ignored"):
        tangent_energy(held, batch_size=3)
    with pytest.raises(TlAnisoError, match="needs text"):
        tangent_energy(tiny_model("llama"))


def test_controls_that_a_capture_lacks_are_an_error_and_by_default_left_out(model, documents):
    bare = capture(model, documents, controls=[], progress=False)
    assert set(tangent_energy(bare).frame["measure"]) == {"energy_share", "r_energy"}
    with pytest.raises(TlAnisoError, match="no control sign_flip"):
        tangent_energy(bare, controls="sign_flip")
    with pytest.raises(TlAnisoError, match="nothing to measure"):
        tangent_energy(capture(model, documents, gradients="activation", progress=False))


def test_a_projected_capture_needs_its_proxies(model, documents, held):
    projected = capture(model, documents, proxies=fit_tangent_proxies(held), progress=False)
    with pytest.raises(TlAnisoError, match="pass the same ones"):
        tangent_energy(projected)


def test_notes_say_why_there_are_no_intervals(model, held):
    assert any("kept its sums whole" in note for note in tangent_energy(held).notes)
    few = tangent_energy(model, random_documents(LENGTHS[:6]), progress=False)
    assert any("shards" in note for note in few.notes)
    assert few.frame["ci_low"].isna().all()


@pytest.mark.parametrize(
    "settings", [{"zeta": 2}, {"zeta": "x"}, {"target": "unit"}, {"order": "x"}, {"space": "x"}, {"n_controls": 0}]
)
def test_wrong_ablation_settings_are_refused_before_the_model_runs(documents, settings):
    with pytest.raises(TlAnisoError, match=next(iter(settings))):
        ablation_isotropy(None, documents, **settings)


def test_proxies_are_not_refitted_above_their_rank(held):
    with pytest.raises(TlAnisoError, match="was fitted"):
        tangent_energy(held, proxies=fit_tangent_proxies(held, 3), rank=4)


def test_a_gradient_of_zero_is_an_error_that_names_its_site(documents):
    model = tiny_model("neox-sequential")
    with torch.no_grad():
        model.gpt_neox.layers[1].mlp.dense_4h_to_h.weight.zero_()
    with pytest.raises(TlAnisoError, match=r"at blocks\.1\.mlp\.W_in is exactly zero"):
        tangent_energy(model, documents, progress=False, sites=["blocks.1.mlp.W_in"])


def test_pooled_says_which_sums_are_kept_beside_projections(model, documents, held):
    proxies = fit_tangent_proxies(held)
    kept = {p: capture(model, documents, proxies=proxies, pooled=p, progress=False) for p in ("all", "effect", "none")}
    assert {name: len(found.weight_gradients) > 0 for name, found in kept.items()} == {
        "all": True,
        "effect": True,
        "none": False,
    }
    assert {name: len(found.controls) for name, found in kept.items()} == {"all": 3, "effect": 0, "none": 0}


def test_labels_reach_the_frame_and_unknown_ones_are_refused(held):
    frame = tangent_energy(held.labelled(step=512, tokens_seen=1e9, family="pythia")).frame
    assert (frame["step"] == 512).all()
    assert (frame["tokens_seen"] == 1e9).all()
    assert (frame["family"] == "pythia").all()
    assert tangent_energy(held).frame["step"].isna().all()
    with pytest.raises(TlAnisoError, match="no such field: steps"):
        held.labelled(steps=512)


def test_plots_hold_the_results_numbers(result, held):
    drawn = {float(y) for trace in result.plot().data if trace.y is not None for y in trace.y if y is not None}
    values = rows(result.frame, "r_energy", "normal").loc["weight", "value"].filter(like="blocks")
    assert any(value == pytest.approx(values.iloc[0]) for value in drawn)
    assert len(ablation_isotropy(held).plot().data) > 0


def test_results_show_themselves(result, held):
    assert "R input_energy" in result.summary()
    assert "<table" in result._repr_html_()
    assert r"\begin{tabular}" in result.to_latex()
    isotropy = ablation_isotropy(held)
    assert "without tangent" in isotropy.summary()
    copy = result.frame
    copy["value"] = -1.0
    assert (result.frame["value"] >= 0).all()


def test_by_step_is_a_geometric_mean_over_block_readers(result):
    frame = result.frame.assign(step=7)
    table = energy_by_step(frame)
    readers = [f"blocks.{i}.{m}" for i in (0, 1) for m in ("attn.W_Q", "attn.W_K", "attn.W_V", "mlp.W_in")]
    values = rows(frame, "r_energy", "normal").loc[[("weight", site) for site in readers], "value"]
    assert table["step"].tolist() == [7]
    assert table["R"][0] == pytest.approx(math.exp(np.log(values).mean()))
    assert table["R"][0] == pytest.approx(geometric_mean(values))


def test_loaded_captures_answer_alike(held, tmp_path):
    again = Capture.load(held.save(tmp_path / "capture"))
    mine, theirs = tangent_energy(again).frame, tangent_energy(held).frame
    assert mine.equals(theirs)
