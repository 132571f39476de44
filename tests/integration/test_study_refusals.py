"""A study says what it left out, and a broken checkpoint is named at its fitting capture."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.study_models import TEXTS, save_checkpoints, small_config
from tl_aniso import Study
from tl_aniso.errors import TlAnisoError

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"sites": ["blocks.0.hook_resid_pre", "blocks.0.attn.W_V"], "gradients": ["activation"], "extra_passes": []}


@pytest.fixture
def models(tmp_path):
    return save_checkpoints(tmp_path / "models", (0, 10, 100))


def texts(path, *more):
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*TEXTS, *more]))
    return path


def test_broken_weights_behind_the_sites_are_named_at_the_fitting_capture(models, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(models / "step10")
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight[0, 0] = float("nan")
    model.save_pretrained(models / "step10")
    config = small_config(models, texts(tmp_path / "t.jsonl"), **SMALL)
    with pytest.raises(TlAnisoError, match=r"fitting capture of tiny at step10: .*down_proj\.weight holds NaN"):
        Study(config, tmp_path / "out", progress=False).run()
    assert not (tmp_path / "out" / "proxies").exists()


def test_what_was_left_out_is_said_on_the_terminal_and_the_page(models, tmp_path, capsys):
    (models / "step-x").mkdir()
    config = small_config(models, texts(tmp_path / "t.jsonl", *["short"] * 3), **SMALL)
    study = Study(config, tmp_path / "out")
    study.run()
    said = capsys.readouterr().err
    lost = f"3 of {len(TEXTS) + 3} documents were dropped (too short)"
    assert f"tiny: the text: {lost}" in said
    note = "not read, since these names are no checkpoint's: step-x"
    assert f"tiny: {note}" in said
    page = study.report().read_text(encoding="utf-8")
    assert lost in page
    assert "no checkpoint" in page
