"""The notebook runs from top to bottom."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "experiments" / "local.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    # The kernel imports the library that is tested, wherever it was started.
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out["output_type"] == "error"]
    shown = "".join(str(out.get("data", {}).get("text/html", out.get("text", ""))) for out in outputs)
    assert all(claim in shown for claim in ("C1", "C2", "C3", "C4", "C5"))
    assert "encoder - decoder" in shown
    assert "SHA-256" in shown
