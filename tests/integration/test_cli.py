"""The command line on tiny models: results appear whole or not at all, errors are one line, exit codes are kept."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.models import tiny_model
from tl_aniso import TangentProxies
from tl_aniso.cli import main
from tl_aniso.commands.output import fresh_directory
from tl_aniso.errors import TlAnisoError
from tl_aniso.training import train_tokenizer

TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {b} of the {a} again, then at the {c} once more"
    for a, b, c in [(a, b, c) for a in ("old", "red", "wet") for b in ("cat", "dog") for c in ("mat", "hat", "bed")]
]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(TEXTS, 300)
    model = tiny_model("llama", vocab_size=300, bos_token_id=0, eos_token_id=0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    return path


def test_measure_writes_table_page_and_proxies(model_directory, text_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["measure", str(model_directory), "--text", str(text_file), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "results.csv")
    assert {"energy_share", "r_energy", "excess", "isoscore_star"} <= set(frame["measure"])
    assert set(frame["gradient"].fillna("none")) == {"none", "activation", "weight"}
    assert (frame["revision"] == "local").all()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "blocks.1.mlp.W_gate" in page
    assert TangentProxies.load(out / "proxies")["blocks.0.attn.W_Q"].rank == 8
    shown = capsys.readouterr().out
    assert "R shuffled_g" in shown or "shuffled_g" in shown
    assert "without tangent" in shown


def test_a_second_run_replaces_the_first_and_nothing_else(model_directory, text_file, tmp_path):
    out = tmp_path / "out"
    arguments = ["measure", str(model_directory), "--text", str(text_file), "--out", str(out), "--sites", "*.W_Q"]
    assert main(arguments) == 0
    (out / "stray").touch()
    assert main(arguments) == 0
    assert not (out / "stray").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    with pytest.raises(TlAnisoError, match="not the output"), fresh_directory(precious):
        pass
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--rank": "17"}, "rank 17 is outside"),
        ({"--sites": "blocks.0.attn.W_X"}, "near matches"),
        ({"--seq-len": "4000"}, "beyond the model's context"),
        ({"--text": "nowhere.txt"}, "nowhere.txt"),
        ({"--revision": "step512"}, "local path"),
    ],
)
def test_user_errors_are_one_line_exit_1_and_leave_nothing(
    model_directory, text_file, tmp_path, capsys, change, message
):
    arguments = {"--text": str(text_file), "--out": str(tmp_path / "out"), **change}
    flat = [word for pair in arguments.items() for word in pair]
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["measure", str(model_directory), *flat]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tl-aniso: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_that_is_not_there(text_file, tmp_path, capsys):
    assert main(["measure", str(tmp_path / "no-model"), "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert "cannot load" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["measure"], ["demo", "--steps", "0"], ["fly"]])
def test_bad_arguments_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_terminated_run_leaves_nothing_half_written(tmp_path):
    code = (
        "import sys, time; from tl_aniso import cli; import tl_aniso.commands.demo as d\n"
        "def slow(recipe, **_): print('here', flush=True); time.sleep(60)\n"
        f"d.demo_text = slow; sys.exit(cli.main(['demo', '--out', {str(tmp_path / 'out')!r}]))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"here"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1
    assert list(tmp_path.iterdir()) == []
