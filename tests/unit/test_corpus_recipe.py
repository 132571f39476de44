"""Recipes say what they mean or are refused by name; those of the library are what the issue of each says."""

from pathlib import Path

import pytest

from tl_aniso.errors import TextError
from tl_aniso.text import load_recipe

GOOD = """
format: 1
name: mine
sources:
  - {name: a, kind: datasets, dataset: owner/set, language: en, share: 3}
  - {name: b, kind: files, paths: [b.txt], language: fr}
"""


def test_the_papers_corpus():
    recipe = load_recipe("paper")
    asked = [(s.dataset, s.config, s.split, s.field, s.language) for s in recipe.sources]
    assert asked == [
        ("allenai/c4", "en", "train", "text", "en"),
        ("wikimedia/wikipedia", "20231101.en", "train", "text", "en"),
        ("wikimedia/wikipedia", "20231101.fr", "train", "text", "fr"),
        ("HuggingFaceFW/fineweb", "sample-10BT", "train", "text", "en"),
        ("ccdv/arxiv-summarization", "document", "train", "article", "en"),
    ]
    assert [recipe.share(s.name) for s in recipe.sources] == [0.2] * 5
    assert not any(s.is_finite for s in recipe.sources)


def test_the_local_corpus():
    recipe = load_recipe("local")
    assert [(s.kind, s.standard_library, s.packages) for s in recipe.sources] == [
        ("local", True, ()),
        ("local", False, ("numpy",)),
    ]


def test_a_recipe_of_ones_own(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.share("a"), recipe.share("b")) == (0.75, 0.25)
    assert recipe.folder == tmp_path
    assert recipe == load_recipe(str(tmp_path / "mine.yaml"))
    assert "field" in recipe.sources[0].as_dict()
    assert "packages" not in recipe.sources[0].as_dict()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("language: fr", "langauge: fr", r"mine.yaml: sources\[1\]: unknown key langauge; did you mean language"),
        ("name: mine", "name: mine\nbufer: 3", "mine.yaml: unknown key bufer; did you mean buffer"),
        ("name: mine", "name: mine\nzzz: 3", "unknown key zzz; known are format, name"),
        ("format: 1", "format: 2", "format must be 1"),
        ("format: 1", "", "format is missing"),
        ("name: mine", "name: mine\nname: yours", "the key name is repeated"),
        ("name: mine", "name: mine\nbuffer: 0", "buffer must be a whole number of documents, at least 1, got 0"),
        ("name: mine", "name: mine/x", "name must be of letters"),
        ("kind: files", "kind: file", r"sources\[1\]: kind must be one of .*got 'file'; did you mean files"),
        (
            "paths: [b.txt]",
            "paths: [b.txt], config: en",
            "config has no meaning where kind is files; its keys are paths",
        ),
        ("paths: [b.txt], ", "", r"sources\[1\]: paths is missing"),
        ("paths: [b.txt]", "paths: []", "paths is empty"),
        ("paths: [b.txt]", "paths: b.txt", "paths must be a list of texts"),
        ("name: b", "name: a", r"sources\[1\]: the name a is taken by sources\[0\]"),
        ("share: 3", "share: 0", r"sources\[0\]: share must be a number above 0, got 0"),
        ("share: 3", "share: .inf", "share must be a number above 0"),
        ("share: 3", "share: true", "share must be a number above 0"),
        (
            "share: 3",
            "config: 20231101",
            r"config must be a text \(in quotes if it looks like a number\), got 20231101",
        ),
        ("dataset: owner/set, ", "", r"sources\[0\]: dataset is missing"),
        ("kind: files, paths: [b.txt]", "kind: local, standard_library: false", "name some packages"),
        ("kind: files, paths: [b.txt]", "kind: local, standard_library: 1", "standard_library must be true or false"),
        ("sources:", "sources: [", "cannot be read as YAML"),
        (GOOD, "- 1", "mine.yaml: must be keys and values"),
        (GOOD, "{format: 1, name: mine, sources: []}", "sources must be a list of at least one source"),
        (GOOD, "{format: 1, name: mine, sources: [x]}", r"sources\[0\]: must be keys and values"),
        (GOOD, "a: !!python/object/apply:os.getcwd []", "cannot be read as YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str):
    assert old in GOOD
    (tmp_path / "mine.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(TextError, match=message):
        load_recipe(tmp_path / "mine.yaml")


@pytest.mark.parametrize("given", ["papers", "nowhere.yaml", Path("nowhere.yaml")])
def test_a_recipe_that_is_nowhere(given: object):
    with pytest.raises(TextError, match="recipes that come with the library are local, paper"):
        load_recipe(given)


def test_a_near_name_is_offered():
    with pytest.raises(TextError, match="did you mean paper"):
        load_recipe("papers")


@pytest.mark.parametrize("given", [None, 3, "a\0b"])
def test_what_is_no_recipe_at_all(given: object):
    with pytest.raises(TextError, match="a recipe is a path or a name"):
        load_recipe(given)


def test_bytes_that_are_no_text(tmp_path: Path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TextError, match=r"mine\.yaml cannot be read"):
        load_recipe(tmp_path / "mine.yaml")
