"""Studies on clusters of two nodes, all on this machine: the local table, also when workers and nodes die."""

import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from tests import ray_tasks
from tests.study_models import save_checkpoints, save_texts, small_config
from tl_aniso import Study
from tl_aniso.cli import main
from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.study import RayExecutor, Task
from tl_aniso.study.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_thread")]

SMALL = {"sites": ["blocks.0.attn.W_V"], "gradients": ["weight"], "extra_passes": []}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ray")
    save_checkpoints(directory / "models")
    save_texts(directory / "texts.jsonl")
    return directory


@pytest.fixture(scope="module")
def config(place):
    return small_config(place / "models", place / "texts.jsonl", **SMALL)


@pytest.fixture(scope="module")
def expected(place, config, one_thread):
    return Study(config, place / "local", progress=False).run()


@pytest.fixture(scope="module")
def cluster():
    """A head with one core; tests add the second node."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield made
        made.shutdown()


@pytest.fixture
def second(cluster):
    node = cluster.add_node(num_cpus=1)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


def once(condition, then):
    """Do something as soon as something holds; the thread to join."""

    def wait():
        until = time.monotonic() + 60
        while not condition() and time.monotonic() < until:
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def entries(root, kind="captures"):
    return sorted(path.name for path in (root / kind).iterdir())


def test_two_nodes_give_the_local_table(cluster, second, config, expected, tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    nodes = []
    with RayExecutor() as executor:
        nodes += [node for node in ray.nodes() if node["Alive"]]
        frame = Study(config, tmp_path / "out", executor=executor, progress=False).run()
    assert len(nodes) == 2
    assert not ray.is_initialized()
    pd.testing.assert_frame_equal(frame, expected, rtol=1e-6, atol=1e-12)
    assert list((tmp_path / "out").rglob(".*")) == []


def test_a_node_killed_mid_study_loses_nothing(cluster, second, place, config, expected, tmp_path):
    import ray

    with RayExecutor(address=cluster.address) as executor:
        head = next(node for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
        source = ray_tasks.HoldingCheckpoints(place / "models", only=head["NodeID"], notes=tmp_path)
        lost = partial(cluster.remove_node, second, allow_graceful=False)
        thread = once((tmp_path / "held").exists, lost)
        study = Study(config, tmp_path / "out", sources={"tiny": source}, executor=executor, progress=False)
        frame = study.run()
        thread.join()
    assert (tmp_path / "held").exists()
    pd.testing.assert_frame_equal(frame, expected, rtol=1e-6, atol=1e-12)
    assert entries(tmp_path / "out") == entries(place / "local")
    assert not (tmp_path / "out" / "damaged").exists()
    assert list((tmp_path / "out").rglob(".*")) == []


def test_a_worker_killed_in_its_task_is_run_again(cluster, tmp_path):
    root, notes = tmp_path / "out", tmp_path / "notes"
    notes.mkdir()
    task = Task("captures", "0a", "a capture", root, partial(ray_tasks.write_and_wait_once, notes=notes))

    def kill():
        os.kill(int(next(notes.glob("*.pid")).stem), signal.SIGKILL)

    thread = once(lambda: any(notes.glob("*.pid")), kill)
    assert list(RayExecutor(address=cluster.address).map([task])) == ["0a"]
    thread.join()
    assert len(list(notes.glob("*.pid"))) == 2
    assert (Store(root).get("captures", "0a", "a capture") / "whole").read_text() == "whole"
    assert entries(root) == ["0a"]  # nor what the dead one left half-written


def test_tasks_that_always_fail_are_named_and_the_others_kept(cluster, tmp_path):
    root = tmp_path / "out"
    writers = {
        "refused": ray_tasks.refuse,
        "dead": partial(ray_tasks.die, notes=tmp_path),
        "first": ray_tasks.write_nothing,
        "last": ray_tasks.write_nothing,
    }
    tasks = [Task("captures", key, f"the {key} capture", root, write) for key, write in writers.items()]
    done = []
    with pytest.raises(TlAnisoError) as caught:
        done.extend(RayExecutor(address=cluster.address, max_retries=1).map(tasks))
    assert str(caught.value).startswith("2 of 4 tasks failed, and what the others made is kept: ")
    assert "the refused capture: no such thing; give another" in str(caught.value)
    assert "the dead capture: its worker died 2 times" in str(caught.value)
    assert len(list(tmp_path.glob("*.died"))) == 2
    assert entries(root) == ["first", "last"]


def test_the_command_names_a_checkpoint_that_cannot_be_read(cluster, place, tmp_path, monkeypatch, capsys):
    import shutil

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    shutil.copytree(place / "models", tmp_path / "models")
    weights = tmp_path / "models" / "step100" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    asked = small_config(tmp_path / "models", place / "texts.jsonl", **SMALL)
    (tmp_path / "study.yaml").write_text(json.dumps(asked))
    given = ["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out"), "--executor", "ray"]
    assert main(given) == 1
    assert "1 of 4 tasks failed" in (said := capsys.readouterr().err)
    assert "fitting capture of tiny at step100: " in said
    assert len(entries(tmp_path / "out")) == 3


def test_what_no_node_has_is_refused(cluster, tmp_path):
    task = Task("captures", "0a", "a capture", tmp_path, ray_tasks.write_nothing)
    with pytest.raises(TlAnisoError, match="a capture needs 1 processor cores and 2 GPUs, and no node has as many"):
        list(RayExecutor(address=cluster.address, num_gpus=2).map([task]))
    rows = Task("frames", "0b", "rows", tmp_path, ray_tasks.write_nothing)
    assert list(RayExecutor(address=cluster.address, num_gpus=2).map([rows])) == ["0b"]  # without a model, without GPU


def test_a_cluster_of_its_own_ends_with_the_study(tmp_path, monkeypatch):
    import ray

    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    root = Path(os.path.relpath(tmp_path / "out"))
    # More memory than there is: a task may try it alone.
    task = Task("captures", "0a", "a capture", root, ray_tasks.write_surroundings, 2**60)
    stopping = signal.getsignal(signal.SIGTERM)
    with RayExecutor(threads=2) as executor:
        with pytest.warns(TlAnisoWarning, match="a thing to know"):
            assert list(executor.map([task])) == ["0a"]
        assert signal.getsignal(signal.SIGTERM) is stopping
    assert not ray.is_initialized()
    found = json.loads((tmp_path / "out" / "captures" / "0a" / "found.json").read_text())
    assert found["threads"] == 2
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["usage"] == "0"
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_a_cluster_that_there_is_not(tmp_path):
    task = Task("captures", "0a", "a capture", tmp_path, ray_tasks.write_nothing)
    with pytest.raises(TlAnisoError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        list(RayExecutor(address="127.0.0.1:1").map([task]))
