"""Controls that need a model: permuted tokens, the untrained model, and planes fitted on the way."""

import math
import random

import numpy as np
import pytest
import torch

from tests.models import ARCHITECTURES, WIDTH, as_bridge, random_documents, tiny_model
from tl_aniso import Capture, TlAnisoError, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.controls import CONTROLS, fit_control_planes, reinitialised
from tl_aniso.controls.names import PLANE_CONTROLS
from tl_aniso.energy import energy_share, excess
from tl_aniso.text import make_sequences
from tl_aniso.text.permuted import permuted_sequences

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = tuple(20 + i % 17 for i in range(48))
SPECIAL = (1, 2)


@pytest.fixture(scope="module")
def documents():
    return random_documents(LENGTHS)


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", layers=3)


@pytest.fixture(scope="module")
def held(model, documents):
    return capture(model, documents, extra_passes=("shuffled_labels", "permuted_tokens"), progress=False)


@pytest.fixture(scope="module")
def everything(model, documents):
    return tangent_energy(model, documents, gradients=("weight", "activation"), controls="all", progress=False)


def rows(result, measure, control):
    frame = result.frame
    return frame[(frame["measure"] == measure) & (frame["control"] == control)].set_index(["gradient", "site"])


# -- all of them ---------------------------------------------------------------------------------------------------


def test_every_control_stands_beside_both_gradients(everything):
    for control in CONTROLS:
        shown = rows(everything, "excess", control)
        kinds = {"weight"} if control in CONTROLS[:3] else {"weight", "activation"}
        assert set(shown.index.get_level_values("gradient")) == kinds
        known = shown[shown.index.get_level_values("site") != "unembed.W_U"]
        assert known["ci_low"].notna().all()
        theirs = rows(everything, "energy_share", control)
        for key, row in shown.iterrows():
            share = theirs.loc[key]
            assert row["value"] == pytest.approx(excess(share["value"], share["control_value"]))
    assert everything.notes == ()
    assert "excess untrained" in everything.table().columns


def test_planes_are_those_of_half_a_and_energies_those_of_half_b(held, everything):
    proxies = fit_tangent_proxies(held)
    planes = fit_control_planes(held, proxies)
    half = held.half("B")
    for control in PLANE_CONTROLS:
        shown = rows(everything, "energy_share", control)
        for kind, moments in (("weight", half.weight_gradients), ("activation", half.activation_gradients)):
            for site in moments:
                proxy = proxies[held.canonical(site) if kind == "activation" else site]
                columns = planes.at(control, proxy.site)
                if columns is None:
                    assert (control, site) == ("other_layer", "unembed.W_U")
                    assert (kind, site) not in shown.index
                    continue
                k, second = proxy.rank, moments[site].second_moment()
                parts = [columns[:, i : i + k] for i in range(0, columns.shape[1], k)]
                shares = [energy_share(second, part) for part in (parts[1:] if control == "next_k" else parts)]
                row = shown.loc[(kind, site)]
                assert row["control_value"] == pytest.approx(np.mean(shares), rel=1e-4)
                if control == "covariance_drawn":
                    assert len(shares) == 8
                    assert row["null_std"] == pytest.approx(np.std(shares, ddof=1), rel=1e-3)


def test_planes_lie_where_they_should(held):
    proxies = fit_tangent_proxies(held)
    planes = fit_control_planes(held, proxies)
    half = held.half("A")
    site = "blocks.2.mlp.input"
    assert torch.equal(planes.at("other_layer", site), proxies["blocks.0.mlp.input"].basis)
    first = "blocks.0.hook_resid_pre"  # the embedding's proxy
    assert torch.equal(planes.at("other_layer", first), proxies["blocks.1.hook_resid_pre"].basis)
    assert planes.at("other_layer", "unembed.input") is None
    values, vectors = torch.linalg.eigh(half.activations[site].covariance())
    following = planes.at("next_k", site)[:, 8:]
    expected = vectors.flip(1)[:, 8:16]
    torch.testing.assert_close(following @ following.T, expected @ expected.T)
    torch.testing.assert_close(planes.variance[site], values.flip(0)[:16] / values.sum())
    permuted = half.variants["permuted_tokens"].activations[site].covariance()
    leading = torch.linalg.eigh(permuted).eigenvectors.flip(1)[:, :8]
    found = planes.at("permuted_tokens", site)
    torch.testing.assert_close(found @ found.T, leading @ leading.T)


