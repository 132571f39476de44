"""Frozen once, the same bytes always, or nothing; damage is named; parts of a corpus merge into the whole."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.corpora import hub, paper_recipe, recipe_of, sentence, word_tokenizer
from tests.models import tiny_model
from tl_aniso import capture, fit_tangent_proxies, tangent_energy
from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.text import FrozenCorpus, document_hash, freeze, half_of, iter_documents, stream

FILES = ("corpus.json", "ids.safetensors")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paper_recipe(hub(tmp_path_factory.mktemp("hub")))


def frozen(recipe, place, **options):
    return freeze(recipe, word_tokenizer(), place, **{"n_tokens": 5000, "progress": False, **options})


def content(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


@pytest.fixture(scope="module")
def corpus(paper: Path, tmp_path_factory: pytest.TempPathFactory) -> FrozenCorpus:
    return frozen(paper, tmp_path_factory.mktemp("frozen") / "corpus")


def test_what_was_streamed_is_what_is_frozen(paper: Path, corpus: FrozenCorpus):
    documents = list(stream(paper, word_tokenizer(), n_tokens=5000))
    assert [ids.tolist() for ids in corpus] == [d.ids.tolist() for d in documents]
    assert corpus.hashes == tuple(d.hash for d in documents)
    assert corpus.sources == tuple(d.source for d in documents)
    assert corpus.languages == tuple(d.language for d in documents)
    assert corpus.names == tuple(d.id for d in documents)
    assert len(corpus) == len(documents)
    assert corpus.n_tokens == sum(len(d.ids) for d in documents)
    assert corpus[0].dtype == torch.int64
    assert corpus[-1].tolist() == documents[-1].ids.tolist()
    with pytest.raises(IndexError):
        corpus[len(corpus)]
    assert [len(d.ids) for d in iter_documents(corpus)] == [len(d.ids) for d in documents]  # as `capture` reads it


def test_the_same_bytes_again(paper: Path, tmp_path: Path):
    frozen(paper, tmp_path / "a")
    frozen(paper, tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert tuple(content(tmp_path / "a")) == FILES
    assert str(tmp_path) not in (tmp_path / "a" / "corpus.json").read_text()


def test_frozen_again_in_the_same_place_is_read(paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = frozen(paper, tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    monkeypatch.setattr("tl_aniso.text.freezing.stream", None)  # nothing is read a second time
    assert frozen(paper, tmp_path / "a").hash == first.hash
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == before
    with pytest.raises(TextError, match=r"another request \(n_tokens was 5000, now 6000; seed was 0, now 1\)"):
        frozen(paper, tmp_path / "a", n_tokens=6000, seed=1)


def test_other_content_of_files_is_another_corpus(tmp_path: Path):
    path = recipe_of(tmp_path, a=[sentence(n, 10) for n in range(30)])
    frozen(path, tmp_path / "out", n_tokens=100)
    recipe_of(tmp_path, a=[sentence(n, 10, 1) for n in range(30)])
    with pytest.raises(TextError, match="frozen from other content of the files of a"):
        frozen(path, tmp_path / "out", n_tokens=100)


def test_a_place_that_is_taken_or_cannot_be(paper: Path, tmp_path: Path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").write_text("mine")
    with pytest.raises(TextError, match="holds no frozen corpus; choose a new directory"):
        frozen(paper, tmp_path / "taken")
    with pytest.raises(TlAnisoError, match="could not be written"):
        frozen(paper, tmp_path / "taken/mine/below")
    assert content(tmp_path / "taken") == {"mine": b"mine"}


def test_interrupted_it_leaves_nothing(paper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(_, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        frozen(paper, tmp_path / "out", n_tokens=500)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys
from pathlib import Path
from tests.corpora import word_tokenizer
from tl_aniso.text import freeze, freezing
moment, recipe, place = sys.argv[1:]
def wait(*_):
    print("here", flush=True)
    sys.stdin.read()
if moment == "streaming":
    real = freezing._told
    def told(*args):
        for number, document in enumerate(real(*args)):
            yield document
            if number == 20:
                wait()
    freezing._told = told
else:
    import safetensors.torch
    real_save = safetensors.torch.save_file
    def save(*args):
        real_save(*args)
        wait()
    safetensors.torch.save_file = save
freeze(recipe, word_tokenizer(), place, n_tokens=5000, progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("moment", ["streaming", "writing"])
def test_killed_it_leaves_nothing(tmp_path: Path, paper: Path, corpus: FrozenCorpus, moment: str):
    place = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, moment, str(paper), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"here"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not place.exists()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))  # what a killed writer leaves is removed once it has settled
    assert frozen(paper, place).hash == corpus.hash
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def altered(place: Path, file: str, change) -> None:
    path = place / file
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("ids.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1]), r"ids\.safetensors: "),
        ("ids.safetensors", lambda b: b[:-40], r"ids\.safetensors: "),
        ("ids.safetensors", lambda b: b"", r"ids\.safetensors: "),
        ("corpus.json", lambda b: b[:-9], r"corpus\.json: "),
        ("corpus.json", lambda b: b.replace(b'"fr"', b'"de"', 1), r"corpus\.json: its content was altered"),
        ("corpus.json", lambda b: b.replace(b'"seed": 0', b'"seed": 1'), r"corpus\.json: its content was altered"),
        ("corpus.json", lambda b: b.replace(b'"version": 1', b'"version": 2'), "version 2, this library reads 1"),
        ("corpus.json", lambda b: b"[]", "is not the index of a frozen corpus"),
    ],
)
def test_damage_is_named(paper: Path, tmp_path: Path, file: str, change, message: str):
    frozen(paper, tmp_path / "a", n_tokens=1000)
    before = content(tmp_path / "a")
    altered(tmp_path / "a", file, change)
    assert content(tmp_path / "a") != before
    with pytest.raises(TextError, match=message):
        FrozenCorpus.load(tmp_path / "a")


def test_documents_swapped_in_the_ids_alone(paper: Path, tmp_path: Path):
    """Both files are whole in themselves: only the documents' hashes tell."""
    from safetensors.torch import load_file, save_file

    frozen(paper, tmp_path / "a", n_tokens=1000)
    tensors = load_file(tmp_path / "a/ids.safetensors")
    tensors["ids"][[3, 4]] = tensors["ids"][[4, 3]]
    save_file(tensors, tmp_path / "a/ids.safetensors")
    with pytest.raises(TextError, match=r"ids\.safetensors: document 0 is not the one that was frozen"):
        FrozenCorpus.load(tmp_path / "a")


