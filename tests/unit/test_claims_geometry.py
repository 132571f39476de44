"""C6 to C8: each verdict from a frame whose answer is known."""

import math

import pandas as pd
import pytest

from tests.claim_frames import HOLDS, NOT, OPEN, energies
from tests.geometry_frames import correlations, curvatures, local_energies, rows
from tl_aniso.claims import judge, judge_geometry
from tl_aniso.errors import TlAnisoError
from tl_aniso.viz import claims_forest

SITE = "blocks.0.hook_resid_pre"
ENERGY = {"activation": "local energy", "weight": "local energy of sums"}


def verdicts(frame, claim, quantity, *, model="decoder", gradient="none", runs=None):
    """As stated, and beyond controls."""
    return [entry["verdict"] for entry in entries(frame, claim, quantity, model=model, gradient=gradient, runs=runs)]


def entries(frame, claim, quantity, *, model="decoder", gradient="none", runs=None):
    table = judge_geometry(frame, runs=runs).frame
    chosen = table[
        (table["claim"] == claim)
        & (table["quantity"] == quantity)
        & (table["model"] == model)
        & (table["gradient"] == gradient)
    ]
    assert chosen["kind"].tolist() == ["as_stated", "beyond_controls"]
    return [row for _, row in chosen.iterrows()]


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, [HOLDS, HOLDS]),
        ({"value": -0.05}, [NOT, NOT]),  # contains 0
        ({"value": 0.4}, [NOT, NOT]),
        ({"drift_removed": 0.3}, [HOLDS, NOT]),
        ({"p": 0.2}, [HOLDS, NOT]),
        ({"matched": 0.0}, [HOLDS, NOT]),
        ({"surrogate": 0.0}, [HOLDS, NOT]),
        ({"reach": math.nan}, [OPEN, OPEN]),
        ({"n_types": 29}, [OPEN, OPEN]),
        ({"controls": ("shuffled_frequencies",)}, [HOLDS, HOLDS]),  # a table has no occurrences to sample
        ({"controls": ("gaussian_surrogate",)}, [HOLDS, OPEN]),
    ],
)
def test_frequency_of_the_input_embedding(planted, expected):
    assert verdicts(correlations(**planted), "C6", "input embedding") == expected


def test_contextual_means_need_matched_sizes():
    """The mean of few occurrences moves more, whatever is behind it."""
    shuffled = ("shuffled_frequencies",)
    assert verdicts(correlations(site=SITE, controls=shuffled), "C6", "contextual mean") == [HOLDS, OPEN]
    assert verdicts(correlations(site=SITE), "C6", "contextual mean") == [HOLDS, HOLDS]


def test_within_a_checkpoint_no_drift_is_asked_for():
    frame = correlations(site=SITE, scope="within", step=100.0)
    assert verdicts(frame, "C6", "contextual variance") == [HOLDS, HOLDS]
    assert verdicts(frame, "C6", "contextual mean") == [OPEN, OPEN]
    initial = correlations(site=SITE, scope="within", step=0.0)  # initialisation is no training
    assert verdicts(initial, "C6", "contextual variance") == [OPEN, OPEN]


def test_each_table_has_a_verdict_of_its_own_and_a_tied_one_is_named():
    frame = pd.concat([correlations(), correlations(0.4, site="unembed.W_U")], ignore_index=True)
    assert verdicts(frame, "C6", "input embedding") == [HOLDS, HOLDS]
    assert verdicts(frame, "C6", "output embedding") == [NOT, NOT]
    stated, _ = entries(correlations(notes="tied: input and output are one table"), "C6", "output embedding")
    assert stated["verdict"] == OPEN
    assert "tied" in stated["reason"]


def test_the_papers_half_is_shown_and_decides_nothing():
    controls = judge_geometry(correlations(-0.2)).controls
    beside = controls[(controls["part"] == "raw (-0.5)") & (controls["quantity"] == "input embedding")].iloc[0]
    assert (beside["threshold"], beside["passes"], beside["decisive"]) == (-0.5, False, False)
    reached = judge_geometry(correlations(-0.45)).controls
    assert reached[reached["part"] == "raw (-0.5)"].iloc[0]["passes"]