def test_a_capture_answers_all_but_the_untrained_as_the_model_does(held, everything):
    mine = tangent_energy(held, gradients=("weight", "activation"), controls="all")
    for control in set(CONTROLS) - {"untrained"}:
        for measure in ("energy_share", "share_per_variance"):
            ours, theirs = rows(mine, measure, control), rows(everything, measure, control)
            assert ours.index.equals(theirs.index)
            np.testing.assert_allclose(ours["control_value"], theirs["control_value"], rtol=2e-5)
    assert any("without the controls untrained" in note for note in mine.notes)
    with pytest.raises(TlAnisoError, match="pass the model itself"):
        tangent_energy(held, controls="untrained")


def test_sums_by_shard_give_intervals(model, documents):
    sites = [f"blocks.{i}.attn.W_Q" for i in range(3)]
    kept = capture(model, documents, sites=sites, shard_sites=sites, progress=False)
    names = ["other_layer", "covariance_drawn", "next_k"]
    frame = tangent_energy(kept, controls=names).frame
    other = tangent_energy(model, documents, sites=sites, controls=names, progress=False).frame
    assert frame.loc[frame["measure"] == "excess", "ci_low"].notna().all()
    key = ["site", "measure", "control"]
    both = frame[frame["control"].isin(names)].merge(other, on=key, suffixes=("", "_2"))
    np.testing.assert_allclose(both["ci_high"], both["ci_high_2"], rtol=1e-4)


def test_other_layers_are_fitted_though_not_measured(model, documents, everything):
    alone = tangent_energy(model, documents, sites="blocks.2.mlp.W_out", controls="other_layer", progress=False)
    assert set(alone.frame["site"]) == {"blocks.2.mlp.W_out"}
    key = ("weight", "blocks.2.mlp.W_out")
    mine, theirs = (rows(result, "excess", "other_layer").loc[key, "value"] for result in (alone, everything))
    assert mine == pytest.approx(theirs, rel=1e-4)


def test_results_with_every_control_have_paired_differences(documents, everything):
    other = tangent_energy(
        tiny_model("llama", layers=3, seed=7),
        documents,
        gradients=("weight", "activation"),
        controls="all",
        progress=False,
    )
    found = everything - other
    assert set(found.frame["measure"]) == {"energy_share", "r_energy", "excess"}
    for control in CONTROLS:
        mine, theirs, both = (rows(result, "excess", control) for result in (everything, other, found))
        np.testing.assert_allclose(both["value"], np.log(mine["value"] / theirs["value"]), rtol=1e-6, atol=1e-9)
        assert both["ci_low"].notna().all()


def even_targets(logits, ids, mask):
    """A loss of the user's own: next-token cross-entropy where the target is an even id."""
    losses = torch.zeros(ids.shape)
    own = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    losses[:, :-1] = own * (ids[:, 1:] % 2 == 0) * mask[:, 1:]
    return losses


@pytest.mark.parametrize(
    "options", [{"unit": "batch", "batch_size": 3}, {"basis": "residual"}, {"heads": True}, {"objective": even_targets}]
)
def test_controls_go_with_every_option_of_a_capture(documents, options):
    model = tiny_model("llama", layers=3)
    through_model = tangent_energy(model, documents, controls="all", n_controls=0, progress=False, **options)
    kept = capture(model, documents, extra_passes="permuted_tokens", progress=False, **options)
    controls = [*PLANE_CONTROLS, *CONTROLS[:3]]
    stored = tangent_energy(kept, controls=controls, n_controls=0)
    for control in controls:
        mine, theirs = (rows(result, "energy_share", control)["control_value"] for result in (through_model, stored))
        assert len(mine) > 20
        np.testing.assert_allclose(mine, theirs.loc[mine.index], rtol=5e-5)
    untrained = rows(through_model, "excess", "untrained")
    assert untrained["ci_low"].notna().all()
    assert ("weight", "blocks.1.attn.W_Q.3") in untrained.index or "heads" not in options
    assert ("shuffled_labels" in set(through_model.frame["control"])) == ("objective" not in options)


