"""Configs of studies: every wrong one is refused with its place, and phases and choices follow hand values."""

import re
from dataclasses import replace

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from tl_aniso.capturing.bind import bind
from tl_aniso.errors import ConfigError
from tl_aniso.study import Checkpoint, MemoryCheckpoints, StudyConfig, read_config
from tl_aniso.study.config import Checkpoints, Geometry
from tl_aniso.study.geometry_sites import geometry_places, geometry_sites
from tl_aniso.study.outline import outline
from tl_aniso.study.phases import choose, phases_of

GOOD = {"models": ["somewhere"], "text": "local"}
PYTHIA = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144_000, 1000))


def published(*steps, tokens=None):
    seen = [None] * len(steps) if tokens is None else tokens
    return [Checkpoint(f"step{s}", s, t, str(s), lambda: None) for s, t in zip(steps, seen, strict=True)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"earlyfraction": 0.1}, "unknown key 'earlyfraction'; did you mean early_fraction?"),
        ({"zzz": 1}, "unknown key 'zzz'; known are models, text, checkpoints"),
        ({"models": []}, "models: name at least one"),
        ({"models": None}, "models is missing"),
        ({"models": [7]}, r"models\[0\] must be a name or keys .* got 7"),
        ({"models": [{"name": "a"}]}, r"models\[0\]: source is missing"),
        (
            {"models": [{"source": "a", "tokens_per_step": 0}]},
            r"models\[0\]: tokens_per_step: must be at least 1",
        ),
        ({"models": [{"source": "a", "sauce": 1}]}, r"models\[0\]: unknown key 'sauce'; did you mean source"),
        ({"models": ["a/x", "b/x"]}, "models: 'x' names two models"),
        ({"text": ""}, "text: must be a text that is not empty"),
        ({"early_fraction": 30}, "early_fraction: must lie between 0 and 1, got 30"),
        ({"early_fraction": True}, "early_fraction: must be a number, got True"),
        ({"early_unit": "epochs"}, "early_unit: must be one of steps, tokens, checkpoints, got 'epochs'"),
        ({"rank": []}, "rank: is an empty list"),
        ({"rank": [4, 1.5]}, "rank: must be an integer, got 1.5"),
        ({"gradients": ["weights"]}, "gradients: holds 'weights'; did you mean weight"),
        ({"gradients": []}, "gradients: is empty"),
        ({"controls": "sign_flips"}, "controls: holds 'sign_flips'; did you mean sign_flip"),
        ({"extra_passes": ["untrained"]}, "extra_passes: holds 'untrained'"),
        ({"checkpoints": "some"}, "checkpoints: must be all, a list of steps"),
        ({"checkpoints": {"early": 3}}, "checkpoints: must be all, a list of steps"),
        ({"checkpoints": {"log_space": 3}}, "checkpoints: unknown key 'log_space'; did you mean log_spaced?"),
        ({"checkpoints": {"log_spaced": 0}}, "checkpoints: log_spaced: must be at least 1, got 0"),
        ({"checkpoints": [-1]}, "checkpoints: a step must be at least 0, got -1"),
        ({"seed": -1}, "seed: must be between 0 and"),
        ({"seq_len": 1}, "seq_len: must be at least 2, got 1"),
        ({"n_shards": "8"}, "n_shards: must be an integer, got '8'"),
        ({"late_fitted": "yes"}, "late_fitted: must be true or false, got 'yes'"),
        ({"dtype": "float16"}, "dtype: must be one of float32, bfloat16, got 'float16'"),
        ({"objective": "mlm"}, "objective: must be one of causal, masked, got 'mlm'"),
        ({"sites": []}, "sites: is empty"),
        ({"n_tokens": 5, "n_documents": 5}, "n_tokens and n_documents are both given"),
        ({"trainings": ["a"]}, "trainings: must name models by what they are trainings of"),
        ({"trainings": {"a": ["sumwhere"]}}, "trainings: a: holds 'sumwhere'; did you mean somewhere"),
        ({"trainings": {"a": []}}, "trainings: a: is empty"),
        ({"trainings": {"a": ["somewhere"], "b": ["somewhere"]}}, "trainings: 'somewhere' stands in it twice"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(change, message):
    with pytest.raises(ConfigError, match=message):
        read_config({**GOOD, **change})


def test_a_config_is_read_from_yaml_and_paths_are_relative_to_it(tmp_path):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "words.txt").write_text("a b c")
    path = tmp_path / "study.yaml"
    path.write_text("models: [runs/tiny, EleutherAI/pythia-160m]\ntext: words.txt\nrank: [8, 4]\ncontrols: [next_k]\n")
    found = read_config(path)
    assert isinstance(found, StudyConfig)
    assert [(m.name, m.source) for m in found.models] == [
        ("tiny", str(tmp_path / "runs" / "tiny")),
        ("pythia-160m", "EleutherAI/pythia-160m"),
    ]
    assert found.text == str(tmp_path / "words.txt")
    assert found.rank == (4, 8)
    assert found.all_controls == ("shuffled_labels", "next_k")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML: .*line 1"),
        ("- a", "holds list"),
        ("", "holds nothing"),
        ("a: !!python/name:os.system", "YAML"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, content, message):
    path = tmp_path / "study.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(path)
    with pytest.raises(ConfigError, match=r"there is no config .*other\.yaml"):
        read_config(tmp_path / "other.yaml")


