"""`a - b`: differences of two measurements of one text, by hand from the captures' energies."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from tests.models import random_documents, tiny_model
from tl_aniso import TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.difference import Difference
from tl_aniso.multiple_testing import holm
from tl_aniso.questions.frame import COLUMNS

DOCUMENTS = tuple(20 + i % 17 for i in range(64))
SITES = ("blocks.0.attn.W_Q", "blocks.0.attn.W_V", "blocks.1.attn.W_O", "blocks.1.mlp.W_in", "unembed.W_U")
CONTROLS = ("sign_flip", "input_energy")


@pytest.fixture(scope="module")
def documents():
    return random_documents(DOCUMENTS)


@pytest.fixture(scope="module")
def early_model():
    return tiny_model("neox-sequential")


@pytest.fixture(scope="module")
def late_model():
    model = tiny_model("neox-sequential")
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def captures(early_model, late_model, documents):
    proxies = fit_tangent_proxies(capture(early_model, documents, progress=False, sites=SITES), 6)
    options = {"proxies": proxies, "controls": CONTROLS, "pooled": "none", "progress": False, "sites": SITES}
    return proxies, [
        capture(model, documents, **options).labelled(step=step) for model, step in ((early_model, 1), (late_model, 9))
    ]


@pytest.fixture(scope="module")
def results(captures):
    proxies, held = captures
    return [tangent_energy(part, proxies=proxies, rank=[3, 6], controls=CONTROLS) for part in held]


@pytest.fixture(scope="module")
def difference(results):
    return results[0] - results[1]


def by_hand(captures, rank, quantity):
    """The value and its jackknife, from the energies of half B, by loops over shards."""

    def log_odds(pair, keep):
        selected, rest = (float(values[keep].sum()) for values in (pair[0], pair[1] - pair[0]))
        return math.log(selected / rest)

    pairs = {}
    for name, held in zip("ab", captures, strict=True):
        for control in ("none", "sign_flip"):
            table = held.half("B").energies("weight_gradient", "blocks.0.attn.W_Q", control=control).sum(0).numpy()
            pairs[name, control] = (table[:, :rank].sum(1), table[:, -1])

    def value(keep):
        if quantity == "E":
            a, b = (pairs[name, "none"][0][keep].sum() / pairs[name, "none"][1][keep].sum() for name in "ab")
            return math.atanh(a - b)  # Fisher's scale, which ends at -1 and 1
        a, b = (log_odds(pairs[name, "none"], keep) for name in "ab")
        if quantity == "R":
            return a - b
        return a - log_odds(pairs["a", "sign_flip"], keep) - b + log_odds(pairs["b", "sign_flip"], keep)

    held = [pair for (_, control), pair in pairs.items() if control == "none" or quantity == "excess"]
    freedom = min(pair[1].sum() ** 2 / (pair[1] ** 2).sum() for pair in held) - 1
    n = len(held[0][0])
    deleted = np.array([value(np.arange(n) != i) for i in range(n)])
    error = math.sqrt((n - 1) / n * ((deleted - deleted.mean()) ** 2).sum())
    whole = value(np.arange(n) >= 0)
    return whole, stats.t.ppf(0.975, freedom) * error, 2 * stats.t.sf(abs(whole) / error, freedom)


@pytest.mark.parametrize("rank", [3, 6])
@pytest.mark.parametrize(
    ("quantity", "measure", "control"),
    [("E", "energy_share", "none"), ("R", "r_energy", "normal"), ("excess", "excess", "sign_flip")],
)
def test_values_intervals_and_p_values_are_the_loop(captures, difference, rank, quantity, measure, control):
    frame = difference.frame
    row = frame[
        (frame["site"] == "blocks.0.attn.W_Q")
        & (frame["rank"] == rank)
        & (frame["measure"] == measure)
        & (frame["control"] == control)
    ].squeeze()
    value, reach, p_value = by_hand(captures[1], rank, quantity)
    back = math.tanh if quantity == "E" else float
    assert row["value"] == pytest.approx(back(value), rel=1e-6)
    assert row["ci_low"] == pytest.approx(back(value - reach), rel=1e-5)
    assert row["ci_high"] == pytest.approx(back(value + reach), rel=1e-5)
    assert row["p_value"] == pytest.approx(p_value, rel=1e-4)


def test_the_frame_is_the_contracts_and_follows_from_the_two(results, difference):
    assert isinstance(difference, Difference)
    frame, (a, b) = difference.frame, (result.frame for result in results)
    assert tuple(frame.columns) == COLUMNS
    keys = ["site", "gradient", "rank", "measure", "control"]
    both = frame.merge(a, on=keys, suffixes=("", "_a")).merge(b, on=keys, suffixes=("", "_b"))
    assert len(both) == len(frame) == len(a)
    for measure, scale in (("energy_share", lambda v: v), ("r_energy", np.log), ("excess", np.log)):
        rows = both[both["measure"] == measure]
        np.testing.assert_allclose(rows["value"], scale(rows["value_a"]) - scale(rows["value_b"]), rtol=1e-6, atol=1e-9)
        rows = rows[rows["control"] != "none"]
        expected = scale(rows["control_value_a"]) - scale(rows["control_value_b"])
        np.testing.assert_allclose(rows["control_value"], expected, rtol=1e-6, atol=1e-9)
    assert frame["step"].isna().all()
    assert (frame["n_documents"] == a["n_documents"].iloc[0]).all()
    for _, rows in frame.groupby(["gradient", "rank", "measure", "control"]):
        np.testing.assert_array_equal(rows["p_holm"], holm(rows["p_value"]))


def test_the_other_way_round_is_the_negative(results, difference):
    back = (results[1] - results[0]).frame
    frame = difference.frame
    np.testing.assert_allclose(back["value"], -frame["value"], atol=1e-12)
    np.testing.assert_allclose(back["ci_low"], -frame["ci_high"], atol=1e-12)
    np.testing.assert_allclose(back["p_value"], frame["p_value"], atol=1e-12)
    nothing = (results[0] - results[0]).frame
    assert (nothing["value"] == 0).all()
    assert (nothing[["ci_low", "ci_high"]] == 0).all(axis=None)
    assert (nothing["p_value"] == 1).all()


def test_pairing_narrows_what_documents_share(results, difference):
    frame, rank = difference.frame, 6
    chosen = frame[(frame["measure"] == "r_energy") & (frame["control"] == "normal") & (frame["rank"] == rank)]
    paired = (chosen["ci_high"] - chosen["ci_low"]).to_numpy()
    alone = []
    for result in results:
        rows = result.frame
        rows = rows[(rows["measure"] == "r_energy") & (rows["control"] == "normal") & (rows["rank"] == rank)]
        alone.append(np.log(rows["ci_high"] / rows["ci_low"]).to_numpy())
    assert (paired < np.hypot(*alone)).mean() > 0.5


def test_table_summary_figure_and_latex(difference):
    table = difference.table()
    assert table.columns.tolist() == [
        "gradient",
        "group",
        "rank",
        "E difference",
        "R ratio",
        "excess sign_flip ratio",
        "excess input_energy ratio",
        "sites",
        "up",
        "down",
    ]
    frame = difference.frame
    readers = frame["site"].isin([site for site in SITES[:4] if not site.endswith("W_O")])
    rows = frame[readers & (frame["rank"] == 6)]
    line = table[(table["group"] == "readers") & (table["rank"] == 6)].squeeze()
    shares = rows[(rows["measure"] == "energy_share") & (rows["control"] == "none")]
    assert line["E difference"] == pytest.approx(shares["value"].mean())
    ratios = rows[(rows["measure"] == "r_energy") & (rows["control"] == "normal")]["value"]
    assert line["R ratio"] == pytest.approx(math.exp(ratios.mean()))
    assert (line["sites"], line["up"]) == (3, (shares["ci_low"] > 0).sum())
    assert "step 1 less" in difference.summary()
    assert "step 9" in difference.summary()
    assert "E difference" in difference.to_latex()
    assert "<table" in difference._repr_html_()
    figure = difference.plot()
    drawn = {float(y) for trace in figure.data for y in trace.y}
    assert {round(math.exp(v), 9) for v in ratios} <= {round(y, 9) for y in drawn}
    sizes = [len(trace.y) for trace in figure.data]
    assert all(len(trace.error_y.array) == size for trace, size in zip(figure.data, sizes, strict=True))


def test_unlike_measurements_are_refused(early_model, documents, captures, results, difference):
    a = results[0]
    proxies, held = captures

    def measured(**changes):
        return dataclasses.replace(a, _shares=dataclasses.replace(a._shares, **changes))

    with pytest.raises(TlAnisoError, match=r"different documents: .* 1 only in the first, 0 only in the second"):
        a - measured(documents=a._shares.documents[:-1])
    with pytest.raises(TlAnisoError, match="8 shards in one result and 4"):
        a - measured(n_shards=4)
    fewer = tangent_energy(held[0], proxies=proxies, rank=6, controls=CONTROLS)
    with pytest.raises(TlAnisoError, match=r"lacks blocks\.0\.attn\.W_Q at k/d = 3/32"):
        a - fewer
    energies = {key: pair for key, pair in a._shares.energies.items() if key.site != "unembed.W_U"}
    with pytest.raises(TlAnisoError, match=r"lacks 1 sites of the other: unembed\.W_U \(weight\)"):
        a - measured(energies=energies)
    with pytest.raises(TlAnisoError, match="first result lacks 1 sites"):
        measured(energies=energies) - a
    with pytest.raises(TlAnisoError, match="differ in seq_len"):
        a - dataclasses.replace(a, _frame=a.frame.assign(seq_len=16))
    with pytest.raises(TlAnisoError, match="made from a frame"):
        a - dataclasses.replace(a, _shares=None)
    with pytest.raises(TlAnisoError, match="two TangentEnergy results, got TangentEnergy - float"):
        a - 0.5
    isotropy = ablation_isotropy(
        early_model, documents, n_controls=2, progress=False, sites=["blocks.0.hook_resid_pre"]
    )
    with pytest.raises(TlAnisoError, match="no paired"):
        isotropy - isotropy


def test_results_travel_between_processes(results, difference):
    copies = [pickle.loads(pickle.dumps(result)) for result in results]  # noqa: S301 - written a moment ago
    assert (copies[0] - copies[1]).frame.equals(difference.frame)


def test_activation_gradients_have_differences_too(early_model, late_model, documents):
    options = {"gradients": "activation", "progress": False, "n_controls": 0, "sites": ["blocks.1.hook_resid_pre"]}
    proxies = fit_tangent_proxies(capture(early_model, documents, progress=False), 4)
    a, b = (tangent_energy(m, documents, proxies=proxies, **options) for m in (early_model, late_model))
    frame = (a - b).frame
    assert frame["measure"].tolist() == ["energy_share", "r_energy"]
    assert frame.loc[0, "value"] == pytest.approx(a.frame.loc[0, "value"] - b.frame.loc[0, "value"])
    assert frame["ci_low"].notna().all()


def test_controls_of_one_side_are_left_out_and_named(captures, results):
    proxies, held = captures
    bare = tangent_energy(held[1], proxies=proxies, rank=[3, 6], controls="sign_flip")
    found = results[0] - bare
    assert set(found.frame["control"]) == {"none", "normal", "sign_flip"}
    assert any("left out: input_energy" in note for note in found.notes)


def test_r_is_not_compared_across_widths(results):
    # The same energies, said to be of twice the width at twice the rank: k / d agrees, R does not compare.
    a = results[0]
    shares = dataclasses.replace(
        a._shares,
        widths={site: 2 * d for site, d in a._shares.widths.items()},
        energies={key._replace(rank=2 * key.rank): pair for key, pair in a._shares.energies.items()},
    )
    wide = dataclasses.replace(a, _frame=a.frame.assign(rank=2 * a.frame["rank"], model="wide"), _shares=shares)
    found = a - wide
    frame = found.frame
    ratios = frame["measure"] == "r_energy"
    assert frame.loc[ratios, ["value", "ci_low", "p_value", "control_value"]].isna().all(axis=None)
    assert (frame.loc[~ratios, "value"] == 0).all()
    assert frame["model"].str.endswith(" - wide").all()
    assert any("not compared across widths" in note for note in found.notes)
    assert found.table()["R ratio"].isna().all()


def test_whole_sums_give_differences_without_intervals(early_model, late_model, documents):
    options = {"progress": False, "sites": SITES[:2], "controls": "sign_flip"}
    proxies = fit_tangent_proxies(capture(early_model, documents, **options), 4)
    whole = [tangent_energy(capture(m, documents, **options), proxies=proxies) for m in (early_model, late_model)]
    frame = (whole[0] - whole[1]).frame
    assert frame["value"].notna().all()
    assert frame[["ci_low", "ci_high", "p_value", "p_holm"]].isna().all(axis=None)
    kept = [
        tangent_energy(capture(m, documents, shard_sites=SITES[:2], **options), proxies=proxies)
        for m in (early_model, late_model)
    ]
    by_shard = (kept[0] - kept[1]).frame
    np.testing.assert_allclose(by_shard["value"], frame["value"], atol=1e-6)  # float32 sums, regrouped
    assert by_shard["ci_low"].notna().all()
    assert any("no intervals" in note for note in (whole[0] - whole[1]).notes)
