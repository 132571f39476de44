"""Shares of tokens, order, and what is left out; sources through the real streaming code of `datasets`."""

import builtins
import sys
import warnings
from pathlib import Path

import pytest

from tests.corpora import hub, paper_recipe, recipe_of, sentence, word_tokenizer
from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.text import document_hash, load_recipe, stream

LENGTHS = {"c4": 12, "wikipedia-en": 30, "wikipedia-fr": 31, "fineweb": 20, "arxiv": 700}


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paper_recipe(hub(tmp_path_factory.mktemp("hub")))


def seen(documents):
    return [(d.source, d.id, d.hash) for d in documents]


def test_equal_tokens_from_documents_of_very_different_lengths(paper: Path):
    found = stream(paper, word_tokenizer(), n_tokens=20_000)
    documents = list(found)
    for name, length in LENGTHS.items():
        own = [d for d in documents if d.source == name]
        tokens = sum(len(d.ids) for d in own)
        assert {len(d.ids) for d in own} == {length}
        assert 4000 <= tokens < 4000 + length
        assert (found.tallies[name].documents, found.tallies[name].tokens) == (len(own), tokens)
    assert {d.language for d in documents if d.source == "wikipedia-fr"} == {"fr"}
    assert {d.language for d in documents if d.source != "wikipedia-fr"} == {"en"}
    assert all(d.hash == document_hash(d.ids) for d in documents)
    ids = {name: next(d.id for d in documents if d.source == name) for name in LENGTHS}
    assert ids["c4"].startswith("http://c4/")
    assert ids["wikipedia-fr"].startswith("fr")
    assert ids["fineweb"].startswith("<urn")
    assert ids["arxiv"].startswith("file 0, row ")
    assert len({(d.source, d.id) for d in documents}) == len(documents)  # no row read twice


def test_shares_hold_at_every_moment(paper: Path):
    tokens = dict.fromkeys(LENGTHS, 0)
    for document in stream(paper, word_tokenizer(), n_documents=400):
        assert tokens[document.source] == min(tokens.values())  # it is the turn of who is furthest behind
        tokens[document.source] += len(document.ids)
        assert max(tokens.values()) - min(tokens.values()) <= 700
    # A source much shorter in its documents gives many more of them.
    assert max(tokens.values()) - min(tokens.values()) <= 700


def test_unequal_shares(tmp_path: Path):
    path = recipe_of(tmp_path, a=[sentence(n, 10, 1) for n in range(300)], b=[sentence(n, 25, 2) for n in range(300)])
    path.write_text(path.read_text().replace("name: a", "name: a\n  share: 3"))
    found = stream(path, word_tokenizer(), n_tokens=4000)
    list(found)
    assert 3000 <= found.tallies["a"].tokens < 3010
    assert 1000 <= found.tallies["b"].tokens < 1025


