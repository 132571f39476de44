"""Studies of a hub's revisions, offline from a cache: listed, planned, loaded by commit; and of an encoder."""

import json

import pytest
import torch

from tests.encoder_models import VOCAB, tiny_encoder
from tests.hub_cache import hub_cache, tiny_tokenizer, write_hub_cache
from tests.models import tiny_model
from tests.study_models import save_texts, small_config
from tl_aniso import Study
from tl_aniso.errors import ConfigError
from tl_aniso.study import MemoryCheckpoints

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_study_reads_a_hub_cache(tmp_path):
    steps = {"step0": 0, "step1000": 1, "step143000": 2}
    models = {
        name: tiny_model("neox-parallel", vocab_size=300, bos_token_id=0, eos_token_id=0, seed=seed)
        for name, seed in steps.items()
    }
    commits = write_hub_cache(tmp_path / "hub", "EleutherAI/pythia-160m", models, tiny_tokenizer())
    few = {"sites": ["blocks.0.attn.W_V"], "gradients": ["weight"], "extra_passes": [], "early_unit": "tokens"}
    given = {**small_config(tmp_path, save_texts(tmp_path / "t.jsonl"), **few), "models": ["pythia-160m"]}
    with hub_cache(tmp_path / "hub"):
        frame = Study(given, tmp_path / "out", progress=False).run()
        with pytest.raises(ConfigError, match=r"models: .*pythia-16m"):
            Study({**given, "models": ["pythia-16m"]}, tmp_path / "out").outline()
    (model,) = json.loads((tmp_path / "out" / "plan.json").read_text())["models"]
    assert {c["name"]: c["key"] for c in model["checkpoints"]} == commits
    assert [c["phase"] for c in model["checkpoints"]] == ["early", "early", "late"]
    assert frame["tokens_seen"].unique().tolist() == [0.0, 2_097_152_000.0, 143_000 * 2_097_152.0]
    assert set(frame["revision"]) == set(steps)
    assert (frame["model"] == "pythia-160m").all()


def test_an_encoder_and_a_decoder_are_studied_by_their_own_objectives(tmp_path):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, VOCAB, (30, 24), generator=generator).tolist()
    (tmp_path / "t.jsonl").write_text("\n".join(map(str, ids)))
    sources = {
        "encoder": MemoryCheckpoints({step: tiny_encoder("EuroBert", seed=step) for step in (0, 100)}),
        "decoder": MemoryCheckpoints({step: tiny_model("llama", seed=step) for step in (0, 100)}),
    }
    few = {"sites": ["blocks.0.attn.W_V"], "gradients": ["weight"], "rank": 4, "n_controls": 9}
    given = {"models": list(sources), "text": str(tmp_path / "t.jsonl"), **few}
    frame = Study(given, tmp_path / "out", sources=sources, progress=False).run()
    assert frame.groupby("model")["objective"].unique().map(list).to_dict() == {
        "decoder": ["causal"],
        "encoder": ["masked"],
    }
    assert frame.groupby("model")["loss"].nunique().to_dict() == {"decoder": 2, "encoder": 2}
    excess = frame[(frame["measure"] == "excess") & (frame["model"] == "encoder")]
    assert set(excess["control"]) == {"input_energy", "sign_flip", "shuffled_g", "shuffled_labels", "late_fitted"}
