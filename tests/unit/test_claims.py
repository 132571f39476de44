"""Verdicts on frames with planted effects, where each verdict is known: claims C1 to C4 of one model or several."""

import math

import pandas as pd
import pytest

from tests.claim_frames import (
    CLOSED,
    HOLDS,
    NAN,
    NOT,
    OPEN,
    PLANES,
    both,
    constant,
    difference,
    energies,
    falling,
    isotropies,
    row,
)
from tl_aniso.claims import Paired, judge


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
        assert "as large as claimed is 0.4 (2 of 5 models)" in row(table, "C1", model="all")["reason"]

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
            assert "0 checkpoints after step 0 are of" in row(table, "C3")["reason"]

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
        paired = difference(0.095, 0.02)
        table = judge(frame, differences=[Paired("C3", "decoder", paired)])
        assert both(table, "C3") == [HOLDS, HOLDS]
        assert row(table, "C3")["interval"] == "documents, paired"
        assert row(table, "C3")["effect"] == pytest.approx(math.exp(0.095))
        other = judge(
            frame, differences=[Paired("C3", "decoder", paired), Paired("C3", "decoder", difference(0, 0.02))]
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
        runs = [energies(lambda s, la, c, i=i: 30.0 + i - 2 * la, layers=3, seed=i) for i in range(3)]
        assert row(judge(pd.concat(runs), runs="seed"), "C4")["verdict"] == HOLDS
        # Two such orders come by chance once in 36 times.
        assert row(judge(pd.concat(runs[:2]), runs="seed"), "C4")["verdict"] == NOT
        runs = [energies(lambda s, la, c, i=i: 30.0 + i - (2 - 4 * i) * la, layers=3, seed=i) for i in range(2)]
        assert row(judge(pd.concat(runs), runs="seed"), "C4")["verdict"] == NOT
