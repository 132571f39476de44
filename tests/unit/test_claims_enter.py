"""Frames of which nothing enters, runs of different models, several ranks, and what a table says of its numbers."""

import pandas as pd
import pytest

from tests.claim_frames import OPEN, energies, isotropies, row
from tests.geometry_frames import local_energies
from tl_aniso.claims import judge, judge_geometry
from tl_aniso.claims.table import counted, reader_notes
from tl_aniso.errors import TlAnisoError
from tl_aniso.study.claims import claims_of
from tl_aniso.viz.claims_page import read_claims

CLAIMS = ["C1", "C2", "C3", "C4", "C5"]


def two_kinds(**options):
    return pd.concat([energies(**options), energies(model="encoder", objective="masked", **options)])


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (two_kinds(steps=(0,)), "step 0 alone was measured, which is initialisation"),
        (energies().assign(site="embed.W_E"), "of the sites that enter (attn.W_Q"),
        (energies(layers=2)[lambda f: f["control"] == "none"], "it was not measured"),
        (energies()[lambda f: f["measure"] == "p_value"].assign(model="decoder"), ""),
    ],
)
def test_where_nothing_enters_no_claim_can_be_tested_and_the_reason_says_why(frame, reason):
    table = judge(frame)
    assert set(table.frame["verdict"]) <= {OPEN}
    assert [claim.name for claim in read_claims(table)] == CLAIMS
    assert "C1" in table.summary()
    if reason:
        assert all(reason in row(table, claim)["reason"] for claim in ("C1", "C3", "C4"))
        own = table.frame[(table.frame["claim"] == "C5") & (table.frame["model"] == "encoder - decoder")]
        assert all(reason in said for said in own["reason"])


def test_a_model_of_step_0_alone_is_told_from_one_that_was_not_measured():
    """Beside a model that was: the reason is each model's own."""
    table = judge(pd.concat([energies(), energies(model="young", steps=(0,))]))
    assert "step 0 alone was measured" in row(table, "C1", model="young")["reason"]
    assert "it was not measured" in row(table, "C2", model="young")["reason"]
    assert row(table, "C1")["verdict"] == "holds"


def test_step_0_is_no_early_checkpoint():
    table = judge(energies(steps=(0, 60, 100)))
    assert "0 checkpoints after step 0 are of the phase early, 1 needed" in row(table, "C1")["reason"]


def test_geometry_of_step_0_alone_says_so():
    names = ("step", "value", "ci_low", "ci_high", "p_value", "control_value", "control_low", "control_high")
    numbers = dict.fromkeys((*names, "difference", "difference_low", "difference_high", "n_types"), float("nan"))
    one = {"model": "tiny", "site": "blocks.0.hook_resid_pre", "gradient": "activation", "scope": "within"}
    one |= {"measure": "local_r", "control": "normal", **dict.fromkeys(("revision", "variant", "group", "notes"), "")}
    frame = pd.DataFrame([numbers | one | {"step": 0.0, "value": 3.0}])
    found = judge_geometry(frame).frame.query("claim == 'C8' and gradient == 'activation'")
    assert found["reason"].str.contains("step 0 alone was measured, which is initialisation").all()
    empty = judge_geometry(frame[:0], models=["tiny"])
    assert set(empty.frame["claim"]) == {"C6", "C7", "C8"}
    assert set(empty.frame["verdict"]) == {OPEN}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"family": "bert"}, r"family \(llama, bert\)"),
        ({"objective": "masked"}, r"objective \(causal, masked\)"),
        ({"d": 256}, r"width \(128, 256\)"),
        ({"layers": 4}, r"layers measured \(6, 4\)"),
    ],
)
def test_runs_of_other_models_are_refused(other, what):
    first = energies(model="a", family="llama")
    second = energies(lambda s, b, c: 15.0, model="b", seed=1, **{"family": "llama", **other})
    with pytest.raises(TlAnisoError, match=rf"trainings: x: a and b are no trainings.*{what}"):
        claims_of(pd.concat([first, second]), {"x": ["a", "b"]})
    with pytest.raises(TlAnisoError, match=rf"the runs 0 and 1 of x are no trainings of one model.*{what}"):
        judge(pd.concat([first, second]).assign(model="x"), runs="seed")


def test_runs_of_one_model_are_averaged():
    frames = [energies(lambda s, b, c, r=r: r, model=n, family="llama", seed=i) for i, (n, r) in enumerate(RUNS)]
    assert row(claims_of(pd.concat(frames), {"x": ["a", "b"]}), "C1", model="x")["interval"] == "runs"


RUNS = (("a", 20.0), ("b", 21.0))


def test_of_several_ranks_the_smallest_is_judged_or_the_one_asked_for():
    frame = pd.concat([energies(rank=8), energies(lambda s, b, c: 0.5, rank=16)])
    table = claims_of(frame)
    assert row(table, "C1")["verdict"] == "holds"
    assert any("several ranks were measured (8, 16); claims are judged at rank 8" in note for note in table.notes)
    assert row(claims_of(frame, rank=16), "C1")["verdict"] == "does not hold"
    with pytest.raises(TlAnisoError, match="decoder was not measured at rank 4; known are 8, 16"):
        claims_of(frame, rank=4)
    # Different ranks of different models are one each, and nothing to choose from.
    assert len(claims_of(pd.concat([energies(rank=8), energies(rank=16, model="b")])).notes) == len(
        judge(frame[:0]).notes
    )


def test_numbers_stand_with_what_they_count_and_their_scale():
    table = judge(pd.concat([energies(), isotropies(), energies(model="b"), isotropies(model="b")]))
    short = table.table()
    said = {claim: set(rows["scale"]) for claim, rows in short.groupby("claim")}
    assert {"correlation with layer"} <= said["C4"]
    assert {"ratio", "share of models"} <= said["C1"]
    assert said["C2"] == {"difference of IsoScore*"}
    shown = {test.interval for claim in read_claims(table) for one in claim.rows for test in one.tests}
    assert "documents; mean of 30 sites" in shown
    assert "planes drawn; mean of 6 sites" in shown
    assert {"6 layers", "2 models"} <= shown
    assert not any(" n = " in text for text in shown)
    found = {name: counted(name, 2) for name in table.controls["interval"].unique()}
    assert all("2" in text for name, text in found.items() if name), found


def test_the_rules_are_cited_once():
    notes = judge(energies()).notes
    assert sum("SHA-256" in note for note in notes) == 1
    assert not any("SHA-256" in note for note in reader_notes(judge(energies())))
    assert "intervals at 95%" in reader_notes(judge(energies()))


def test_what_is_shown_decides_nothing_over_models_either():
    """Local excess over a surrogate of single tokens is shown: below 1 in both models, it is no test of the claim."""
    frames = []
    for name in "ab":
        below = local_energies(excess=0.5, controls=("gaussian_surrogate",), model=name)
        frames += [
            local_energies(excess=2.0, controls=("other_type",), model=name),
            below[below["measure"] != "local_r"],
        ]
    table = judge_geometry(pd.concat(frames, ignore_index=True))
    shown = table.controls.query("model == 'all' and part == 'surrogate'")
    assert len(shown)
    assert not shown["decisive"].any()
    verdicts = table.frame.query("model == 'all' and claim == 'C8' and gradient == 'activation'")["verdict"]
    assert set(verdicts) == {"holds"}


def test_a_share_of_models_is_no_number_of_models():
    reason = row(judge(pd.concat([energies(), energies(model="b")])), "C1", model="all")["reason"]
    assert "is 1 (2 of 2 models), 0.8 claimed" in reason
