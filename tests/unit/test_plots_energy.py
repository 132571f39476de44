"""Heat maps and trajectories draw the numbers of the frame, controls beside them."""

import math

import numpy as np
import pandas as pd
import pytest

from tests.frames import energy_frame, isotropy_frame
from tl_aniso.energy import odds
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz import energy_trajectories, isotropy_heat_map
from tl_aniso.viz.plots.curves import area
from tl_aniso.viz.plots.grids import Grid, draw_grids

NAN = math.nan
STEPS = (0.0, 50.0, 100.0)


def _with_null(frame, std=0.01):
    share = (frame["measure"] == "energy_share") & (frame["control"] == "none")
    frame.loc[share, "null_std"] = std
    frame.loc[share, "ci_low"] = frame.loc[share, "value"] - 0.02
    frame.loc[share, "ci_high"] = frame.loc[share, "value"] + 0.03
    return frame


def _shown(figure, name):
    return [trace for trace in figure.data if trace.visible is not False and trace.name == name]


def test_isotropy_heat_map_is_tangent_less_normal_and_turns_at_zero():
    frame = isotropy_frame(STEPS)
    lost = (frame["layer"] == 1) & (frame["step"] == 50) & (frame["gradient"] == "none")
    figure = isotropy_heat_map(frame[~lost])
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels[0] == "activations · delta IsoScore* (1 of 9 missing)"
    first, crosses = figure.data[0], figure.data[len(labels)]
    assert (list(first.x), list(first.y)) == (["0", "50", "100"], ["0", "1", "2"])
    rows = frame[(frame["gradient"] == "none") & (frame["measure"] == "isoscore_star") & (frame["control"] == "normal")]
    for row in rows[~((rows["layer"] == 1) & (rows["step"] == 50))].to_dict("records"):
        cell = first.z[int(row["layer"])][list(STEPS).index(row["step"])]
        assert cell == pytest.approx(row["value"] - row["control_value"])
    assert first.z[1][1] is None
    assert (list(crosses.x), list(crosses.y)) == (["50"], ["1"])
    assert first.zmin == -first.zmax
    # The control beside it: the same in deviations over the drawn planes.
    assert figure.data[1].z[2][0] == pytest.approx(first.z[2][0] / 0.01)


def test_isotropy_without_a_layer_is_refused():
    frame = isotropy_frame(STEPS)
    with pytest.raises(UndefinedMeasureError, match="of any layer"):
        isotropy_heat_map(frame.assign(layer=NAN))


def test_trajectories_draw_means_with_intervals_the_exact_null_and_the_spread_of_controls():
    frame = _with_null(energy_frame(STEPS))
    figure = energy_trajectories(frame)
    share, ratio = _shown(figure, "true gradient")[:2]
    rows = frame[frame["site"].str.contains("W_Q|W_K|W_V|W_in") & (frame["gradient"] == "weight")]
    for index, step in enumerate(share.x):
        at = rows[rows["step"] == step]
        own = at[(at["measure"] == "energy_share") & (at["control"] == "none")]
        assert share.y[index] == pytest.approx(own["value"].mean())
        assert share.customdata[index][:2] == pytest.approx([own["ci_low"].mean(), own["ci_high"].mean()])
        r = at[(at["measure"] == "r_energy") & (at["control"] == "normal")]
        assert ratio.y[index] == pytest.approx(np.exp(np.log(r["value"]).mean()))
        null = _shown(figure, "normal plane")[0]
        assert null.y[index] == pytest.approx(own["null_mean"].mean())
        assert null.customdata[index][1] - null.y[index] == pytest.approx(1.96 * 0.01)
        other = at[(at["measure"] == "energy_share") & (at["control"] == "sign_flip")].groupby("layer")["control_value"]
        flip = _shown(figure, "sign flip")[0]
        assert flip.customdata[index][:2] == pytest.approx([other.mean().min(), other.mean().max()])
        assert odds(flip.y[index]) < odds(share.y[index])
    # Bands lie under the curves and have the ends that the curves name.
    band = _shown(figure, "band of normal")[0]
    assert max(band.y) == pytest.approx(max(point[1] for point in null.customdata))
    names = [trace.name for trace in figure.data]
    assert names.index("band of none") < names.index("true gradient")


def test_trajectories_of_several_models_stand_apart_and_count_what_is_missing():
    one, other = _with_null(energy_frame(STEPS)), _with_null(energy_frame((0.0, 7.0), model="<b>other</b>"))
    lost = (one["control"] == "sign_flip") & (one["step"] == 50) & one["site"].str.contains("W_Q|W_K|W_V|W_in")
    one.loc[lost, ["value", "control_value", "ci_low", "ci_high"]] = NAN
    figure = energy_trajectories(pd.concat([one, other]))
    buttons = figure.layout.updatemenus[0].buttons
    assert buttons[0].label == "demo decoder · readers"
    assert "&lt;b&gt;other&lt;/b&gt; · readers" in [b.label for b in buttons]
    curve = _shown(figure, "sign flip (36 of 108 missing)")[0]
    assert curve.y[1] is None
    band = _shown(figure, "band of sign_flip")[0]
    assert None in band.y  # a gap, not a bridge
    shown = np.array([button.args[0]["visible"] for button in buttons])
    assert (shown.sum(axis=0) == 1).all()


def test_a_frame_without_steps_is_refused():
    with pytest.raises(TlAnisoError, match="no step"):
        energy_trajectories(energy_frame((NAN,)))
    with pytest.raises(TlAnisoError, match="lacks the column model"):
        energy_trajectories(energy_frame(STEPS).drop(columns="model"))


def test_lengths_that_do_not_match_are_errors():
    with pytest.raises(TlAnisoError, match="equal lengths, got 2 positions, 1 lower"):
        area([0, 1], [0.0], [1.0, 2.0], "#1591f6")
    with pytest.raises(TlAnisoError, match="2 rows and 1 columns"):
        draw_grids([Grid("g", ["a"], ["b", "c"], [[1.0]], "share", "")], x_title="", y_title="", hover="")
