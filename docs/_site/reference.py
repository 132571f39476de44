"""The API reference: a page for the public names, and one for each room of docs/design.md that has some."""

import re
from pathlib import Path

import griffe

__all__ = ["pages", "rooms"]

# Rooms behind the command line, whose functions are the commands.
_INTERNAL = ("cli", "commands")


def rooms(root: Path) -> list[str]:
    """The rooms of the table in docs/design.md, in its order."""
    text = (root / "docs" / "design.md").read_text(encoding="utf-8")
    section = text.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    cells = re.findall(r"(?m)^\| (`[^|]+) \|", section)
    return list(dict.fromkeys(name for cell in cells for name in re.findall(r"`(\w+)`", cell)))


def pages(root: Path) -> dict[str, str]:
    """Markdown of every page, by its path from the top of docs/; mkdocstrings fills in what the docstrings say."""
    # Read, not imported: rooms load torch, transformers and more.
    top = griffe.load("tl_aniso", search_paths=[root], resolve_aliases=True)
    if not isinstance(top, griffe.Module):
        raise TypeError(f"tl_aniso is no package but {top!r}")
    shown: dict[str, str] = {}
    made = {"reference/tl_aniso.md": _page(top, shown)}
    index = ["# API reference", "", "Public names, `from tl_aniso import …`:", ""]
    index += [f"* [`{name}`](tl_aniso.md#tl_aniso.{name}): {_first_line(top[name])}" for name in _names(top)]
    index += ["", "Rooms, in the order of their dependencies ([design](../design.md#rooms)):", ""]
    for room in rooms(root):
        module = top[room]
        if room in _INTERNAL or not _names(module):
            continue
        made[f"reference/{room}.md"] = _page(module, shown)
        index.append(f"* [`tl_aniso.{room}`]({room}.md): {_first_line(module)}")
    made["reference/index.md"] = "\n".join([*index, ""])
    return made


def _page(module: griffe.Module, shown: dict[str, str]) -> str:
    """One module's page; a name that stands on an earlier page is a link to it."""
    lines = [f"# {module.path}", "", f"::: {module.path}"]
    lines += [
        "    options:",
        "      members: false",
        "      show_root_heading: false",
        "      show_root_toc_entry: false",
        "",
    ]
    elsewhere = []
    for name in _names(module):
        home = module[name].canonical_path  # where it is defined, however many modules hand it on
        if home in shown:
            elsewhere.append(f"* [`{name}`][{shown[home]}]")
            continue
        shown[home] = f"{module.path}.{name}"
        lines += [f"::: {module.path}.{name}", ""]
    if elsewhere:
        lines += ["## Described elsewhere", "", *elsewhere, ""]
    return "\n".join(lines)


def _names(module: griffe.Module) -> list[str]:
    """Its ``__all__``."""
    return [str(name) for name in module.exports or ()]


def _first_line(value: griffe.Object | griffe.Alias) -> str:
    return value.docstring.value.strip().partition("\n")[0] if value.docstring else ""
