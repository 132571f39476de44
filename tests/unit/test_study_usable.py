"""What a study would refuse is refused by its plan, before anything is loaded, with the key in the message."""

import re

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from tl_aniso.cli import main
from tl_aniso.commands.study import print_outline
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.experiments import run_family
from tl_aniso.models import find
from tl_aniso.models.rules import from_naming_rules
from tl_aniso.study import LocalExecutor, MemoryCheckpoints, RayExecutor, Study, read_config
from tl_aniso.study.corpus import Corpus, freeze, text_source
from tl_aniso.study.devices import check_device
from tl_aniso.study.outline import outline
from tl_aniso.study.pages import write_pages
from tl_aniso.study.published import PublishedCheckpoints
from tl_aniso.study.store import Store

CONFIG = LlamaConfig(
    vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=200, architectures=["LlamaForCausalLM"],
)  # fmt: skip
ENCODER = BertConfig(
    vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
)  # made here, so that it names no architecture
GOOD = {"models": ["tiny"], "text": "local"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "tiny"
    for step in (0, 10):
        LlamaForCausalLM(CONFIG).save_pretrained(place / f"step{step}")
    return place


WRONG = [
    ({"text": "corpsu.txt"}, "text: there is no file 'corpsu.txt' and no recipe of that name"),
    ({"text": "locl"}, "text: there is no file 'locl' and no recipe of that name; did you mean local?"),
    ({"geometry": {"text": "nope.jsonl"}}, "geometry: text: there is no file 'nope.jsonl'"),
    ({"rank": [4, 9]}, "rank: tiny: 9 is outside 1 ... d // 2 = 8"),
    ({"seq_len": 201}, "seq_len: tiny: 201 is beyond the model's context of 200 tokens"),
    ({"objective": "masked"}, "objective: tiny: 'masked' on LlamaForCausalLM"),
    ({"sites": ["blocks.*.attn.W_X"]}, "sites: tiny: no site 'blocks.*.attn.W_X' on this model; near matches"),
    ({"geometry": {"sites": ["blocks.0.attn.W_V"]}}, "geometry: sites: tiny: blocks.0.attn.W_V names no residual site"),
    ({"device": "cpuu"}, "device: 'cpuu' is no device of torch; there is cpu"),
    ({"device": "meta"}, "device: 'meta' holds no numbers"),
    ({"device": "cuda:99"}, "device: there is no 'cuda:99' here, there is cpu"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[str(change) for change, _ in WRONG])
def test_a_plan_refuses_what_the_study_would(saved, change, message, tmp_path):
    given = {**GOOD, "models": [str(saved)], **change}
    for refusing in (lambda: outline(read_config(given)), Study(given, tmp_path / "out").run):
        with pytest.raises(ConfigError, match=re.escape(message)):
            refusing()
    assert not (tmp_path / "out").exists()


def test_what_can_be_used_is_planned(saved):
    good = {**GOOD, "models": [str(saved)], "rank": 8, "seq_len": 200, "objective": "causal", "device": "cpu"}
    assert outline(read_config({**good, "sites": "blocks.1.*"})).models[0].estimate is not None
    encoder = MemoryCheckpoints({0: BertForMaskedLM(ENCODER)})
    (model,) = outline(read_config({**GOOD, "objective": "masked"}), {"tiny": encoder}).models
    assert model.estimate is not None
    with pytest.raises(ConfigError, match="objective: tiny: 'causal' on BertForMaskedLM"):
        outline(read_config({**GOOD, "objective": "causal"}), {"tiny": encoder})


def test_a_context_by_recorded_sizes_refuses_nothing(monkeypatch):
    """Sizes alone are recorded: the context beside them is a default of the class, not the model's."""
    given = {"models": ["smollm2-360m"], "text": "local", "seq_len": 8192}

    class Recorded(PublishedCheckpoints):
        def _listed(self, model, recorded):
            return from_naming_rules(find(model))

    monkeypatch.setattr("tl_aniso.study.outline.PublishedCheckpoints", Recorded)
    assert outline(read_config(given)).models[0].estimate is not None
    with pytest.raises(ConfigError, match=r"rank: smollm2-360m: 481 is outside 1 \.\.\. d // 2 = 480"):
        outline(read_config({**given, "rank": 481}))


@pytest.mark.parametrize("command", ["plan", "study"])
def test_both_commands_end_with_two(saved, command, tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(f"models: [{saved}]\ntext: local\nrank: 9\n")
    out = ["--out", str(tmp_path / "out")]
    assert main([command, str(path), *out]) == 2
    assert "rank: tiny: 9 is outside" in capsys.readouterr().err
    assert main([command, str(path), *out, "--device", "cpuu"]) == 2
    assert "device: 'cpuu' is no device" in capsys.readouterr().err


def test_a_script_looks_at_its_options_before_it_trains(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tl_aniso.experiments.families.smoke_hub", lambda models: pytest.fail("was made"))
    out = ["--out", str(tmp_path / "out"), "--smoke"]
    assert run_family("pythia", [*out, "--device", "cpuu"]) == 2
    assert run_family("pythia", [*out, "--text", "nope.txt"]) == 2
    err = capsys.readouterr().err
    assert "device: 'cpuu' is no device of torch" in err
    assert "--text: --smoke measures on a text of its own" in err


def test_devices_of_workers_are_not_known_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check_device("cuda:99", elsewhere=True)
    with pytest.raises(ConfigError, match="'cpuu' is no device"):
        check_device("cpuu", elsewhere=True)


def test_executors_by_name(saved, tmp_path):
    given = {**GOOD, "models": [str(saved)]}
    assert isinstance(Study(given, tmp_path, executor="local")._executor, LocalExecutor)
    assert isinstance(Study(given, tmp_path, executor="ray")._executor, RayExecutor)
    for wrong in ("dask", object()):
        with pytest.raises(ConfigError, match="executor must be local, ray or an executor"):
            Study(given, tmp_path, executor=wrong)


def test_a_key_twice_is_refused(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("models: [a]\ntext: local\nseed: 1\ngeometry:\n  n_min: 8\n  n_min: 9\n")
    with pytest.raises(ConfigError, match=r"study\.yaml: the key n_min is repeated in line 6"):
        read_config(path)


def test_a_directory_that_is_not_there_is_named_beside_the_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="and there is no directory 'runs/nope' here or beside the config"):
        outline(read_config({**GOOD, "models": ["runs/nope"]}))


def test_a_page_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tl_aniso.study.pages._read", lambda _: ({"model": []}, {}))
    monkeypatch.setattr("tl_aniso.study.pages._plan", lambda _: {})
    monkeypatch.setattr("tl_aniso.study.pages._judged", lambda *_: "no claims")
    monkeypatch.setattr("tl_aniso.study.pages._fitting_page", lambda *_: "<html></html>")
    monkeypatch.setattr("tl_aniso.viz.report.tempfile.mkstemp", refused)
    with pytest.raises(TlAnisoError, match=r"cannot write .*report\.html: Permission denied"):
        write_pages(tmp_path)


class Words:
    """A tokenizer of words."""

    bos_token_id = None

    def __call__(self, text, **_):
        return {"input_ids": [len(word) for word in text.split()]}


def test_what_is_dropped_of_a_text_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tl_aniso.study.corpus.tokenizer_id", lambda _: "words")
    path = tmp_path / "text.txt"
    long = ["a " * (n + 1) + "end of the paragraph here and on" for n in range(12)]
    path.write_text("\n\n".join([*long, "short", "short too", long[0], "with a \0 null byte " * 3]))
    found = freeze(text_source(str(path)), Words(), Store(tmp_path / "store"), seq_len=30, n_documents=None)
    assert isinstance(found, Corpus)
    assert found.dropped == {"duplicate_document": 1, "null_byte": 1, "short_document": 2}


def test_an_empty_text_is_named_by_its_file(tmp_path):
    path = tmp_path / "empty.txt"
    path.touch()
    with pytest.raises(ConfigError, match=r"^text: No document in the file .*empty\.txt; give at least one"):
        outline(read_config({**GOOD, "text": str(path)}), {"tiny": MemoryCheckpoints({0: LlamaForCausalLM(CONFIG)})})


def test_a_list_of_models_is_printed_once(saved, tmp_path, capsys):
    models = [{"name": f"model{number}", "source": str(saved)} for number in range(5)]
    (saved / "logs").mkdir(exist_ok=True)
    (saved / "main").mkdir(exist_ok=True)
    LlamaForCausalLM(CONFIG).save_pretrained(saved / "main")
    print_outline(outline(read_config({"models": models, "text": "local"})), "title")
    text = capsys.readouterr().out.split("* early")[1]
    assert "all models: not read, since these names are no checkpoint's: logs" in " ".join(text.split())
    assert "model3" not in text
