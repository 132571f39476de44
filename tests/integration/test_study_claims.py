"""Claims of studies that measured too little, models that are no trainings of one, several ranks, doubled weights."""

import shutil

import pytest
import yaml

from tests.encoder_models import tiny_encoder
from tests.models import tiny_model
from tests.study_models import save_checkpoints, save_texts, small_config
from tl_aniso import Study
from tl_aniso.cli import main
from tl_aniso.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"sites": ["blocks.0.attn.W_Q"], "gradients": ["weight"], "extra_passes": [], "late_fitted": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("claims")
    save_checkpoints(directory / "llama", (0, 10, 100))
    for name, model in (
        ("neox", tiny_model("neox-parallel", vocab_size=300)),
        ("bert", tiny_encoder("Bert", vocab_size=300, num_hidden_layers=2)),
        ("deep", tiny_model("llama", vocab_size=300, layers=3)),
    ):
        for step in (0, 100):
            model.save_pretrained(directory / name / f"step{step}")
    save_texts(directory / "texts.jsonl")
    return directory


def written(place, path, **changes):
    path.write_text(yaml.safe_dump(small_config(place / "llama", place / "texts.jsonl", **{**SMALL, **changes})))
    return str(path)


def test_a_study_of_step_0_alone_has_claims_and_a_page(place, tmp_path, capsys):
    config = written(place, tmp_path / "study.yaml", checkpoints=[0])
    assert main(["study", config, "--out", str(tmp_path / "out")]) == 0
    assert "C1" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "step 0 alone was measured, which is initialisation" in page
    assert main(["report", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("neox", r"family \(llama, gpt_neox\)"),
        ("bert", r"family \(llama, bert\), objective \(causal, masked\)"),
        ("deep", r"depth \(2, 3\)"),
    ],
)
def test_other_architectures_are_no_trainings_of_one_model(place, tmp_path, kind, what):
    models = [str(place / "llama"), str(place / kind)]
    given = small_config(place / "llama", place / "texts.jsonl", trainings={"x": ["llama", kind]}) | {"models": models}
    study = Study(given, tmp_path / "out", progress=False)
    for act in (study.outline, study.plan, study.run):
        with pytest.raises(ConfigError, match=f"trainings: x: llama and {kind} are no trainings .* differ in {what}"):
            act()
    assert not (tmp_path / "out").exists()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(given))
    assert main(["plan", str(path)]) == 2


def test_several_ranks_and_final_weights_under_the_step_before(place, tmp_path, capsys):
    models = tmp_path / "models"
    shutil.copytree(place / "llama", models)
    shutil.rmtree(models / "step10")
    shutil.copytree(models / "step100", models / "step10")
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump(small_config(models, place / "texts.jsonl", **{**SMALL, "rank": [2, 4]})))
    assert main(["study", str(config), "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step10 has the weights of step100, and is no point of figures or claims" in said
    assert "several ranks were measured (2, 4); claims are judged at rank 2" in said
    frame = Study(str(config), tmp_path / "out").claims.frame
    c1 = frame[(frame["claim"] == "C1") & (frame["gradient"] == "weight")]
    assert c1["reason"].str.contains("0 checkpoints after step 0 are of the phase early").all()
    assert main(["report", str(tmp_path / "out"), "--rank", "4"]) == 0
    assert "claims are judged at rank 4" in (tmp_path / "out" / "report.html").read_text()
    assert main(["report", str(tmp_path / "out"), "--rank", "3"]) == 1
    assert "was not measured at rank 3; known are 2, 4" in capsys.readouterr().err
