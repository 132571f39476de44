"""The reading says what the numbers say, and that a claim fails where it fails."""

import math

import pandas as pd
import pytest

from tests.frames import energy_frame, isotropy_frame, ratio_like_training
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz import read_frame
from tl_aniso.viz.reading import key_steps
from tl_aniso.viz.tables import energy_values

NAN = math.nan


def _by(factor):
    """R of the true gradient `factor` times that of every control."""
    return lambda step, layer, control: ratio_like_training(step, layer, "none") / (1 if control == "none" else factor)


def _finding(reading, start):
    return next(finding for finding in reading.findings if start in finding.claim)


def test_controls_that_give_as_much_are_said_to_explain_it():
    reading = read_frame(energy_frame())
    finding = _finding(reading, "At the peak (step 100)")
    assert finding.verdict == "does not hold"
    assert "input energy gives 58.6" in finding.text
    assert "below 1 at 12 of 12 sites" in finding.text
    assert "Shuffled g comes closest" in finding.text
    assert "3 of 4 controls give about as much or more" in reading.summary
    assert "46.9 at its peak, step 100" in reading.summary


@pytest.mark.parametrize("intervals", [True, False])
def test_an_excess_over_every_control_holds(intervals):
    reading = read_frame(energy_frame(ratio=_by(2.0), intervals=intervals))
    finding = _finding(reading, "At the end")
    assert finding.verdict == "holds"
    assert "a factor of 2.00 or more" in finding.text
    assert any("No interval" in caution for caution in reading.cautions) is not intervals


def test_one_control_is_enough_to_explain_r():
    def ratio(step, layer, control):
        return _by(2.0)(step, layer, "none" if control in ("none", "sign_flip") else control)

    finding = _finding(read_frame(energy_frame(ratio=ratio)), "At the peak")
    assert finding.verdict == "does not hold"
    assert "Sign flip comes closest" in finding.text


def test_without_intervals_within_ten_percent_is_near():
    assert (
        _finding(read_frame(energy_frame(ratio=_by(1.08), intervals=False)), "At the peak").verdict == "does not hold"
    )
    assert _finding(read_frame(energy_frame(ratio=_by(1.12), intervals=False)), "At the peak").verdict == "holds"


def test_a_missing_control_keeps_the_claim_from_holding():
    frame = energy_frame(ratio=_by(2.0))
    frame.loc[frame["control"] == "shuffled_labels", ["value", "control_value"]] = NAN
    reading = read_frame(frame)
    finding = _finding(reading, "At the peak")
    assert finding.verdict == "mixed"
    assert "Missing: shuffled labels" in finding.text
    assert any("values are missing" in caution for caution in reading.cautions)


def test_no_preference_at_all():
    reading = read_frame(energy_frame((NAN,), ratio=lambda step, layer, control: 0.7))
    assert _finding(reading, "concentrates").verdict == "does not hold"
    assert "step" not in reading.findings[0].text


def test_a_late_peak_is_not_early():
    frame = energy_frame((0.0, 100.0, 200.0), ratio=lambda step, layer, control: 2 + step / 100)
    assert _finding(read_frame(frame), "strongest early").verdict == "does not hold"
    assert key_steps(energy_values(frame)) == {"first": 0.0, "last": 200.0}
    assert _finding(read_frame(energy_frame()), "strongest early").verdict == "holds"


def test_the_phases_of_a_frame_say_what_early_is():
    """A study may count its early phase in tokens or checkpoints: then 30% of the steps is not the limit."""
    frame = energy_frame((0.0, 100.0, 200.0, 1000.0), ratio=lambda step, layer, control: 9 - abs(step - 200) / 100)
    assert "first 30% of steps" in _finding(read_frame(frame), "strongest early").claim
    assert _finding(read_frame(frame), "strongest early").verdict == "holds"
    frame["phase"] = frame["step"].map(lambda step: "early" if step <= 100 else "late")
    finding = _finding(read_frame(frame), "strongest early")
    assert "early phase, up to step 100" in finding.claim
    assert finding.verdict == "does not hold"


def test_a_peak_at_the_start_is_weighed_too():
    frame = energy_frame((0.0, 100.0, 200.0), ratio=lambda step, layer, control: 9 - step / 100)
    assert key_steps(energy_values(frame)) == {"first": 0.0, "last": 200.0}
    assert _finding(read_frame(frame), "At the peak (step 0)")


