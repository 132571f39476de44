"""Files for papers: their size, their bytes, and what is missing said by name."""

import importlib.util
import re
import xml.etree.ElementTree as ElementTree

import plotly.graph_objects as go
import pytest

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz import browser, loss_by_step, save_static
from tl_aniso.viz.browser import find_browser
from tl_aniso.viz.static import Look, save_all_static


def figure():
    return loss_by_step([(0, 7.6), (1, float("nan")), (2, 5.0)])


@pytest.mark.browser
def test_files_have_the_size_asked_for_and_the_same_bytes_twice(tmp_path):
    looks = {
        "a.svg": Look(width_mm=85),
        "a.pdf": Look(width_mm=85, height_mm=60),
        "a.png": Look(width_mm=50.8, dpi=150),
    }
    jobs = [(figure(), tmp_path / run / name, look) for run in ("one", "two") for name, look in looks.items()]
    paths = save_all_static(jobs)
    one, two = paths[:3], paths[3:]
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes() == second.read_bytes()
    svg = ElementTree.fromstring(one[0].read_text(encoding="utf-8"))
    assert svg.get("width") == "85mm"
    text = "".join(svg.itertext())
    assert "training step" in text
    box = [float(part) for part in svg.get("viewBox").split()]
    assert float(svg.get("height").removesuffix("mm")) / 85 == pytest.approx(box[3] / box[2], rel=1e-3)
    # 8 points in print: 13 pixels of the drawing, 85 mm wide.
    assert 13 * 85 / box[2] * 72 / 25.4 == pytest.approx(8.0)
    media = re.search(rb"/MediaBox \[([^\]]*)\]", one[1].read_bytes())
    width, height = (float(part) / 72 * 25.4 for part in media[1].split()[2:])
    assert (width, height) == (pytest.approx(85, abs=0.5), pytest.approx(60, abs=0.5))
    assert one[2].read_bytes()[16:20] == (300).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.gif", {}, r"must end in \.svg, \.pdf, \.png"),
        ("a.svg", {"width_mm": -1}, "width_mm must be a positive number, got -1"),
        ("a.svg", {"width_mm": 85, "font_pt": "8"}, "font_pt must be a positive number"),
        ("a.svg", {"height_mm": 85}, "height_mm needs width_mm"),
        ("a.svg", {"theme": "sepia"}, "theme must be one of light, dark"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_browser_starts(tmp_path, monkeypatch, name, options, message):
    monkeypatch.setenv("BROWSER_PATH", "no-such-browser")
    with pytest.raises(TlAnisoError, match=message):
        save_static(figure(), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_only_figures_are_written(tmp_path):
    with pytest.raises(TlAnisoError, match="must be a plotly Figure, got dict"):
        save_static({"data": []}, tmp_path / "a.svg")


def test_a_missing_browser_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "no-such-browser")
    with pytest.raises(TlAnisoError, match="BROWSER_PATH is 'no-such-browser'"):
        save_static(figure(), tmp_path / "a.svg")
    monkeypatch.delenv("BROWSER_PATH")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TlAnisoError, match=r"need a Chrome or Chromium.*set BROWSER_PATH"):
        find_browser()


def test_missing_kaleido_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TlAnisoError, match=r"need kaleido: pip install 'tl_aniso\[static\]'"):
        browser.rendered([], "chromium")


def test_a_browser_that_fails_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    with pytest.raises(TlAnisoError, match="could not draw the figure"):
        save_static(go.Figure(), tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