def test_nothing_there(tmp_path: Path):
    with pytest.raises(TextError, match=r"holds no frozen corpus: there is no corpus\.json"):
        FrozenCorpus.load(tmp_path)


def test_no_usable_document(tmp_path: Path):
    with pytest.warns(TlAnisoWarning), pytest.raises(TextError, match="gave no usable document: a: 2 read, 2 short"):
        frozen(recipe_of(tmp_path, a=["w1", "w2"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_index_says_what_was_read(paper: Path, corpus: FrozenCorpus):
    index = corpus.index
    assert index["tokenizer"]["name"] == type(word_tokenizer()).__name__
    assert index["request"]["recipe"]["sources"][2]["config"] == "20231101.fr"
    assert all(told["revision"].startswith("listing:") for told in index["account"].values())
    account = corpus.account().set_index("source")
    assert (account["asked"] == 0.2).all()
    assert account["read"].sum() == len(corpus)
    assert not account["ran_dry"].any()


def test_what_was_left_out_is_in_the_account(tmp_path: Path):
    a = [sentence(n, 10, 1) for n in range(20)]
    with pytest.warns(TlAnisoWarning, match="a ran dry"):
        made = frozen(recipe_of(tmp_path, a=[*a, "", "w1"], b=[a[0], *[sentence(n, 10, 2) for n in range(900)]]),
                      tmp_path / "out", n_tokens=900)  # fmt: skip
    account = made.account().set_index("source")
    assert account.loc["a", ["empty", "short_document", "ran_dry"]].tolist() == [1, 1, True]
    assert account.loc["b", "ran_dry"] == False  # noqa: E712 - a numpy boolean
    assert account["read"].tolist() == (account["documents"] + account[["empty", "short_document"]].sum(axis=1)
                                        + account.filter(like="same_as").sum(axis=1)).tolist()  # fmt: skip


def test_table(corpus: FrozenCorpus):
    table = corpus.table().set_index("source")
    assert list(table.index) == list(dict.fromkeys(corpus.sources))
    assert table["tokens"].sum() == corpus.n_tokens
    assert table["documents"].sum() == len(corpus)
    assert table["share"].between(0.13, 0.27).all()
    assert table.loc["wikipedia-fr", "language"] == "fr"


def test_parts(corpus: FrozenCorpus):
    by_source, by_language = corpus.subsets(), corpus.subsets("language")
    assert set(by_language) == {"en", "fr"}
    assert [len(part) for part in by_source.values()] == corpus.table()["documents"].tolist()
    assert [d.tolist() for d in by_language["fr"]] == [d.tolist() for d in corpus.documents(source="wikipedia-fr")]
    halves = [corpus.documents(source="c4", half=half) for half in ("A", "B")]
    assert sum(map(len, halves)) == len(by_source["c4"])
    assert {half_of(document_hash(d)) for d in halves[0]} == {"A"}
    with pytest.raises(TextError, match="no source 'wikipedia-ft'; did you mean wikipedia-fr"):
        corpus.documents(source="wikipedia-ft")
    with pytest.raises(TextError, match="no document of source c4, language fr"):
        corpus.documents(source="c4", language="fr")
    with pytest.raises(TlAnisoError, match="by must be"):
        corpus.subsets("half")
    with pytest.raises(TlAnisoError, match="half must be"):
        corpus.documents(half="C")  # type: ignore[arg-type]


def test_another_tokenizer_is_refused(corpus: FrozenCorpus):
    corpus.check_tokenizer(word_tokenizer())
    used = word_tokenizer()
    used("w1 w2", truncation=True, max_length=1)
    corpus.check_tokenizer(used)  # having been called changes nothing
    with pytest.raises(TextError, match="freeze it again with this one"):
        corpus.check_tokenizer(word_tokenizer(bos=True))


def test_captures_of_parts_merge_into_that_of_the_whole(tmp_path: Path):
    texts = {name: [sentence(n, 20, salt) for n in range(30)] for salt, name in enumerate("ab")}
    corpus = frozen(recipe_of(tmp_path, **texts), tmp_path / "out", n_tokens=800)
    model = tiny_model("llama")
    options = {"sites": "blocks.0.attn.W_Q", "seq_len": 32, "progress": False}
    proxies = fit_tangent_proxies(capture(model, corpus, **options), rank=4)
    whole = capture(model, corpus, proxies=proxies, **options)
    parts = {name: capture(model, part, proxies=proxies, **options) for name, part in corpus.subsets().items()}
    merged = parts["a"].merge(parts["b"])
    frames = [tangent_energy(found, proxies=proxies).frame for found in (whole, merged)]
    numbers = [frame.select_dtypes("number") for frame in frames]
    pd.testing.assert_frame_equal(numbers[0], numbers[1], rtol=1e-6)
    assert json.loads((tmp_path / "out/corpus.json").read_text())["n_documents"] == len(corpus) == 40