# -- permuted tokens -----------------------------------------------------------------------------------------------


def test_the_extra_pass_is_a_capture_of_the_permuted_text(model, documents, held):
    pieces = make_sequences(documents, 160).sequences
    text = [piece.ids.tolist() for piece in permuted_sequences(pieces, seed=0, fixed=SPECIAL)]
    expected = capture(model, text, gradients=(), progress=False)
    found = held.variants["permuted_tokens"].activations
    assert set(found) >= set(expected.activations)
    for site, moments in expected.activations.items():
        assert found[site].count == moments.count == held.activations[site].count
        torch.testing.assert_close(found[site].covariance(), moments.covariance(), rtol=1e-5, atol=1e-6)


def test_the_extra_pass_changes_nothing_else(model, documents, held):
    without = capture(model, documents, extra_passes="shuffled_labels", progress=False)
    assert without._sums.tallies == held._sums.tallies
    kept = {key: m for key, m in held._sums.moments.items() if key.variant != "permuted_tokens"}
    assert kept.keys() == without._sums.moments.keys()
    assert all(torch.equal(m.scatter, without._sums.moments[key].scatter) for key, m in kept.items())


def test_the_extra_pass_merges_and_is_kept_on_disk(model, documents, held, tmp_path):
    options = {"extra_passes": ("shuffled_labels", "permuted_tokens"), "progress": False, "batch_size": 3}
    parts = [capture(model, part, **options) for part in (documents[:20], documents[20:])]
    merged = Capture.load(parts[0].save(tmp_path / "a")).merge(parts[1])
    site = "blocks.1.mlp.input"
    mine, theirs = (c.variants["permuted_tokens"].activations[site] for c in (merged, held))
    assert mine.count == theirs.count
    torch.testing.assert_close(mine.covariance(), theirs.covariance(), rtol=1e-5, atol=1e-6)


def test_permuted_tokens_equal_the_effect_in_a_model_that_cannot_see_order(documents):
    model = tiny_model("llama")
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()  # positions enter through attention alone
    sites = ["blocks.0.attn.W_O", "blocks.1.mlp.W_in", "unembed.W_U"]
    result = tangent_energy(model, documents, sites=sites[1:], controls="permuted_tokens", progress=False)
    found = rows(result, "excess", "permuted_tokens")
    assert found[["value", "ci_low", "ci_high"]].to_numpy() == pytest.approx(1, abs=1e-4)


def test_permuted_tokens_differ_in_a_model_that_sees_order(everything):
    found = rows(everything, "excess", "permuted_tokens").loc["weight"]["value"]
    # What enters the first attention is the token alone, whatever the model.
    alone = ["embed.W_E", *(f"blocks.0.attn.W_{letter}" for letter in "QKV")]
    assert found[alone].to_numpy() == pytest.approx(1, abs=1e-4)
    assert (found.drop(alone) - 1).abs().min() > 1e-4


# -- untrained -----------------------------------------------------------------------------------------------------


def test_untrained_equals_the_effect_where_the_model_is_untrained(documents):
    fresh = reinitialised(tiny_model("llama"), seed=4)
    result = tangent_energy(fresh, documents, controls="untrained", seed=4, progress=False)
    found = rows(result, "excess", "untrained")
    assert len(found) == 16
    assert found[["value", "ci_low", "ci_high"]].to_numpy() == pytest.approx(1, abs=1e-6)


