"""Tutorials: notebooks that run as the site is built, as pages. Nothing that they print is kept in the repository."""

import hashlib
import html
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat

__all__ = ["execute", "page", "pages"]

# What a run of the same notebook on the same library printed; `make clean` removes it.
_CACHE = ".docs_cache"
_SCRIPT = "assets/plotly.min.js"
_DRAW = """\
<script src="../assets/plotly.min.js"></script>
<script src="../assets/figures.js"></script>
"""


def pages(root: Path) -> dict[str, str | bytes]:
    """Markdown of every tutorial, and the script that draws their figures, by path from the top of docs/."""
    paths = sorted((root / "docs" / "tutorials").glob("*.ipynb"))
    if os.environ.get("DOCS_RUN") == "0":  # a quick look at the text alone
        return {f"tutorials/{path.stem}.md": page(nbformat.read(path, as_version=4), path.name) for path in paths}
    with ThreadPoolExecutor(max_workers=2) as pool:
        run = list(pool.map(lambda path: _cached(path, root), paths))
    made: dict[str, str | bytes] = {
        f"tutorials/{path.stem}.md": page(notebook, path.name) for path, notebook in zip(paths, run, strict=True)
    }
    if any("data-figure" in str(text) for text in made.values()):
        from plotly.offline import get_plotlyjs

        made[_SCRIPT] = get_plotlyjs()
    return made


def execute(path: Path, root: Path) -> Any:
    """The notebook with what its cells print, run in a directory of its own.

    Raises:
        RuntimeError: a cell that fails, or one that prints where it ran.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="tl-aniso-docs-") as place:
        env = {
            **os.environ,
            "PYTHONPATH": str(root),
            "IPYTHONDIR": str(Path(place, "ipython")),
            "TMPDIR": place,
            "PLOTLY_RENDERER": "plotly_mimetype",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm asks for widgets, of which a page has none
        }
        client = NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": place}},
        )
        try:
            client.execute(env=env)
        except CellExecutionError as error:
            raise RuntimeError(f"{path.name}: {error}") from error
        for cell in notebook.cells:
            told = json.dumps(cell.get("outputs", ()))
            for known in (place, str(root), sys.prefix, str(Path.home())):
                if len(known) > 1 and known in told:
                    raise RuntimeError(f"{path.name} prints {known}, which no reader has: {cell.source[:80]!r}")
    return notebook


def page(notebook: Any, name: str) -> str:
    """An executed notebook as Markdown, its tables and figures as HTML."""
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown for output in cell.outputs for shown in _shown(output)]
    note = f"*Run as this page was built. The notebook: [{name}]({name}).*"
    parts.insert(1, note)
    if any("data-figure" in part for part in parts):
        parts.append(_DRAW)
    return "\n\n".join(parts) + "\n"


def _shown(output: Any) -> Iterator[str]:
    if output.output_type == "stream":
        if output.name == "stdout":  # warnings are of the machine that builds
            yield _text(output.text)
        return
    data = output.data
    if "application/vnd.plotly.v1+json" in data:
        figure = json.dumps(data["application/vnd.plotly.v1+json"], separators=(",", ":")).replace("</", "<\\/")
        yield f'<div class="figure" data-figure><script type="application/json">{figure}</script></div>'
    elif "text/html" in data:
        table = re.sub(r"(?s)<style.*?</style>", "", data["text/html"])
        table = table.replace(' border="1" class="dataframe"', "").replace(' style="text-align: right;"', "")
        yield '<div class="output">' + re.sub(r"\n\s*", "\n", table) + "</div>"
    elif "image/png" in data:
        yield f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    elif "text/plain" in data:
        yield _text(data["text/plain"])


def _text(text: str) -> str:
    """Preformatted; blank lines would end the block of HTML."""
    lines = html.escape(text.rstrip(), quote=False).replace("\n\n", "\n&#8203;\n")
    return f'<div class="output"><pre>{lines}</pre></div>'


def _cached(path: Path, root: Path) -> Any:
    digest = hashlib.sha256(path.read_bytes())
    for source in [*sorted((root / "tl_aniso").rglob("*.py")), root / "constraints.txt"]:
        digest.update(source.read_bytes())
    kept = root / _CACHE / f"{path.stem}-{digest.hexdigest()[:16]}.ipynb"
    if kept.is_file():
        return nbformat.read(kept, as_version=4)
    notebook = execute(path, root)
    kept.parent.mkdir(exist_ok=True)
    for old in kept.parent.glob(f"{path.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook
