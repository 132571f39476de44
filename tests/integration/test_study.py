"""Studies of tiny checkpoints: the same planes throughout, the public functions by hand, and what is refused."""

import json
import shutil
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pandas as pd
import pytest

from tests.study_models import STEPS, save_checkpoints, save_texts, small_config
from tl_aniso import Study, TangentProxies, ablation_isotropy, capture, fit_tangent_proxies, tangent_energy
from tl_aniso.cli import main
from tl_aniso.errors import ConfigError, ModelError, TlAnisoError, TlAnisoWarning
from tl_aniso.models import load_model
from tl_aniso.study import DirectoryCheckpoints, LocalExecutor, MemoryCheckpoints
from tl_aniso.text import document_hash, half_of

SMALL = {"sites": ["blocks.0.attn.W_V"], "gradients": ["weight"], "extra_passes": []}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory, one_thread):
    directory = tmp_path_factory.mktemp("study")
    save_checkpoints(directory / "models")
    save_texts(directory / "texts.jsonl")
    return directory


@pytest.fixture(scope="module")
def config(place):
    return small_config(place / "models", place / "texts.jsonl")


@pytest.fixture(scope="module")
def finished(place, config):
    study = Study(config, place / "out", progress=False)
    study.run()
    return study


@pytest.fixture(scope="module")
def by_hand(place, config):
    """Planes and measured captures from the public functions alone."""
    tokenizer = load_model(str(place / "models" / "step0")).tokenizer
    texts = [json.loads(line)["text"] for line in (place / "texts.jsonl").read_text().splitlines()]
    ids = [tokenizer(text)["input_ids"][: config["seq_len"]] for text in texts]
    halves = {half: [i for i in ids if half_of(document_hash(i)) == half] for half in "AB"}
    models = {step: load_model(str(place / "models" / f"step{step}")).model for step in STEPS}
    options = {"tokenizer": tokenizer, "sites": config["sites"], "seq_len": config["seq_len"], "progress": False}

    def planes(*steps):
        return fit_tangent_proxies([capture(models[s], halves["A"], gradients=(), **options) for s in steps], 4)

    def measured(step, proxies):
        return capture(models[step], halves["B"], proxies=proxies, pooled="effect", **options)

    return {"early": planes(0, 100, 300), "late": planes(1000), "measured": measured}


def test_a_study_measures_every_checkpoint_in_the_same_frozen_planes(finished, place):
    frame = finished.results
    assert frame["step"].unique().tolist() == list(map(float, STEPS))
    assert frame.groupby("step")["phase"].unique().map(list).tolist() == [["early"], ["early"], ["early"], ["late"]]
    assert frame.groupby("step")["tokens_seen"].first().tolist() == [512.0 * step for step in STEPS]
    assert (frame.groupby("site")["proxy_id"].nunique() == 1).all()
    assert (frame["model"] == "tiny").all()
    assert frame["held_out"].all()
    plan = json.loads((place / "out" / "plan.json").read_text())
    (model,) = plan["models"]
    assert [c["phase"] for c in model["checkpoints"]] == ["early", "early", "early", "late"]
    assert [c["kind"] for c in model["captures"]] == ["fit"] * 4 + ["measure"] * 4
    assert sorted(model["text"]["sources"]) == ["farm", "shop"]
    assert {path.name for path in (place / "out" / "captures").iterdir()} == {c["key"] for c in model["captures"]}
    saved = TangentProxies.load(place / "out" / "proxies" / model["proxies"] / "early")
    assert {proxy.proxy_id for proxy in saved.values()} >= set(frame["proxy_id"])
    assert [s["model"]["step"] for s in saved["blocks.0.attn.W_V"].provenance["sources"]] == [0, 100, 300]


def test_sizes_of_captures_were_foreseen(finished, place):
    """By the files' own sizes, which hold the sums and little else."""
    (model,) = json.loads((place / "out" / "plan.json").read_text())["models"]
    for kind, expected in (("fit", "fit_bytes"), ("measure", "measure_bytes")):
        key = next(c["key"] for c in model["captures"] if c["kind"] == kind)
        size = (place / "out" / "captures" / key / "capture" / "sums.safetensors").stat().st_size
        assert 1 < size / model["estimate"][expected] < 1.25


def rows(frame, step, measure, control, gradient="weight"):
    at = (frame["step"] == step) & (frame["measure"] == measure) & (frame["gradient"] == gradient)
    return frame[at & (frame["control"] == control)].set_index("site").sort_index()