def test_phases_by_hand():
    # 30% of 143,000 steps is 42,900; of 153 intervals between 154 checkpoints, 45.9.
    pythia = published(*PYTHIA)
    by_steps, by_places = phases_of(pythia, 0.3, "steps"), phases_of(pythia, 0.3, "checkpoints")
    assert [c.step for c, p in zip(pythia, by_steps, strict=True) if p == "early"][-2:] == [41_000, 42_000]
    assert by_places.count("early") == 46
    # A limit that is hit exactly is early, though 0.3 * 10 is not 3 in binary.
    assert phases_of(published(3, 10), 0.3, "steps") == ["early", "late"]
    assert phases_of(published(7, 10), 0.7, "steps") == ["early", "late"]
    # Batches grew: half of the tokens are not half of the steps.
    grown = published(0, 10, 20, 30, tokens=(0, 100, 1000, 10_000))
    assert phases_of(grown, 0.5, "tokens") == ["early", "early", "early", "late"]
    assert phases_of(grown, 0.5, "steps") == ["early", "early", "late", "late"]
    assert phases_of(published(143_000), 0.3, "steps") == [None]


def test_a_phase_that_cannot_be_told_is_refused():
    with pytest.raises(ConfigError, match=r"tokens of the checkpoint step1 are not known; .*early_unit: steps"):
        phases_of(published(0, 1, tokens=(0, None)), 0.3, "tokens")
    final = [*published(0), Checkpoint("main", None, None, "x", lambda: None)]
    with pytest.raises(ConfigError, match=r"steps of the checkpoint main are not known; use early_unit: checkpoints"):
        phases_of(final, 0.3, "steps")


def chosen(wanted, *steps):
    found = choose(published(*steps), wanted, fraction=0.3, unit="steps", model="tiny")
    return [c.checkpoint.step for c in found]


def test_checkpoints_are_chosen_by_hand_values():
    assert chosen(Checkpoints(), 0, 5, 10) == [0, 5, 10]
    assert chosen(Checkpoints(steps=(10, 0)), 0, 5, 10) == [0, 10]
    # log(1 + step) from 0 to log 1025: thirds at steps 9.1 and 100.7.
    assert chosen(Checkpoints(log_spaced=4), 0, 1, 8, 16, 64, 128, 1024) == [0, 8, 128, 1024]
    assert chosen(Checkpoints(log_spaced=9), 0, 8, 1024) == [0, 8, 1024]
    # Early ones to 300: log grid of 3 is 0, 16.3, 300. Late ones evenly: 400, 700, 1000.
    steps = (0, 1, 16, 100, 300, 400, 500, 700, 900, 1000)
    assert chosen(Checkpoints(early=3, late=3), *steps) == [0, 16, 300, 400, 700, 1000]
    assert chosen(Checkpoints(early=3, late=3), 77) == [77]


def test_a_step_that_was_not_published_names_the_nearest():
    with pytest.raises(ConfigError, match="tiny has no step 900; the nearest published is 1000, 100 steps after it"):
        chosen(Checkpoints(steps=(900,)), 0, 500, 1000)
    with pytest.raises(ConfigError, match=r"none of the 1 chosen of tiny lies in the first 30% of the steps"):
        chosen(Checkpoints(steps=(1000,)), 0, 500, 1000)


def test_sizes_of_a_plan_by_hand():
    config = GPTNeoXConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100,
        architectures=["GPTNeoXForCausalLM"],
    )  # fmt: skip
    source = MemoryCheckpoints({0: GPTNeoXForCausalLM(config), 10: GPTNeoXForCausalLM(config), 100: Other()})
    found = outline(read_config({"models": ["tiny"], "text": "local"}), {"tiny": source})
    (model,) = found.models
    size = model.estimate
    # Residual stream: before each block and after the last, 3. Inputs: 2 a block and the unembedding's, 5. Outputs: 4.
    assert size.fit_bytes == 12 * 64 * 64 * 8
    # Activations 3; their gradients, with those of permuted labels, 6; matrices: 6 a block and 2, both gradients, 28.
    assert size.measure_bytes == (3 + 6 + 28) * 64 * 64 * 8
    assert (len(model.early), len(model.late), found.n_captures(model)) == (2, 1, 8)
    assert found.disk(model) == 3 * size.fit_bytes + 3 * size.measure_bytes
    assert found.memory(model) == size.running_bytes + size.measure_bytes
    half = 50 * (3 * size.fit_flops + 3 * size.measure_flops)
    # Single tokens at two checkpoints: forward and backward for both labels, and forward again.
    tokens = 2 * 50 * (2 * 6 + 2) * size.n_parameters
    assert found.seconds(model, 100, 1.0) == pytest.approx(half + tokens)


