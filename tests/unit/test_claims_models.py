"""Verdicts over trainings and models, encoders against decoders (C5), and what `judge` refuses."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from tests.claim_frames import CLOSED, HOLDS, NAN, NOT, OPEN, both, constant, difference, energies, isotropies, row
from tests.frames import energy_frame
from tl_aniso.claims import ClaimsTable, Paired, judge, load_rules
from tl_aniso.errors import TlAnisoError


def pair(encoder=10.0, decoder=20.0, beyond=(2.0, 3.0), **options):
    """An encoder and a decoder whose progress goes with the step."""
    common = {"progress": lambda step: step / 100} | options
    one = energies(constant(encoder), constant(beyond[0]), model="encoder", objective="masked", **common)
    other = energies(constant(decoder), constant(beyond[1]), **common)
    return one, other


class TestC5:
    def test_weaker_in_the_encoder(self):
        table = judge(pd.concat(pair()))
        assert both(table, "C5", model="encoder - decoder") == [HOLDS, HOLDS]
        found = row(table, "C5", model="encoder - decoder")
        assert found["effect"] == pytest.approx(0.5)
        assert found[["ci_low", "ci_high"]].tolist() == pytest.approx([0.5 / 1.21, 0.5 * 1.21])

    def test_no_weaker(self):
        table = judge(pd.concat(pair(20.0, 20.0, (2.0, 2.0))))
        assert both(table, "C5", model="encoder - decoder") == [NOT, NOT]
        assert both(judge(pd.concat(pair(10.0, 20.0, (3.0, 2.0)))), "C5", model="encoder - decoder") == [HOLDS, NOT]

    def test_r_across_widths_would_say_the_opposite(self):
        """Equal E at equal k/d, and the same R; at d = 256, k = 16 the same E has more than twice the R."""
        one = energies(constant(20.0), model="encoder", objective="masked", d=256, rank=32, progress=lambda s: s / 100)
        other = energies(constant(20.0), progress=lambda s: s / 100)
        assert row(judge(pd.concat([one, other])), "C5", model="encoder - decoder")["effect"] == pytest.approx(1.0)
        # E of the encoder is the lower one, yet its R is the higher: by R it would count as stronger.
        wide = energies(constant(30.0), model="encoder", objective="masked", d=256, progress=lambda s: s / 100)
        table = judge(pd.concat([wide, other]))
        share = [f.loc[f["measure"] == "energy_share", "value"].iloc[0] for f in (wide, other)]
        assert share[0] < share[1]
        assert both(table, "C5", model="encoder - decoder") == [OPEN, OPEN]
        assert "equal k/d" in row(table, "C5", model="encoder - decoder")["reason"]

    def test_odds_of_e_are_compared_even_where_a_rule_lets_k_over_d_differ(self):
        """Equal E at d = 128 and d = 192: an odds ratio of 1, while R differs by half."""
        odds = 20 * 16 / 112
        wide = energies(
            constant(odds * 176 / 16), model="encoder", objective="masked", d=192, progress=lambda s: s / 100
        )
        rules = load_rules()
        loose = dataclasses.replace(rules, alike=dataclasses.replace(rules.alike, rank_ratio=1.0))
        table = judge(pd.concat([wide, energies(constant(20.0), progress=lambda s: s / 100)]), loose)
        assert row(table, "C5", model="encoder - decoder")["effect"] == pytest.approx(1.0)

    def test_equal_tokens_is_not_equal_progress(self):
        one, other = pair()
        table = judge(pd.concat([one.drop(columns="progress"), other.drop(columns="progress")]))
        assert both(table, "C5", model="encoder - decoder") == [OPEN, OPEN]
        assert "progress is not known" in row(table, "C5", model="encoder - decoder")["reason"]
        # As weak as it is at equal tokens only: at equal progress the encoder is as strong.
        slow = energies(
            lambda s, la, c: 20.0 if s > 30 else 5.0,
            model="encoder",
            objective="masked",
            progress=lambda s: {10: 0.0, 30: 0.02, 60: 0.1, 100: 0.3}.get(s, 0.0),
        )
        strong = energies(constant(20.0), progress=lambda s: s / 100)
        table = judge(pd.concat([slow, strong]))
        tests = table.controls[(table.controls["claim"] == "C5") & (table.controls["control"] == "normal")]
        tests = tests[tests["gradient"] == "weight"].set_index("part")
        assert tests.loc["tokens", "effect"] == pytest.approx(0.5)  # (1/4 twice, 1 twice) on the log scale
        assert tests.loc["progress", "effect"] == pytest.approx(1.0)
        assert both(table, "C5", model="encoder - decoder")[0] == NOT

    def test_checkpoints_at_other_tokens_are_not_compared(self):
        one, other = pair()
        one["tokens_seen"] *= 1000
        table = judge(pd.concat([one, other]))
        assert both(table, "C5", model="encoder - decoder") == [OPEN, OPEN]
        assert "equal tokens_seen" in row(table, "C5", model="encoder - decoder")["reason"]

    def test_what_does_not_exist_is_not_weaker(self):
        table = judge(pd.concat(pair(10.0, 20.0, (0.4, 0.8))))
        assert both(table, "C5", model="encoder - decoder") == [HOLDS, NOT]

    def test_paired_differences(self):
        one, other = pair(18.0, 20.0, (1.9, 2.0))
        frame = pd.concat([one, other])
        name = "encoder - decoder"
        assert both(judge(frame), "C5", model=name) == [NOT, NOT]
        differences = [Paired("C5", name, difference(-0.1, 0.03), a) for a in ("tokens", "progress")]
        assert both(judge(frame, differences=differences), "C5", model=name) == [HOLDS, HOLDS]
        assert both(judge(frame, differences=differences[:1]), "C5", model=name) == [NOT, NOT]

    def test_runs_of_a_pair_go_by_seed(self):
        """Seeds differ by a factor of ten, the pair within a seed always by two."""
        frames = [f for i, r in enumerate((10.0, 30.0, 100.0)) for f in pair(r + i / 10, 2 * r, seed=i)]
        found = row(judge(pd.concat(frames), runs="seed"), "C5", model="encoder - decoder")
        assert (found["verdict"], found["interval"], found["n"]) == (HOLDS, "runs", 3)

    def test_families(self):
        frames = [pair(10.0 + i, 1.0)[0].assign(model=f"encoder {i}") for i in range(3)]
        frames += [pair(1.0, 30.0 + i)[1].assign(model=f"decoder {i}") for i in range(3)]
        table = judge(pd.concat(frames))
        assert set(table.frame.loc[table.frame["claim"] == "C5", "model"]) == {"all"}
        found = row(table, "C5", model="all")
        assert found["verdict"] == HOLDS
        logs = np.log([10, 11, 12])[:, None] - np.log([30, 31, 32])[None]
        error = math.sqrt(logs.mean(1).var(ddof=1) / 3 + logs.mean(0).var(ddof=1) / 3)
        ends = np.exp([logs.mean() - 4.302653 * error, logs.mean() + 4.302653 * error])
        assert found[["ci_low", "ci_high"]].tolist() == pytest.approx(list(ends), rel=1e-5)
        assert found["effect"] == pytest.approx(math.exp(logs.mean()))
        # A needed control that one of them lacks.
        short = [*frames[1:], frames[0][frames[0]["control"] != "sign_flip"]]
        assert both(judge(pd.concat(short)), "C5", model="all") == [HOLDS, OPEN]
        named = judge(pd.concat(frames), contrasts=[("encoder 1", "decoder 2")])
        assert row(named, "C5", model="encoder 1 - decoder 2")["effect"] == pytest.approx(11 / 32)

    def test_one_kind_alone(self):
        table = judge(energies())
        assert "no encoder" in row(table, "C5", model="all")["reason"]
        assert both(table, "C5", model="all") == [OPEN, OPEN]


class TestRunsAndModels:
    def test_seeds_give_the_interval(self):
        """Wide intervals over documents do not matter where trainings were repeated, nor do narrow ones help."""
        runs = [energies(constant(r), constant(2.0), seed=i, spread=NAN) for i, r in enumerate((18.0, 20.0, 22.0))]
        found = row(judge(pd.concat(runs), runs="seed"), "C1")
        assert (found["verdict"], found["interval"], found["n"]) == (HOLDS, "runs", 3)
        logs = np.log([18.0, 20.0, 22.0])
        reach = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
        assert found["ci_low"] == pytest.approx(math.exp(logs.mean() - reach), rel=1e-6)
        runs = [energies(constant(r), seed=i, spread=1.001) for i, r in enumerate((0.3, 20.0, 22.0))]
        assert row(judge(pd.concat(runs), runs="seed"), "C1")["verdict"] == NOT

    def test_seeds_must_be_said_to_be_trainings(self):
        frame = pd.concat([energies(constant(20.0 + i), seed=i) for i in range(2)])
        with pytest.raises(TlAnisoError, match=r"2 times: they differ in seed.*runs='seed'"):
            judge(frame)

    def test_one_training_measured_twice(self):
        frame = pd.concat([energies(seed=i) for i in range(2)])
        with pytest.raises(TlAnisoError, match="one training measured twice"):
            judge(frame, runs="seed")

    def test_holm_over_models(self):
        def model(name, values):
            return [energies(constant(20.0), constant(x), model=name, seed=i) for i, x in enumerate(values)]

        # Distinct R by run, so that they are no copies.
        def vary(frames):
            for i, frame in enumerate(frames):
                chosen = frame["measure"] == "energy_share"
                frame.loc[chosen, "value"] += 1e-6 * i
            return frames

        close = (1.7, 2.2, 2.9)
        alone = judge(pd.concat(vary(model("a", close))), runs="seed")
        assert row(alone, "C1", "beyond_controls", model="a")["verdict"] == HOLDS
        several = pd.concat([f for name in "abcd" for f in vary(model(name, close))])
        found = row(judge(several, runs="seed"), "C1", "beyond_controls", model="a")
        assert found["verdict"] == NOT
        assert found["p_holm"] == pytest.approx(min(1.0, 4 * found["p_value"]))
        assert "Holm" in found["reason"]

    def test_over_models_by_t(self):
        frames = [energies(constant(20.0), constant(x), model=f"m{x}") for x in (1.5, 2.0, 2.5)]
        found = row(judge(pd.concat(frames)), "C1", "beyond_controls", model="all")
        assert (found["verdict"], found["interval"], found["n"]) == (HOLDS, "models", 3)
        frames.append(energies(constant(20.0), constant(0.3), model="m0.3"))
        assert row(judge(pd.concat(frames)), "C1", "beyond_controls", model="all")["verdict"] == NOT

    def test_a_control_of_one_model_is_left_to_that_model(self):
        def rare(x):
            return lambda step, layer, control: 0.5 if control == "untrained" else x

        frames = [energies(constant(20.0), rare(x), model=f"m{x}") for x in (1.5, 2.0)]
        frames.append(energies(constant(20.0), rare(2.5), model="m2.5", controls=(*CLOSED, "untrained")))
        table = judge(pd.concat(frames))
        assert row(table, "C1", "beyond_controls", model="m2.5")["verdict"] == NOT
        found = row(table, "C1", "beyond_controls", model="all")
        assert found["verdict"] == HOLDS
        assert "not measured: permuted_tokens, other_layer, untrained" in found["reason"]
        # A needed one stays needed.
        frames = [energies(model=f"m{i}", controls=CLOSED if i == 0 else CLOSED[:3]) for i in range(3)]
        assert row(judge(pd.concat(frames)), "C1", "beyond_controls", model="all")["verdict"] == OPEN

    def test_a_model_without_numbers_keeps_its_row(self):
        table = judge(pd.concat([energies(), isotropies(model="other")]))
        assert both(table, "C1", model="other") == [OPEN, OPEN]
        assert both(table, "C2", model="other") == [HOLDS, OPEN]


class TestArguments:
    @pytest.mark.parametrize(
        ("frame", "options", "message"),
        [
            ([], {}, "a pandas DataFrame"),
            (pd.DataFrame({"model": []}), {}, "no column 'objective'"),
            (energies(layers=1), {"rules": {}}, "must be Rules"),
            (energies(layers=1), {"runs": "sead"}, "does not have"),
            (energies(layers=1, phase="middle"), {}, "phase 'middle'"),
            (pd.concat([energies(layers=1)] * 2), {}, "hand over each result once"),
            (pd.concat([energies(layers=1), energies(layers=1, rank=8)]), {}, "differ in rank. Hand over one of them$"),
            (energies(layers=1), {"differences": [1]}, "must hold Paired"),
            (energies(layers=1), {"differences": [Paired("C1", "decoder", energies(layers=1))]}, "speak to C3, C5"),
            (energies(layers=1), {"differences": [Paired("C3", "other", energies(layers=1))]}, "does not hold"),
            (energies(layers=1), {"differences": [Paired("C3", "decoder", 3)]}, "no a - b"),
            (energies(layers=1), {"differences": [Paired("C3", "decoder", pd.DataFrame())]}, "no column 'site'"),
            (energies(layers=1), {"differences": [Paired("C3", "decoder", energies(layers=1), "steps")]}, "alignment"),
            (energies(layers=1), {"contrasts": [("decoder", "decoder")]}, "as an encoder"),
            (energies(layers=1), {"contrasts": ["decoder"]}, "pairs"),
        ],
    )
    def test_refused(self, frame, options, message):
        with pytest.raises(TlAnisoError, match=message):
            judge(frame, **options)

    def test_frames_of_results_are_taken_as_they_are(self):
        before = energy_frame()
        frame = before.copy()
        table = judge(frame)
        pd.testing.assert_frame_equal(frame, before)
        assert set(table.frame["verdict"]) <= {HOLDS, NOT, OPEN}

    def test_rules_of_ones_own(self):
        rules = load_rules()
        strict = dataclasses.replace(rules.claims["C1"], threshold={"energy": 50.0})
        table = judge(energies(), dataclasses.replace(rules, claims={"C1": strict}))
        assert set(table.frame["claim"]) == {"C1"}
        assert both(table, "C1")[0] == NOT
        assert row(table, "C1")["threshold"] == pytest.approx(50.0)


def test_the_table_shows_both_verdicts_and_every_control():
    table = judge(pd.concat([energies(model="<b>m</b>"), isotropies(model="<b>m</b>")]))
    assert isinstance(table, ClaimsTable)
    assert len(table.frame) == 2 * len(table.table())
    assert not table.frame.duplicated(["claim", "quantity", "model", "gradient", "kind"]).any()
    for text in (table.summary(), table.to_latex(), table._repr_html_(), repr(table)):
        assert "holds" in text
    assert "C1: Early in training" in table.summary()
    assert load_rules().digest[:12] in table.summary()
    assert "<b>m" not in table._repr_html_()
    assert "shuffled" in table._repr_html_()