def test_the_same_every_time_and_another_with_another_seed(paper: Path):
    first, again, other = (seen(stream(paper, word_tokenizer(), n_tokens=6000, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert {s for s, _, _ in first} == {s for s, _, _ in other}
    assert len(set(first) & set(other)) < len(first) / 2
    # All files of a source take part, and not in the order in which they lie.
    c4 = [int(name.rsplit("/", 1)[1]) for source, name, _ in first if source == "c4"]
    assert c4 != sorted(c4)
    assert {n % 2 for n in c4} == {0, 1}


def test_only_what_is_asked_for_is_read(paper: Path):
    found = stream(paper, word_tokenizer(), n_documents=10)
    assert sum(t.read for t in found.tallies.values()) == 0
    next(found)
    assert sum(t.read for t in found.tallies.values()) == 1


def test_documents_can_be_cut(paper: Path):
    documents = list(stream(paper, word_tokenizer(bos=True), n_tokens=2000, max_document_tokens=20))
    assert max(len(d.ids) for d in documents) == 20
    arxiv = next(d for d in documents if d.source == "arxiv")
    assert len(arxiv.text.split()) == 700
    assert arxiv.ids[0] == 1  # the BOS stays


def test_hostile_texts_are_dropped_and_counted(tmp_path: Path):
    good = [sentence(n, 10) for n in range(6)]
    bad = ["", "  \n\t ", "w1 \0 w2 w3 w4 w5 w6 w7 w8", "\ud800 w1 w2 w3 w4 w5 w6 w7 w8", None, 7, ["w1"], "w1 w2"]
    found = stream(recipe_of(tmp_path, a=[{"text": text} for text in (*good[:3], *bad, *good[3:])]), word_tokenizer())
    assert sorted(d.text for d in found) == sorted(good)
    tally = found.tallies["a"]
    assert dict(tally.dropped) == {"empty": 2, "null_byte": 1, "not_unicode": 1, "not_text": 3, "short_document": 1}
    assert tally.read == 14


def test_duplicates_are_counted_by_where_they_were_first(tmp_path: Path):
    a, b = [sentence(n, 10, 1) for n in range(20)], [sentence(n, 10, 2) for n in range(20)]
    found = stream(recipe_of(tmp_path, a=[*a, a[0], a[1]], b=[*b, *a[:5]]), word_tokenizer(), n_tokens=9999)
    with pytest.warns(TlAnisoWarning, match="ran dry"):
        documents = list(found)
    assert len({d.hash for d in documents}) == len(documents) == 40
    same = {name: dict(t.duplicates) for name, t in found.tallies.items()}
    # Which of the two came first is a matter of the order; each pair is counted once.
    assert same["a"].get("a") == 2
    assert same["a"].get("b", 0) + same["b"].get("a", 0) == 5


def test_a_source_running_dry_is_named_and_not_replaced(tmp_path: Path):
    texts = {"short": [sentence(n, 10, 1) for n in range(5)], "long": [sentence(n, 10, 2) for n in range(300)]}
    found = stream(recipe_of(tmp_path, **texts), word_tokenizer(), n_tokens=1000)
    with pytest.warns(TlAnisoWarning, match=r"source short ran dry: it has 5 usable documents of 50 tokens, .* 500"):
        list(found)
    assert {n: (t.tokens, t.ran_dry) for n, t in found.tallies.items()} == {"short": (50, True), "long": (500, False)}

    found = stream(recipe_of(tmp_path, **texts), word_tokenizer(), n_documents=100)
    with pytest.warns(TlAnisoWarning, match=r"short ran dry.*the corpus ends with 10 of 100 documents"):
        assert len(list(found)) in (10, 11)
    assert found.tallies["long"].tokens in (50, 60)

    found = stream(recipe_of(tmp_path, **texts), word_tokenizer())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # everything was asked for, until a first source ends
        assert len(list(found)) in (10, 11)


def test_exactly_as_much_as_there_is_is_not_dry(tmp_path: Path):
    found = stream(recipe_of(tmp_path, a=[sentence(n, 10) for n in range(5)]), word_tokenizer(), n_tokens=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(found)) == 5
    assert not found.tallies["a"].ran_dry


def test_languages_of_lines(tmp_path: Path):
    path = recipe_of(tmp_path, a=[{"body": sentence(n, 10), "lang": "de" if n % 2 else None} for n in range(8)])
    path.write_text(path.read_text().replace("name: a", "name: a\n  field: body\n  language_field: lang"))
    assert sorted(d.language for d in stream(path, word_tokenizer())) == ["de"] * 4 + ["en"] * 4


def test_text_files(tmp_path: Path):
    path = recipe_of(tmp_path, a=[])
    (tmp_path / "a.txt").write_text("\n\n".join(sentence(n, 10) for n in range(4)))
    path.write_text(path.read_text().replace("a.jsonl", "a.txt"))
    found = stream(path, word_tokenizer())
    assert sorted(d.id for d in found) == [f"a.txt, paragraph {n}" for n in range(4)]


def test_a_field_that_is_not_there(paper: Path, tmp_path: Path):
    text = paper.read_text().replace("field: article", "field: artcle")
    (paper.parent / "wrong.yaml").write_text(text)
    with pytest.raises(TextError, match=r"source arxiv has no field 'artcle'.*did you mean article"):
        list(stream(paper.parent / "wrong.yaml", word_tokenizer(), n_tokens=9000))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("config: document", "config: documents", r"source arxiv .*documents.* could not be read: .*check .*config"),
        ("split: train", "split: trian", r"source c4 .*trian.* could not be read: .*check .*split"),
        ("./ccdv/arxiv-summarization", "./ccdv/arxiv", "source arxiv: there is no directory"),
    ],
)
def test_sources_that_are_not_there(paper: Path, old: str, new: str, message: str):
    (paper.parent / "wrong.yaml").write_text(paper.read_text().replace(old, new))
    with pytest.raises(TextError, match=message):
        stream(paper.parent / "wrong.yaml", word_tokenizer(), n_tokens=10)


def test_a_directory_that_would_be_read_for_the_hubs(paper: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(paper.parent)
    with pytest.raises(TextError, match=r"source c4: a directory allenai/c4 lies in the current one"):
        stream("paper", word_tokenizer(), n_tokens=10)


def test_a_file_that_breaks_off(paper: Path, tmp_path: Path):
    broken = paper_recipe(hub(tmp_path))
    for file in (tmp_path / "allenai/c4/en").iterdir():
        file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(TextError, match=r"the source c4 \(.*\) could not be read"):
        list(stream(broken, word_tokenizer(), n_tokens=50_000))


def test_without_the_library_datasets(paper: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name, *args, **options):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        TextError, match=r"source c4 is streamed by the library datasets.*pip install 'tl_aniso\[corpus"
    ):
        stream(paper, word_tokenizer(), n_tokens=10)


@pytest.mark.parametrize(
    ("offline", "remedy"),
    [(False, "is there a network .*copy the frozen directory"), (True, "HF_HUB_OFFLINE is set: unset it, or freeze")],
)
def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, offline: bool, remedy: str):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TextError, match=rf"source c4 \(allenai/c4, en, split train\) could not be read: .*{remedy}"):
        stream("paper", word_tokenizer(), n_tokens=10)