def test_first_peak_and_last_step():
    assert key_steps(energy_values(energy_frame())) == {"first": 0.0, "peak": 100.0, "last": 500.0}
    assert list(key_steps(energy_values(energy_frame((NAN,))))) == ["only"]


@pytest.mark.parametrize(
    ("delta", "verdict"), [(0.08, "holds"), (0.035, "mixed"), (0.03, "mixed"), (-0.05, "does not hold")]
)
def test_removal_is_weighed_against_the_band(delta, verdict):
    # With .035 two layers of three lie above the band of two deviations (.02), with .03 one does.
    reading = read_frame(isotropy_frame(delta=delta))
    assert {finding.verdict for finding in reading.findings} == {verdict}
    assert ("none of the groups" in reading.summary) is (verdict != "holds")
    assert ("in part for activations, activation gradients and readers" in reading.summary) is (verdict == "mixed")


def test_removal_that_fails_at_first_is_mixed_and_says_when():
    late, early = isotropy_frame((50.0, 100.0, 250.0, 500.0), delta=0.08), isotropy_frame((0.0,), delta=-0.05)
    for finding in read_frame(pd.concat([early, late], ignore_index=True)).findings:
        assert finding.verdict == "mixed"
        assert "above at all sites at steps 50 to 500; at none at step 0." in finding.text


def test_removal_at_one_site_says_where_it_lies():
    frame = isotropy_frame((NAN,), n_layers=1)
    finding = _finding(read_frame(frame[frame["gradient"] == "weight"]), "Readers")
    assert finding.text.endswith("Without the tangent it lies above the band of normal planes.")


def _activation_gradients(ratio, **options):
    frame = energy_frame((NAN,), ratio=ratio, **options)
    return frame[frame["gradient"] == "activation"]


def test_one_frame_of_activation_gradients_is_named_and_told_in_plain_words():
    frame = _activation_gradients(lambda step, layer, control: 1.02)
    reading = read_frame(frame[frame["control"].isin(["none", "normal"])])
    text = str(reading)
    assert "radients of activation gradients" not in text
    assert "energy of activation gradients" not in text
    assert "The activation gradients prefer" in text
    finding = _finding(reading, "Energy of activation gradients concentrates")
    assert finding.verdict == "does not hold"
    assert finding.text.endswith("Its interval is around 1 at 3 of 3 sites.")
    assert "high R" not in text
    high = read_frame(_activation_gradients(lambda step, layer, control: 3.0).query("control in ('none', 'normal')"))
    assert "So what a high R means here is open." in high.summary


def test_a_low_r_is_not_called_high():
    reading = read_frame(_activation_gradients(lambda step, layer, control: 0.9))
    assert "to be this high" not in str(reading)
    assert "R shows no preference" in reading.summary


def test_the_interval_of_a_single_site_is_told():
    reading = read_frame(_activation_gradients(lambda step, layer, control: 3.0, n_layers=1))
    assert "Its interval is 2.86 to 3.15, above 1." in reading.findings[0].text
    assert "1 of 1" not in str(reading)


@pytest.mark.parametrize(("n_above", "verdict"), [(10, "holds"), (9, "holds"), (8, "mixed"), (0, "does not hold")])
def test_intervals_at_nine_tenths_of_the_sites_make_a_claim_hold(n_above, verdict):
    reading = read_frame(
        _activation_gradients(lambda step, layer, control: 3.0 if layer < n_above else 1.001, n_layers=10)
    )
    assert reading.findings[0].verdict == verdict


def test_an_excess_at_most_sites_only_is_mixed():
    def ratio(step, layer, control):
        return 4.0 if control == "none" or layer == 0 else 2.0

    assert _finding(read_frame(energy_frame((NAN,), ratio=ratio)), "prefer").verdict == "mixed"


def test_no_numbers_no_reading():
    frame = energy_frame((NAN,)).query("measure == 'nothing'")
    with pytest.raises(UndefinedMeasureError, match="nothing to read"):
        read_frame(frame)


def test_in_sample_is_said_and_text_has_all_parts():
    frame = pd.concat([energy_frame(), isotropy_frame()], ignore_index=True)
    assert not any("in-sample" in caution for caution in read_frame(frame).cautions)
    frame["held_out"] = False
    text = str(read_frame(frame))
    assert "in-sample" in text
    assert "What the numbers do not mean" in text
    assert "DOES NOT HOLD" in text
