"""Killed at any moment and run again, a study ends with the bytes of one that was left alone."""

import multiprocessing
import random
import time

import pytest

from tests.study_models import run_study, save_checkpoints, save_texts

# A server that has imported everything forks each run, so that moments fall into the work and not into imports. It
# never computes itself: after a backward pass, torch refuses to fork.
_PRELOADED = [
    "tests.study_models",
    "tl_aniso.study.study",
    "tl_aniso.capturing.files",
    "tl_aniso.proxy_store",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "pyarrow.dataset",
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed")
    models, text = save_checkpoints(directory / "models"), save_texts(directory / "texts.jsonl")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    started(context, models, text, directory / "first").kill()  # the server is up and has imported all that
    began = time.monotonic()
    expected = finish(context, models, text, directory / "out")
    return context, models, text, time.monotonic() - began, expected


def started(context, models, text, out):
    process = context.Process(target=run_study, args=(models, text, out))
    process.start()
    return process


def finish(context, models, text, out):
    process = started(context, models, text, out)
    process.join(120)
    assert process.exitcode == 0
    return (out / "results.parquet").read_bytes()


def killed_at(moment, undisturbed, out):
    """Whether the kill met a run that had not finished."""
    context, models, text, _, expected = undisturbed
    process = started(context, models, text, out)
    process.join(moment)
    process.kill()
    process.join()
    unfinished = process.exitcode == -9 and not (out / "results.parquet").exists()
    assert finish(context, models, text, out) == expected
    hidden = [path for path in out.rglob(".*") if path.name.endswith((".writing", ".part")) or path.is_dir()]
    assert hidden == []
    assert not (out / "damaged").exists()
    return unfinished


def test_a_study_that_was_killed_ends_with_the_same_bytes(undisturbed, tmp_path):
    draw, duration = random.Random(0), undisturbed[3]
    moments = [(number + draw.random()) / 3 * 0.8 * duration for number in range(3)]
    met = [killed_at(moment, undisturbed, tmp_path / f"{moment:.2f}") for moment in moments]
    assert any(met)


@pytest.mark.slow
def test_a_study_killed_at_twenty_moments_ends_with_the_same_bytes(undisturbed, tmp_path):
    draw, duration = random.Random(1), undisturbed[3]
    met = [killed_at(draw.uniform(0, duration), undisturbed, tmp_path / str(number)) for number in range(20)]
    assert sum(met) >= 10
