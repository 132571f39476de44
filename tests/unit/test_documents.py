"""Every form of text is read as the documents it says it is, and nothing else is read as text."""

import json

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from tl_aniso.errors import TextError, TlAnisoWarning
from tl_aniso.text import iter_documents


def read(text):
    return [d.text if d.ids is None else d.ids.tolist() for d in iter_documents(text)]


LONG = torch.int64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one string.\n\nstill one", ["one string.\n\nstill one"]),
        (["a", "", "b"], ["a", "", "b"]),
        (("a", "b"), ["a", "b"]),
        (np.array(["a", "b"]), ["a", "b"]),
        ((word for word in ("a", "b")), ["a", "b"]),
        ([3, 4, 5], [[3, 4, 5]]),
        (torch.tensor([3, 4]), [[3, 4]]),
        (np.array([3, 4], dtype=np.uint16), [[3, 4]]),
        ([torch.tensor(3), torch.tensor(4)], [[3, 4]]),
        ([np.int32(3), 4], [[3, 4]]),
        ([[3, 4], [5]], [[3, 4], [5]]),
        ([torch.tensor([3, 4]), torch.tensor([5])], [[3, 4], [5]]),
        ([torch.tensor([[3, 4]]), torch.tensor([[5]])], [[3, 4], [5]]),
        (torch.tensor([[3, 4], [5, 6]]), [[3, 4], [5, 6]]),
        ({"text": "a"}, ["a"]),
        ({"text": ["a", "b"]}, ["a", "b"]),
        ([{"text": "a"}, {"input_ids": [3]}], ["a", [3]]),
        ({"text": "a", "input_ids": [3, 4]}, [[3, 4]]),
        ({"input_ids": [3, 4, 0], "attention_mask": [1, 1, 0]}, [[3, 4]]),
        (BatchEncoding({"input_ids": [[3, 4], [5]], "attention_mask": [[1, 1], [1]]}), [[3, 4], [5]]),
    ],
)
def test_forms(text, expected):
    assert read(text) == expected


def test_attention_mask_trims_either_side_and_leaves_real_zeros():
    ids = torch.tensor([[0, 0, 7, 0], [0, 8, 9, 0], [0, 5, 0, 6]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    assert read({"input_ids": ids, "attention_mask": mask}) == [[7, 0], [0, 8, 9], [0, 5, 0, 6]]
    assert read({"input_ids": ids.tolist(), "attention_mask": mask.bool().tolist()})[0] == [7, 0]
    assert read({"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.tensor([[0, 0]])}) == [[]]


def test_rows_of_a_dataset():
    datasets = pytest.importorskip("datasets")
    texts = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    assert read(texts) == read(texts["text"]) == ["a", "b"]
    ids = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
    assert read(ids) == read(ids.with_format("torch")) == [[1, 2], [3]]
    with pytest.raises(TextError, match="'train'"):
        read(datasets.DatasetDict({"train": texts}))


def test_txt_is_split_at_blank_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\n\r\n \t\r\n\r\nthree\r\n\r\n".encode())
    found = list(iter_documents(path))
    assert [d.text for d in found] == ["one\ntwo", "three"]
    assert found[1].source == "a.txt, paragraph 1"


def test_jsonl_holds_one_document_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    entries = ["plain", {"text": "un\u2028broken\n\nline"}, [1, 2], {"input_ids": [3, 0], "attention_mask": [1, 0]}]
    path.write_text("\n".join(json.dumps(e, ensure_ascii=False) for e in entries) + "\n\n", encoding="utf-8")
    assert read(path) == ["plain", "un\u2028broken\n\nline", [1, 2], [3]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'"a"\n{"text": ', "Line 2 of a.jsonl"),
        ("a.jsonl", b'"a"\n{"body": "b"}', "a.jsonl, line 2.*'body'"),
        ("a.jsonl", b"7", "a.jsonl, line 1"),
        ("a.txt", b"ab\xff", r"not UTF-8 \(byte 2\)"),
        ("a.txt", b" \n\n ", "No document"),
        ("a.csv", b"x", "neither .txt"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        read(tmp_path / name)


def test_missing_file_and_directory(tmp_path):
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(TextError, match="There is no file"):
            read(path)
    with pytest.raises(TextError, match="path"):
        read([tmp_path])


@pytest.mark.parametrize("nothing", ["", " \n", [], (), torch.empty(0, dtype=LONG), torch.empty(0, 4), iter([])])
def test_nothing_to_read(nothing):
    with pytest.raises(TextError, match=r"empty|No document"):
        read(nothing)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "NoneType"),
        (b"bytes", "bytes"),
        (5, "int"),
        ([1, "a"], "document 0 .*int"),
        (["a", ["b"]], "document 1 .*list of str"),
        ([True, False], "document 0 .*bool"),
        (torch.ones(3), "float32"),
        (torch.ones(2, 3), "document 0 .*float32"),
        ([1.5, 2.5], "document 0 .*float"),
        (torch.ones(2, 3, 4, dtype=LONG), "3 dimensions"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "hole"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 1]}, "each of its 3"),
        ({"input_ids": [1, 2], "attention_mask": [0.5, 1]}, "0 or 1"),
        ({"input_ids": [[1, 2], [3, 4]], "attention_mask": [[1, 1]]}, "2 documents"),
        ({"text": 5}, "'text' .*int"),
        ({}, "no keys"),
    ],
)
def test_what_is_no_text_is_refused_by_name(text, message):
    with pytest.raises(TextError, match=message):
        read(text)


def test_data_frame_columns_are_not_documents():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"]})
    with pytest.raises(TextError, match="column"):
        read(frame)
    assert read(frame["text"]) == ["a", "b"]


def test_a_string_is_never_a_path(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("content")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(TlAnisoWarning, match="Path"):
        assert read("corpus.txt") == ["corpus.txt"]


def test_ids_do_not_follow_the_callers_array():
    given = np.array([1, 2, 3])
    (document,) = iter_documents(given)
    given[0] = 99
    assert document.ids.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        document.ids[0] = 5