@pytest.mark.parametrize("step", [100, 1000])
def test_energies_are_those_of_the_public_functions(finished, by_hand, step):
    frame, early, late = finished.results, by_hand["early"], by_hand["late"]
    expected = tangent_energy(by_hand["measured"](step, early), proxies=early, gradients=("activation", "weight")).frame
    other = tangent_energy(by_hand["measured"](step, late), proxies=late, gradients=("activation", "weight")).frame
    for gradient in ("activation", "weight"):
        found = rows(frame, step, "energy_share", "late_fitted", gradient)
        mine, theirs = (
            frame[(frame["measure"] == "energy_share") & (frame["control"] == "none") & (frame["gradient"] == gradient)]
            .set_index("site")["value"]
            .sort_index()
            for frame in (expected, other)
        )
        assert list(found.index) == list(mine.index)
        assert (found["value"] / mine - 1).abs().max() < 1e-6
        assert (found["control_value"] / theirs - 1).abs().max() < 1e-6
        excess = rows(frame, step, "excess", "late_fitted", gradient)
        assert (excess["value"] - (mine / (1 - mine)) / (theirs / (1 - theirs))).abs().max() < 1e-5
        assert excess["ci_low"].notna().all()


def test_isotropy_without_late_fitted_planes_stands_beside(finished, by_hand):
    held = by_hand["measured"](300, by_hand["early"])
    for gradient in ("none", "weight"):
        early, late = (
            ablation_isotropy(held, proxies=by_hand[phase], gradients=gradient).frame for phase in ("early", "late")
        )
        for measure in ("isoscore", "isoscore_star"):
            found = rows(finished.results, 300, measure, "late_fitted", gradient)
            for frame, column in ((early, "value"), (late, "control_value")):
                one = frame[(frame["measure"] == measure) & (frame["control"] == "normal")].set_index("site")["value"]
                assert (found[column] - one.sort_index()).abs().max() < 1e-6
        star = rows(finished.results, 300, "isoscore_star", "late_fitted", gradient)
        delta = rows(finished.results, 300, "delta_isoscore_star", "late_fitted", gradient)
        assert (delta["value"] - (star["value"] - star["control_value"])).abs().max() < 1e-12
        assert (delta["control_value"] == 0).all()
        assert star["p_value"].isna().all()


def test_loss_and_progress_are_of_the_measured_half(finished, by_hand):
    frame = finished.results
    losses = [by_hand["measured"](step, by_hand["early"]).loss for step in STEPS]
    found = frame.groupby("step")[["loss", "progress"]].agg(["first", "nunique"])
    assert (found["loss"]["first"] - losses).abs().max() < 1e-6
    assert (found["loss"]["nunique"] == 1).all()
    fall = losses[0] - losses[-1]
    expected = [(losses[0] - loss) / fall if fall > 0 else float("nan") for loss in losses]
    pd.testing.assert_series_equal(
        found["progress"]["first"], pd.Series(expected), check_index=False, check_names=False
    )


def test_a_second_run_makes_nothing_and_ends_with_the_same_bytes(finished, config, place):
    before = (place / "out" / "results.parquet").read_bytes()
    executor = Counting()
    Study(config, place / "out", executor=executor, progress=False).run()
    assert executor.done == []
    assert (place / "out" / "results.parquet").read_bytes() == before


def test_tasks_go_to_other_processes_and_end_in_any_order(finished, config, place):
    class Shipping:
        def map(self, tasks):
            for task in reversed(tasks):
                yield ForkingPickler.loads(ForkingPickler.dumps(task))()

    Study(config, place / "shipped", executor=Shipping(), progress=False).run()
    assert (place / "shipped" / "results.parquet").read_bytes() == (place / "out" / "results.parquet").read_bytes()


class Counting(LocalExecutor):
    def __init__(self):
        self.done = []

    def map(self, tasks):
        self.done += [task.what for task in tasks]
        return super().map(tasks)


@pytest.mark.parametrize("which", ["fit", "measure"])
@pytest.mark.parametrize("damage", ["a byte", "a cut"])
def test_an_altered_capture_is_named_and_run_again(finished, config, place, tmp_path, which, damage):
    shutil.copytree(place / "out", tmp_path / "out")
    (model,) = json.loads((place / "out" / "plan.json").read_text())["models"]
    key = next(c["key"] for c in model["captures"] if c["kind"] == which and c["checkpoint"] == "step100")
    path = tmp_path / "out" / "captures" / key / "capture" / "sums.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content) if damage == "a byte" else path.read_bytes()[:-50])
    executor = Counting()
    words = {"fit": "fitting", "measure": "measured"}[which]
    fault = "was altered" if damage == "a byte" else r"has \d+ bytes, not \d+"
    message = rf"{words} capture of tiny at step100 \(captures/{key}\) is damaged: capture/sums.safetensors {fault}"
    with pytest.warns(TlAnisoWarning, match=message):
        Study(config, tmp_path / "out", executor=executor, progress=False).run()
    assert executor.done == [f"{words} capture of tiny at step100"]
    assert (tmp_path / "out" / "results.parquet").read_bytes() == (place / "out" / "results.parquet").read_bytes()