def test_a_connection_lost_on_the_way(paper: Path, monkeypatch: pytest.MonkeyPatch):
    import datasets

    found = stream(paper, word_tokenizer(), n_tokens=20_000)
    monkeypatch.setattr(
        datasets.IterableDataset, "shard", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone"))
    )
    with pytest.raises(TextError, match=r"source c4 .*ConnectionError: gone; is there a network"):
        next(found)


def test_a_branch_is_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch):
    """Of the hub two answers are needed: the commit of a branch, and the data set at that commit."""
    import datasets
    import huggingface_hub

    asked = []

    class Info:
        sha = "0123456789abcdef0123456789abcdef01234567"

    class Set:
        num_shards = 1

    def info(self, name, *, revision):
        asked.append((name, revision))
        return Info

    def load(path, *, name, split, streaming, revision):
        asked.append((path, name, split, streaming, revision))
        return Set

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    found = stream("paper", word_tokenizer(), n_tokens=10)
    assert asked[:2] == [("allenai/c4", None), ("allenai/c4", "en", "train", True, Info.sha)]
    assert set(found.revisions.values()) == {Info.sha}


def test_a_source_of_nothing_but_junk_ends(tmp_path: Path):
    path = recipe_of(tmp_path, a=["w1"] * 10_001)
    with pytest.raises(TextError, match=r"source a gave 10000 documents in a row .*10000 short_document"):
        next(stream(path, word_tokenizer(), n_tokens=10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_tokens": 5, "n_documents": 5}, "both given"),
        ({}, "source c4 of paper is streamed.*give n_tokens or n_documents"),
        ({"n_tokens": 0}, "n_tokens must be at least 1"),
        ({"n_documents": 1.5}, "n_documents must be an integer"),
        ({"n_tokens": 5, "seed": -1}, "seed must be between"),
        ({"n_tokens": 5, "max_document_tokens": 4}, "max_document_tokens must be at least 8"),
        ({"n_tokens": 5, "min_document_tokens": 0}, "min_document_tokens must be at least 1"),
    ],
)
def test_wrong_arguments(paper: Path, options: dict, message: str):
    with pytest.raises(TlAnisoError, match=message):
        stream(paper, word_tokenizer(), **options)


def test_no_tokenizer(paper: Path):
    with pytest.raises(TextError, match="is no tokenizer"):
        stream(paper, None, n_tokens=10)


def test_local_documentation(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def texts(packages, *, standard_library):
        asked.append((packages, standard_library))
        return [f"{'std' if standard_library else 'np'} {sentence(n, 20)}" for n in range(9)]

    monkeypatch.setattr("tl_aniso.text.reading.local_corpus", texts)
    found = stream("local", word_tokenizer())
    documents = list(found)
    assert asked == [((), True), (("numpy",), False)]
    assert {d.source for d in documents} == {"python", "numpy"}
    assert found.revisions["python"].startswith("python 3.")
    assert found.revisions["numpy"].startswith("numpy ")
    assert load_recipe("local").sources[1].name == "numpy"
