"""The command line on tiny models: results appear whole or not at all, errors are one line, exit codes are kept."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from tests.models import tiny_model
from tl_aniso import TangentProxies
from tl_aniso.cli import main
from tl_aniso.commands import doctor as doctor_module
from tl_aniso.commands import measure as measure_module
from tl_aniso.commands.output import fresh_directory, print_table, short_names
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
    assert "PCA of the half of the documents that is not measured" in page
    assert "{'" not in page.split("<script")[0]
    shown = capsys.readouterr().out
    titles = [
        line.split(",")[0].split(":")[0] for line in shown.splitlines() if line.startswith(("R of g", "exc", "IsoS"))
    ]
    assert titles[:3] == ["R of gradients", "excess", "IsoScore* before and after removal"]
    assert "shuffled g" in shown
    assert "without tangent" in shown


def test_measure_takes_the_names_of_controls_and_the_page_explains_them(model_directory, text_file, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["--controls", "input_energy, next_k,untrained,permuted_tokens", "--shuffled-labels", "--sites", "*.W_V"]
    assert main(["measure", str(model_directory), "--text", str(text_file), "--out", str(out), *asked]) == 0
    frame = pd.read_csv(out / "results.csv")
    shown = ["input_energy", "next_k", "untrained", "permuted_tokens", "shuffled_labels"]
    assert list(dict.fromkeys(frame.loc[frame["measure"] == "excess", "control"])) == shown
    page = (out / "report.html").read_text(encoding="utf-8")
    explained = page.split("<h3>Controls</h3>")[1].split("</dl>")[0]
    for name in ("normal plane", "input energy", "shuffled labels", "permuted tokens", "untrained model"):
        assert f"<dt>{name}</dt>" in explained
    assert "planes of its own: does it take training?" in explained
    assert "sign flip" not in page
    assert "untrained" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["measure", str(model_directory), "--text", str(text_file), "--controls", "next"])
    assert "choose from input_energy" in capsys.readouterr().err


def test_planes_of_the_measured_documents_are_called_in_sample(model_directory, tmp_path, capsys):
    text, out = tmp_path / "one.txt", tmp_path / "out"
    text.write_text(" ".join(TEXTS), encoding="utf-8")
    assert main(["measure", str(model_directory), "--text", str(text), "--out", str(out), "--seq-len", "32"]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "in-sample: PCA of the very documents that are measured" in page
    assert "that is not measured" not in page


@pytest.mark.parametrize("width", [80, 30])
def test_numbers_of_a_table_are_whole_on_any_terminal(width, monkeypatch, capsys):
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    controls = ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels")
    numbers = {f"{what} {control}": [0.00123 + i] for what in ("R", "excess") for i, control in enumerate(controls)}
    first = {"gradient": ["activation"], "group": ["inputs and outputs"], "rank": [144], "E": [0.0123], "R": [12345.6]}
    print_table(short_names(pd.DataFrame(first | numbers), "R"), "title")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert "…" not in "".join(lines)
    assert {"0.0123", "12,346", "0.00123", "1", "2", "3", "144"} <= set(" ".join(lines).split())
    assert width < 80 or max(map(len, lines)) <= 80


def test_a_reader_that_leaves_early_is_no_error():
    code = (
        "import sys; from tl_aniso import cli; import tl_aniso.commands.demo as d\n"
        "def talk(**_):\n"
        "    for _ in range(100_000): print('a line')\n"
        "d.demo_command = talk; sys.exit(cli.main(['demo']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().strip() == b"a line"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_an_ignored_hang_up_stays_ignored():
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from tl_aniso import cli; import tl_aniso.commands.demo as d\n"
        "d.demo_command = lambda **_: os.kill(os.getpid(), signal.SIGHUP); sys.exit(cli.main(['demo']))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_max_documents_takes_the_first_ones(model_directory, text_file, tmp_path):
    out = tmp_path / "out"
    arguments = ["--text", str(text_file), "--out", str(out), "--sites", "*.W_Q", "--max-documents", "1"]
    assert main(["measure", str(model_directory), *arguments]) == 0
    frame = pd.read_csv(out / "results.csv")
    assert set(frame["n_documents"]) == {1}
    assert not frame["held_out"].any()


def test_a_second_run_replaces_the_first_and_nothing_else(model_directory, text_file, tmp_path):
    out = tmp_path / "out"
    arguments = ["measure", str(model_directory), "--text", str(text_file), "--out", str(out), "--sites", "*.W_Q"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert main(arguments) == 2
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    (out / "notes.txt").unlink()
    link = tmp_path / "link"
    link.symlink_to(out)
    assert main([*arguments[:-3], str(link), *arguments[-2:]]) == 0
    assert link.is_symlink()
    assert (link / "results.csv").is_file()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    with (
        pytest.raises(TlAnisoError, match=r"thesis\.tex, which no earlier run wrote"),
        fresh_directory(precious, "measure"),
    ):
        pass
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"--rank": "17"}, 2, "rank 17 is outside"),
        ({"--sites": "blocks.0.attn.W_X"}, 2, "near matches"),
        ({"--seq-len": "4000"}, 2, "beyond the model's context"),
        ({"--text": "nowhere.txt"}, 2, "nowhere.txt"),
        ({"--revision": "step512"}, 1, "local path"),
    ],
)
def test_user_errors_are_one_line_and_leave_nothing(
    model_directory, text_file, tmp_path, capsys, change, code, message
):
    arguments = {"--text": str(text_file), "--out": str(tmp_path / "out"), **change}
    flat = [word for pair in arguments.items() for word in pair]
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["measure", str(model_directory), *flat]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tl-aniso: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_that_is_not_there(text_file, tmp_path, capsys):
    assert main(["measure", str(tmp_path / "no-model"), "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert "there is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama", "neox-parallel"])  # of the latter an empty tokenizer would be made
def test_a_model_without_its_tokenizer_says_so(kind, text_file, tmp_path, capsys):
    tiny_model(kind).save_pretrained(tmp_path / "bare")
    assert main(["measure", str(tmp_path / "bare"), "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert "bare holds a model without a tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out/models/mine", "mine/", "./mine", "a\\b", "my model"])
def test_what_can_be_no_name_on_the_hub_is_not_looked_for_there(name, text_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformers.utils.cached_file", lambda *_, **__: pytest.fail("asked"))
    assert main(["measure", name, "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert f"tl-aniso: there is no directory {name!r}" in capsys.readouterr().err


def test_a_name_that_the_hub_does_not_give_is_first_of_all_no_directory(text_file, tmp_path, capsys, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("transformers.utils.cached_file", unreachable)
    assert main(["measure", "owner/mine", "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    shown = capsys.readouterr().err
    assert "tl-aniso: there is no directory 'owner/mine' here, and as a name on the hub it did not load: no" in shown


def test_a_text_of_the_wrong_type_is_refused_in_english(tmp_path, capsys):
    text = tmp_path / "t.jsonl"
    text.write_text('{"text": 3}', encoding="utf-8")
    assert main(["measure", "m", "--text", str(text), "--out", str(tmp_path / "o")]) == 2
    assert "line 1 is of type int; it must be" in capsys.readouterr().err


def test_a_checkpoint_that_lacks_weights_is_not_measured_with_random_ones(model_directory, text_file, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(model_directory, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert main(["measure", str(broken), "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert "model.layers.1.mlp.up_proj.weight" in capsys.readouterr().err
    (broken / "model.safetensors").write_bytes((model_directory / "model.safetensors").read_bytes()[:900])
    assert main(["measure", str(broken), "--text", str(text_file), "--out", str(tmp_path / "o")]) == 1
    assert "cannot load" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["measure"], ["demo", "--steps", "0"], ["fly"]])
def test_bad_arguments_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rank", "x", "--rank: must be a positive integer, got x"),
        ("--rank", "0", "--rank: must be a positive integer, got 0"),
        ("--seed", "-1", "--seed: must be an integer from 0 to"),
        ("--seq-len", "1", "--seq-len: must be an integer of at least 2"),
        ("--controls", "magic", "--controls: magic: choose from"),
    ],
)
def test_a_value_that_no_model_takes_exits_2(option, value, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["measure", "m", "--text", "t.txt", option, value])
    assert message in capsys.readouterr().err


def test_an_empty_text_is_called_by_its_name(tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    for command in ("measure", "doctor"):
        arguments = [command, "m", "--text", str(tmp_path / "empty.txt"), "--out", str(tmp_path / "out")]
        assert main(arguments) == 2
        assert "empty.txt" in capsys.readouterr().err


def _results_of(command, out):
    with fresh_directory(out, command) as directory:
        (directory / "model").mkdir()
        (directory / "model" / "config.json").touch()
        (directory / "t.txt").write_text("words", encoding="utf-8")


@pytest.mark.parametrize("command", ["measure", "doctor"])
@pytest.mark.parametrize("link", [False, True])
def test_what_a_run_reads_is_never_replaced(command, link, text_file, tmp_path, capsys, monkeypatch):
    module = {"measure": measure_module, "doctor": doctor_module}[command]
    monkeypatch.setattr(module, "load_model", lambda *_, **__: pytest.fail("loaded"))
    out = tmp_path / "out"
    _results_of(command, out)  # so that the inputs alone are the reason
    given = out
    if link:
        given = tmp_path / "link"
        given.symlink_to(out)
    for model, text in ((given / "model", text_file), (given, text_file), ("m", given / "t.txt")):
        assert main([command, str(model), "--text", str(text), "--out", str(out)]) == 2
        assert "is read by this run" in capsys.readouterr().err
    assert (out / "model" / "config.json").exists()


@pytest.mark.parametrize("writer", ["measure", "doctor", "demo"])
def test_a_command_replaces_only_its_own_results(writer, text_file, tmp_path, capsys, monkeypatch):
    for module in (measure_module, doctor_module):
        monkeypatch.setattr(module, "load_model", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr("tl_aniso.commands.demo.demo_text", lambda *_: pytest.fail("trained"))
    out = tmp_path / "out"
    _results_of(writer, out)
    arguments = {"measure": ["m", "--text", str(text_file)], "doctor": ["m"], "demo": []}
    for command in arguments.keys() - {writer}:
        assert main([command, *arguments[command], "--out", str(out)]) == 2
        assert f"holds results of {writer}, which {command} does not replace" in capsys.readouterr().err
    assert (out / "t.txt").read_text(encoding="utf-8") == "words"


def test_a_model_that_is_missing_costs_no_results(text_file, tmp_path):
    out, missing = tmp_path / "out", str(tmp_path / "none")
    _results_of("measure", out)
    assert main(["measure", missing, "--text", str(text_file), "--out", str(out)]) == 1
    assert main(["doctor", missing, "--out", str(out)]) == 2
    assert (out / "t.txt").read_text(encoding="utf-8") == "words"


def test_the_package_runs_as_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "tl_aniso", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.startswith("tl-aniso ")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_terminated_run_leaves_nothing_half_written(name, tmp_path):
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
    process.send_signal(getattr(signal, name))
    assert process.wait(30) == 1
    assert list(tmp_path.iterdir()) == []
