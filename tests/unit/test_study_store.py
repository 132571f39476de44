"""What a study has finished: whole or absent, checked when asked for, locked while it is written."""

import json
import subprocess
import sys
import time

import pytest

from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.study.corpus import freeze, text_source
from tl_aniso.study.store import Store
from tl_aniso.text import document_hash, half_of
from tl_aniso.text import freeze as frozen
from tl_aniso.training import train_tokenizer


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "out")

    def write(place):
        (place / "deep").mkdir()
        (place / "deep" / "a.bin").write_bytes(bytes(range(200)))
        (place / "b.json").write_text("{}")

    found.put("captures", "k", write)
    return found


def altered(path):
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda place: altered(place / "deep" / "a.bin"), "deep/a.bin was altered"),
        (lambda place: (place / "deep" / "a.bin").write_bytes(b"0" * 120), "deep/a.bin has 120 bytes, not 200"),
        (lambda place: (place / "b.json").unlink(), "b.json is missing"),
        (lambda place: (place / "c.json").write_text(""), "c.json does not belong to it"),
        (lambda place: (place / "checksums.json").write_text("{"), "its checksums.json cannot be read"),
        (lambda place: (place / "checksums.json").unlink(), "its checksums.json cannot be read"),
    ],
)
def test_a_damaged_entry_is_named_moved_aside_and_made_again(store, damage, fault):
    assert store.get("captures", "k", "the capture") == store.path("captures", "k")
    damage(store.path("captures", "k"))
    with pytest.warns(TlAnisoWarning, match=rf"the capture \(captures/k\) is damaged: {fault}; .*damaged.captures-k-0"):
        assert store.get("captures", "k", "the capture") is None
    assert (store.root / "damaged" / "captures-k-0").is_dir()
    store.put("captures", "k", lambda place: (place / "b.json").write_text("[]"))
    assert store.get("captures", "k", "the capture") is not None


def test_an_entry_that_fails_leaves_nothing(store):
    def fail(place):
        (place / "half.bin").write_bytes(b"half")
        raise TlAnisoError("no more")

    with pytest.raises(TlAnisoError, match="no more"):
        store.put("captures", "other", fail)
    assert [path.name for path in (store.root / "captures").iterdir()] == ["k"]


def test_the_lock_keeps_others_out_and_goes_with_a_killed_process(tmp_path):
    # Not the library's own code, which takes seconds to import: a lock of the operating system, held until the kill.
    code = (
        "import fcntl, os, sys, time; held = open(sys.argv[1] + '/study.lock', 'w'); fcntl.flock(held, fcntl.LOCK_EX)\n"
        "print('process', os.getpid(), file=held, flush=True); open(sys.argv[1] + '/.results.9.part', 'w').close()\n"
        "print('held', flush=True); time.sleep(60)"
    )
    store = Store(tmp_path)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(TlAnisoError, match=rf"another run is at work .*process {process.pid}"), store.lock():
            pass
        process.kill()
    with store.lock():
        store.tidy()
        assert [path.name for path in tmp_path.iterdir()] == ["study.lock"]
        with pytest.raises(TlAnisoError, match="another run is at work"), store.lock():
            pass


def test_leftovers_of_killed_writers_go_at_once(store):
    left = store.root / "captures" / ".k2.abc"
    left.mkdir()
    (left / "half.bin").write_bytes(b"half")
    left.with_name(".k2.abc.writing").touch()
    store.tidy()
    assert [path.name for path in (store.root / "captures").iterdir()] == ["k"]


WORDS = [f"a {w} is a {w} is a {w}, said the {v} to the {w}" for w in ("rose", "lily", "tree") for v in "abcdefgh"]


def test_text_is_frozen_once_with_its_sources_and_hashes(tmp_path):
    path, store = tmp_path / "t.jsonl", Store(tmp_path / "out")
    rows = [{"text": text, "source": f"book {i % 3}", "language": "en"} for i, text in enumerate(WORDS)]
    rows[5:5] = [{"text": "a"}, rows[0]]
    path.write_text("\n".join(map(json.dumps, rows)))
    tokenizer = train_tokenizer(WORDS, 280)
    found = freeze(text_source(str(path)), tokenizer, store, seq_len=16, n_documents=20)
    assert len(found.ids) == 20
    assert found.dropped == {"duplicate_document": 1, "short_document": 1}
    assert max(map(len, found.ids)) == 16
    assert found.sources[:4] == ("book 0", "book 1", "book 2", "book 0")
    assert set(found.languages) == {"en"}
    expected = tokenizer(WORDS[1])["input_ids"][:16]
    assert found.ids[1].tolist() == expected
    assert all(half_of(document_hash(ids)) == "B" for ids in found.half("B"))
    assert len(found.half("A")) + len(found.half("B")) == 20
    # Read again, not made again; and another length is another text.
    stamp = (store.path("corpus", found.key) / "ids.safetensors").stat().st_mtime_ns
    time.sleep(0.01)
    again = freeze(text_source(str(path)), tokenizer, store, seq_len=16, n_documents=20)
    assert (store.path("corpus", again.key) / "ids.safetensors").stat().st_mtime_ns == stamp
    assert again.hash == found.hash
    assert all((a == b).all() for a, b in zip(again.ids, found.ids, strict=True))
    assert freeze(text_source(str(path)), tokenizer, store, seq_len=12, n_documents=20).hash != found.hash


