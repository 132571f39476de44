"""Figures draw the numbers of the frame, and leave out and count what is missing."""

import math

import numpy as np
import pandas as pd
import pytest

from tests.frames import CONTROLS, energy_frame, isotropy_frame
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz import (
    energy_by_layer,
    energy_by_step,
    energy_heat_map,
    isotropy_by_layer,
    isotropy_by_step,
    loss_by_step,
)
from tl_aniso.viz.tables import averaged, energy_values, isotropy_values

NAN = math.nan


def _readers(frame, measure, control, step):
    rows = frame[(frame["gradient"] == "weight") & (frame["measure"] == measure) & (frame["control"] == control)]
    return rows[rows["site"].str.contains("W_Q|W_K|W_V|W_in") & (rows["step"] == step)]


def _visible(figure, start):
    return [trace for trace in figure.data if trace.visible is not False and (trace.name or "").startswith(start)]


def test_by_step_draws_geometric_means_of_the_frame():
    frame = energy_frame()
    true, control = (_visible(energy_by_step(frame), name) for name in ("true gradient", "input energy"))
    for index, step in enumerate(true[0].x):
        own = _readers(frame, "r_energy", "normal", step)["value"]
        other = _readers(frame, "r_energy", "input_energy", step)["control_value"]
        assert true[0].y[index] == pytest.approx(np.exp(np.log(own).mean()))
        assert control[0].y[index] == pytest.approx(np.exp(np.log(other).mean()))
        share = _readers(frame, "energy_share", "none", step)
        assert true[1].y[index] == pytest.approx(share["value"].mean())
        excess = _readers(frame, "excess", "input_energy", step)["value"]
        assert control[2].y[index] == pytest.approx(np.exp(np.log(excess).mean()))


def test_mean_r_over_mean_r_of_a_control_is_mean_excess():
    means = averaged(energy_values(energy_frame()), "step", "panel").set_index(["step", "panel", "quantity", "control"])
    for control in CONTROLS:
        r, other, excess = (
            means.loc[(100.0, "readers", *key), "value"] for key in (("R", "none"), ("R", control), ("excess", control))
        )
        assert r / other == pytest.approx(excess)


def test_energy_axes_are_logarithmic_and_the_menu_shows_one_panel():
    figure = energy_by_step(energy_frame())
    assert [figure.layout[f"yaxis{i}"].type for i in ("", 2, 3)] == ["log", None, "log"]
    assert list(figure.layout.yaxis2.range) == [0, 1]
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == [
        "readers",
        "writers",
        "unembedding",
        "embedding",
        "activation gradients",
    ]
    shown = np.array([button.args[0]["visible"] for button in buttons])
    assert (shown.sum(axis=0) == 1).all()
    assert shown.shape[1] == len(figure.data)


def test_missing_values_are_gaps_with_a_count_and_never_zero():
    frame = energy_frame()
    sites = frame["site"].str.contains("W_Q|W_K|W_V|W_in")
    lost = sites & (frame["step"] == 100) & (frame["control"] == "shuffled_g")
    frame.loc[lost, ["value", "control_value"]] = NAN
    curve = _visible(energy_by_step(frame), "shuffled g")[0]
    assert curve.name == "shuffled g (12 of 60 missing)"
    assert curve.y[list(curve.x).index(100.0)] is None
    assert not curve.connectgaps
    assert 0 not in curve.y
    # Rows that are not there at all are missing just the same.
    assert _visible(energy_by_step(frame[~lost]), "shuffled g")[0].name == curve.name


def test_a_mean_over_some_sites_counts_the_others():
    frame = energy_frame((0.0, 10.0))
    frame.loc[frame["site"].eq("blocks.0.attn.W_Q") & (frame["measure"] == "r_energy"), "value"] = NAN
    curve = _visible(energy_by_step(frame), "true gradient")[0]
    assert [tuple(counts) for counts in curve.customdata] == [(11, 12), (11, 12)]
    assert curve.name.endswith("(2 of 24 missing)")


def test_a_control_that_a_panel_never_has_is_not_called_missing():
    figure = energy_by_step(energy_frame())
    assert not any("missing" in (trace.name or "") for trace in figure.data)


def test_by_layer_keeps_embeddings_and_shows_every_site_with_its_interval():
    frame = energy_frame((NAN,), n_layers=12)
    figure = energy_by_layer(frame)
    sites = _visible(figure, "single sites")[0]
    rows = frame[(frame["measure"] == "r_energy") & (frame["control"] == "normal")].set_index("site")
    assert len(sites.text) == 48
    for name, value, up in zip(sites.text, sites.y, sites.error_y.array, strict=True):
        assert value == pytest.approx(rows.loc[name, "value"])
        assert value + up == pytest.approx(rows.loc[name, "ci_high"])
    curve = _visible(figure, "true gradient")[0]
    assert list(curve.x) == [str(layer) for layer in range(12)]
    assert any("unembed" in trace.x for trace in figure.data)