def test_p_values_of_several_sites_count_by_twice_their_mean():
    frames = [correlations(site=f"blocks.{i}.hook_resid_pre", p=p) for i, p in enumerate((0.005, 0.05))]
    assert verdicts(pd.concat(frames, ignore_index=True), "C6", "contextual mean") == [HOLDS, NOT]  # .055
    frames = [correlations(site=f"blocks.{i}.hook_resid_pre", p=p) for i, p in enumerate((0.005, 0.04))]
    assert verdicts(pd.concat(frames, ignore_index=True), "C6", "contextual mean") == [HOLDS, HOLDS]  # .045


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, [HOLDS, HOLDS]),
        ({"slope": 1.01}, [NOT, NOT]),
        ({"slope": 0.8}, [NOT, NOT]),
        ({"density": 0.01}, [NOT, NOT]),
        ({"density": -0.1, "p": 1.0}, [NOT, NOT]),
        ({"surrogate": 0.01}, [HOLDS, NOT]),
        ({"matched": 0.01}, [HOLDS, NOT]),
        ({"p": 0.2}, [HOLDS, NOT]),
        ({"reach": math.nan}, [OPEN, OPEN]),
        ({"controls": ("gaussian_surrogate", "size_matched")}, [HOLDS, OPEN]),
        ({"controls": ("size_matched", "shuffled_frequencies")}, [HOLDS, OPEN]),
    ],
)
def test_hidden_curvature(planted, expected):
    assert verdicts(curvatures(**planted), "C7", "local geometry") == expected


def test_a_p_value_on_the_wrong_side_is_not_passed():
    """Labels drawn anew give more than the effect: a small p speaks against the claim."""
    frame = curvatures()
    frame.loc[frame["control"] == "shuffled_frequencies", "control_value"] = 0.3
    assert verdicts(frame, "C7", "local geometry") == [HOLDS, NOT]


@pytest.mark.parametrize("gradient", ["activation", "weight"])
@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, [HOLDS, HOLDS]),
        ({"ratio": 1.05}, [NOT, NOT]),
        ({"ratio": 0.5}, [NOT, NOT]),
        ({"excess": 1.05}, [HOLDS, NOT]),
        ({"spread": math.nan}, [OPEN, OPEN]),
        ({"controls": ("gaussian_surrogate",)}, [HOLDS, OPEN]),
        ({"controls": ("other_type",), "excess": 0.9}, [HOLDS, NOT]),  # one that fails is enough
    ],
)
def test_gradients_in_local_planes(gradient, planted, expected):
    frame = local_energies(gradient=gradient, **planted)
    assert verdicts(frame, "C8", ENERGY[gradient], gradient=gradient) == expected
    other = "weight" if gradient == "activation" else "activation"
    assert verdicts(frame, "C8", ENERGY[other], gradient=other) == [OPEN, OPEN]


def test_a_surrogate_that_cannot_differ_is_no_control():
    """Of single tokens it gives the same plane: near 1 whatever gradients do. Of sums it takes the inputs' place."""
    for gradient, expected in (("activation", [HOLDS, HOLDS]), ("weight", [HOLDS, NOT])):
        frame = local_energies(gradient=gradient)
        frame.loc[frame["control"] == "gaussian_surrogate", ["value", "ci_low", "ci_high"]] = (1.0, 0.9, 1.1)
        assert verdicts(frame, "C8", ENERGY[gradient], gradient=gradient) == expected
        frame = frame[frame["control"] != "gaussian_surrogate"]
        expected = [HOLDS, HOLDS] if gradient == "activation" else [HOLDS, OPEN]
        assert verdicts(frame, "C8", ENERGY[gradient], gradient=gradient) == expected


def test_it_can_hold_for_activation_gradients_and_fail_for_weight_gradients():
    frame = pd.concat([local_energies(), local_energies(0.5, 0.5, gradient="weight")], ignore_index=True)
    assert verdicts(frame, "C8", "local energy", gradient="activation") == [HOLDS, HOLDS]
    assert verdicts(frame, "C8", ENERGY["weight"], gradient="weight") == [NOT, NOT]


def test_intervals_are_over_runs_where_there_are_several():
    """t of (-.4, -.5) is -.45 +- 12.7 x .05: it contains 0, though each run alone is far from it."""
    two = pd.concat([correlations(v, seed=i) for i, v in enumerate((-0.4, -0.5))], ignore_index=True)
    stated, _ = entries(two, "C6", "input embedding", runs="seed")
    assert (stated["verdict"], stated["interval"], stated["n"]) == (NOT, "runs", 2)
    assert stated["ci_high"] == pytest.approx(-0.45 + 12.7062 * 0.05, abs=1e-4)
    close = [
        correlations(-0.4 - d, drift_removed=-0.3 - d, matched=-0.2 - d, surrogate=-0.3 - d, seed=i)
        for i, d in enumerate((0.0, 0.001, 0.002))
    ]
    frame = pd.concat(close, ignore_index=True)
    assert verdicts(frame, "C6", "input embedding", runs="seed") == [HOLDS, HOLDS]
    with pytest.raises(TlAnisoError, match=r"2 times: they differ in seed.*runs='seed'"):
        judge_geometry(two)


def test_one_training_handed_over_twice_is_refused():
    frame = pd.concat([correlations(seed=i) for i in (0, 1)], ignore_index=True)
    with pytest.raises(TlAnisoError, match="one training measured twice"):
        judge_geometry(frame, runs="seed")