def test_every_control_can_be_asked_for(place, tmp_path):
    asked = ["next_k", "other_layer", "permuted_tokens", "covariance_drawn", "untrained"]
    few = {"sites": ["blocks.1.attn.W_V", "blocks.1.hook_resid_pre"], "checkpoints": [0, 1000], "rank": [2, 4]}
    config = small_config(place / "models", place / "texts.jsonl", controls=asked, **few)
    frame = Study(config, tmp_path / "out", progress=False).run()
    excess = frame[frame["measure"] == "excess"]
    assert set(excess["control"]) == {*asked, "shuffled_labels", "late_fitted"}
    assert (excess.groupby(["step", "site", "rank", "control"]).size() == 1).all()
    assert excess["value"].notna().all()
    removed = frame[frame["measure"] == "delta_isoscore_star"]
    assert set(removed["control"]) == {*asked, "late_fitted", "normal"} - {"untrained"}
    drawn = frame[(frame["measure"] == "isoscore_star") & (frame["control"] == "covariance_drawn")]
    assert (drawn["null_std"] > 0).all()
    # One untrained twin serves every checkpoint.
    twin = frame[(frame["control"] == "untrained") & (frame["measure"] == "energy_share")]
    assert (twin.groupby(["site", "rank"])["control_value"].nunique() == 1).all()


def test_a_lone_checkpoint_is_neither_early_nor_late(place, tmp_path):
    save_checkpoints(tmp_path / "one", (1000,))
    study = Study(small_config(tmp_path / "one", place / "texts.jsonl"), tmp_path / "out", progress=False)
    frame = study.run()
    assert frame["phase"].isna().all()
    assert "late_fitted" not in set(frame["control"])


def test_checkpoints_of_equal_weights_share_their_captures(place, config, tmp_path):
    shutil.copytree(place / "models" / "step0", tmp_path / "models" / "step0")
    shutil.copytree(place / "models" / "step0", tmp_path / "models" / "step10")
    given = {**config, **SMALL, "models": [{"name": "tiny", "source": str(tmp_path / "models")}]}
    executor = Counting()
    frame = Study(given, tmp_path / "out", executor=executor, progress=False).run()
    assert len(executor.done) == 5  # a fitting capture, planes, a measured capture, token views, rows
    first, second = (frame[frame["step"] == step].reset_index(drop=True) for step in (0, 10))
    assert (set(first["duplicate_of"]), set(second["duplicate_of"])) == ({""}, {"step0"})
    labels = ["step", "revision", "phase", "duplicate_of"]
    pd.testing.assert_frame_equal(first.drop(columns=labels), second.drop(columns=labels))
    excess = first[(first["measure"] == "excess") & (first["control"] == "late_fitted")]
    assert len(excess) == 1
    assert (excess["value"] - 1).abs().max() < 1e-6


def test_models_in_memory_are_studied_alike(finished, place, config, tmp_path):
    loaded = {step: load_model(str(place / "models" / f"step{step}")) for step in STEPS}
    source = MemoryCheckpoints(
        {step: one.model for step, one in loaded.items()}, loaded[0].tokenizer, tokens_per_step=512
    )
    given = {**config, "models": ["tiny"]}
    frame = Study(given, tmp_path / "out", sources={"tiny": source}, progress=False).run()
    pd.testing.assert_frame_equal(frame, finished.results, check_exact=True)
    with pytest.raises(ConfigError, match="sources holds 'tony'"):
        Study(given, tmp_path / "out", sources={"tony": source}).outline()


def test_a_finished_model_without_a_step_is_left_out_with_a_note(place, config, tmp_path):
    class Published(DirectoryCheckpoints):
        def checkpoints(self):
            known = super().checkpoints()
            return [*known, replace(known[0], name="main", step=None)]

    given = {**config, **SMALL, "checkpoints": [0, 1000]}
    study = Study(given, tmp_path / "out", sources={"tiny": Published(place / "models")}, progress=False)
    study.plan()
    (model,) = json.loads((tmp_path / "out" / "plan.json").read_text())["models"]
    assert model["n_published"] == 4
    assert model["notes"] == ["left out, since their steps are not known: main"]


