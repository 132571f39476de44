"""The scripts of experiments/, small and offline: discovery, plan, capture, planes, claims, pages."""

import json
import re
import runpy
from pathlib import Path

import pandas as pd
import pytest

from tl_aniso.claims import judge
from tl_aniso.errors import TlAnisoError
from tl_aniso.experiments import FAMILIES, local_config, train_pair
from tl_aniso.experiments.local import SMOKE_RECIPE
from tl_aniso.experiments.paper import paper_table
from tl_aniso.experiments.smoke import SMOKE_STEPS
from tl_aniso.models import REGISTRY
from tl_aniso.pair.run import PairText
from tl_aniso.training import pack_windows, train_tokenizer

SCRIPTS = Path(__file__).parents[2] / "experiments"
CLAIMS = ("C1", "C2", "C3", "C4", "C5")

pytestmark = pytest.mark.usefixtures("one_thread")


def run(name, *arguments):
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"](list(map(str, arguments)))


def check_page(out):
    """Both verdicts of every claim stand on the page."""
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in CLAIMS:
        section = re.search(rf'<section class="claim" id="{name}".*?</section>', page, re.DOTALL).group()
        verdicts = re.findall(r'<span class="verdict [\w-]+">([\w ]+)</span>', section)
        assert len(verdicts) >= 2
        assert set(verdicts) <= {"holds", "does not hold", "not testable"}
    return page


def check_family(name, out, shown, n_early, n_late):
    first = next(iter(FAMILIES[name].sizes.values()))
    assert all(f"{claim}: " in shown for claim in CLAIMS)
    assert 'id="late"' in check_page(out)
    (model,) = json.loads((out / "plan.json").read_text())["models"]
    assert all(re.fullmatch("[0-9a-f]{40}", checkpoint["key"]) for checkpoint in model["checkpoints"])
    assert model["n_published"] == len(SMOKE_STEPS)
    frame = pd.read_parquet(out / "results.parquet")
    assert set(frame["model"]) == {first}
    assert set(frame["objective"]) == {REGISTRY[first].objective}
    assert frame.groupby("phase")["revision"].nunique().to_dict() == {"early": n_early, "late": n_late}
    assert (frame["duplicate_of"] == "").all()