def test_over_models():
    """t over effects; of R, which grows with width, the share of models in which it is shown."""
    frames = [correlations(-0.4 - d, matched=-0.2 - d, surrogate=-0.3 - d, drift_removed=-0.3 - d, model=f"m{d}")
              for d in (0.0, 0.01, 0.02)]  # fmt: skip
    stated, beyond = entries(pd.concat(frames, ignore_index=True), "C6", "input embedding", model="all")
    assert [stated["verdict"], beyond["verdict"]] == [HOLDS, HOLDS]
    assert (stated["interval"], stated["n"], stated["effect"]) == ("models", 3, pytest.approx(-0.41))
    ratios = [local_energies(r, 1.5 + r / 100, model=f"m{r}") for r in (4.0, 5.0, 6.0, 1.0)]
    stated, _ = entries(pd.concat(ratios, ignore_index=True), "C8", "local energy", model="all", gradient="activation")
    assert (stated["scale"], stated["effect"], stated["verdict"]) == ("share of models", 0.75, NOT)
    stated, beyond = entries(
        pd.concat(ratios[:3], ignore_index=True), "C8", "local energy", model="all", gradient="activation"
    )
    assert [stated["verdict"], beyond["verdict"]] == [HOLDS, HOLDS]


def test_sites_that_lack_values_are_counted():
    frame = curvatures(layers=10)
    first = frame["site"] == "blocks.0.hook_resid_pre"
    frame.loc[first, ["value", "ci_low", "ci_high"]] = math.nan
    assert verdicts(frame, "C7", "local geometry")[0] == HOLDS  # nine of ten
    frame.loc[frame["site"] == "blocks.1.hook_resid_pre", ["value", "ci_low", "ci_high"]] = math.nan
    stated, beyond = entries(frame, "C7", "local geometry")
    assert [stated["verdict"], beyond["verdict"]] == [OPEN, OPEN]
    assert "values at 8 of 10 sites only" in stated["reason"]


def test_averaged_ends():
    """The interval over sites is the mean of theirs: wide enough however sites depend on each other."""
    frames = [curvatures(slope=s, layers=1, steps=(10.0,)).assign(site=f"blocks.{i}.hook_resid_pre")
              for i, s in enumerate((1.2, 1.6))]  # fmt: skip
    controls = judge_geometry(pd.concat(frames, ignore_index=True)).controls
    slope = controls[(controls["part"] == "slope") & (controls["control"] == "none")].iloc[0]
    assert (slope["effect"], slope["ci_low"], slope["ci_high"]) == pytest.approx((1.4, 1.38, 1.42))


def test_tables_are_joined():
    first, second = judge(energies()), judge_geometry(correlations())
    both = first.joined(second)
    assert list(both.statements) == [f"C{i}" for i in range(1, 9)]
    assert list(dict.fromkeys(both.frame["claim"])) == list(both.statements)
    assert len(both.frame) == len(first.frame) + len(second.frame)
    assert len(both.controls) == len(first.controls) + len(second.controls)
    assert both.notes == tuple(dict.fromkeys((*first.notes, *second.notes)))
    assert set(both.table()["claim"]) == set(both.statements)
    with pytest.raises(TlAnisoError, match="both tables judge C6"):
        both.joined(second)
    with pytest.raises(TlAnisoError, match="ClaimsTable can be joined"):
        first.joined(None)


def test_a_figure_has_a_panel_for_every_scale():
    """A slope is no difference of IsoScore*."""
    frame = pd.concat([correlations(), curvatures(slope=0.8), local_energies()], ignore_index=True)
    figure = claims_forest(judge(energies()).joined(judge_geometry(frame)))
    titles = {axis.title.text for axis in figure.select_xaxes()}
    assert {"ratio (log)", "slope of log normal on log tangent amplitude"} <= titles
    assert "correlation of distance with log frequency" in titles
    labels = [text for axis in figure.select_yaxes() for text in axis.ticktext or ()]
    assert any(label.startswith("C6") and label.endswith("input embedding") for label in labels)


def test_what_is_no_geometry_frame_is_refused():
    with pytest.raises(TlAnisoError, match="DataFrame"):
        judge_geometry([])
    with pytest.raises(TlAnisoError, match="no column 'scope'"):
        judge_geometry(correlations().drop(columns="scope"))
    with pytest.raises(TlAnisoError, match="GeometryRules"):
        judge_geometry(correlations(), object())
    with pytest.raises(TlAnisoError, match="'trial', which the frame does not have"):
        judge_geometry(correlations(), runs="trial")
    with pytest.raises(TlAnisoError, match="they differ in rank"):
        judge_geometry(pd.concat([local_energies(rank=4), local_energies(rank=8)], ignore_index=True))


def test_an_empty_frame_says_nothing():
    table = judge_geometry(rows())
    assert table.frame.empty
    assert list(table.statements) == ["C6", "C7", "C8"]
