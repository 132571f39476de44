"""Recipes of corpora: YAML that says which sources give how much of a study's text."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from tl_aniso.errors import TextError

__all__ = ["CorpusRecipe", "CorpusSource", "load_recipe", "near", "recipe_names"]

_FORMAT = 1
_DEFAULT_BUFFER = 1000
_TOP = ("format", "name", "description", "buffer", "sources")
_COMMON = ("name", "kind", "language", "share")
# kind -> its own keys, and which of them must be there
_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "datasets": (
        ("dataset", "config", "split", "field", "id_field", "language_field", "revision"),
        ("dataset",),
    ),
    "files": (("paths", "field", "id_field", "language_field"), ("paths",)),
    "local": (("packages", "standard_library"), ()),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class CorpusSource:
    """One source of a corpus.

    Attributes:
        name: names its documents in every table; unique within the recipe.
        kind: "datasets" (Hugging Face, streamed), "files" (.txt or .jsonl) or "local" (documentation on this machine).
        language: of its documents, where `language_field` names none.
        share: its part of the tokens, relative to the other sources' shares.
        dataset: id on the hub; or a directory laid out as one, written with a leading ``.`` or ``/``.
        config: configuration of the data set, None for its default one.
        split: of the data set.
        field: column, or key of a .jsonl line, that holds the text.
        id_field: column that names a document within its source; None numbers them.
        language_field: column that names a document's language.
        revision: commit or branch; None is resolved when the text is frozen.
        paths: of files, relative to the recipe's own.
        packages: installed packages whose docstrings are read.
        standard_library: whether those of the standard library are read.
    """

    name: str
    kind: str
    language: str
    share: float = 1.0
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    field: str = "text"
    id_field: str | None = None
    language_field: str | None = None
    revision: str | None = None
    paths: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    standard_library: bool = True

    @property
    def is_finite(self) -> bool:
        """Whether it can be read to its end: what lies on this machine, but not a stream."""
        return self.kind != "datasets"

    def as_dict(self) -> dict[str, object]:
        """What the recipe says of it, defaults included."""
        own = (*_COMMON, *_KINDS[self.kind][0])
        found = {key: getattr(self, key) for key in own}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


@dataclass(frozen=True)
class CorpusRecipe:
    """A checked recipe.

    Attributes:
        name: of the corpus.
        sources: in the order of the file.
        description: one line for people.
        buffer: documents among which a streamed source is shuffled.
        folder: what paths are relative to.

    Example:
        >>> from tl_aniso.text import load_recipe
        >>> recipe = load_recipe("paper")
        >>> [source.name for source in recipe.sources]
        ['c4', 'wikipedia-en', 'wikipedia-fr', 'fineweb', 'arxiv']
        >>> round(recipe.share("arxiv"), 3)
        0.2
    """

    name: str
    sources: tuple[CorpusSource, ...]
    description: str = ""
    buffer: int = _DEFAULT_BUFFER
    folder: Path = field(default_factory=Path, compare=False)

    def share(self, name: str) -> float:
        """A source's part of all tokens, between 0 and 1."""
        return next(s.share for s in self.sources if s.name == name) / math.fsum(s.share for s in self.sources)

    def as_dict(self) -> dict[str, object]:
        """What the recipe says, defaults included, as plain data."""
        return {
            "name": self.name,
            "description": self.description,
            "buffer": self.buffer,
            "sources": [source.as_dict() for source in self.sources],
        }


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with the library.

    Example:
        >>> from tl_aniso.text.recipe import recipe_names
        >>> recipe_names()
        ('local', 'paper')
    """
    return tuple(sorted(_shipped()))


def load_recipe(path_or_name: object) -> CorpusRecipe:
    """Read a recipe: one of the library's by its name, or a YAML file by its path.

    Args:
        path_or_name: "paper" (the merged corpus of arXiv:2604.08764), "local" (documentation that every machine with
            Python has), or a path, whose own directory is what the recipe's paths are relative to.

    Raises:
        TextError: no such file or name, no YAML, keys that are unknown, missing or repeated, values of the wrong kind;
            the message says where in the file.

    Example:
        >>> from tl_aniso.text import load_recipe
        >>> load_recipe("local").sources[1].packages
        ('numpy',)
    """
    if not isinstance(path_or_name, str | Path) or "\0" in str(path_or_name):
        raise TextError(f"a recipe is a path or a name ({', '.join(recipe_names())}), got {path_or_name!r}")
    if isinstance(path_or_name, str) and path_or_name in _shipped():
        where = _shipped()[path_or_name]
        return _recipe(where.read_text("utf-8"), where.name, Path())
    path = Path(path_or_name)
    if not path.is_file():
        names, given = recipe_names(), str(path_or_name)
        raise TextError(
            f"there is no recipe file {given!r} and no recipe of that name{near(given, names)}; "
            f"recipes that come with the library are {', '.join(names)}"
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"the recipe {path} cannot be read: {error}") from error
    return _recipe(text, path.name, path.parent)


def near(name: str, known: tuple[str, ...]) -> str:
    """A hint at names that look like `name`; empty where none does.

    Example:
        >>> near("langauge", ("language", "share"))
        '; did you mean language?'
    """
    found = get_close_matches(name, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _shipped() -> dict[str, Any]:
    """Recipes by name: a wheel holds them beside this module, a checkout in its ``data`` directory."""
    for folder in (files("tl_aniso.text"), Path(__file__).resolve().parents[2] / "data"):
        found = {
            entry.name.removeprefix("corpus_").removesuffix(".yaml"): entry
            for entry in (folder.iterdir() if folder.is_dir() else ())
            if entry.name.startswith("corpus_") and entry.name.endswith(".yaml")
        }
        if found:
            return found
    raise TextError("this installation holds no recipes of corpora; install tl_aniso again, or pass a path")


def _recipe(text: str, file: str, folder: Path) -> CorpusRecipe:
    top = _mapping(_parsed(text, file), file)
    _check_keys(top, _TOP, ("format", "name", "sources"), file)
    if top["format"] != _FORMAT:
        raise TextError(f"{file}: format must be {_FORMAT}, which this version reads, got {top['format']!r}")
    buffer = top.get("buffer", _DEFAULT_BUFFER)
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
        raise TextError(f"{file}: buffer must be a whole number of documents, at least 1, got {buffer!r}")
    listed = top["sources"]
    if not isinstance(listed, list) or not listed:
        raise TextError(f"{file}: sources must be a list of at least one source, got {listed!r:.80}")
    sources = [_source(entry, f"{file}: sources[{number}]") for number, entry in enumerate(listed)]
    names = [source.name for source in sources]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise TextError(f"{file}: sources[{number}]: the name {name} is taken by sources[{names.index(name)}]")
    description = _text(top, "description", file) if top.get("description") is not None else ""
    return CorpusRecipe(_name(top, file), tuple(sources), description, buffer, folder)


def _source(entry: object, where: str) -> CorpusSource:
    given = _mapping(entry, where)
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = near(str(kind), tuple(_KINDS))
        raise TextError(f"{where}: kind must be one of {', '.join(_KINDS)}, got {kind!r}{hint}")
    own, needed = _KINDS[kind]
    foreign = [key for key in given if any(key in keys for keys, _ in _KINDS.values()) and key not in own]
    if foreign:
        raise TextError(f"{where}: {foreign[0]} has no meaning where kind is {kind}; its keys are {', '.join(own)}")
    _check_keys(given, (*_COMMON, *own), ("name", "language", *needed), where)
    share = given.get("share", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not (0 < share < math.inf):
        raise TextError(f"{where}: share must be a number above 0, got {share!r}")
    plain: dict[str, Any] = {
        key: _text(given, key, where)
        for key in ("dataset", "config", "split", "field", "id_field", "language_field", "revision")
        if given.get(key) is not None
    }
    lists: dict[str, Any] = {key: _texts(given, key, where) for key in ("paths", "packages") if key in given}
    if kind == "files" and not lists["paths"]:
        raise TextError(f"{where}: paths is empty; name at least one .txt or .jsonl file")
    standard = given.get("standard_library", True)
    if not isinstance(standard, bool):
        raise TextError(f"{where}: standard_library must be true or false, got {standard!r}")
    if kind == "local" and not standard and not lists.get("packages"):
        raise TextError(f"{where}: neither the standard library nor a package is to be read; name some packages")
    return CorpusSource(
        name=_name(given, where),
        kind=kind,
        language=_text(given, "language", where),
        share=float(share),
        standard_library=standard,
        **plain,
        **lists,
    )


def _parsed(text: str, file: str) -> object:
    import yaml

    from tl_aniso.strict_yaml import load_yaml

    try:
        return load_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TextError(f"{file} cannot be read as YAML: {error}") from error


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise TextError(f"{where}: must be keys and values, got {data!r:.80}")
    return data


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], needed: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise TextError(f"{where}: unknown key {key}{near(key, known) or '; known are ' + ', '.join(known)}")
    for key in needed:
        if given.get(key) is None:
            raise TextError(f"{where}: {key} is missing")


def _text(given: Mapping[str, Any], key: str, where: str) -> str:
    value = given[key]
    if not isinstance(value, str) or not value.strip():
        raise TextError(f"{where}: {key} must be a text (in quotes if it looks like a number), got {value!r}")
    return value


def _texts(given: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = given[key]
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise TextError(f"{where}: {key} must be a list of texts, got {value!r:.80}")
    return tuple(value)


def _name(given: Mapping[str, Any], where: str) -> str:
    value = _text(given, "name", where)
    if not _NAME.fullmatch(value):
        raise TextError(f"{where}: name must be of letters, digits, '.', '_' and '-', got {value!r}")
    return value
