"""Local geometry of a tiny model, end to end."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models import tiny_model
from tl_aniso.capturing.token_rows import token_rows
from tl_aniso.errors import ShortTextError, SiteError, TlAnisoError
from tl_aniso.neighbourhoods import gaussian_rows, local_geometry, local_plane, quadratic_fit
from tl_aniso.neighbourhoods.collect import collect
from tl_aniso.neighbourhoods.curvature import measure_rows

SITES = ["blocks.1.hook_resid_pre", "blocks.1.attn.W_Q", "blocks.1.mlp.W_out"]
OPTIONS = {"n_types": 4, "n_min": 32, "n_surrogates": 2, "n_permutations": 99, "progress": False}


def zipf_text(documents: int = 60, length: int = 50) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    weights = 1 / torch.arange(1, 60, dtype=torch.float64)
    return [(torch.multinomial(weights, length, True, generator=generator) + 3).tolist() for _ in range(documents)]


@pytest.fixture(scope="module")
def found():
    return local_geometry(tiny_model("llama"), zipf_text(), sites=SITES, **OPTIONS)


def test_every_measure_group_and_control_is_there(found) -> None:
    frame = found.frame
    keys = ["site", "gradient", "measure", "variant", "group", "control"]
    assert not frame.duplicated(keys).any()
    assert set(frame[frame["gradient"] == "none"]["measure"]) == {
        "curvature_slope", "visible_share", "curvature_energy", "local_dimension",
    }  # fmt: skip
    for measure in ("curvature_slope", "visible_share", "curvature_energy", "local_dimension"):
        rows = frame[(frame["measure"] == measure) & (frame["variant"] == "raw")]
        assert set(rows["group"]) == {"all", "frequent", "rare", "rare - frequent"}
        assert set(rows["control"]) == {"none", "gaussian_surrogate", "size_matched", "shuffled_frequencies"}
        assert rows["value"].notna().all()
    for site, gradient in ((SITES[0], "activation"), (SITES[1], "weight"), (SITES[2], "weight")):
        rows = frame[(frame["site"] == site) & (frame["gradient"] == gradient)]
        assert set(rows["measure"]) == {"local_energy_share", "local_r", "local_excess"}
        excess = rows[rows["measure"] == "local_excess"]
        assert set(excess["control"]) == {"gaussian_surrogate", "other_type"}
        assert rows["value"].notna().all()
    assert (frame["n_rows"] == np.where(frame["gradient"] == "none", 32, 16)).all()
    assert (frame["scope"] == "within").all()


def test_numbers_are_consistent(found) -> None:
    frame = found.frame
    share = frame[(frame["measure"] == "local_energy_share") & (frame["control"] == "normal")]
    d = 32
    expected = (1 - share["value"]) * share["rank"] / (d - share["rank"])
    plain = share["group"] != "rare - frequent"
    assert share["control_value"][plain].to_numpy() == pytest.approx(expected[plain].to_numpy())
    both = frame[frame["difference"].notna() & frame["measure"].isin(["visible_share", "curvature_energy"])]
    less = both["value"] - both["control_value"]
    assert both["difference"].to_numpy() == pytest.approx(less.to_numpy(), abs=1e-12)
    table = found.table()
    assert list(table["measure"])[:2] == ["curvature_slope", "visible_share"]
    assert "32 occurrences of each" in found.summary()
    assert "<table" in found._repr_html_()


def test_the_figure_draws_the_values_of_the_table(found) -> None:
    frame = found.frame
    shown = frame[(frame["measure"] == "curvature_slope") & (frame["control"] == "none") & (frame["group"] == "all")]
    drawn = {float(y) for trace in found.plot().data if trace.y is not None for y in trace.y if y is not None}
    assert len(shown) >= 2
    assert set(shown.loc[shown["variant"] == "raw", "value"]) <= drawn


def test_runs_repeat_and_do_not_depend_on_batches(found) -> None:
    again = local_geometry(tiny_model("llama"), iter(zipf_text()), sites=SITES, batch_size=7, **OPTIONS)
    numbers = ["value", "ci_low", "control_value", "p_value"]
    ours, theirs = (f.frame[numbers].to_numpy(dtype=float) for f in (found, again))
    assert np.isclose(ours, theirs, rtol=2e-3, atol=2e-3, equal_nan=True).all()
    assert (found.frame["rank"] == again.frame["rank"]).all()


def test_kept_rows_are_those_of_the_pass() -> None:
    """Counts, occurrences and values against one pass that keeps everything."""
    model, text = tiny_model("llama"), zipf_text(12)
    batches = list(token_rows(model, text, sites=SITES, gradients=SITES[0], progress=False))
    # As if the filters of one site took a third of the rows: they are left out at all.
    batches = [replace(b, kept={**b.kept, SITES[0]: b.position % 3 != 0}) for b in batches]
    kept = collect(batches, [3, 4], capacity=1000, seed=0, max_bytes=10**9)
    for token in (3, 4):
        for half in "AB":
            expected = []
            for batch in batches:
                usable = batch.ids == token
                for mask in batch.kept.values():
                    usable &= mask
                own = [batch.half[s] == half for s in (batch.sequence - batch.sequence[0]).tolist()]
                usable &= torch.tensor(own)
                expected += batch.gradients[SITES[0]][usable].double().tolist()
            rows = kept.rows(token, half, "gradients", SITES[0])
            assert sorted(rows.tolist()) == sorted(expected)
    few = collect(batches, [3], capacity=5, seed=0, max_bytes=10**9)
    first = kept.rows(3, "B", "activations", SITES[0], 5)
    assert torch.equal(few.rows(3, "B", "activations", SITES[0]), first)


def test_neighbourhoods_of_nearest_rows() -> None:
    options = {**OPTIONS, "neighbourhood": "knn", "gradients": ()}
    found = local_geometry(tiny_model("llama"), zipf_text(), sites=SITES[0], k=2, **options)
    assert "size_matched" not in set(found.frame["control"])
    assert found.frame["value"].notna().all()
    assert any("types share rows" in note for note in found.notes)


def test_rows_that_are_equal_are_missing_and_counted() -> None:
    """Before the first block of a model without positions, all occurrences of a type are one row."""
    options = {**OPTIONS, "gradients": (), "k": 2}
    found = local_geometry(tiny_model("llama"), zipf_text(), sites="blocks.0.hook_resid_pre", **options)
    assert found.frame["value"].isna().all()
    assert (found.frame["n_types"] == 0).all()
    assert any("8 of 8 types have no curvature_slope" in note for note in found.notes)


def test_gaussian_surrogate_shows_no_curvature_where_planted_rows_do() -> None:
    """The numbers of `measure_rows`, on a planted surface wider than its rows are many."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    rows = 0.02 * torch.randn(100, 300, generator=generator, dtype=torch.float64)
    rows[:, :2] += u
    rows[:, 2] += 0.3 * (u.square().sum(1) - 2)
    curved = measure_rows(rows, 2)
    flat = measure_rows(gaussian_rows(rows, generator=generator), 2)
    assert curved["visible_share", "smooth"] > 5 * abs(flat["visible_share", "smooth"])
    assert curved["curvature_slope", "raw"] > flat["curvature_slope", "raw"] + 0.5
    assert quadratic_fit(local_plane(rows, 2)).norm_squared().low > 0


def test_wrong_arguments_say_what_to_do() -> None:
    model, text = tiny_model("llama"), zipf_text(8)
    with pytest.raises(ShortTextError, match="lower n_types or n_min"):
        local_geometry(model, text, progress=False)
    with pytest.raises(SiteError, match="not; name sites"):
        local_geometry(model, text, sites="embed.W_E", **OPTIONS)
    with pytest.raises(SiteError, match="only gradients are measured"):
        local_geometry(model, text, sites=SITES, gradients=(), **OPTIONS)
    with pytest.raises(TlAnisoError, match="neighbourhood must be one of"):
        local_geometry(model, text, neighbourhood="ball", **OPTIONS)
    with pytest.raises(TlAnisoError, match="raise max_bytes"):
        local_geometry(model, zipf_text(), sites=SITES, max_bytes=1000, **OPTIONS)
    with pytest.raises(TlAnisoError, match="rank 40 leaves no normal direction"):
        local_geometry(model, zipf_text(), sites=SITES[0], k=40, **OPTIONS)
