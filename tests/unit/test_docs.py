"""The documentation: links lead somewhere, examples are Python, every public name is described, nothing is lost."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import tl_aniso

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site():
    """The modules that make the site."""
    sys.path.insert(0, str(ROOT / "docs" / "_site"))
    try:
        yield {name: importlib.import_module(name) for name in ("links", "navigation", "notebooks", "reference")}
    finally:
        sys.path.remove(str(ROOT / "docs" / "_site"))


@pytest.fixture(scope="module")
def made(site):
    """The pages of the reference."""
    return site["reference"].pages(ROOT)


def anchors(text):
    """Anchors of headings, as GitHub and MkDocs both make them for headings of letters, digits and spaces."""
    headings = re.findall(r"(?m)^#{1,6} (.+)$", re.sub(r"(?ms)^```.*?^```", "", text))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def markdown_of(path):
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(site, path):
    text = markdown_of(path)
    for link in site["links"].relative_links(text):
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve()
        made = there.parent == ROOT / "docs" / "reference"  # pages that the build makes
        assert made or there.exists(), f"{path.name}: {link}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{path.name}: {link}"
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert anchor in anchors(text), f"{path.name}: #{anchor}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_are_python(path):
    for code in re.findall(r"(?ms)^```python\n(.*?)^```", path.read_text(encoding="utf-8")):
        ast.parse(code)


def test_nothing_is_asked_of_the_network():
    """Scripts, styles, fonts and images of pages and theme; links that a reader follows may go anywhere."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    assert not re.findall(r"https?://", config)
    for asset in (ROOT / "docs" / "assets").iterdir():
        assert not re.search(r"""(src|href|url|import|fetch)[\s("'=:]+https?://""", asset.read_text(encoding="utf-8"))


def test_what_a_page_would_fetch_is_found(site):
    fetched = site["links"].fetched
    assert fetched('<script src="https://a.org/x.js"></script><link rel="stylesheet" href="//b.org/y.css">') == [
        "https://a.org/x.js",
        "//b.org/y.css",
    ]
    assert fetched("<style>@import 'https://c.org/z.css'; a { src: url(https://d.org/f.woff) }</style>") == [
        "https://c.org/z.css",
        "https://d.org/f.woff",
    ]
    assert not fetched('<a href="https://arxiv.org/abs/2604.08764">paper</a><script src="assets/x.js"></script>')


def test_every_public_name_is_in_the_reference(made):
    for name in tl_aniso.__all__:
        assert f"\n::: tl_aniso.{name}\n" in made["reference/tl_aniso.md"]
        assert f"[`{name}`](tl_aniso.md#tl_aniso.{name})" in made["reference/index.md"]
    described = re.findall(r"(?m)^::: ([\w.]+)$", "\n".join(made.values()))
    assert len(described) == len(set(described))


def test_every_room_of_the_design_has_a_page(site, made):
    rooms = site["reference"].rooms(ROOT)
    there = {path.stem for path in (ROOT / "tl_aniso").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert {"capturing", "energy", "viz", "study"} <= set(rooms) <= there
    for room in set(rooms) - {"cli", "commands"}:
        text = made[f"reference/{room}.md"]
        path = ROOT / "tl_aniso" / room
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        for name in re.findall(r'"(\w+)"', source.partition("\n__all__ = [")[2].partition("]")[0]):
            assert f"::: tl_aniso.{room}.{name}\n" in text or f"[`{name}`][" in text


def test_no_page_is_left_out_of_the_navigation(site):
    pages = [
        "index.md",
        "handbook.md",
        "method.md",
        "a_page_of_next_year.md",
        "reference/index.md",
        "reference/energy.md",
    ]
    tree = site["navigation"].tree([*pages, "source/LICENSE.md"], ROOT)
    found = [
        page if isinstance(page, str) else next(iter(page.values()))
        for section in tree
        for entries in section.values()
        for page in entries
    ]
    assert sorted(found) == sorted(pages)
    assert found.index("reference/index.md") < found.index("reference/energy.md")


def test_links_out_of_docs_stay_on_the_site(site):
    moved = site["links"].moved
    pages = {"README.md": "handbook.md"}
    assert moved("[a](docs/method.md#odds)", Path("README.md"), pages) == "[a](method.md#odds)"
    assert moved("[a](../README.md#models)", Path("docs/study.md"), pages) == "[a](handbook.md#models)"
    assert moved("[a](../data/claims.yaml)", Path("docs/claims.md"), pages) == "[a](source/data/claims.yaml.md)"
    assert moved("[a](tutorials/1.ipynb)", Path("docs/index.md"), pages) == "[a](tutorials/1.md)"
    assert moved("[a](https://x.org) [b](#c)", Path("docs/index.md"), pages) == "[a](https://x.org) [b](#c)"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))
            assert not cell["outputs"]
            assert cell["execution_count"] is None


def test_an_executed_notebook_is_a_page(site):
    import nbformat.v4 as v4

    figure = {"data": [{"x": ["</script>"]}], "layout": {}}
    outputs = [
        v4.new_output("stream", name="stdout", text="one\n\n<two>"),
        v4.new_output("stream", name="stderr", text="a warning of this machine"),
        v4.new_output("display_data", {"application/vnd.plotly.v1+json": figure, "text/html": "<b>heavy</b>"}),
        v4.new_output("display_data", {"text/html": '<table border="1" class="dataframe">\n\n<tr></tr></table>'}),
    ]
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# Title"), v4.new_code_cell("print()", outputs=outputs)])
    text = site["notebooks"].page(notebook, "x.ipynb")
    assert text.startswith("# Title\n")
    assert "&lt;two&gt;" in text
    assert "warning" not in text
    assert text.count("</script>") == 3  # of the data, and of the two files: the figure's own is escaped
    assert "heavy" not in text
    assert "<table>\n<tr></tr></table>" in text


def test_the_page_for_users_of_transformerlens_runs(capsys):
    """Its one example that needs no network; the numbers it speaks of are those that it prints."""
    text = (ROOT / "docs" / "for_transformerlens_users.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"(?ms)^<!-- run -->\n```python\n(.*?)^```", text)
    names: dict = {}
    exec(compile(code, "for_transformerlens_users.md", "exec"), names)
    table = names["result"].table().set_index("group")
    assert 1.5 < table.loc["readers", "R"] < 3
    assert (table.loc["readers"].filter(like="excess").astype(float) - 1).abs().max() < 0.15
    assert "excess" in capsys.readouterr().out


def test_a_processed_bridge_is_refused_as_that_page_says():
    from types import SimpleNamespace

    from tl_aniso.capturing.bindings.bridge import bind_bridge
    from tl_aniso.errors import ModelError

    with pytest.raises(ModelError, match="enable_compatibility_mode"):
        bind_bridge(SimpleNamespace(_weights_processed=True))
