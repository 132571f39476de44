"""The navigation: known pages in their order, every other page of docs/ behind them: a new one is never lost."""

import re
from pathlib import Path
from typing import Any

__all__ = ["tree"]

# Pages that are not there are left out.
_SECTIONS = {
    "Start": ("index.md", "handbook.md", "for_transformerlens_users.md"),
    "Tutorials": ("tutorials/*",),
    "Method": ("method.md", "theory.md", "frequency.md", "local_geometry.md", "claims.md", "promises.md"),
    "Guides": ("study.md", "models.md", "corpus.md", "token_views.md", "gallery.md", "design.md"),
    "API reference": ("reference/index.md", "reference/tl_aniso.md", "reference/*"),
    "Changes": ("changelog.md",),
}
_TITLES = {"handbook.md": "Handbook", "for_transformerlens_users.md": "For users of TransformerLens"}
_UNLISTED = ("source/",)


def tree(pages: list[str], root: Path) -> list[dict[str, Any]]:
    """The navigation of these pages, as MkDocs takes it.

    Args:
        pages: paths from the top of docs/.
        root: of the repository.
    """
    left = sorted(page for page in pages if not page.startswith(_UNLISTED))
    sections: dict[str, list[Any]] = {}
    named = {page for patterns in _SECTIONS.values() for page in patterns if "*" not in page}
    for section, patterns in _SECTIONS.items():
        found = []
        for pattern in patterns:
            prefix = pattern.removesuffix("*")
            found += [
                page
                for page in left
                if (page == pattern or (pattern.endswith("*") and page.startswith(prefix) and page not in named))
            ]
        sections[section] = found
    placed = {page for found in sections.values() for page in found}
    sections["Guides"] += [page for page in left if page not in placed]
    return [
        {section: [{title: page} if (title := _title(page, root)) else page for page in found]}
        for section, found in sections.items()
        if found
    ]


def _title(page: str, root: Path) -> str | None:
    """What the navigation calls a page; None where its own heading does."""
    if page in _TITLES:
        return _TITLES[page]
    path = root / "docs" / page
    if not path.is_file():
        return None
    heading = re.search(r"(?m)^# (.+)$", path.read_text(encoding="utf-8"))
    return heading[1].strip() if heading else None
