"""Encoders are loaded as what they are, with their own numbers; what is none is refused by name, with a way out."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.encoder_models import ALL_KINDS, ragged, rename_class, save_as_on_hub, strip_head, tiny_encoder
from tests.hub_cache import hub_cache, write_hub_cache
from tests.models import tiny_model
from tl_aniso.errors import ModelError
from tl_aniso.models import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


def quietly_loaded(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_model(str(directory))


def refusal_of(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(directory))
    return str(caught.value)


def logits_of(model: Any) -> torch.Tensor:
    ids, mask = ragged("right")
    with torch.no_grad():
        found = model(ids, attention_mask=mask).logits
    return found[mask.bool()]


class TestSound:
    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_the_same_logits_as_the_model_that_was_saved(self, kind: str, tied: bool, tmp_path: Path) -> None:
        model = tiny_encoder(kind, "sdpa", tie_word_embeddings=tied)
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
        save_as_on_hub(model, tmp_path)
        loaded = quietly_loaded(tmp_path)
        assert (type(loaded.model).__name__, loaded.objective) == (f"{kind}ForMaskedLM", "masked")
        assert not loaded.model.training
        assert float((logits_of(loaded.model) - logits_of(model)).abs().max()) < 1e-6

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_tied_weights_may_be_written_out(self, kind: str, tmp_path: Path) -> None:
        model = tiny_encoder(kind, "sdpa", tie_word_embeddings=True)
        save_as_on_hub(model, tmp_path)
        whole = {name: value.clone() for name, value in model.state_dict().items()}
        assert len(whole) > len(load_file(tmp_path / "model.safetensors"))
        save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert float((logits_of(quietly_loaded(tmp_path).model) - logits_of(model)).abs().max()) < 1e-6

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_without_a_named_class_the_configs_own_decides(self, kind: str, tmp_path: Path) -> None:
        save_as_on_hub(tiny_encoder(kind), tmp_path)
        rename_class(tmp_path, None)
        loaded = quietly_loaded(tmp_path)
        assert (type(loaded.model).__name__, loaded.objective) == (f"{kind}ForMaskedLM", "masked")

    @pytest.mark.parametrize("named", [True, False])
    def test_decoders_stay_causal(self, named: bool, tmp_path: Path) -> None:
        save_as_on_hub(tiny_model("llama"), tmp_path)
        if not named:
            rename_class(tmp_path, None)
        loaded = quietly_loaded(tmp_path)
        assert (type(loaded.model).__name__, loaded.objective) == ("LlamaForCausalLM", "causal")

    def test_what_pre_training_left_beside_the_head_is_no_fault(self, tmp_path: Path) -> None:
        """As bert-base is published: a pooler, a head for pairs of sentences, and a table of positions."""
        save_as_on_hub(transformers.BertForPreTraining(tiny_encoder("Bert").config).eval(), tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
        weights = load_file(tmp_path / "model.safetensors")
        assert {"cls.seq_relationship.weight", "bert.pooler.dense.weight"} <= set(weights)
        weights["bert.embeddings.position_ids"] = torch.arange(160)[None]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert type(quietly_loaded(tmp_path).model).__name__ == "BertForMaskedLM"

    def test_from_the_hubs_cache_by_branch_without_a_network(self, tmp_path: Path) -> None:
        model = tiny_encoder("EuroBert", "sdpa")
        save_as_on_hub(model, tmp_path / "saved")
        with hub_cache(tmp_path / "hub"):
            commits = write_hub_cache(tmp_path / "hub", "owner/little", {"step1000": tmp_path / "saved"})
            loaded = load_model("owner/little", revision="step1000")
            with pytest.raises(ModelError, match="no directory 'owner/little' here, and as a name on the hub it did"):
                load_model("owner/little")
        assert (loaded.revision, loaded.objective) == (commits["step1000"], "masked")
        assert float((logits_of(loaded.model) - logits_of(model)).abs().max()) < 1e-6


class TestHeadless:
    @pytest.mark.parametrize("kind", ALL_KINDS)
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_body_by_its_own_name(self, kind: str, tied: bool, tmp_path: Path) -> None:
        """A tied EuroBERT would load as if it were whole: its embedding alone would be its head."""
        body = tiny_encoder(kind, tie_word_embeddings=tied).base_model
        save_as_on_hub(body, tmp_path)
        assert refusal_of(tmp_path) == (
            f"{tmp_path} names the class {kind}Model, an encoder without its masked-language head: there is no loss to "
            "measure, and a new head would be drawn at random; load the checkpoint it came from as "
            f"{kind}ForMaskedLM. Models for embedding sentences (sentence-transformers) are published without it"
        )

    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_a_body_under_the_name_of_the_whole(self, kind: str, tmp_path: Path) -> None:
        model = tiny_encoder(kind, tie_word_embeddings=False)
        save_as_on_hub(model, tmp_path)
        strip_head(tmp_path, model)
        found = refusal_of(tmp_path)
        first = {"Bert": "cls.predictions.bias", "EuroBert": "lm_head.weight", "ModernBert": "decoder.bias"}
        assert found.startswith(
            f"the checkpoint of {tmp_path} is headless: it has the body of {kind}ForMaskedLM and lacks "
            f"{first.get(kind, 'lm_head.bias')}"
        )
        assert "load the checkpoint that the body came from, with its head" in found

    def test_one_weight_of_the_head(self, tmp_path: Path) -> None:
        save_as_on_hub(tiny_encoder("Bert"), tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        del weights["cls.predictions.transform.dense.weight"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert "lacks cls.predictions.transform.dense.weight of its language head" in refusal_of(tmp_path)

    def test_a_weight_of_the_body_is_not_called_the_heads(self, tmp_path: Path) -> None:
        save_as_on_hub(tiny_encoder("Bert"), tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        del weights["bert.encoder.layer.1.output.dense.weight"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        found = refusal_of(tmp_path)
        assert "lacks 1 weights that the model has (bert.encoder.layer.1.output.dense.weight)" in found
        assert "is the download or the config incomplete?" in found


class TestOtherKinds:
    @pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
    @pytest.mark.parametrize("kind", ["Bert", "EuroBert", "ModernBert"])
    def test_models_tuned_for_a_task(self, kind: str, task: str, tmp_path: Path) -> None:
        tuned = getattr(transformers, f"{kind}For{task}", None)
        if tuned is None:
            pytest.skip("transformers has no such class")
        save_as_on_hub(tuned(tiny_encoder(kind).config), tmp_path)
        assert refusal_of(tmp_path) == (
            f"{tmp_path} is a {kind}For{task}, trained to label texts, and its checkpoint has no language head, so "
            f"there is no loss of tokens to measure; load the model it was tuned from as {kind}ForMaskedLM"
        )

    def test_a_decoder_tuned_for_a_task(self, tmp_path: Path) -> None:
        save_as_on_hub(transformers.LlamaForSequenceClassification(tiny_model("llama-tied").config), tmp_path)
        found = refusal_of(tmp_path)
        assert "is a LlamaForSequenceClassification, trained to label" in found
        assert found.endswith("load the model it was tuned from")

    def test_an_encoder_with_a_decoder(self, tmp_path: Path) -> None:
        config = transformers.BartConfig(
            vocab_size=97, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=40,
        )  # fmt: skip
        save_as_on_hub(transformers.BartForConditionalGeneration(config), tmp_path)
        found = refusal_of(tmp_path)
        assert found.startswith(f"{tmp_path} is an encoder-decoder (bart)")
        assert "measure a decoder, or an encoder with a masked-language head" in found

    def test_an_encoder_made_a_decoder_is_not_called_masked(self, tmp_path: Path) -> None:
        config = tiny_encoder("Bert", is_decoder=True).config
        save_as_on_hub(transformers.BertLMHeadModel(config), tmp_path)
        for named in ("BertLMHeadModel", None):
            rename_class(tmp_path, named)
            loaded = load_model(str(tmp_path))
            assert (type(loaded.model).__name__, loaded.objective) == ("BertLMHeadModel", "causal")


CODE = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
raise RuntimeError("code of the repository ran")
"""


