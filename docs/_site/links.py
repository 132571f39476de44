"""Links of the repository as links within the site, so that neither its pages nor the sources hold a dead one."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

__all__ = ["fetched", "linked_files", "moved", "relative_links"]

_LINK = re.compile(r"(?<!!)(\[[^\]\n]*\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[ \t]*$")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text", ".json": "json", ".toml": "toml", ".cff": "yaml"}


def fetched(html: str) -> list[str]:
    """Addresses on the network that a page would fetch by itself: scripts, styles, fonts, images, frames."""
    address = r"((?:https?:)?//[^\"'\s>)]+)"
    tags = re.findall(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*>", html)
    found = [url for tag in tags for url in re.findall(rf"\b(?:src|href|srcset)=[\"']?{address}", tag)]
    styles = "".join(re.findall(r"(?s)<style.*?</style>", html))
    return found + re.findall(rf"(?:url\(|@import)\s*[\"']?{address}", styles)


def relative_links(markdown: str) -> Iterator[str]:
    """Targets of links that lead neither to the network nor to a place on the same page; code is passed over."""
    for found in _LINK.finditer(_FENCE.sub("", markdown)):
        if not re.match(r"[a-z]+:|#", found[2]):
            yield found[2]


def moved(markdown: str, source: Path, pages: Mapping[str, str]) -> str:
    """The Markdown of a file of the repository, its links leading to where their targets are on the site.

    Args:
        markdown: what the file holds.
        source: the file, from the top of the repository.
        pages: files outside of docs/ that are pages of their own, and the page each is.
    """
    here = _page(PurePosixPath(source.as_posix()), pages).parent

    def new(found: re.Match[str]) -> str:
        if re.match(r"[a-z]+:|#", found[2]):
            return found[0]
        target, _, anchor = found[2].partition("#")
        page = _page(_target(source, target), pages)
        there = os.path.relpath(page, here).replace(os.sep, "/")
        return f"{found[1]}{there}{'#' + anchor if anchor else ''}{found[3]}"

    return _LINK.sub(new, markdown)


def linked_files(root: Path, texts: Mapping[Path, str], pages: Mapping[str, str]) -> dict[str, str | bytes]:
    """Files outside of docs/ that pages link to, each as a page that shows it."""
    found: dict[str, str | bytes] = {}
    for source, text in texts.items():
        for link in relative_links(text):
            target = _target(source, link.partition("#")[0])
            path = root / target
            if target.parts[0] != "docs" and str(target) not in pages and path.is_file():
                content = path.read_text(encoding="utf-8")
                language = _LANGUAGES.get(path.suffix, "text")
                fenced = f"# {target}\n\n````{language}\n{content}\n````\n"
                page = _page(target, pages)
                found[str(page)] = fenced if page.suffix == ".md" else content
    return found


def _target(source: Path, link: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(source.parent / link).replace(os.sep, "/"))


def _page(path: PurePosixPath, pages: Mapping[str, str]) -> PurePosixPath:
    """Where a file of the repository is on the site."""
    if str(path) in pages:
        return PurePosixPath(pages[str(path)])
    if path.parts[0] == "docs":
        inside = path.relative_to("docs")
        return inside.with_suffix(".md") if path.suffix == ".ipynb" else inside
    return PurePosixPath("source", str(path) if path.suffix == ".ipynb" else f"{str(path).lstrip('.')}.md")
