"""Tokenising adds at most one BOS, cuts nothing, and leaves the tokenizer as it was."""

import logging
import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tl_aniso.errors import TextError
from tl_aniso.text import iter_documents, tokenise

BOS, EOS = 1, 2


def make_tokenizer(template="<s> $A", **options):
    vocab = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "a": 3, "b": 4, "c": 5}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **options
    )


def ids_of(text, tokenizer):
    return [ids.tolist() for ids in tokenise(iter_documents(text), tokenizer)]


def test_tokenizers_own_defaults_decide():
    assert ids_of(["a b", "c"], make_tokenizer()) == [[BOS, 3, 4], [BOS, 5]]
    assert ids_of(["a b"], make_tokenizer("<s> $A </s>")) == [[BOS, 3, 4, EOS]]
    assert ids_of(["a b"], make_tokenizer("$A")) == [[3, 4]]


def test_a_second_bos_is_stripped_and_counted():
    found = tokenise(iter_documents(["<s> a", "b", "<s> <s> c", [BOS, BOS, 4], [4, BOS, BOS]]), make_tokenizer())
    assert [ids.tolist() for ids in found] == [[BOS, 3], [BOS, 4], [BOS, 5], [BOS, 4], [4, BOS, BOS]]
    assert found.n_doubled_bos == 3
    assert found.n_with_bos == 4


def test_only_bos_leaves_one():
    found = tokenise(iter_documents(["<s>"]), make_tokenizer())
    assert [ids.tolist() for ids in found] == [[BOS]]


def test_no_bos_to_strip_without_a_bos_token():
    tokenizer = make_tokenizer("$A")
    tokenizer.bos_token = None
    assert ids_of([[BOS, BOS, 3]], tokenizer) == [[BOS, BOS, 3]]


def test_long_documents_are_whole_and_quiet(caplog):
    tokenizer = make_tokenizer(model_max_length=4)
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=60)
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        (ids,) = ids_of(["a " * 600], tokenizer)
    assert ids == [BOS] + [3] * 600
    assert not caplog.records


def test_documents_keep_their_source_and_type():
    found = tokenise(iter_documents(["a", ""]), make_tokenizer())
    assert found.sources == ["document 0", "document 1"]
    assert [ids.dtype for ids in found] == [np.int64, np.int64]
    assert tokenise(iter_documents(["", "a"]), make_tokenizer("$A"))[0].tolist() == []


def test_text_without_tokenizer_and_broken_unicode_are_refused():
    with pytest.raises(TextError, match=r"document 1 is a text and there is no tokenizer"):
        tokenise(iter_documents([[1, 2], "a"]))
    with pytest.raises(TextError, match=r"document 1 .*surrogate"):
        tokenise(iter_documents(["a", "b \ud800"]), make_tokenizer())
