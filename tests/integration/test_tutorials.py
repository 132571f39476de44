"""Every tutorial of docs/tutorials runs from top to bottom, as the site shows it."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
# What a reader must find in the outputs.
SHOWN = {
    "1_first_measurement": ("excess input_energy", "What the numbers do not mean", "excess untrained"),
    "2_over_training": ("C5", "not testable", "report.html", "shuffled_labels"),
    "3_your_own_questions": ("newline_logit", "SemiNMF", "W_Q", "different objectives"),
    "4_frequency_and_geometry": ("closed form", "size_matched", "curvature_slope", "other_type", "cannot be concluded"),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_site"))
    notebooks = importlib.import_module("notebooks")
    page = notebooks.page(notebooks.execute(path, ROOT), path.name)
    for text in SHOWN[path.stem]:
        assert text in page, text
    assert sys.prefix not in page