def test_an_encoder_runs_small_and_offline(tmp_path, capsys):
    out = tmp_path / "out"
    assert run("eurobert", "--smoke", "--checkpoints", "0,10000,60000", "--out", out) == 0
    check_family("eurobert", out, capsys.readouterr().out, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_runs_small_and_offline(name, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(name, "--smoke", "--out", out) == 0
    check_family(name, out, capsys.readouterr().out, 3, 2)


@pytest.mark.slow
def test_a_second_run_of_a_script_has_nothing_left_to_do(tmp_path):
    out = tmp_path / "out"
    run("olmo", "--smoke", "--checkpoints", "10000,710000", "--out", out)
    before = (out / "results.parquet").read_bytes()
    captures = {path.name: path.stat().st_mtime_ns for path in (out / "captures").iterdir()}
    run("olmo", "--smoke", "--checkpoints", "10000,710000", "--out", out)
    assert (out / "results.parquet").read_bytes() == before
    assert {path.name: path.stat().st_mtime_ns for path in (out / "captures").iterdir()} == captures


def test_arguments_that_cannot_be_used_are_refused(tmp_path, capsys):
    assert run("pythia", "--checkpoints", "early=x", "--out", tmp_path / "out") == 2
    assert "write all, steps such as 0,512,1000" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("pythia", "--size", "2.8b")


@pytest.mark.slow
def test_all_ten_models_run_small_and_offline(tmp_path, capsys):
    assert run("paper", "--smoke", "--out", tmp_path / "out") == 0
    table = pd.read_csv(tmp_path / "out" / "paper.csv")
    assert table["model"].nunique() == 10
    assert table.groupby("model")["phase"].nunique().eq(2).all()
    page = check_page(tmp_path / "out")
    section = re.search(r'<section class="claim" id="C5".*?</section>', page, re.DOTALL).group()
    assert '<th scope="row">all</th>' in section


@pytest.mark.slow
def test_the_pair_is_trained_measured_and_judged_over_seeds(tmp_path, capsys):
    out = tmp_path / "out"
    assert run("local", "--smoke", "--out", out) == 0
    shown = capsys.readouterr().out
    assert "encoder - decoder" in shown
    assert all(f"C{number}: " in shown for number in range(1, 9))
    check_page(out / "study")
    geometry = pd.read_parquet(out / "study" / "geometry.parquet")
    assert set(geometry["scope"]) == {"within", "over_checkpoints"}
    assert set(geometry["gradient"]) == {"none", "activation", "weight"}
    assert geometry["model"].nunique() == 4
    frame = pd.read_parquet(out / "study" / "results.parquet")
    assert sorted(frame["model"].unique()) == ["decoder-0", "decoder-1", "encoder-0", "encoder-1"]
    named = frame.assign(model=frame["model"].str[:-2], training=frame["model"].str[-1])
    table = judge(named, runs="training")
    effects = table.frame.query("claim == 'C1' and model == 'decoder'")
    assert set(effects["interval"]) == {"runs"}
    page = (out / "study" / "report.html").read_text(encoding="utf-8")
    assert all(f"{value:.3g}" in page for value in effects["effect"])


def test_trainings_are_whole_and_made_once(tmp_path):
    texts = [f"{i} crows sat on the mat and {i + 1} cats looked at them" for i in range(80)]
    tokenizer = train_tokenizer(texts, SMOKE_RECIPE.vocab_size, mask=True)
    windows = pack_windows(texts, tokenizer, SMOKE_RECIPE.context)
    text = PairText(windows, windows[:4], [row.numpy() for row in windows[:8]], tokenizer)
    found = train_pair(tmp_path, seeds=(0,), recipe=SMOKE_RECIPE, text=text, progress=False)
    assert {name: sorted(p.name for p in place.iterdir()) for name, place in found.items()} == {
        kind: ["recipe.json", "step0", "step12", "step24", "step4", "step40"] for kind in ("decoder-0", "encoder-0")
    }
    weights = [(tmp_path / kind / "step0" / "model.safetensors").read_bytes() for kind in found]
    before = (tmp_path / "decoder-0" / "step40" / "model.safetensors").stat().st_mtime_ns
    train_pair(tmp_path, seeds=(0,), recipe=SMOKE_RECIPE, text=text, progress=False)
    assert (tmp_path / "decoder-0" / "step40" / "model.safetensors").stat().st_mtime_ns == before
    assert weights[0] == weights[1]  # both start from one state
    other = PairText(windows[1:], windows[:4], text.documents, tokenizer)
    with pytest.raises(TlAnisoError, match="decoder-0 holds a training of another recipe or text"):
        train_pair(tmp_path, seeds=(0,), recipe=SMOKE_RECIPE, text=other, progress=False)
    config = local_config(found, tmp_path / "text.jsonl", SMOKE_RECIPE)
    assert config["trainings"] == {"decoder": ["decoder-0"], "encoder": ["encoder-0"]}
    assert config["models"][0]["tokens_per_step"] == SMOKE_RECIPE.batch_size * SMOKE_RECIPE.context


def test_the_table_of_the_paper_by_hand():
    rows = [
        ("a", "early", "step1", "energy_share", "none", 0.2),
        ("a", "early", "step1", "r_energy", "normal", 2.0),
        ("a", "early", "step2", "r_energy", "normal", 8.0),
        ("a", "early", "step2", "excess", "input_energy", 0.5),
        ("a", "late", "step9", "r_energy", "normal", 1.5),
    ]
    frame = pd.DataFrame(rows, columns=["model", "phase", "revision", "measure", "control", "value"])
    frame = frame.assign(site="blocks.0.attn.W_Q", gradient="weight", duplicate_of="", step=1.0)
    doubled = frame.assign(revision="step3", duplicate_of="step2", value=99.0)
    table = paper_table(pd.concat([frame, doubled])).set_index("phase")
    assert table["checkpoints"].to_dict() == {"early": 2, "late": 1}
    assert table.loc["early", "R"] == pytest.approx(4.0)
    assert table.loc["early", "excess over input_energy"] == pytest.approx(0.5)
    assert table.loc["late", "R"] == pytest.approx(1.5)