def test_text_of_one_half_is_refused(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text(WORDS[0])
    with pytest.raises(TextError, match=r"t\.txt has 1 documents .* give about 20 or more"):
        freeze(text_source(str(path)), train_tokenizer(WORDS, 280), Store(tmp_path), seq_len=16, n_documents=None)
    with pytest.raises(TlAnisoError, match="no recipe of that name; did you mean local"):
        text_source("locale")


def test_a_recipe_gives_the_text_of_several_sources(tmp_path):
    for name in ("farm", "shop"):
        rows = [json.dumps({"text": f"{name} {text}"}) for text in WORDS]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    sources = [
        f"  - {{name: {name}, kind: files, paths: [{name}.jsonl], language: {language}}}"
        for name, language in (("farm", "en"), ("shop", "fr"))
    ]
    (tmp_path / "mine.yaml").write_text("\n".join(["format: 1", "name: mine", "sources:", *sources]))
    tokenizer, store = train_tokenizer(WORDS, 280), Store(tmp_path / "out")
    source = text_source(str(tmp_path / "mine.yaml"))
    found = freeze(source, tokenizer, store, seq_len=16, n_documents=16)
    assert (found.sources.count("farm"), found.sources.count("shop")) == (8, 8)
    assert set(zip(found.sources, found.languages, strict=True)) == {("farm", "en"), ("shop", "fr")}
    assert set(source.revisions) == {"farm", "shop"}
    (tmp_path / "farm.jsonl").write_text(json.dumps({"text": "another text"}))
    assert text_source(str(tmp_path / "mine.yaml")).key != source.key
    (tmp_path / "mine.yaml").write_text("format: 1\nnam: mine")
    with pytest.raises(TlAnisoError, match=r"text: mine\.yaml"):
        text_source(str(tmp_path / "mine.yaml"))


RECIPE = """
format: 1
name: two
sources:
  - {name: long, kind: files, paths: [long.jsonl], language: en}
  - {name: short, kind: files, paths: [short.jsonl], language: fr}
"""


def test_a_recipe_of_texts_is_frozen_in_equal_shares(tmp_path):
    """Against `tl_aniso.text.freeze` itself; every document cut to seq_len, sources and languages kept."""
    tokenizer = train_tokenizer(WORDS, 280)
    for name, length in (("long", 12), ("short", 3)):
        lines = [json.dumps({"text": " ".join([f"{i} {WORDS[i % len(WORDS)]}"] * length)}) for i in range(200)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "two.yaml").write_text(RECIPE)
    store, source = Store(tmp_path / "store"), text_source(str(tmp_path / "two.yaml"))
    found = freeze(source, tokenizer, store, seq_len=24, n_documents=None, n_tokens=1500)
    expected = frozen(tmp_path / "two.yaml", tokenizer, tmp_path / "frozen", n_tokens=1500, max_document_tokens=24)
    assert found.hash == expected.hash
    assert [ids.tolist() for ids in found.ids] == [ids.tolist() for ids in expected]
    assert set(zip(found.sources, found.languages, strict=True)) == {("long", "en"), ("short", "fr")}
    tokens = {
        s: sum(len(i) for i, at in zip(found.ids, found.sources, strict=True) if at == s) for s in ("long", "short")
    }
    assert all(750 <= n < 774 for n in tokens.values())
    assert max(map(len, found.ids)) <= 24
    again = freeze(source, tokenizer, store, seq_len=24, n_documents=None, n_tokens=1500)
    assert (again.key, again.hash) == (found.key, found.hash)
    with (tmp_path / "long.jsonl").open("a") as file:
        file.write('\n{"text": "one more document that nobody had read before"}')
    assert text_source(str(tmp_path / "two.yaml")).key != source.key