class TestRemoteCode:
    def plant(self, directory: Path, **changes: Any) -> None:
        """A repository that brings its own classes, as EuroBERT's did before transformers had one."""
        save_as_on_hub(tiny_encoder("EuroBert", "sdpa"), directory)
        (directory / "modeling_mine.py").write_text(CODE)
        classes = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForMaskedLM": "modeling_mine.Mine"}
        rename_class(directory, "EuroBertForMaskedLM", auto_map=classes, **changes)

    def test_is_not_run_where_transformers_has_a_class(self, tmp_path: Path) -> None:
        self.plant(tmp_path)
        loaded = quietly_loaded(tmp_path)
        assert type(loaded.model).__module__ == "transformers.models.eurobert.modeling_eurobert"
        assert float((logits_of(loaded.model) - logits_of(tiny_encoder("EuroBert", "sdpa"))).abs().max()) < 1e-6
        assert not (tmp_path / "ran").exists()

    def test_is_refused_where_it_has_none(self, tmp_path: Path) -> None:
        self.plant(tmp_path, model_type="mine")
        found = refusal_of(tmp_path)
        assert found.startswith(
            f"{tmp_path} comes with Python code of its own, and code from a repository is never run"
        )
        assert "EuroBERT, whose repositories also hold code, is served by transformers' own class in version 5" in found
        assert "trust_remote_code=True, and see whether capture(model, ...) takes it" in found
        assert not (tmp_path / "ran").exists()

    def test_of_a_tokenizer_is_refused_too(self, tmp_path: Path) -> None:
        self.plant(tmp_path)
        path = tmp_path / "tokenizer_config.json"
        changes = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "modeling_mine.MineTokenizer"]}}
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        assert "comes with Python code of its own" in refusal_of(tmp_path)
        assert not (tmp_path / "ran").exists()

    def test_an_unknown_kind_without_code(self, tmp_path: Path) -> None:
        save_as_on_hub(tiny_encoder("EuroBert"), tmp_path)
        rename_class(tmp_path, "NextForMaskedLM", model_type="nextbert")
        assert refusal_of(tmp_path) == (
            f"cannot load {tmp_path}: this transformers has no class for its model_type 'nextbert'; pip install -U "
            "transformers, whose newer versions may have one"
        )