def test_geometry_is_asked_for_or_not():
    given = {"models": ["tiny"], "text": "local"}
    assert read_config(given).geometry is None
    assert read_config({**given, "geometry": False}).geometry is None
    assert read_config({**given, "geometry": True}).geometry == Geometry()
    asked = read_config({**given, "geometry": {"sites": "blocks.1.hook_resid_pre", "n_min": 5, "checkpoints": 2}})
    assert asked.geometry == Geometry(("blocks.1.hook_resid_pre",), n_min=5, checkpoints=2)
    for value, message in (
        ({"n_mim": 5}, "geometry: unknown key 'n_mim'; did you mean n_min"),
        ({"n_min": 1}, "geometry: n_min"),
        ({"sites": []}, "geometry: sites: is empty"),
        ("yes", "geometry: must be true, false or keys"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            read_config({**given, "geometry": value})


def test_a_plan_counts_the_passes_of_geometry():
    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, vocab_size=100,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    source = MemoryCheckpoints({step: LlamaForCausalLM(config) for step in (0, 10, 100)})
    given = {"models": ["tiny"], "text": "local"}
    plain, asked = (outline(read_config({**given, "geometry": on}), {"tiny": source}) for on in (False, True))
    (before,), (model,) = plain.models, asked.models
    size = model.estimate
    # Of three residual sites means twice, in float64; two tables in float32.
    assert size.geometry_bytes == 100 * 16 * (3 * 2 * 8 + 2 * 4)
    assert size.geometry_flops == 8 * size.n_parameters
    assert replace(size, geometry_bytes=0, geometry_flops=0.0) == before.estimate
    assert asked.n_captures(model) == plain.n_captures(before) + 3
    assert asked.disk(model) == plain.disk(before) + 3 * size.geometry_bytes
    more = asked.seconds(model, 100, 1.0) - plain.seconds(before, 100, 1.0)
    assert more == pytest.approx(100 * 3 * size.geometry_flops)
    assert asked.memory(model) == size.running_bytes + max(size.measure_bytes, size.geometry_bytes)
    few = read_config({**given, "geometry": {"checkpoints": 1, "n_tokens": 5000}})
    assert geometry_places(model.chosen, few) == [2]
    assert geometry_places(model.chosen, read_config({**given, "geometry": {"checkpoints": 2}})) == [1, 2]  # not step 0
    found = outline(few, {"tiny": source})
    own = found.seconds(found.models[0], 100, 1.0) - plain.seconds(before, 100, 1.0)
    assert own == pytest.approx(5000 * size.geometry_flops)


@pytest.mark.parametrize("attends", ["causal", "both"])
def test_where_geometry_is_asked(attends):
    config = LlamaConfig(
        hidden_size=16, num_hidden_layers=9, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    layout = replace(bind(LlamaForCausalLM(config)), attends=attends)
    asked = read_config({"models": ["tiny"], "text": "local", "geometry": True})
    residual, weights = geometry_sites(layout, asked)
    assert residual == [f"blocks.{block}.hook_resid_pre" for block in (2, 4, 8)]
    # In the last block of a masked model nothing but hidden tokens has a gradient.
    blocks = (2, 4) if attends == "both" else (2, 4, 8)
    assert sorted(weights) == sorted(f"blocks.{b}.{name}" for b in blocks for name in ("attn.W_Q", "mlp.W_in"))
    named = {"sites": ["blocks.*.attn.W_V", "blocks.3.hook_resid_pre"]}
    residual, weights = geometry_sites(layout, replace(asked, geometry=Geometry(sites=tuple(named["sites"]))))
    assert (residual, len(weights)) == (["blocks.3.hook_resid_pre"], 9)
    with pytest.raises(ConfigError, match="names no residual site"):
        geometry_sites(layout, replace(asked, geometry=Geometry(sites=("blocks.*.attn.W_V",))))


class Other(torch.nn.Linear):
    """A model of no known class; only the first one's config is looked at."""

    def __init__(self):
        super().__init__(2, 2)


def test_a_model_of_no_known_class_has_no_estimate():
    found = outline(read_config({"models": ["tiny"], "text": "local"}), {"tiny": MemoryCheckpoints({0: Other()})})
    assert found.models[0].estimate is None
    assert found.memory(found.models[0]) is None
