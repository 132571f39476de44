"""Studies of published models: from a hub cache, by commits, with doubled weights marked and claims on a page."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.claim_frames import energies
from tests.geometry_frames import correlations
from tests.hub_cache import hub_cache, tiny_tokenizer, write_hub_cache
from tests.models import tiny_model
from tests.study_models import TEXTS, save_texts
from tl_aniso import Study
from tl_aniso.claims import judge, judge_geometry, load_rules
from tl_aniso.cli import main
from tl_aniso.errors import ConfigError, ModelError
from tl_aniso.models import find, save_listings
from tl_aniso.models.rules import from_naming_rules
from tl_aniso.study.claims import citation, late_fitted_table, points
from tl_aniso.study.differences import read_differences
from tl_aniso.study.published import PublishedCheckpoints
from tl_aniso.viz.style import control_name

REPO = "EleutherAI/pythia-160m"
CLAIMS = ("C1", "C2", "C3", "C4", "C5")

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(seed):
    return tiny_model("neox-parallel", seed=seed, vocab_size=300, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def hub(tmp_path_factory, one_thread):
    """Step 1 has the weights of step 0, step 512 one matrix of step 2, and `other` is no checkpoint."""
    place = tmp_path_factory.mktemp("hub")
    mixed, source = tiny(4), tiny(2)
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    mixed.get_parameter(name).data.copy_(source.get_parameter(name))
    models = {"step0": tiny(0), "step1": tiny(0), "step2": source, "step512": mixed, "step1000": tiny(5)}
    models |= {"main": tiny(5), "other": tiny(6), "step3000": None}
    commits = write_hub_cache(place / "hub", REPO, models, tiny_tokenizer())
    save_texts(place / "texts.jsonl")
    return place, commits


@pytest.fixture(scope="module")
def finished(hub):
    place, _ = hub
    config = {
        "models": ["pythia-160m"],
        "text": str(place / "texts.jsonl"),
        "seq_len": 24,
        "sites": ["blocks.*.attn.W_V", "blocks.*.hook_resid_pre"],
        "rank": 4,
        "n_controls": 19,
        "controls": ["input_energy", "sign_flip", "shuffled_g", "covariance_drawn", "next_k"],
        "keep_last": 1,
    }
    with hub_cache(place / "hub"):
        study = Study(config, place / "out", progress=False)
        study.run()
        study.report()
        yield study


def test_a_registry_name_is_discovered_and_its_commits_are_keys(finished, hub):
    place, commits = hub
    (model,) = json.loads((place / "out" / "plan.json").read_text())["models"]
    assert [c["name"] for c in model["checkpoints"]] == ["step0", "step1", "step2", "step512", "step1000"]
    assert [c["key"] for c in model["checkpoints"]] == [commits[c["name"]] for c in model["checkpoints"]]
    assert [c["tokens_seen"] for c in model["checkpoints"]] == [s * 2_097_152 for s in (0, 1, 2, 512, 1000)]
    assert [c["phase"] for c in model["checkpoints"]] == ["early"] * 3 + ["late"] * 2
    assert any("listed is the cache alone" in note for note in model["listing"])
    assert any(note.startswith("step3000 cannot be measured") for note in model["listing"])
    assert model["notes"] == ["left out, since their steps are not known: main"]


def test_one_set_of_weights_is_one_point(finished):
    frame = finished.results
    marked = frame.groupby("revision", sort=False)[["duplicate_of", "mixed_with"]].agg(["unique"]).map(list)
    found = {name: (row.iloc[0], row.iloc[1]) for name, row in marked.iterrows()}
    assert found == {
        "step0": ([""], [""]),
        "step1": (["step0"], [""]),
        "step2": ([""], ["step512"]),
        "step512": ([""], ["step2"]),
        "step1000": ([""], [""]),
    }
    assert points(frame)["revision"].unique().tolist() == ["step0", "step2", "step512", "step1000"]
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    assert "step1 has the weights of step0 (equal to step 0, as where the first rate is 0)" in page
    assert "1 of" in page
    assert "gpt_neox.layers.1.mlp.dense_h_to_4h.weight" in page
    assert "<strong>Marked:</strong> step1 has the weights of step0" in page
    late = finished.claims.controls.query("claim == 'C1' and control == 'normal' and gradient == 'weight'")
    assert set(late["n"]) == {2}  # two sites of one checkpoint, step 2: step 1 is step 0 and step 0 no training


def test_the_page_of_claims_has_both_verdicts_and_every_control(finished):
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    claims = finished.claims
    for name in CLAIMS:
        section = re.search(rf'<section class="claim" id="{name}".*?</section>', page, re.DOTALL).group()
        verdicts = re.findall(r'<span class="verdict [\w-]+">([\w ]+)</span>', section)
        rows = claims.frame[claims.frame["claim"] == name]
        assert sorted(verdicts) == sorted(rows["verdict"])
        assert len(verdicts) == 2 * len(claims.table().query("claim == @name")) >= 2
        tests = claims.controls[claims.controls["claim"] == name]
        assert section.count('<th scope="row">') == len(tests) + len(verdicts) // 2
        for control in tests["control"].unique():
            assert f'<th scope="row">{control_name(control)}</th>' in section
    measured = set(claims.controls.query("claim == 'C1' and gradient == 'weight'")["control"])
    assert measured == {
        *("normal", "input_energy", "sign_flip", "shuffled_g", "shuffled_labels", "covariance_drawn", "next_k")
    }
    assert "documents, paired" in set(claims.controls.query("claim == 'C3' and quantity == 'energy'")["interval"])
    assert citation() in page
    assert load_rules().digest in page


def test_early_less_late_leaves_out_step_0_and_doubled_weights(finished):
    """And is the difference of the logarithms of R that the table has."""
    (model,) = json.loads((finished.out / "plan.json").read_text())["models"]
    place = finished.out / "frames" / model["differences"]
    assert json.loads((place / "pairs.json").read_text()) == [["step2", "step512"], ["step2", "step1000"]]
    pairs = read_differences(place, "pythia-160m")
    frame = finished.results
    rows = frame[(frame["measure"] == "r_energy") & (frame["control"] == "normal") & (frame["gradient"] == "weight")]
    ratio = {name: np.log(group.set_index("site")["value"]) for name, group in rows.groupby("revision")}
    for pair, late in zip(pairs, ("step512", "step1000"), strict=True):
        found = pair.frame[(pair.frame["control"] == "normal") & (pair.frame["gradient"] == "weight")]
        expected = (ratio["step2"] - ratio[late])[found["site"]]
        assert np.abs(found["value"].to_numpy() - expected.to_numpy()).max() < 1e-9


@pytest.mark.parametrize("name", ["claims", "claims_geometry"])
def test_the_cited_commit_wrote_the_rules(name):
    cited = citation(judge(energies()).joined(judge_geometry(correlations())))
    commit = re.search(f"{name}.yaml, commit ([0-9a-f]{{12}})", cited).group(1)
    root = Path(__file__).parents[2]
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=root, capture_output=True, check=False)
    if known.returncode:
        pytest.skip("no history of this repository here")
    held = subprocess.run(["git", "show", f"{commit}:data/{name}.yaml"], cwd=root, capture_output=True, check=True)
    assert held.stdout.decode() == (root / "data" / f"{name}.yaml").read_text(encoding="utf-8")


def test_late_fitted_planes_stand_beside_the_early_ones(finished):
    frame = points(finished.results)
    table = late_fitted_table(finished.results).set_index(["gradient", "phase"])
    assert set(table.index) == {(g, p) for g in ("weight", "activation") for p in ("early", "late")}
    rows = frame[(frame["control"] == "late_fitted") & (frame["gradient"] == "weight") & (frame["phase"] == "early")]
    shares = rows[rows["measure"] == "energy_share"]
    assert table.loc[("weight", "early"), "E in late planes"] == pytest.approx(shares["control_value"].mean())
    odds = shares[["value", "control_value"]].apply(lambda share: share / (1 - share))
    ratio = np.exp(np.log(odds["value"] / odds["control_value"]).mean())
    assert table.loc[("weight", "early"), "ratio"] == pytest.approx(ratio)


def test_names_alone_are_planned_and_not_loaded(tmp_path):
    config = {"models": ["pythia-160m"], "text": "local", "checkpoints": {"early": 2, "late": 1}}
    with hub_cache(tmp_path / "empty"):
        found = Study(config, tmp_path / "out").outline()
        (model,) = found.models
        assert model.n_published == 154
        assert model.estimate.n_layers == 12
        assert any("nothing can be loaded" in note for note in model.listing)
        with pytest.raises(ModelError, match="commit of EleutherAI/pythia-160m step0 is not known"):
            Study(config, tmp_path / "out", progress=False).run()
        with pytest.raises(ConfigError, match="models: no model 'pythia-70m' in the registry; near are"):
            Study({**config, "models": ["pythia-70m"]}, tmp_path / "out").outline()


def test_a_recorded_listing_is_used_instead_of_the_hub(hub, tmp_path):
    place, _ = hub
    save_listings(tmp_path / "recorded.json", [from_naming_rules(find("pythia-160m"))])
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps({"models": ["pythia-160m"], "text": "local", "listings": "recorded.json"}))
    with hub_cache(place / "hub"):
        (model,) = Study(path, tmp_path / "out").outline().models
    assert model.n_published == 154
    assert "recorded 2026" in model.listing[0]


def test_later_stages_are_left_out(tmp_path):
    names = ["stage1-step1000-tokens2B", "stage1-step5000-tokens10B", "stage2-ingredient1-step500-tokens1B", "main"]
    write_hub_cache(tmp_path / "hub", "some/staged", dict.fromkeys(names, tiny(0)), tiny_tokenizer())
    with hub_cache(tmp_path / "hub"):
        source = PublishedCheckpoints("some/staged", tokens_per_step=7)
        assert [c.name for c in source.checkpoints()] == [*names[:2], "main"]
        assert [c.tokens_seen for c in source.checkpoints()] == [2 * 10**9, 10**10, None]
        assert source.notes[-1] == "1 checkpoints of later stages, which count their steps anew, are left out"
        assert source.config().hidden_size == 32


def test_one_saved_model_is_a_study_of_one_checkpoint(tmp_path):
    tiny(0).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    config = {"models": [str(tmp_path / "model")], "text": str(tmp_path / "texts.txt"), "sites": "*.W_V", "rank": 2}
    frame = Study({**config, "n_controls": 9}, tmp_path / "out", progress=False).run()
    assert frame["phase"].isna().all()
    assert frame["revision"].unique().tolist() == ["main"]


def test_all_ten_models_of_the_paper_are_planned_offline(tmp_path, capsys):
    config = Path(__file__).parents[2] / "experiments" / "paper.yaml"
    with hub_cache(tmp_path / "empty"):
        assert main(["plan", str(config)]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line for line in shown.splitlines() if re.match(r" +[\w.-]+ +\d+ +\d+ +\d+ +\d+ ", line)}
    assert len(rows) == 10
    for name, line in rows.items():
        assert "unknown" not in line, name
        assert line.count("GB") == 3
    assert rows["pythia-1b"].split()[1:5] == ["154", "6", "4", "22"]
    assert rows["moderncamembert-base"].split()[1:5] == ["1", "1", "0", "3"]
    assert "recorded from naming rules, not from the hub" in " ".join(shown.split())
