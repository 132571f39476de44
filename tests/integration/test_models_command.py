"""`tl-aniso models`: the registry, one model's checkpoints, what it says without a connection, and exit codes."""

import subprocess
import sys

import pytest

from tests.hub_cache import hub_cache, hub_environment, write_hub_cache
from tests.hub_server import serve_hub
from tests.models import tiny_model
from tl_aniso.cli import main
from tl_aniso.models import REGISTRY
from tl_aniso.models.rules import RECORDED_RULES

PYTHIA = "EleutherAI/pythia-160m"


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    place = tmp_path_factory.mktemp("hub") / "remote"
    model = tiny_model("neox-parallel", vocab_size=300, bos_token_id=0, eos_token_id=0)
    commits = write_hub_cache(place, PYTHIA, {"step0": model, "step1000": model, "step2000": None, "junk": None})
    return place, commits


def lines(shown, start):
    return [line.split() for line in shown.splitlines() if line.strip().startswith(start)]


def test_the_registry_is_shown(capsys):
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    for entry in REGISTRY.values():
        assert entry.name in shown
        assert entry.hub_id in shown
    assert "2,097,152 a step" in shown
    assert "unknown: the hub tells" in shown


def test_checkpoints_are_asked_for_once_and_shown_again_without_a_connection(remote, tmp_path, capsys):
    place, commits = remote
    with serve_hub(place) as hub, hub_cache(tmp_path / "cache", endpoint=hub.endpoint):
        assert main(["models", "pythia-160m"]) == 0
        first = capsys.readouterr().out
        asked = len(hub.asked)
        assert asked == 1 + 3  # the branches, and the files of each
        assert main(["models", "pythia-160m"]) == 0
        assert len(hub.asked) == asked
        again = capsys.readouterr().out
        assert main(["models", "pythia-160m", "--refresh"]) == 0
        assert len(hub.asked) == 2 * asked
    row = lines(first, "step1000")[0]
    assert row[:4] == ["step1000", "1,000", "2.1B", commits["step1000"][:8]]
    assert row[-1] == "no"
    assert "2 checkpoints; 0 are on this machine" in first
    assert "* missing: step2000: no weights" in first
    assert "left aside: junk" in first
    assert "(listed 20" in again
    with hub_cache(tmp_path / "cache"):
        capsys.readouterr()
        assert main(["models", PYTHIA]) == 0
        assert lines(capsys.readouterr().out, "step1000")[0] == row
        assert main(["models", "pythia-160m", "--refresh"]) == 1
        assert "the cache holds no checkpoint" in capsys.readouterr().err


def test_without_a_connection_the_cache_is_shown_and_named(remote, capsys):
    with hub_cache(remote[0]):
        assert main(["models", "pythia-160m"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "2 checkpoints; 2 are on this machine. Source: offline (HF_HUB_OFFLINE is set)" in shown
        assert "listed is the cache alone" in shown
        assert main(["models", "pythia-160m", "--refresh"]) == 1
        assert "so --refresh has nothing new" in capsys.readouterr().err


def test_another_process_finds_the_cache_by_its_environment(remote):
    command = [sys.executable, "-m", "tl_aniso", "models", "pythia-160m"]
    done = subprocess.run(command, env=hub_environment(remote[0]), capture_output=True, text=True, check=False)
    assert (done.returncode, lines(done.stdout, "step0")[0][3]) == (0, remote[1]["step0"][:8])


def test_a_recorded_listing_is_shown_as_what_it_is(capsys):
    assert main(["models", "olmo-1b", "--recorded", str(RECORDED_RULES)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "step10000-tokens41B 10,000 41B - - no" in shown
    assert "recorded from naming rules, not from the hub" in shown


def test_a_directory_of_checkpoints_is_shown(tmp_path, capsys):
    model = tiny_model("llama")
    for name in ("step10", "step5"):
        model.save_pretrained(tmp_path / name)
    assert main(["models", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert [row[0] for row in lines(shown, "step")] == ["step5", "step10"]
    assert "Source: directories in" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["pythia-70m"], 2, "near are pythia-410m"),
        (["./nowhere"], 2, "no directory here"),
        (["--refresh"], 2, "name it"),
        (["pythia-1b", "--refresh", "--recorded", "x.json"], 2, "choose one"),
        (["pythia-1b", "--recorded", "no-such-file.json"], 2, "cannot read the listings no-such-file.json"),
        (["nobody/nothing", "--recorded", str(RECORDED_RULES)], 2, "does not list nobody/nothing"),
        (["pythia-1b"], 1, "the cache holds no checkpoint of pythia-1b"),
    ],
)
def test_exit_codes(tmp_path, capsys, arguments, code, said):
    with hub_cache(tmp_path):
        assert main(["models", *arguments]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
