"""Claims, token types and local geometry: figures read back and compared with their tables."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from tests.claim_frames import energies, falling, isotropies
from tl_aniso.claims import judge
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz import claims_forest, curvature_by_layer, frequency_scatter, local_energy_by_layer
from tl_aniso.viz.plots.token_text import token_text

NAN = math.nan
HOSTILE = ("</script><script>alert(1)</script>", "\"'&", "a\x00b", "\u202eevil", "🙂", "x" * 10_000, "\ud800", "%{x}")


@pytest.fixture(scope="module")
def table():
    frames = [
        energies(falling(40.0, 20.0), steps=(0, 30, 60, 100), layers=2, model="a"),
        energies(falling(2.0, 0.5), steps=(0, 30, 60, 100), layers=2, model="<b>b</b>", objective="masked"),
        isotropies(steps=(0, 30, 60, 100), layers=2, model="a"),
    ]
    return judge(pd.concat(frames, ignore_index=True))


def test_forest_has_every_verdict_once_with_its_effect_interval_and_threshold(table):
    figure = claims_forest(table)
    frame, drawn = table.frame, []
    for trace in figure.data:
        if trace.name.split(", ")[-1] in ("as stated", "beyond controls"):
            axis = figure.layout["y" + "axis" + trace.yaxis.removeprefix("y")]
            labels = dict(zip(axis.tickvals, axis.ticktext, strict=True))
            for x, y, up, down in zip(trace.x, trace.y, trace.error_x.array, trace.error_x.arrayminus, strict=True):
                drawn.append((labels[round(y)], trace.name, trace.marker.symbol, x, x - down, x + up))
    assert len(drawn) == len(frame)
    about = {"weight": "weights", "activation": "activation gradients", "none": "activations"}
    kinds = {"as_stated": ("as stated", ""), "beyond_controls": ("beyond controls", "-open")}
    shapes = {"holds": "circle", "does not hold": "x", "not testable": "diamond"}
    checked = 0
    for row in frame.to_dict("records"):
        what = about[row["gradient"]]
        if row["quantity"] == "isotropy":
            what = f"IsoScore* of {what.replace('weights', 'weight gradients')}"
        model = row["model"].replace("<", "&lt;").replace(">", "&gt;")
        kind, opening = kinds[row["kind"]]
        label = f"{row['claim']} · {model} · {what}"
        found = [d for d in drawn if d[0] == label and d[1] == f"{row['verdict']}, {kind}"]
        assert found, (label, row["verdict"], kind)
        assert all(mark[2] == shapes[row["verdict"]] + opening for mark in found)
        if np.isfinite(row["effect"]) and np.isfinite(row["ci_low"]) and row["effect"] > 0:
            ends = [row["effect"], row["ci_low"], row["ci_high"]]
            assert any(mark[3:] == pytest.approx(ends) for mark in found), (label, ends, found)
            checked += 1
    assert checked > 20
    thresholds = [x for trace in figure.data if trace.name == "threshold" for x in trace.x if x is not None]
    assert set(np.round(thresholds, 9)) <= set(frame["threshold"].dropna().round(9))


def test_forest_counts_verdicts_in_its_title_and_shows_controls(table):
    figure = claims_forest(table)
    counts = table.frame.groupby(["kind", "verdict"]).size()
    open_ = counts.get(("beyond_controls", "not testable"), 0)
    assert open_ > 0
    assert f"beyond controls: {counts['beyond_controls', 'holds']} hold" in figure.layout.title.text
    assert f"{open_} not testable" in figure.layout.title.text
    drawn = {round(x, 9) for trace in figure.data if trace.name == "every control's test" for x in trace.x}
    shuffled = table.controls[table.controls["control"] == "shuffled_labels"]["effect"].astype(float).dropna()
    assert len(shuffled) > 5
    assert set(shuffled.round(9)) <= drawn
    axes = [figure.layout[name] for name in figure.layout if name.startswith("xaxis")]
    types = {axis.title.text: axis.type for axis in axes}
    assert types["ratio (log)"] == "log"
    assert types["difference of IsoScore*"] is None
    assert "<b>b" not in figure.to_json()


def test_forest_refuses_what_is_no_table(table):
    with pytest.raises(TlAnisoError, match="must be a ClaimsTable"):
        claims_forest(table.frame)


def types_frame():
    rng = np.random.default_rng(0)
    counts = np.array([500, 300, 200, 100, 50, 20, 10, 0])
    with np.errstate(divide="ignore"):
        logs = np.log(counts / counts.sum())
    tokens = pd.Series(HOSTILE, dtype=object)  # lone surrogates do not fit into strings of Arrow
    frame = pd.DataFrame({"token": tokens, "count": counts, "log_frequency": logs}).assign(
        site="embed.W_E", table="W_E"
    )
    return frame.assign(distance_raw=1 - logs / 10 + rng.normal(0, 0.1, 8), distance_drift_removed=rng.random(8))


def test_frequency_scatter_has_every_known_type_and_prints_the_correlations():
    frame = types_frame()
    frame.loc[2, "distance_drift_removed"] = NAN
    figure = frequency_scatter(frame)
    raw, removed = figure.data
    assert list(raw.x) == frame["log_frequency"][:7].tolist()
    assert list(raw.y) == frame["distance_raw"][:7].tolist()
    keep = [0, 1, 3, 4, 5, 6]
    assert list(removed.y) == frame["distance_drift_removed"][keep].tolist()
    x, y = frame["log_frequency"][:7], frame["distance_raw"][:7]
    first, second = (note.text for note in figure.layout.annotations)
    assert f"r {np.corrcoef(x, y)[0, 1]:.2f}, rho {spearmanr(x, y)[0]:.2f}" in first
    assert "raw: " in first
    assert f"shuffled 0 ± {1 / math.sqrt(6):.2g}" in first
    assert "(1 of 8 missing)" in first
    assert "(2 of 8 missing)" in second


def test_hostile_tokens_are_text_in_a_scatter():
    figure = frequency_scatter(types_frame())
    shown = [entry[0] for entry in figure.data[0].customdata]
    assert shown[0] == "“&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;”"
    assert shown[2] == "“a[U+0000]b”"
    assert shown[3] == "“[U+202E]evil”"
    assert shown[5].endswith("…” (10,000 characters)")
    assert len(shown[5]) < 100
    assert shown[6] == "“[U+D800]”"
    figure.to_json().encode("utf-8")
    assert token_text("🙂") == "“🙂”"


def test_frequency_scatter_chooses_between_tables_and_refuses_others():
    frame = types_frame()
    other = frame.assign(table="W_U", site="unembed.W_U", distance_raw=2.0)
    figure = frequency_scatter(pd.concat([frame, other]))
    steps = frequency_scatter(pd.concat([frame.assign(step=0.0), frame.assign(step=10.0)]))
    assert [b.label for b in steps.layout.updatemenus[0].buttons] == [
        "W_E · embed.W_E · step 0",
        "W_E · embed.W_E · step 10",
    ]
    button = figure.layout.updatemenus[0].buttons[1]
    assert list(button.args[0]["visible"]) == [False, False, True, True]
    assert "no correlation, 7 types" in button.args[1]["annotations[0].text"]
    with pytest.raises(TlAnisoError, match="lacks the columns token"):
        frequency_scatter(frame.drop(columns="token"))
    with pytest.raises(UndefinedMeasureError):
        frequency_scatter(frame.iloc[:0])


def geometry_rows():
    common = {"model": "m", "step": 10.0, "scope": "within", "control_low": NAN, "control_high": NAN, "variant": ""}
    rows = []
    for layer in range(3):
        at = {
            **common,
            "layer": float(layer),
            "site": f"blocks.{layer}.hook_resid_pre",
            "gradient": "none",
            "radius": NAN,
        }
        for group, value in (("all", 1.5 + layer / 10), ("rare", 1.2)):
            slope = {**at, "group": group, "measure": "curvature_slope", "ci_low": value - 0.1, "ci_high": value + 0.2}
            rows.append({**slope, "control": "none", "value": value, "control_value": NAN})
            surrogate = 1.0 + layer / 100
            rows.append({**slope, "control": "gaussian_surrogate", "value": value, "control_value": surrogate})
            rows.append({**slope, "control": "size_matched", "value": 1.9, "control_value": value})
        rows.append(
            {**at, "group": "all", "measure": "visible_share", "value": 0.2, "ci_low": 0.1, "ci_high": 0.3}
            | {"control": "gaussian_surrogate", "control_value": 0.1, "control_low": 0.05, "control_high": 0.15}
        )
        mine = {**at, "gradient": "activation", "group": "all"}
        rows.append(
            {**mine, "measure": "local_r", "control": "normal", "value": 3.0 + layer, "ci_low": 2.0, "ci_high": 5.0}
        )
        for control, excess in (("other_type", 1.5), ("gaussian_surrogate", 0.5)):
            rows.append({**mine, "measure": "local_excess", "control": control, "value": excess + layer, "ci_low": 0.4})
            rows.append(
                {**mine, "measure": "local_energy_share", "control": control, "value": 0.4, "control_value": 0.3}
            )
    return pd.DataFrame(rows)


def _first(figure, name):
    return [trace for trace in figure.data if trace.name == name and trace.visible is not False]


def test_curvature_draws_the_data_beside_every_control():
    frame = geometry_rows()
    figure = curvature_by_layer(frame)
    slope, share = _first(figure, "data")
    assert list(slope.x) == ["0", "1", "2"]
    assert list(slope.y) == pytest.approx([1.5, 1.6, 1.7])
    assert list(share.y) == pytest.approx([0.2] * 3)
    surrogate = _first(figure, "gaussian surrogate")
    assert list(surrogate[0].y) == pytest.approx([1.0, 1.01, 1.02])
    assert list(_first(figure, "unequal sizes")[0].y) == pytest.approx([1.9] * 3)
    band = _first(figure, "band of data")[0]
    assert list(band.y[:3]) == pytest.approx([1.4, 1.5, 1.6])
    assert [note.text for note in figure.layout.annotations] == ["curved: 2", "flat: 1"]
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == ["m · all tokens", "m · rare"]


def test_geometry_leaves_gaps_and_counts_them():
    frame = geometry_rows()
    lost = (frame["measure"] == "curvature_slope") & (frame["layer"] == 1) & (frame["group"] == "all")
    frame.loc[lost, ["value", "ci_low", "ci_high"]] = NAN
    curve = _first(curvature_by_layer(frame), "data (1 of 6 missing)")[0]
    assert list(curve.y) == [1.5, None, 1.7]
    assert None in _first(curvature_by_layer(frame), "band of data")[0].y


def test_local_energy_draws_share_ratio_and_excess_by_control():
    figure = local_energy_by_layer(geometry_rows())
    share, ratio = _first(figure, "data")
    assert (list(share.y), list(ratio.y)) == ([0.4] * 3, [3.0, 4.0, 5.0])
    share_of, excess = _first(figure, "other type")
    assert list(share_of.y) == [0.3] * 3
    assert list(excess.y) == [1.5, 2.5, 3.5]
    assert [figure.layout[f"yaxis{i}"].type for i in ("", 2, 3)] == [None, "log", "log"]


def test_geometry_of_two_measurements_of_one_place_is_refused():
    frame = geometry_rows()
    with pytest.raises(TlAnisoError, match="several values for one place"):
        curvature_by_layer(pd.concat([frame, frame.assign(value=frame["value"] + 1)]))
    with pytest.raises(TlAnisoError, match="comes twice"):
        curvature_by_layer(pd.concat([frame, frame.assign(control_value=frame["control_value"] + 1)]))
    with pytest.raises(UndefinedMeasureError, match="holds no local_energy_share"):
        local_energy_by_layer(frame[frame["measure"] == "curvature_slope"])
