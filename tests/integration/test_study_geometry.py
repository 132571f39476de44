"""A study that also asks about frequency and local geometry: its second table, C6 to C8, and going on after harm."""

import json
import shutil

import pandas as pd
import pytest

from tests.study_models import save_checkpoints, save_texts, small_config
from tl_aniso import Study
from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.study.table import GEOMETRY_COLUMNS, read_table

GEOMETRY = {"sites": ["blocks.1.hook_resid_pre", "blocks.1.attn.W_V"], "n_min": 4, "n_types": 3, "n_local": 16}
SMALL = {"sites": ["blocks.*.attn.W_V", "blocks.*.hook_resid_pre"], "extra_passes": [], "controls": []}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory, one_thread):
    directory = tmp_path_factory.mktemp("geometry")
    save_checkpoints(directory / "models", (0, 100, 1000))
    save_texts(directory / "texts.jsonl")
    return directory


@pytest.fixture(scope="module")
def config(place):
    return small_config(place / "models", place / "texts.jsonl", geometry=GEOMETRY, **SMALL)


@pytest.fixture(scope="module")
def finished(place, config):
    study = Study(config, place / "out", progress=False)
    study.run()
    return study


@pytest.fixture(scope="module")
def table(finished):
    return read_table(finished.out / "geometry.parquet")


def test_the_second_table_has_rows_of_every_question(finished, table):
    assert list(table.columns) == list(GEOMETRY_COLUMNS)
    assert set(table["model"]) == {"tiny"}
    local = table[table["measure"].isin(("curvature_slope", "visible_share", "local_r", "local_excess"))]
    assert set(local["step"]) == {0.0, 100.0, 1000.0}
    assert set(local["site"]) == {"blocks.1.hook_resid_pre", "blocks.1.attn.W_V"}
    assert set(local["gradient"]) == {"none", "activation", "weight"}
    assert local.groupby("step")["phase"].unique().map(list).tolist() == [["early"], ["early"], ["late"]]
    frequency = table[table["measure"] == "frequency_pearson"]
    within, over = (frequency[frequency["scope"] == scope] for scope in ("within", "over_checkpoints"))
    assert set(within["step"]) == {100.0, 1000.0}
    assert over["step"].isna().all()
    assert (over["revision"] == "").all()
    assert {"embed.W_E", "unembed.W_U", "blocks.1.hook_resid_pre"} <= set(over["site"])
    assert set(over["variant"]) == {"raw", "drift_removed"}


def test_the_first_table_is_that_of_a_study_without(finished, place, config):
    """And so are its keys: the second table costs what is already there nothing."""
    out = place / "plain"
    shutil.copytree(finished.out, out)
    (out / "results.parquet").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/checksums.json")}
    Study({**config, "geometry": False}, out, progress=False).run()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*/checksums.json")} == before
    assert (out / "results.parquet").read_bytes() == (finished.out / "results.parquet").read_bytes()
    assert not (out / "geometry.parquet").exists()
    plan = json.loads((out / "plan.json").read_text())
    assert "geometry" not in plan["config"]
    assert not any(name.startswith("geometry") for name in plan["models"][0]["estimate"])
    assert list(Study({**config, "geometry": False}, out).claims.statements) == [f"C{i}" for i in range(1, 6)]


def test_claims_have_all_eight(finished):
    claims = finished.claims
    assert list(claims.statements) == [f"C{i}" for i in range(1, 9)]
    frame = claims.frame
    assert set(frame.loc[frame["claim"] == "C8", "gradient"]) == {"activation", "weight"}
    assert set(frame.loc[frame["claim"] == "C6", "quantity"]) == {
        "input embedding",
        "output embedding",
        "contextual mean",
        "contextual variance",
    }
    page = finished.report().read_text(encoding="utf-8")
    for text in ("Frequent tokens vary less", "claims_geometry.yaml, commit", "contextual variance"):
        assert text in page


def test_the_plan_counts_the_passes(finished):
    plan = json.loads((finished.out / "plan.json").read_text())
    (model,) = plan["models"]
    assert [c["kind"] for c in model["captures"]] == ["fit"] * 3 + ["measure"] * 3 + ["geometry"] * 3
    assert {name: plan["config"]["geometry"][name] for name in GEOMETRY} == GEOMETRY
    assert {path.name for path in (finished.out / "captures").iterdir()} == {c["key"] for c in model["captures"]}


def test_what_is_missing_or_damaged_is_made_again_with_the_same_bytes(finished, place, config):
    out = place / "harmed"
    shutil.copytree(finished.out, out)
    whole = (out / "geometry.parquet").read_bytes()
    (model,) = json.loads((out / "plan.json").read_text())["models"]
    keys = [c["key"] for c in model["captures"] if c["kind"] == "geometry"]
    shutil.rmtree(out / "captures" / keys[0])
    harmed = out / "captures" / keys[2] / "local.parquet"
    harmed.write_bytes(harmed.read_bytes()[:-1])
    (out / "geometry.parquet").unlink()
    with pytest.raises(TlAnisoError, match=r"holds no geometry\.parquet; run the study again"):
        _ = Study(config, out, progress=False).claims
    with pytest.warns(TlAnisoWarning, match=rf"types and local geometry of tiny at step1000.*{keys[2]}.*damaged"):
        Study(config, out, progress=False).run()
    assert (out / "geometry.parquet").read_bytes() == whole


def test_a_text_and_checkpoints_of_its_own(finished, place, config):
    out = place / "own"
    shutil.copytree(finished.out, out)
    lines = (place / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    (place / "more.jsonl").write_text("\n".join([*lines, *(line.replace("the", "a") for line in lines)]), "utf-8")
    asked = {**config, "geometry": {**GEOMETRY, "text": str(place / "more.jsonl"), "checkpoints": 2}}
    study = Study(asked, out, progress=False)
    study.run()
    own = read_table(out / "geometry.parquet")
    assert set(own["step"].dropna()) == {100.0, 1000.0}  # not step 0
    assert set(own["n_documents"]) == {2 * len(lines)}
    assert (out / "results.parquet").read_bytes() == (finished.out / "results.parquet").read_bytes()
    (model,) = json.loads((out / "plan.json").read_text())["models"]
    assert sum(c["kind"] == "geometry" for c in model["captures"]) == 2


def test_a_doubled_checkpoint_is_no_point(place, config, finished, table):
    """Step 2000 has the weights of step 1000: nothing is measured in addition, and the last step has the point."""
    models = place / "doubled"
    shutil.copytree(place / "models", models)
    shutil.copytree(models / "step1000", models / "step2000")
    doubled = {**config, "models": [{"name": "tiny", "source": str(models), "tokens_per_step": 512}]}
    # 30% of 2,000 steps still holds 0 and 100 alone.
    study = Study(doubled, place / "out-doubled", progress=False)
    study.run()
    other = read_table(study.out / "geometry.parquet")
    assert "step1000" not in set(other["revision"])
    other["revision"] = other["revision"].replace("step2000", "step1000")
    other[["step", "tokens_seen"]] = other[["step", "tokens_seen"]].replace(
        {2000.0: 1000.0, 2000.0 * 512: 1000.0 * 512}
    )
    pd.testing.assert_frame_equal(other, table)
    assert set(study.results["revision"]) == {"step0", "step100", "step1000", "step2000"}
