"""``tl-aniso doctor``: exit codes, the list and the page."""

import json
from typing import Any

import pytest

from tests.doctor_models import TEXTS, doctors_tokenizer, model_for
from tl_aniso.cli import main
from tl_aniso.commands import doctor as command
from tl_aniso.errors import ModelError
from tl_aniso.models import LoadedModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return doctors_tokenizer()


@pytest.fixture
def text_file(tmp_path: Any) -> Any:
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    return path


def test_the_command_passes_and_writes_a_page(tokenizer: Any, text_file: Any, tmp_path: Any, capsys: Any) -> None:
    directory, out = tmp_path / "model", tmp_path / "out"
    model_for(tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    assert main(["doctor", str(directory), "--text", str(text_file), "--out", str(out)]) == 0
    page = (out / "doctor.html").read_text(encoding="utf-8")
    assert "gradients equal autograd" in page
    assert "all checks passed" in page
    shown = capsys.readouterr().out
    assert f"{directory} (LlamaForCausalLM, 2 layers, d_model 32): all checks passed" in " ".join(shown.split())
    assert main(["doctor", str(directory), "--text", str(text_file), "--out", str(out)]) == 0  # replaces the first


def test_a_broken_model_exits_1(tokenizer: Any, tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for(tokenizer, attention_dropout=0.1).train()
    loaded = LoadedModel(model, tokenizer, "<img src=x onerror=alert(1)>\x1b[31m", "local")
    monkeypatch.setattr(command, "load_model", lambda *_, **__: loaded)
    assert main(["doctor", "anything", "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "FAIL         evaluation mode" in shown
    assert "attention_dropout = 0.1" in shown
    assert "\x1b" not in shown
    page = (tmp_path / "out" / "doctor.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_a_model_that_does_not_load_exits_1(tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> LoadedModel:
        raise ModelError("the checkpoint of x lacks 3 weights")

    monkeypatch.setattr(command, "load_model", refuse)
    assert main(["doctor", "x", "--out", str(tmp_path / "out")]) == 1
    assert "FAIL         the model loads: the checkpoint of x lacks 3 weights" in capsys.readouterr().out


def test_bad_arguments_exit_2_before_anything_is_loaded(
    tmp_path: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_model", lambda *_, **__: pytest.fail("loaded"))
    assert main(["doctor", "x", "--text", str(tmp_path / "none.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "none.txt" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert main(["doctor", "x", "--out", str(tmp_path / "mine")]) == 2
    assert "thesis.tex" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["doctor"])
    assert caught.value.code == 2
