"""What MkDocs calls while it builds the site: pages that are made, the navigation, links that leave docs/."""

from pathlib import Path
from typing import Any

import links
import navigation
import notebooks
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Where files of the repository that are no pages of docs/ appear on the site.
PAGES = {"README.md": "handbook.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made: the README and the changelog, the reference, tutorials, and whatever else pages link to."""
    made: dict[str, str | bytes] = {}
    for source, target in PAGES.items():
        text = links.moved((ROOT / source).read_text(encoding="utf-8"), Path(source), PAGES)
        made[target] = text.replace("# tl_aniso\n", "# Handbook\n", 1)  # the home page has that name
    made.update(reference.pages(ROOT))
    made.update(notebooks.pages(ROOT))
    texts = {Path("docs", file.src_uri): file.content_string for file in files.documentation_pages()}
    texts.update({Path(source): (ROOT / source).read_text(encoding="utf-8") for source in PAGES})
    made.update(links.linked_files(ROOT, texts, PAGES))
    for target, content in made.items():
        files.append(File.generated(config, target, content=content))
    config.nav = navigation.tree([file.src_uri for file in files.documentation_pages()], ROOT)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of pages in docs/ to the rest of the repository, as links within the site."""
    source = page.file.src_uri
    if page.file.generated_by is not None:
        return markdown
    return links.moved(markdown, Path("docs", source), PAGES)


def on_post_build(config: MkDocsConfig) -> None:
    """Nothing may be fetched from elsewhere when a page is opened."""
    for path in Path(config.site_dir).rglob("*.html"):
        outside = links.fetched(path.read_text(encoding="utf-8"))
        if outside:
            raise PluginError(f"{path.name} would fetch {', '.join(outside)}; put a copy into docs/assets/")
