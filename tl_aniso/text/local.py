"""English text that every machine with Python has: help topics and docstrings, read from source files."""

import ast
import hashlib
import importlib.util
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning

__all__ = ["local_corpus", "split_documents"]

# Test suites hold strings made to break parsers, and site-packages differ from machine to machine.
_SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled", "__pycache__"})
_DOCTEST = re.compile(r"(?m)^[ \t]*>>>.*(?:\n[ \t]*\S.*)*\n?")
_RULE = re.compile(r"(?m)^[ \t]*[-=~^*+#]{3,}[ \t]*\n?")
_BLANKS = re.compile(r"[ \t]+")
_MARGINS = re.compile(r"(?m)^ | $")
_GAPS = re.compile(r"\n{3,}")


def local_corpus(
    packages: Iterable[str] = ("numpy",), *, min_chars: int = 200, standard_library: bool = True
) -> list[str]:
    """Python's help topics and the docstrings of the standard library and of `packages`, one document each.

    Source files are parsed, never imported. Interactive examples, underlines and indentation are removed,
    short and repeated documents dropped. The order is that of the files' names, not the file system's: one
    installation always gives one corpus, another Python version a slightly different one.

    Args:
        packages: Names of installed top-level packages to add to the standard library; `()` for none.
        min_chars: Shorter documents are dropped, in characters after cleaning.
        standard_library: False leaves out the standard library and the help topics.

    Returns:
        Texts, about 1.6 million characters, 2.8 million with numpy; a few seconds of parsing.

    Raises:
        TextError: A package that is not installed or has no Python source.

    Example:
        >>> from tl_aniso.text import local_corpus
        >>> documents = local_corpus(packages=())
        >>> any("assignment" in document for document in documents), len(set(documents)) == len(documents)
        (True, True)
    """
    if isinstance(packages, str):
        packages = (packages,)
    # Packages first looked up, then read: a missing one is reported before seconds of parsing.
    found = [root for name in packages for root in _package_roots(name)]
    standard = Path(sysconfig.get_paths()["stdlib"]) if standard_library else None
    documents: dict[str, None] = {}
    for text in _all_texts(standard, found):
        cleaned = _clean(text)
        if len(cleaned) >= min_chars:
            documents.setdefault(cleaned)
    if not documents:
        raise TextError(
            f"No document of {min_chars} characters in this installation's source; give a text of your own."
        )
    return list(documents)


def split_documents(documents: Iterable[str], held_out: float = 0.1) -> tuple[list[str], list[str]]:
    """Split texts into those to train on and those to measure on, by a hash of each text.

    A document's side depends on nothing but its content, so the two never overlap, also not between runs with
    more or fewer documents; repeated documents fall on the same side.

    Args:
        documents: Texts.
        held_out: Share of the documents to hold out, between 0 and 1 (about; exact only in expectation).

    Returns:
        Two lists, the texts to train on and the texts held out, in the order given.

    Raises:
        TlAnisoError: `held_out` not strictly between 0 and 1.

    Example:
        >>> from tl_aniso.text import split_documents
        >>> train, held_out = split_documents([f"text {i}" for i in range(1000)], held_out=0.2)
        >>> len(train), len(held_out)
        (832, 168)
    """
    if not 0.0 < held_out < 1.0:
        raise TlAnisoError(f"held_out is {held_out}; give a share between 0 and 1.")
    sides: tuple[list[str], list[str]] = ([], [])
    for text in documents:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        sides[int.from_bytes(digest[:8], "big") < held_out * 2**64].append(text)
    return sides


def _all_texts(standard: Path | None, packages: Iterable[Path]) -> Iterator[str]:
    if standard is not None:
        yield from _topics(standard / "pydoc_data" / "topics.py")
    for root in packages if standard is None else (standard, *packages):
        for path in _source_files(root):
            yield from _docstrings(path)


def _package_roots(name: str) -> list[Path]:
    # A dotted name would make the import system run the parent package.
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # a module in sys.modules that hides where it came from
        spec = None
    if spec is None:
        raise TextError(f"The package {name!r} is not installed; install it, or leave it out of `packages`.")
    if spec.submodule_search_locations is not None:
        roots = [Path(location) for location in spec.submodule_search_locations]
    else:
        roots = [Path(spec.origin)] if spec.origin else []
    if not any(True for root in roots for _ in _source_files(root)):
        raise TextError(f"The package {name!r} has no Python source files; leave it out of `packages`.")
    return sorted(roots)


def _source_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        if root.suffix == ".py":
            yield root
        return
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    yield from sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _parsed(path: Path) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            return None  # templates and Python 2 relics: no text for us


def _docstrings(path: Path) -> Iterator[str]:
    tree = _parsed(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _topics(path: Path) -> Iterator[str]:
    tree = _parsed(path) if path.is_file() else None
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["topics"]:
            topics: dict[str, str] = ast.literal_eval(node.value)
            yield from (topics[name] for name in sorted(topics))
            return
    warnings.warn(
        "This Python has no help topics (pydoc_data); the corpus is docstrings alone and smaller than usual.",
        TlAnisoWarning,
        stacklevel=4,
    )


def _clean(text: str) -> str:
    text = _RULE.sub("", _DOCTEST.sub("", text.expandtabs()))
    text = _MARGINS.sub("", _BLANKS.sub(" ", text))
    return _GAPS.sub("\n\n", text).strip()