class TestMaskToken:
    def without(self, directory: Path, kind: str, **changes: Any) -> None:
        save_as_on_hub(tiny_encoder(kind, **changes), directory)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        tokenizer.mask_token = None
        tokenizer.save_pretrained(directory)
        assert transformers.AutoTokenizer.from_pretrained(directory).mask_token_id is None

    @pytest.mark.parametrize(("kind", "changes"), [("Bert", {}), ("EuroBert", {"mask_token_id": 128002})])
    def test_none_at_all(self, kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
        """EuroBERT's config names one by default, which a small vocabulary does not have."""
        self.without(tmp_path, kind, **changes)
        found = refusal_of(tmp_path)
        assert found.startswith(f"the tokenizer of {tmp_path} has no mask token")
        assert "load the tokenizer it was published with, or name the token (tokenizer.mask_token = " in found

    def test_one_that_the_config_names(self, tmp_path: Path) -> None:
        self.without(tmp_path, "EuroBert")
        assert quietly_loaded(tmp_path).model.config.mask_token_id == 3

    def test_decoders_need_none(self, tmp_path: Path) -> None:
        save_as_on_hub(tiny_model("llama"), tmp_path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        tokenizer.mask_token = None
        tokenizer.save_pretrained(tmp_path)
        assert quietly_loaded(tmp_path).objective == "causal"
