"""The local corpus is read, never imported, in an order of its own, from documentation and not from tests."""

import os
import sys
import sysconfig
import warnings

import pytest

from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.text import local_corpus, split_documents


def words(name):
    return f"Documentation of {name}, long enough to be kept by a corpus of at least sixty characters."


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A standard library and a package of a few files, none of which survives being imported."""
    standard, site = tmp_path / "lib", tmp_path / "site"
    topics = {"zebra": words("zebra"), "ant": words("ant")}
    doc = '"""{}"""\nraise SystemExit("imported")\n'
    write(
        standard,
        {
            "pydoc_data/topics.py": f"# made by a tool\ntopics = {topics!r}\n",
            "b.py": doc.format(words("b")),
            "a/__init__.py": f'def f():\n    """{words("a.f")}"""\nclass C:\n    async def g(self):\n'
            f'        """{words("a.C.g")}"""\nraise SystemExit("imported")\n',
            "a/z.py": doc.format(words("a.z")),
            "a/same.py": doc.format(words("b")),
            "a/short.py": '"""Too short."""\n',
            "a/broken.py": "def (:\n",
            "a/escape.py": f'"""{words("escape")} \\d"""\n',
            "test/t.py": doc.format(words("test.t")),
            "a/tests/t.py": doc.format(words("a.tests.t")),
            "site-packages/p.py": doc.format(words("p")),
            "a/data.txt": words("data"),
        },
    )
    write(
        site, {"lonely.py": doc.format(words("lonely")), "pack/__init__.py": doc.format(words("pack")), "dark/x.so": ""}
    )
    write(site, {"pack/sub/m.py": doc.format(words("pack.sub.m")), "pack/tests/t.py": doc.format(words("no"))})
    paths = {**sysconfig.get_paths(), "stdlib": str(standard)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    monkeypatch.syspath_prepend(site)
    return standard


STANDARD = ["ant", "zebra", "a.f", "a.C.g", "escape", "b", "a.z"]


def names(documents):
    return [document.removeprefix("Documentation of ").split(",")[0] for document in documents]


def test_what_is_read_and_in_which_order(machine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # other people's escapes are no concern of the reader
        assert names(local_corpus((), min_chars=60)) == STANDARD
    both = local_corpus(("pack", "lonely"), min_chars=60)
    assert names(both) == [*STANDARD, "pack", "pack.sub.m", "lonely"]
    assert names(local_corpus("lonely", min_chars=60))[-1] == "lonely"
    assert names(local_corpus("lonely", min_chars=60, standard_library=False)) == ["lonely"]
    assert "pack" not in sys.modules


def test_order_is_not_the_file_systems(machine, monkeypatch):
    walk = os.walk

    def backwards(top):
        for folder, folders, files in walk(top):
            folders.sort(reverse=True)
            yield folder, folders, sorted(files, reverse=True)

    monkeypatch.setattr(os, "walk", backwards)
    assert names(local_corpus(("pack",), min_chars=60)) == [*STANDARD, "pack", "pack.sub.m"]


@pytest.mark.parametrize("name", ["absent_package", "os.path", "pack.sub", "dark", "sys", "not a name", ""])
def test_packages_that_cannot_be_read_are_named(machine, name):
    with pytest.raises(TextError, match=f"package '{name}'"):
        local_corpus(("pack", name))


def test_no_topics_warns_and_no_text_at_all_raises(machine):
    (machine / "pydoc_data" / "topics.py").unlink()
    with pytest.warns(TlAnisoWarning, match="no help topics"):
        assert names(local_corpus((), min_chars=60)) == STANDARD[2:]
    with pytest.warns(TlAnisoWarning), pytest.raises(TextError, match="No document of 10000"):
        local_corpus((), min_chars=10_000)


def test_cleaning(machine):
    text = """Scale    numbers.

    Parameters
    ----------
    x : the number, [1] - or a list

    >>> scale(3)
    6
    >>> for i in x:
    ...     scale(i)
    12



    Title
    =====
    The end of it."""
    (machine / "b.py").write_text(f'"""{text}"""\n')
    (found,) = [d for d in local_corpus((), min_chars=60) if d.startswith("Scale")]
    assert found == "Scale numbers.\n\nParameters\nx : the number, [1] - or a list\n\nTitle\nThe end of it."


@pytest.fixture(scope="module")
def real():
    return local_corpus(("numpy",))


def test_the_real_corpus(real):
    assert 1.5e6 < sum(map(len, real)) < 6e6
    assert min(map(len, real)) >= 200
    assert len(set(real)) == len(real)
    assert not any(line.startswith(">>>") for document in real for line in document.splitlines())
    assert any("array_like" in document for document in real)


def test_split_is_by_content(real):
    train, held_out = split_documents(real, 0.1)
    assert not set(train) & set(held_out)
    assert len(train) + len(held_out) == len(real)
    # Binomial: four standard deviations.
    expected = 0.1 * len(real)
    assert abs(len(held_out) - expected) < 4 * (0.9 * expected) ** 0.5
    # Order, neighbours and repetition change no side.
    again_train, again_held_out = split_documents([*reversed(real[::2]), *real[:50]], 0.1)
    assert set(again_train) <= set(train)
    assert set(again_held_out) <= set(held_out)
    # A larger share holds out what a smaller one does, and more.
    assert set(held_out) < set(split_documents(real, 0.3)[1])


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_split_needs_a_share(share):
    with pytest.raises(TlAnisoError, match="held_out"):
        split_documents(["a"], share)