def test_untrained_leaves_what_training_adds():
    """Gradients of the planted model lie along one direction of the embedding; much more text says how much."""
    model = reinitialised(tiny_model("llama"), seed=0)
    with torch.no_grad():
        weight = model.model.embed_tokens.weight
        direction = torch.randn(WIDTH, generator=torch.Generator().manual_seed(2))
        weight += 3 * weight.std() * torch.randn(len(weight), 1, generator=torch.Generator().manual_seed(3)) * direction
    asked = {"sites": "blocks.0.attn.W_V", "controls": "untrained", "rank": 4, "progress": False, "n_controls": 0}
    few = random_documents((24,) * 160, seed=1)
    many = random_documents((24,) * 960, seed=2)
    row = rows(tangent_energy(model, few, **asked), "excess", "untrained").iloc[0]
    large = rows(tangent_energy(model, many, **asked), "excess", "untrained").iloc[0]
    assert row["ci_low"] <= large["value"] <= row["ci_high"]
    assert row["ci_low"] > 1.5
    # By hand: two separate measurements of the same text.
    twin = tangent_energy(reinitialised(model, seed=0), few, **{**asked, "controls": []}).frame
    true = tangent_energy(model, few, **{**asked, "controls": []}).frame
    shares = [f.loc[f["measure"] == "energy_share", "value"].iloc[0] for f in (true, twin)]
    assert row["value"] == pytest.approx(excess(*shares), rel=1e-6)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_reinitialising_is_a_pure_function_and_leaves_everything_alone(kind):
    model = tiny_model(kind, initializer_range=0.07)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    built = [reinitialised(model, seed=seed) for seed in (0, 0, 1)]
    one, two, three = (copy.get_input_embeddings().weight for copy in built)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert one.std().item() == pytest.approx(0.07, rel=0.1)  # as the config says, not as it was
    assert type(built[0]) is type(model)
    assert not built[0].training


def test_a_bridge_is_reinitialised_as_the_model_it_wraps(model, documents):
    kept = {"sites": "blocks.1.mlp.W_gate", "controls": "untrained", "n_controls": 0, "progress": False}
    bridge = as_bridge(model)
    before = {name: value.clone() for name, value in bridge.original_model.state_dict().items()}
    mine, theirs = (rows(tangent_energy(m, documents, **kept), "excess", "untrained") for m in (bridge, model))
    np.testing.assert_allclose(mine["value"], theirs["value"], rtol=1e-4)
    after = bridge.original_model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


# -- what is refused, and what is left out -----------------------------------------------------------------------


def test_one_layer_has_no_other(documents):
    model = tiny_model("llama", layers=1)
    with pytest.raises(TlAnisoError, match="needs a second layer"):
        tangent_energy(model, documents, controls="other_layer", progress=False)
    result = tangent_energy(model, documents, controls="all", sites="*.W_Q", n_controls=0, progress=False)
    assert any(note.startswith("without the control other_layer") for note in result.notes)
    assert set(result.frame["control"]) == {"none", "normal", *CONTROLS} - {"other_layer"}


def test_what_a_capture_lacks_is_named_with_its_remedy(model, documents, held):
    bare = capture(model, documents, sites="blocks.0.attn.W_Q", progress=False)
    with pytest.raises(TlAnisoError, match=r"extra_passes=\('permuted_tokens',\)"):
        tangent_energy(bare, controls="permuted_tokens")
    with pytest.raises(TlAnisoError, match=r"needs the proxy of blocks\.1\.attn\.input"):
        tangent_energy(bare, controls="other_layer")
    proxies = fit_tangent_proxies(bare)
    projected = capture(model, documents, sites="blocks.0.attn.W_Q", proxies=proxies, progress=False)
    with pytest.raises(TlAnisoError, match="planes=fit_control_planes"):
        tangent_energy(projected, proxies=proxies, controls="covariance_drawn")
    with pytest.raises(TlAnisoError, match=r"fit_tangent_proxies\(captures, 16\)"):
        tangent_energy(projected, proxies=proxies, controls="next_k")
    with pytest.raises(TlAnisoError, match="no control sign_flip"):
        tangent_energy(capture(model, documents, controls=(), progress=False), controls="sign_flip")


