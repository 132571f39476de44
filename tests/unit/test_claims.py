"""Verdicts on frames with planted effects, where each verdict is known."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from tests.claim_frames import CLOSED, PLANES, constant, energies, falling, isotropies
from tests.frames import energy_frame
from tl_aniso.claims import ClaimsTable, Paired, judge, load_rules
from tl_aniso.errors import TlAnisoError

NAN = math.nan
HOLDS, NOT, OPEN = "holds", "does not hold", "not testable"


def row(table, claim, kind="as_stated", *, gradient="weight", quantity=None, model="decoder"):
    frame = table.frame
    chosen = frame[
        (frame["claim"] == claim)
        & (frame["kind"] == kind)
        & (frame["gradient"] == gradient)
        & (frame["model"] == model)
        & (frame["quantity"] == (quantity or ("isotropy" if claim == "C2" else "energy")))
    ]
    assert len(chosen) == 1
    return chosen.iloc[0]


def both(table, claim, **where):
    return [row(table, claim, kind, **where)["verdict"] for kind in ("as_stated", "beyond_controls")]


class TestC1:
    def test_holds_against_every_control(self):
        table = judge(energies(constant(20.0), constant(2.0)))
        assert both(table, "C1") == [HOLDS, HOLDS]
        assert both(table, "C1", gradient="activation") == [HOLDS, HOLDS]
        found = row(table, "C1")
        # Equal at all sites, so pooled odds and ends are those of each.
        assert found["effect"] == pytest.approx(20.0)
        assert found[["ci_low", "ci_high"]].tolist() == pytest.approx([20 / 1.1, 22.0])
        assert found["share"] == pytest.approx(20 / 7 / (1 + 20 / 7))
        assert row(table, "C1", "beyond_controls")["effect"] == pytest.approx(2.0)

    def test_input_energy_explains_it(self):
        table = judge(energies(constant(20.0), lambda step, layer, control: 0.8 if control == "input_energy" else 2.0))
        assert both(table, "C1") == [HOLDS, NOT]
        found = row(table, "C1", "beyond_controls")
        assert (found["control"], found["effect"]) == ("input_energy", pytest.approx(0.8))
        assert "other side" in found["reason"]
        tests = table.controls[(table.controls["claim"] == "C1") & (table.controls["gradient"] == "weight")]
        passes = dict(zip(tests["control"], tests["passes"], strict=True))
        assert passes == {"normal": True, **dict.fromkeys(CLOSED, True), "input_energy": False}

    def test_every_control_that_was_measured_counts(self):
        more = (*CLOSED, "untrained")
        table = judge(energies(excess=lambda s, la, c: 1.0 if c == "untrained" else 3.0, controls=more))
        assert both(table, "C1") == [HOLDS, NOT]
        assert "untrained" in row(table, "C1", "beyond_controls")["reason"]

    def test_an_estimate_above_whose_interval_is_not(self):
        """Comparing estimates without their intervals would call this an excess."""
        table = judge(energies(constant(20.0), constant(1.3), spread=1.5))
        assert both(table, "C1") == [HOLDS, NOT]
        assert "contains 1" in row(table, "C1", "beyond_controls")["reason"]
        assert both(judge(energies(constant(20.0), constant(1.3), spread=1.2)), "C1") == [HOLDS, HOLDS]

    def test_controls_that_the_rules_need(self):
        table = judge(energies(controls=CLOSED[:2]))
        assert both(table, "C1") == [HOLDS, OPEN]
        assert "shuffled_g, shuffled_labels" in row(table, "C1", "beyond_controls")["reason"]
        # One that fails is enough, whatever else was measured.
        assert both(judge(energies(excess=constant(0.5), controls=CLOSED[:1])), "C1") == [HOLDS, NOT]

    def test_a_control_at_few_sites_says_nothing(self):
        frame = energies()
        frame = frame[(frame["control"] != "sign_flip") | (frame["layer"] == 0)]
        assert both(judge(frame), "C1") == [HOLDS, OPEN]
        assert "5 of 30 sites" in row(judge(frame), "C1", "beyond_controls")["reason"]

    def test_without_intervals(self):
        """Fewer than four shards: NaN intervals, and one run."""
        table = judge(energies(spread=NAN))
        assert both(table, "C1") == [OPEN, OPEN]
        assert "fewer than four shards" in row(table, "C1")["reason"]
        assert row(table, "C1")["effect"] == pytest.approx(20.0)

    def test_only_trained_early_checkpoints_enter(self):
        early = lambda step, layer, control: {0: 0.1, 10: 20.0, 30: 20.0}.get(step, 0.1)  # noqa: E731
        assert row(judge(energies(early)), "C1")["effect"] == pytest.approx(20.0)
        assert both(judge(energies(phase=NAN)), "C1") == [OPEN, OPEN]
        assert both(judge(energies(steps=(60, 100))), "C1") == [OPEN, OPEN]

    def test_in_sample_planes(self):
        assert both(judge(energies(held_out=False)), "C1") == [OPEN, OPEN]

    def test_pooled_on_log_odds(self):
        """Geometric mean over sites: one site of R = 400 does not carry the rest."""
        by_layer = lambda step, layer, control: 400.0 if layer == 0 else 1.0  # noqa: E731
        found = row(judge(energies(by_layer)), "C1")
        assert found["effect"] == pytest.approx(400 ** (1 / 6))

    def test_embedding_and_single_heads_do_not_enter(self):
        frame = energies(layers=2)
        extra = frame[frame["site"] == "blocks.0.attn.W_Q"].assign(value=1e6, ci_low=1e6, ci_high=1e6)
        for site in ("embed.W_E", "unembed.W_U", "blocks.0.attn.W_Q.0", "encoder.blocks.0.attn.W_Q"):
            frame = pd.concat([frame, extra.assign(site=site)], ignore_index=True)
        assert row(judge(frame), "C1")["effect"] == pytest.approx(20.0)

    def test_often_is_of_models(self):
        """Tenfold in half of the models; in one model it is shown and decides nothing."""
        frames = [energies(constant(r), model=f"m{r}") for r in (3, 4, 12, 20)]
        table = judge(pd.concat(frames))
        assert row(table, "C1", model="m3")["verdict"] == HOLDS
        tenfold = table.controls[(table.controls["part"] == "often") & (table.controls["gradient"] == "weight")]
        assert dict(zip(tenfold["model"], tenfold["passes"], strict=True)) == {
            "m3": False,
            "m4": False,
            "m12": True,
            "m20": True,
            "all": True,
        }
        assert both(table, "C1", model="all")[0] == HOLDS
        table = judge(pd.concat([*frames, energies(constant(5.0), model="m5")]))
        assert both(table, "C1", model="all")[0] == NOT
        assert "as large as claimed is 0.4 of 5" in row(table, "C1", model="all")["reason"]

    def test_r_is_never_averaged_over_models(self):
        frames = [energies(constant(r), model=f"m{i}") for i, r in enumerate((0.5, 1000.0, 1000.0, 1000.0, 1000.0))]
        found = row(judge(pd.concat(frames)), "C1", model="all")
        assert (found["verdict"], found["scale"]) == (HOLDS, "share of models")
        assert both(judge(pd.concat(frames[:4])), "C1", model="all")[0] == NOT  # three of four are less than 0.8


class TestC2:
    def test_holds_as_stated_and_is_open_beyond(self):
        table = judge(isotropies(constant(0.1)))
        for gradient in ("none", "activation", "weight"):
            assert both(table, "C2", gradient=gradient) == [HOLDS, OPEN]
        assert row(table, "C2")["interval"] == "planes drawn"
        assert row(table, "C2")["ci_low"] == pytest.approx(0.1 - 1.96 * 0.01, abs=1e-4)

    def test_inside_the_band(self):
        assert both(judge(isotropies(constant(0.015))), "C2") == [NOT, NOT]
        assert both(judge(isotropies(constant(-0.1))), "C2") == [NOT, NOT]

    def test_another_plane_that_raises_it_as_much(self):
        planted = lambda step, layer, control: 0.0 if control == "covariance_drawn" else 0.1  # noqa: E731
        table = judge(isotropies(planted, controls=("normal", "covariance_drawn")))
        assert both(table, "C2") == [HOLDS, NOT]

    def test_over_runs_every_plane_has_an_interval(self):
        runs = [
            isotropies(lambda s, la, c, i=i: 0.1 + 0.01 * i, controls=("normal", *PLANES), seed=i) for i in range(3)
        ]
        table = judge(pd.concat(runs), runs="seed")
        assert both(table, "C2") == [HOLDS, HOLDS]
        found = row(table, "C2")
        assert (found["interval"], found["n"]) == ("runs", 3)
        assert found["ci_low"] == pytest.approx(0.11 - 4.302653 * 0.01 / math.sqrt(3), abs=1e-6)

    def test_a_lone_checkpoint_can_be_judged(self):
        assert both(judge(isotropies(steps=(100,), step=NAN, phase=NAN)), "C2")[0] == HOLDS


class TestC3:
    def test_weakens_and_stays(self):
        table = judge(energies(falling(30.0, 10.0), falling(3.0, 1.5)))
        assert both(table, "C3") == [HOLDS, HOLDS]
        found = row(table, "C3")
        assert found["effect"] == pytest.approx(3.0)
        # The frame alone does not know how early and late depend on each other: widths add.
        assert found[["ci_low", "ci_high"]].tolist() == pytest.approx([3 / 1.21, 3 * 1.21])

    def test_r_falls_and_the_excess_does_not(self):
        assert both(judge(energies(falling(30.0, 10.0), constant(2.0))), "C3") == [HOLDS, NOT]

    def test_what_falls_to_nothing_does_not_stay(self):
        table = judge(energies(falling(30.0, 1.0), falling(3.0, 1.0)))
        assert both(table, "C3") == [NOT, NOT]
        assert "late R" in row(table, "C3")["reason"]

    def test_rising(self):
        assert both(judge(energies(falling(10.0, 30.0), falling(1.5, 3.0))), "C3") == [NOT, NOT]

    def test_one_checkpoint(self):
        for steps in ((10,), (10, 30), (100,)):
            table = judge(energies(steps=steps))
            assert both(table, "C3") == [OPEN, OPEN]
            assert "0 checkpoints are of" in row(table, "C3")["reason"]

    def test_proxies_must_be_frozen(self):
        table = judge(energies(falling(30.0, 10.0), proxy_id=lambda step: "a" if step <= 30 else "b"))
        assert both(table, "C3") == [OPEN, OPEN]
        assert "frozen" in row(table, "C3")["reason"]
        assert both(judge(energies(falling(30.0, 10.0), proxy_id=NAN)), "C3") == [OPEN, OPEN]

    def test_lengths_must_agree(self):
        assert (
            both(judge(energies(falling(30.0, 10.0), seq_len=lambda step: 64 if step <= 30 else 128)), "C3")[0] == OPEN
        )

    def test_a_small_fall_needs_the_paired_difference(self):
        frame = energies(falling(22.0, 20.0), falling(2.2, 2.0))
        assert both(judge(frame), "C3") == [NOT, NOT]
        paired = _difference(0.095, 0.02)
        table = judge(frame, differences=[Paired("C3", "decoder", paired)])
        assert both(table, "C3") == [HOLDS, HOLDS]
        assert row(table, "C3")["interval"] == "documents, paired"
        assert row(table, "C3")["effect"] == pytest.approx(math.exp(0.095))
        other = judge(
            frame, differences=[Paired("C3", "decoder", paired), Paired("C3", "decoder", _difference(0, 0.02))]
        )
        assert row(other, "C3")["effect"] == pytest.approx(math.exp(0.0475))

    def test_isotropy_needs_several_runs(self):
        assert both(judge(isotropies(falling(0.2, 0.1))), "C3", quantity="isotropy") == [OPEN, OPEN]
        runs = pd.concat([isotropies(falling(0.2 + 0.01 * i, 0.1 - 0.01 * i), seed=i) for i in range(3)])
        table = judge(runs, runs="seed")
        assert both(table, "C3", quantity="isotropy") == [HOLDS, OPEN]
        assert row(table, "C3", quantity="isotropy")["effect"] == pytest.approx(0.12)

    def test_isotropy_at_other_numbers_of_rows(self):
        frames = [
            isotropies(falling(0.2 + i / 100, 0.1), seed=i, n_rows=lambda step: 1000 if step <= 30 else 2000)
            for i in range(3)
        ]
        table = judge(pd.concat(frames), runs="seed")
        assert both(table, "C3", quantity="isotropy")[0] == OPEN
        assert "numbers of rows" in row(table, "C3", quantity="isotropy")["reason"]


class TestC4:
    def test_monotone_depth(self):
        table = judge(energies(lambda s, la, c: 30.0 - 2 * la, lambda s, la, c: 3.0 - 0.2 * la))
        assert both(table, "C4") == [HOLDS, HOLDS]
        assert row(table, "C4")["effect"] == -1.0

    def test_deeper_is_stronger(self):
        assert both(judge(energies(lambda s, la, c: 20.0 + 2 * la)), "C4") == [NOT, NOT]

    def test_flat_excess(self):
        assert both(judge(energies(lambda s, la, c: 30.0 - 2 * la)), "C4") == [HOLDS, NOT]

    def test_what_does_not_exist_has_no_course(self):
        planted = energies(lambda s, la, c: 30.0 - 2 * la, lambda s, la, c: 0.9 - 0.05 * la)
        assert both(judge(planted), "C4") == [HOLDS, NOT]
        assert "must exist" in row(judge(planted), "C4", "beyond_controls")["reason"]

    @pytest.mark.parametrize(("layers", "verdict"), [(2, OPEN), (4, OPEN), (5, HOLDS)])
    def test_layers_needed_in_one_run(self, layers, verdict):
        assert row(judge(energies(lambda s, la, c: 30.0 - 2 * la, layers=layers)), "C4")["verdict"] == verdict

    def test_three_layers_do_over_runs(self):
        runs = [energies(lambda s, la, c, i=i: 30.0 + i - 2 * la, layers=3, seed=i) for i in range(2)]
        assert row(judge(pd.concat(runs), runs="seed"), "C4")["verdict"] == HOLDS
        runs = [energies(lambda s, la, c, i=i: 30.0 + i - (2 - 4 * i) * la, layers=3, seed=i) for i in range(2)]
        assert row(judge(pd.concat(runs), runs="seed"), "C4")["verdict"] == NOT


def _difference(value, reach, controls=CLOSED):
    frame = energies(steps=(10,))
    frame = frame[frame["measure"].isin(("r_energy", "excess"))]
    return frame.assign(value=value, ci_low=value - reach, ci_high=value + reach)


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
        differences = [Paired("C5", name, _difference(-0.1, 0.03), a) for a in ("tokens", "progress")]
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
