"""What a worker does with a task, in this process and without Ray."""

import dataclasses
import sys
import warnings

import pytest
import torch

from tl_aniso.cli import main
from tl_aniso.errors import ConfigError, TlAnisoError, TlAnisoWarning
from tl_aniso.study import RayExecutor, Study, Task
from tl_aniso.study.ray_worker import Surroundings, make


@pytest.fixture
def around(tmp_path):
    (tmp_path / ".seal.part").touch()
    before = torch.get_num_threads()
    yield Surroundings.here(1, ".seal.part")
    torch.set_num_threads(before)


def test_an_entry_that_is_there_is_kept(around, tmp_path):
    """The worker that made it died before it could say so."""
    ran = []

    def write(place):
        ran.append(place)
        (place / "whole").write_text("whole")
        warnings.warn("known", TlAnisoWarning, stacklevel=1)
        warnings.warn("of another library", UserWarning, stacklevel=1)

    task = Task("captures", "0a", "a capture", tmp_path, write)
    assert make(task, around) == ["known"]
    assert make(task, around) == []
    assert len(ran) == 1
    assert not (tmp_path / "damaged").exists()


def test_nodes_must_see_the_directory_and_have_the_version(around, tmp_path):
    task = Task("captures", "0a", "a capture", tmp_path / "elsewhere", lambda place: None)
    with pytest.raises(TlAnisoError, match=r"a capture: .* does not see the study's directory .*elsewhere"):
        make(task, around)
    with pytest.raises(TlAnisoError, match=r"the study runs with 9\.9; install the same version"):
        make(task, dataclasses.replace(around, version="9.9"))


def test_paths_are_relative_to_where_the_study_runs(around, tmp_path, monkeypatch):
    task = Task("captures", "0a", "a capture", (tmp_path / "x").relative_to(tmp_path).parent, lambda place: None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    make(task, dataclasses.replace(around, directory=tmp_path))
    assert (tmp_path / "captures" / "0a").is_dir()


@pytest.mark.parametrize("asked", [{"num_gpus": -1}, {"num_gpus": 1.5}, {"num_gpus": float("nan")}, {"threads": 0}])
def test_numbers_that_cannot_be_used(asked):
    with pytest.raises(TlAnisoError, match=next(iter(asked))):
        RayExecutor(**asked)


def test_models_go_to_the_workers_gpu(tmp_path):
    config = {"models": ["models"], "text": "local"}
    executor = RayExecutor(num_gpus=1)
    for asked in (None, "cuda", "cuda:3"):
        assert Study({**config, "device": asked}, tmp_path, executor=executor).config.device == "cuda"
    assert Study({**config, "device": "cpu"}, tmp_path, executor=executor).config.device == "cpu"
    assert Study(config, tmp_path, executor=RayExecutor()).config.device is None
    with pytest.raises(ConfigError, match="device cuda: workers are given no GPUs"):
        Study({**config, "device": "cuda"}, tmp_path, executor=RayExecutor())


def test_without_ray_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    task = Task("captures", "0a", "a capture", tmp_path, lambda place: None)
    with pytest.raises(ConfigError, match=r"pip install 'tl_aniso\[ray\]'"):
        list(RayExecutor().map([task]))


def test_options_of_workers_need_the_executor(tmp_path, capsys):
    (tmp_path / "study.yaml").write_text("models: [models]\ntext: local\n")
    assert main(["study", str(tmp_path / "study.yaml"), "--gpus", "1"]) == 2
    assert "add --executor ray" in capsys.readouterr().err
    assert main(["study", str(tmp_path / "study.yaml"), "--executor", "ray", "--gpus", "1.5"]) == 2
    assert "num_gpus must be" in capsys.readouterr().err