def test_axes_of_r_hold_the_ends_of_intervals():
    frame = energy_frame((NAN,))
    is_r = (frame["measure"] == "r_energy") & (frame["control"] == "normal")
    frame.loc[is_r & (frame["site"] == "blocks.1.attn.W_Q"), ["ci_low", "ci_high"]] = (0.02, 5000.0)
    low, high = energy_by_layer(frame).layout.yaxis.range
    assert low < np.log10(0.02)
    assert high > np.log10(5000.0)


def test_heat_map_holds_the_numbers_and_turns_excess_at_one():
    frame = energy_frame()
    frame = frame[~((frame["layer"] == 1) & (frame["step"] == 250) & frame["site"].str.contains("W_"))]
    figure = energy_heat_map(frame)
    first = figure.data[0]
    layers, steps = list(first.y), list(first.x)
    assert (layers, steps) == (["0", "1", "2"], ["0", "50", "100", "250", "500"])
    assert first.z[1][3] is None
    assert "(1 of 15 missing)" in figure.layout.title.text
    own = _readers(frame, "r_energy", "normal", 100.0)
    expected = np.exp(np.log(own[own["layer"] == 2]["value"]).mean())
    assert first.customdata[2][2] == pytest.approx(expected)
    assert 10 ** first.z[2][2] == pytest.approx(expected)
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    excess = figure.data[next(i for i, label in enumerate(labels) if "excess, over input energy" in label)]
    assert excess.zmin == -excess.zmax


def test_isotropy_draws_the_three_scores_and_the_band():
    frame = isotropy_frame()
    figure = isotropy_by_step(frame)
    rows = frame[(frame["gradient"] == "none") & (frame["step"] == 50)]
    normal = rows[(rows["control"] == "normal") & (rows["measure"] == "isoscore_star")]
    by_name = {trace.name: trace for trace in figure.data[:5]}
    assert figure.layout.annotations[0].text == "activations"
    assert by_name["without tangent"].y[1] == pytest.approx(normal["value"].mean())
    assert by_name["without normal"].y[1] == pytest.approx(normal["control_value"].mean())
    assert by_name["before"].y[1] == pytest.approx(rows[rows["control"] == "none"]["value"].mean())
    low, high = (trace for trace in figure.data[:5] if "s.d." in trace.name)
    assert high.y[1] - low.y[1] == pytest.approx(4 * 0.01)
    assert len(isotropy_by_layer(isotropy_frame((NAN,))).data) == len(figure.data)


def test_no_band_where_it_is_not_known_everywhere():
    frame = isotropy_frame()
    frame.loc[frame["step"] == 50, "null_std"] = NAN
    frame.loc[(frame["step"] == 50) & (frame["layer"] == 0) & (frame["gradient"] == "none"), "control_value"] = NAN
    figure = isotropy_by_step(frame)
    assert not any("s.d." in trace.name for trace in figure.data)
    assert figure.layout.annotations[0].text == "activations (1 of 15 missing)"
    assert isotropy_values(frame)["low"].isna().any()


def test_loss_has_gaps():
    figure = loss_by_step([(0, 7.6), (1, NAN), (2, 5.0)])
    assert list(figure.data[0].y) == [7.6, None, 5.0]


def test_names_are_text_in_a_figure():
    frame = energy_frame((NAN,), n_layers=1)
    frame["site"] = frame["site"].str.replace("attn.W_Q", "<a href='javascript:x'>&%{y}</a>.W_Q")
    frame["control"] = frame["control"].replace("shuffled_g", "<b>%{x}</b>")
    figure = energy_by_layer(frame)
    text = figure.to_json()
    assert "<a " not in text
    assert "<b>" not in text
    assert "%{x}</b>" not in text
    assert "%&#123;x}" in text


@pytest.mark.parametrize(
    ("draw", "frame", "message"),
    [
        (energy_by_layer, energy_frame(), "energy_by_step"),
        (isotropy_by_layer, isotropy_frame(), "isotropy_by_step"),
        (energy_by_step, energy_frame((NAN,)), "energy_by_layer"),
        (energy_by_step, pd.concat([energy_frame((0.0,)), energy_frame((NAN,))]), "set the column step"),
        (energy_by_step, pd.concat([energy_frame((0.0,))] * 2), "come twice"),
        (energy_by_step, pd.concat([energy_frame((0.0,)), energy_frame((1.0,), model="other")]), "mixes 2 models"),
        (energy_by_step, energy_frame().drop(columns="site"), "lacks the columns site"),
    ],
)
def test_frames_that_cannot_be_drawn_are_refused(draw, frame, message):
    with pytest.raises(TlAnisoError, match=message):
        draw(frame)


def test_an_empty_question_is_refused():
    with pytest.raises(UndefinedMeasureError):
        energy_by_step(isotropy_frame())
    with pytest.raises(UndefinedMeasureError):
        isotropy_by_step(energy_frame())


def test_the_highest_rank_of_every_site_is_drawn():
    low, high = energy_frame((0.0,)), energy_frame((0.0,))
    low["rank"], low["value"] = 8, 1e6
    both = pd.concat([low, high], ignore_index=True)
    assert _visible(energy_by_step(both), "true gradient")[0].y[0] < 100
