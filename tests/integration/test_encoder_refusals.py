"""Encoders that cannot be measured as masked-language models are refused, each with its reason and a way out."""

import copy
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.encoder_models import ALL_KINDS, tiny_encoder
from tests.models import as_bridge, random_documents
from tl_aniso import capture
from tl_aniso.adapters import register
from tl_aniso.capturing.bind import bind
from tl_aniso.errors import ModelError

BERTS = ("Bert", "Roberta", "Camembert", "XLMRoberta")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", BERTS)
class TestDecoders:
    def test_built_as_one(self, kind: str) -> None:
        model = tiny_encoder(kind, is_decoder=True)
        reason = rf"this {kind}ForMaskedLM was built as a decoder \(config\.is_decoder\).*is_decoder=False"
        with pytest.raises(ModelError, match=reason):
            bind(model)

    def test_with_attention_to_another_model(self, kind: str) -> None:
        model = tiny_encoder(kind, is_decoder=True, add_cross_attention=True)
        with pytest.raises(ModelError, match=r"attends to another model \(config\.add_cross_attention\)"):
            bind(model)

    def test_config_changed_afterwards(self, kind: str) -> None:
        """SDPA goes by the module where nothing is padded, and would be causal for a batch of one length alone."""
        model = tiny_encoder(kind, is_decoder=True)
        model.config.is_decoder = False
        with pytest.raises(ModelError, match=r"built as a decoder \(attention\.self of block 0 is causal\)"):
            bind(model)


@pytest.mark.parametrize("kind", ["EuroBert", "ModernBert"])
def test_attention_made_causal(kind: str) -> None:
    model = tiny_encoder(kind)
    attention = "self_attn" if kind == "EuroBert" else "attn"
    getattr(model.model.layers[1], attention).is_causal = True
    with pytest.raises(ModelError, match=rf"built as a decoder \({attention} of block 1 is causal\)"):
        bind(model)


class TestHeads:
    @pytest.mark.parametrize(
        ("kind", "path"), [("Bert", "cls.predictions.transform"), ("Bert", "cls"), ("ModernBert", "head")]
    )
    def test_one_that_computes_something_else(self, kind: str, path: str) -> None:
        model = tiny_encoder(kind)
        head = model.get_submodule(path)
        head.__class__ = type("Scaled", (type(head),), {"forward": lambda self, x: 2 * x})
        with pytest.raises(ModelError, match=rf"{path} of this {kind}ForMaskedLM is a Scaled, whose forward pass"):
            bind(model)

    @pytest.mark.parametrize("kind", BERTS[1:])
    def test_robertas(self, kind: str) -> None:
        model = tiny_encoder(kind)
        model.lm_head = nn.Linear(32, 97)
        model.get_output_embeddings = lambda: model.lm_head
        with pytest.raises(ModelError, match=rf"lm_head of this {kind}ForMaskedLM is a Linear.*{kind}LMHead"):
            bind(model)

    def test_a_subclass_that_keeps_the_forward_pass_is_taken(self) -> None:
        model = tiny_encoder("Roberta")
        model.lm_head.__class__ = type("Mine", (type(model.lm_head),), {})
        assert bind(model).transform is not None


class TestOtherHeads:
    @pytest.mark.parametrize("kind", ALL_KINDS)
    def test_a_body_alone(self, kind: str) -> None:
        body = tiny_encoder(kind).base_model
        reason = rf"no adapter for {kind}Model; it has no unembedding, so no loss; load it with AutoModelForMaskedLM"
        with pytest.raises(ModelError, match=reason):
            bind(body)

    @pytest.mark.parametrize("suffix", ["ForSequenceClassification", "ForTokenClassification"])
    def test_classifiers(self, suffix: str) -> None:
        for kind in ALL_KINDS:
            with torch.device("meta"):
                model = getattr(transformers, kind + suffix)(tiny_encoder(kind).config)
            with pytest.raises(ModelError, match=rf"no adapter for {kind}{suffix}; it is an encoder with another head"):
                bind(model)


class TestBridges:
    def test_one_whose_adapter_looks_back_alone(self) -> None:
        """TransformerLens computes EuroBERT's attention itself, here with the adapter of the decoder it is twin to."""
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        own = copy.deepcopy(tiny_encoder("EuroBert"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bridge = build_bridge_from_module(own, "LlamaForCausalLM", hf_config=own.config, tokenizer=None)
        reason = r"this bridge runs EuroBertForMaskedLM with attention to earlier tokens alone.*'causal'.*register"
        with pytest.raises(ModelError, match=reason):
            bind(bridge)

    @pytest.mark.parametrize("kind", ["Bert", "Roberta"])
    def test_decoders(self, kind: str) -> None:
        register()
        with pytest.raises(ModelError, match="built as a decoder"):
            bind(as_bridge(tiny_encoder(kind, is_decoder=True)))


def test_an_mlp_in_chunks() -> None:
    """Each chunk would be a call of its own, and sums would hold one of them."""
    documents: Any = random_documents((12, 12))
    with pytest.raises(ModelError, match=r"chunk_size_feed_forward.*0"):
        capture(tiny_encoder("Bert", chunk_size_feed_forward=4), documents, progress=False)


def test_positions_behind_no_padding_index() -> None:
    model = tiny_encoder("Roberta")
    model.roberta.embeddings.padding_idx = None
    with pytest.raises(ModelError, match=r"built without a padding token \(config\.pad_token_id\)"):
        bind(model)