def test_frozen_proxies_and_planes_go_together(model, documents, held):
    proxies = fit_tangent_proxies(held)
    planes = fit_control_planes(held, proxies, seed=0)
    later = tiny_model("llama", layers=3, seed=5)
    asked = {"proxies": proxies, "planes": planes, "controls": PLANE_CONTROLS, "sites": "*.W_in", "progress": False}
    through_model = tangent_energy(later, documents, **asked)
    assert not any("same captures" in note for note in through_model.notes)
    stored = capture(later, documents, proxies=proxies, planes=planes, sites="*.W_in", progress=False)
    assert stored.metadata["options"]["planes"] == planes.ids()
    default = tangent_energy(stored, proxies=proxies)  # a capture's own planes are among what it holds
    assert {*PLANE_CONTROLS} < set(default.frame["control"])
    for control in PLANE_CONTROLS:
        mine, theirs = (rows(result, "excess", control)["value"] for result in (through_model, default))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    others = fit_control_planes(held, proxies, ["covariance_drawn"], seed=1)
    with pytest.raises(TlAnisoError, match="other planes of covariance_drawn"):
        tangent_energy(stored, proxies=proxies, planes=others, controls="covariance_drawn")
    with pytest.raises(TlAnisoError, match="hold none of next_k"):
        tangent_energy(later, documents, **{**asked, "planes": others, "controls": "next_k"})
    with pytest.raises(TlAnisoError, match="beside known proxies"):
        capture(later, documents, planes=planes, progress=False)
    with pytest.raises(TlAnisoError, match="must be ControlPlanes"):
        tangent_energy(later, documents, **{**asked, "planes": {}})


def test_planes_fitted_apart_from_the_proxies_are_said_to_be(model, documents):
    proxies = fit_tangent_proxies(capture(tiny_model("llama", layers=3, seed=5), documents, progress=False))
    asked = {"proxies": proxies, "sites": "*.W_K", "progress": False, "n_controls": 0}
    result = tangent_energy(model, documents, controls="covariance_drawn", **asked)
    assert any("same captures" in note for note in result.notes)
    assert tangent_energy(model, documents, controls="other_layer", **asked).notes == ()
    with pytest.raises(TlAnisoError, match="fitted elsewhere"):
        tangent_energy(model, documents, controls="next_k", **asked)


def test_proxies_of_twice_the_rank_hold_the_following_directions(model, documents, held):
    wide = fit_tangent_proxies(held, 16)
    asked = {"rank": 8, "controls": "next_k", "sites": "*.W_V", "progress": False}
    mine = rows(tangent_energy(model, documents, proxies=wide.at_rank(8), **asked), "excess", "next_k")
    theirs = rows(tangent_energy(model, documents, **asked), "excess", "next_k")
    np.testing.assert_allclose(mine["value"], theirs["value"], rtol=1e-4)


def test_too_few_directions_give_no_row_and_a_note(documents):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 10:] = 0.0  # the first residual has ten directions, eight are the plane's
    result = tangent_energy(
        model, documents, gradients="activation", sites="*.hook_resid_pre", controls="next_k", progress=False
    )
    found = rows(result, "excess", "next_k")
    assert set(found.index.get_level_values("site")) == {"blocks.1.hook_resid_pre"}
    assert any("no next_k at blocks.0.hook_resid_pre" in note for note in result.notes)


def test_unknown_controls_are_refused(model, documents, held):
    with pytest.raises(TlAnisoError, match="known are input_energy"):
        tangent_energy(model, documents, controls="next", progress=False)
    with pytest.raises(TlAnisoError, match="has no planes to fit"):
        fit_control_planes(held, fit_tangent_proxies(held), ["sign_flip"])
    with pytest.raises(TlAnisoError, match="fitted on captures"):
        fit_control_planes([], fit_tangent_proxies(held))
    with pytest.raises(TlAnisoError, match="another text"):
        held.with_variant("untrained", capture(model, documents[:5], progress=False))
    assert not math.isnan(held.loss)