def test_old_downloads_are_forgotten(place, config, tmp_path):
    events = []

    class Downloaded(DirectoryCheckpoints):
        def checkpoints(self):
            return [self.watched(c) for c in super().checkpoints()]

        def watched(self, c):
            def load():
                events.append(f"load {c.step}")
                return c.load()

            return type(c)(c.name, c.step, c.tokens_seen, c.key, load, lambda: events.append(f"forget {c.step}"))

    given = {**config, "keep_last": 2, "checkpoints": [0, 100, 1000]}
    Study(given, tmp_path / "out", sources={"tiny": Downloaded(place / "models")}, progress=False).run()
    loads = [f"load {s}" for s in (0, 100, 1000)]
    # The last early one and the last are read once more, for the view of single tokens, while they are still there.
    twice = ["load 0", "load 100", "load 100", "load 1000", "load 1000"]
    assert [e for e in events if e.startswith("load")] == [*loads, *twice]
    assert events[:4] == [*loads, "forget 0"]
    assert sum(e.startswith("forget") for e in events) == 4


def test_what_cannot_be_studied_is_refused(place, config, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"mine holds thesis\.tex and no study"):
        Study(config, tmp_path / "mine").run()
    with pytest.raises(ConfigError, match="holds no directory of a checkpoint, such as step0"):
        Study({**config, "models": [str(tmp_path / "mine")]}, tmp_path / "out").run()
    with pytest.raises(
        ConfigError, match=r"models: '\./nowhere' is no model of the registry, no hub id and no directory"
    ):
        Study({**config, "models": ["./nowhere"]}, tmp_path / "out").run()
    with pytest.raises(TlAnisoError, match=r"holds no results\.parquet; run the study first"):
        _ = Study(config, tmp_path / "out").results
    study = Study(config, tmp_path / "out", progress=False)
    with study._store().lock(), pytest.raises(TlAnisoError, match="another run is at work"):
        study.run()


def test_a_checkpoint_that_fails_is_named_and_the_others_are_kept(place, config, tmp_path):
    shutil.copytree(place / "models", tmp_path / "models")
    (tmp_path / "models" / "step300" / "model.safetensors").write_bytes(b"0" * 99)
    given = {**config, "models": [{"name": "tiny", "source": str(tmp_path / "models")}]}
    study = Study(given, tmp_path / "out", progress=False)
    with pytest.raises(TlAnisoError, match=r"fitting capture of tiny at step300: cannot load .*step300"):
        study.run()
    assert len(list((tmp_path / "out" / "captures").iterdir())) == 2
    shutil.copytree(place / "models" / "step300", tmp_path / "models" / "step300", dirs_exist_ok=True)
    other = json.loads((tmp_path / "models" / "step1000" / "tokenizer.json").read_text())
    other["model"]["merges"] = other["model"]["merges"][:-1]
    (tmp_path / "models" / "step1000" / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(TlAnisoError, match="step1000 comes with another tokenizer"):
        study.run()
    (tmp_path / "models" / "step1000" / "model.safetensors").unlink()
    (tmp_path / "models" / "step1000" / "config.json").unlink()
    with pytest.raises(ModelError, match="step1000 holds no weights"):
        study.run()


def test_the_command_line(place, config, tmp_path, capsys):
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text(json.dumps({**config, **SMALL, "checkpoints": [0, 1000], "n_documents": 24}))  # JSON is YAML
    assert main(["plan", str(path)]) == 0
    shown = capsys.readouterr().out
    (row,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["tiny"])
    assert row[:5] == ["tiny", "4", "1", "1", "6"]
    assert "the first 30% of the steps" in " ".join(shown.split())
    assert not out.exists()
    assert main(["study", str(path), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tiny: R by step, weight gradients of the readers" in shown
    assert "late fitted" in shown
    assert {p.name for p in out.iterdir()} >= {"plan.json", "results.parquet", "report.html", "captures", "proxies"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<dt>late-fitted planes</dt>" in page
    assert "the first 30% of the steps" in page
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").is_file()
    path.write_text("models: [a]\ntext: local\nseqlen: 3\n")
    assert main(["study", str(path)]) == 2
    assert "unknown key 'seqlen'" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1


def test_several_models_are_on_one_page(place, config, tmp_path):
    save_checkpoints(tmp_path / "other", (0, 10), kind="neox-parallel", seed=9)
    models = [*config["models"], {"name": "an/other", "source": str(tmp_path / "other")}]
    given = {**config, **SMALL, "models": models, "checkpoints": {"early": 1, "late": 1}}
    study = Study(given, tmp_path / "out", progress=False)
    frame = study.run()
    assert frame.groupby("model", sort=False)["step"].unique().map(list).to_dict() == {
        "tiny": [0.0, 1000.0],
        "an/other": [0.0, 10.0],
    }
    page = study.report().read_text()
    for model in ("tiny", "an/other"):
        assert f"{model}: how it was measured" in page
    assert [path.name for path in (tmp_path / "out").glob("*.html")] == ["report.html"]
