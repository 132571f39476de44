"""The API reference: a page for the public names, and one for each room of docs/design.md that has some."""

import importlib
import re
from pathlib import Path
from types import ModuleType

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
    shown: dict[str, str] = {}
    made: dict[str, str] = {}
    index = ["# API reference", "", "Public names, `from tl_aniso import …`:", ""]
    top = importlib.import_module("tl_aniso")
    made["reference/tl_aniso.md"] = _page(top, "tl_aniso.md", shown)
    index += [f"* [`{name}`](tl_aniso.md#{shown[_home(top, name)]}): {_summary(top, name)}" for name in top.__all__]
    index += ["", "Rooms, in the order of their dependencies ([design](../design.md#rooms)):", ""]
    for room in rooms(root):
        module = importlib.import_module(f"tl_aniso.{room}")
        names = getattr(module, "__all__", [])
        if room in _INTERNAL or not names:
            continue
        made[f"reference/{room}.md"] = _page(module, f"{room}.md", shown)
        index.append(f"* [`tl_aniso.{room}`]({room}.md): {_first_line(module)}")
    made["reference/index.md"] = "\n".join([*index, ""])
    return made


def _page(module: ModuleType, page: str, shown: dict[str, str]) -> str:
    """One module's page; a name that stands on an earlier page is a link to it."""
    heading = f"# {module.__name__}"
    lines = [heading, "", f"::: {module.__name__}"]
    lines += ["    options:", "      members: false", "      show_root_heading: false", "      heading_level: 2", ""]
    elsewhere = []
    for name in module.__all__:
        home = _home(module, name)
        if home in shown:
            elsewhere.append(f"* [`{name}`][{shown[home]}]")
            continue
        shown[home] = f"{module.__name__}.{name}"
        lines += [f"::: {module.__name__}.{name}", ""]
    if elsewhere:
        lines += ["## Described elsewhere", "", *elsewhere, ""]
    return "\n".join(lines)


def _home(module: ModuleType, name: str) -> str:
    """Where a name is defined, which is one place however many modules hand it on."""
    value = getattr(module, name)
    home = getattr(value, "__module__", None)
    known = isinstance(home, str) and home.startswith("tl_aniso") and getattr(value, "__qualname__", "") == name
    return f"{home}.{name}" if known else f"{module.__name__}.{name}"


def _summary(module: ModuleType, name: str) -> str:
    return _first_line(getattr(module, name))


def _first_line(value: object) -> str:
    return (value.__doc__ or "").strip().partition("\n")[0]
