"""Text through a capture: a BOS zero or one times, padding that is never a token, and everything dropped is counted."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.models import VOCAB, random_documents, tiny_model
from tl_aniso import Capture, capture
from tl_aniso.errors import TextError

pytestmark = pytest.mark.usefixtures("one_thread")

BOS, EOS = 1, 2  # as the configuration of the tiny models has them
DOCUMENTS = random_documents((23, 9, 17, 12))
OPTIONS: dict[str, Any] = {"progress": False, "controls": (), "sites": ["blocks.0.*", "embed.W_E", "unembed.W_U"]}


def tokenizer_of(template: str = "$A", **special: str) -> PreTrainedTokenizerFast:
    """Words w3 ... w96 stand for their ids."""
    vocab = {"<unk>": 0, "<s>": BOS, "</s>": EOS, **{f"w{i}": i for i in range(3, VOCAB)}}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, **{"bos_token": "<s>", "eos_token": "</s>", **special})


def words(ids: list[int]) -> str:
    return " ".join({BOS: "<s>", EOS: "</s>"}.get(i, f"w{i}") for i in ids)


def run(text: Any, **options: Any) -> Capture:
    return capture(tiny_model("llama"), text, **{**OPTIONS, **options})


def assert_same(one: Capture, other: Capture) -> None:
    assert one.metadata["text"]["documents"] == other.metadata["text"]["documents"]
    for group in ("activations", "activation_gradients", "weight_gradients"):
        mine, theirs = getattr(one, group), getattr(other, group)
        assert set(mine) == set(theirs)
        for site, moments in theirs.items():
            assert mine[site].count == moments.count
            assert torch.equal(mine[site].scatter, moments.scatter), (group, site)


class TestBos:
    @pytest.mark.parametrize(
        ("template", "written", "left", "doubled"),
        [
            ("$A", 0, 0, 0),
            ("$A", 1, 1, 0),
            ("<s> $A", 0, 1, 0),
            ("<s> $A", 1, 1, 4),  # one in the text and one added: one is left
            ("<s> $A", 2, 1, 4),
        ],
    )
    def test_zero_or_one_and_recorded(self, template: str, written: int, left: int, doubled: int) -> None:
        texts = [words([BOS] * written + document) for document in DOCUMENTS]
        got = run(texts, tokenizer=tokenizer_of(template))
        expected = run([[BOS] * left + document for document in DOCUMENTS])
        assert_same(got, expected)
        text = got.metadata["text"]
        assert (text["n_with_bos"], text["n_doubled_bos"]) == (left * 4, doubled)

    def test_ids_made_elsewhere_are_held_to_the_same(self) -> None:
        got = run([[BOS, BOS, *document] for document in DOCUMENTS])
        assert_same(got, run([[BOS, *document] for document in DOCUMENTS]))
        assert (got.metadata["text"]["n_with_bos"], got.metadata["text"]["n_doubled_bos"]) == (4, 4)

    def test_later_pieces_of_a_document_get_none(self) -> None:
        (document,) = random_documents((64,))
        whole = [BOS, *document]
        got = run(words(document), tokenizer=tokenizer_of("<s> $A"), seq_len=16, exclude=())
        assert sum(got.metadata["text"]["n_sequences"].values()) == 4
        assert got.metadata["text"]["n_tokens"] == 64
        # Autograd's own pieces: only the first begins with a BOS.
        assert got.activations["blocks.0.hook_resid_pre"].count == 64
        weight = tiny_model("llama").model.embed_tokens.weight.detach()
        torch.testing.assert_close(
            got.activations["blocks.0.hook_resid_pre"].mean, weight[whole[:64]].double().mean(0), rtol=1e-6, atol=1e-7
        )

    def test_one_inside_a_sequence_is_found_by_its_id(self) -> None:
        documents = [[*document[:4], BOS, *document[4:]] for document in DOCUMENTS]
        got = run(documents, exclude="special")
        site = "blocks.0.hook_resid_pre"
        assert got.activations[site].count == sum(map(len, documents)) - 4
        assert got.activation_gradients[site].count == sum(map(len, documents)) - 4
        assert got.metadata["text"]["n_with_bos"] == 0
        weight = tiny_model("llama").model.embed_tokens.weight.detach().double()
        rows = weight[[i for document in DOCUMENTS for i in document]]
        torch.testing.assert_close(got.activations[site].covariance(), torch.cov(rows.T), rtol=1e-5, atol=1e-7)


class TestPadding:
    """Masks come from lengths: what id pads, or whether any does, is of no consequence."""

    DOCUMENTS = ([5, EOS, 9, 11, EOS, 7, 8], [12, 4, EOS], [20, 21, 22, 23, 24, EOS, EOS], [30, 0, 31, 0])

    @pytest.mark.parametrize("special", [{}, {"pad_token": "</s>"}, {"pad_token": "<unk>"}], ids=str)
    def test_a_real_eos_is_kept_whatever_the_pad(self, special: dict[str, str]) -> None:
        tokenizer = tokenizer_of(**special)
        assert tokenizer.pad_token_id == {"</s>": EOS, "<unk>": 0}.get(special.get("pad_token", ""))
        got = run(list(self.DOCUMENTS), tokenizer=tokenizer, exclude=())
        n_tokens = sum(map(len, self.DOCUMENTS))
        site = "blocks.0.hook_resid_pre"
        assert got.activations[site].count == n_tokens == got.metadata["text"]["n_tokens"]
        weight = tiny_model("llama").model.embed_tokens.weight.detach().double()
        rows = weight[[i for document in self.DOCUMENTS for i in document]]
        torch.testing.assert_close(got.activations[site].covariance(), torch.cov(rows.T), rtol=1e-5, atol=1e-7)
        # Every token but a document's last predicts, an eos too.
        alone = [run([document], exclude=()) for document in self.DOCUMENTS]
        assert got.loss == pytest.approx(
            sum(one.loss * (len(d) - 1) for one, d in zip(alone, self.DOCUMENTS, strict=True)) / (n_tokens - 4),
            rel=1e-6,
        )

    def test_padding_rows_by_hand_changes_nothing(self) -> None:
        width = max(map(len, self.DOCUMENTS))
        rows = [[*document, *[EOS] * (width - len(document))] for document in self.DOCUMENTS]
        mask = [[1] * len(document) + [0] * (width - len(document)) for document in self.DOCUMENTS]
        padded = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}
        assert_same(run(padded, exclude=()), run(list(self.DOCUMENTS), exclude=()))


class TestDropped:
    def test_empty_and_one_token_documents_are_counted(self) -> None:
        texts = ["", words(DOCUMENTS[0]), "w5", words(DOCUMENTS[1]), "   ", words(DOCUMENTS[1])]
        got = run(texts, tokenizer=tokenizer_of())
        assert got.metadata["text"]["dropped"] == {"short_document": 3, "duplicate_document": 1}
        assert_same(got, run(DOCUMENTS[:2]))
        assert got.loss == pytest.approx(run(DOCUMENTS[:2]).loss)
        with pytest.raises(TextError, match="2 short_document"):
            run(["", "w5"], tokenizer=tokenizer_of())

    def test_a_document_beyond_the_context_is_cut_and_its_tail_counted(self) -> None:
        model = tiny_model("llama")  # context 160
        (document,) = random_documents((325,))
        got = capture(model, document, exclude=(), **OPTIONS)
        assert got.metadata["options"]["seq_len"] == 160
        assert got.metadata["text"]["n_tokens"] == 320
        assert got.metadata["text"]["dropped"] == {"short_tail": 1}
        assert got.weight_gradients["embed.W_E"].count == 2
