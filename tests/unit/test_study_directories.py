"""Directories of a study's model: every name that `parse_revision` reads is a checkpoint, every other one is named."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tl_aniso.errors import ConfigError
from tl_aniso.study import DirectoryCheckpoints, read_config
from tl_aniso.study.outline import outline

CONFIG = LlamaConfig(
    vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    architectures=["LlamaForCausalLM"],
)  # fmt: skip


def saved(place, *names, empty=()):
    for name in names:
        LlamaForCausalLM(CONFIG).save_pretrained(place / name)
    for name in empty:
        (place / name).mkdir(parents=True)
    return place


def test_a_directory_is_read_as_the_hub_is(tmp_path):
    place = saved(
        tmp_path / "m", "main", "step5000-tokens10B", "step-200", "step0", "checkpoint-3000", "step1000-tokens2B",
        empty=("step-x", "logs", ".cache"),
    )  # fmt: skip
    source = DirectoryCheckpoints(place, tokens_per_step=512)
    assert [(c.name, c.step, c.tokens_seen) for c in source.checkpoints()] == [
        ("step0", 0, 0),
        ("step-200", 200, 512 * 200),
        ("step1000-tokens2B", 1000, 2 * 10**9),
        ("checkpoint-3000", 3000, 512 * 3000),
        ("step5000-tokens10B", 5000, 10**10),
        ("main", None, None),
    ]
    (model,) = outline(read_config({"models": [str(place)], "text": "local"})).models
    assert [one.checkpoint.step for one in model.chosen] == [0, 200, 1000, 3000, 5000]
    assert model.notes == (
        "not read, since these names are no checkpoint's: logs, step-x",
        "left out, since their steps are not known: main",
    )


def test_names_beside_a_saved_model_are_told_alike(tmp_path):
    place = saved(tmp_path / "m", "step0", "checkpoint-10", empty=("step-x",))
    LlamaForCausalLM(CONFIG).save_pretrained(place)  # as Trainer leaves it: the finished model around its checkpoints
    (model,) = outline(read_config({"models": [str(place)], "text": "local"})).models
    assert [one.checkpoint.step for one in model.chosen] == [0, 10]
    assert "not read, since these names are no checkpoint's: step-x" in model.listing
    assert model.notes == ("left out, since their steps are not known: main",)


def test_later_stages_and_equal_steps_of_a_directory(tmp_path):
    place = saved(tmp_path / "m", "stage1-step0", "stage1-step5-tokens3B", "stage2-step5", "main")
    source = DirectoryCheckpoints(place)
    assert [c.name for c in source.checkpoints()] == ["stage1-step0", "stage1-step5-tokens3B", "main"]
    assert source.notes == ("1 checkpoints of later stages, which count their steps anew, are left out",)
    saved(place, empty=("stage1-step-5",))
    with pytest.raises(ConfigError, match="two directories of step 5, stage1-step-5 and stage1-step5-tokens3B"):
        DirectoryCheckpoints(place)


def test_only_unreadable_names_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"such as step0 or step512 \(it holds step-x\)"):
        DirectoryCheckpoints(saved(tmp_path / "m", empty=("step-x",)))
