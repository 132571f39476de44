"""The page is whole, fetches nothing, shows every string as text, and appears at once or not at all."""

import json
import math
import os
from html.parser import HTMLParser

import pandas as pd
import pytest

from tests.frames import energy_frame, isotropy_frame
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz import write_report

HOSTILE = "</script><img src=x onerror=alert(1)> \"a\" 'b' \u2028 🦜 {{ 7 * 7 }} <!-- <b>"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements, attributes, and the text of each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def scripts(self, kind):
        return [
            text
            for text, is_json in zip(self.texts["script"], self._kinds(), strict=True)
            if is_json is (kind == "application/json")
        ]

    def _kinds(self):
        kinds, index = [], 0
        for tag in self.tags:
            if tag == "script":
                kinds.append(None)
        for tag, name, value in self.attributes:
            if tag == "script" and name == "type":
                kinds[index] = value
                index += 1
        return [kind == "application/json" for kind in kinds]


@pytest.fixture(scope="module")
def frame():
    return pd.concat([energy_frame(), isotropy_frame()], ignore_index=True)


@pytest.fixture(scope="module")
def page(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    loss = [(0, 7.6), (1, 5.0)]
    assert write_report(path, frame, title="A title", provenance={"a": {"b": [1, None]}}, loss=loss) == path
    return Page(path.read_text(encoding="utf-8"))


def test_nothing_is_fetched(page):
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "data", "poster", "action"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
    assert "@import" not in page.texts["style"][0]
    assert "url(" not in page.texts["style"][0]
    policy = next(value for tag, _, value in page.attributes if tag == "meta" and "default-src" in (value or ""))
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_plotly_is_there_once_and_every_figure_has_a_place(page):
    code = page.scripts("code")
    assert sum("plotly.js v" in text for text in code) == 1
    data = [json.loads(text) for text in page.scripts("application/json")]
    ids = [value for tag, name, value in page.attributes if tag == "div" and name == "id"]
    assert ids == ["figure-energy", "figure-map", "figure-isotropy", "figure-loss"]
    assert len(data) == 2 * len(ids)
    assert "updatemenus" not in data[0]["layout"] or not data[0]["layout"]["updatemenus"]
    assert len(data[1]["args"]) == page.texts["select"][0].strip().count("\n") + 1


def test_reading_comes_before_tables_and_figures(page):
    assert page.texts["h2"] == ["What came out", "Numbers", "Figures", "Methods", "Provenance"]
    text = "".join(page.texts["main"])
    assert "does not hold" in text
    assert "b: 1, unknown" in text


def test_tables_have_captions_headings_and_the_numbers(page):
    assert len(page.texts["caption"]) == page.tags.count("table") == 7
    assert {value for tag, name, value in page.attributes if tag == "th" and name == "scope"} == {
        "col",
        "row",
        "colgroup",
    }
    first = page.texts["tbody"][0].split()
    assert first[:4] == ["true", "gradient", "3.29", "0.320"]
    assert "58.6" in first


def test_figures_are_labelled(page):
    labels = [value for tag, name, value in page.attributes if tag == "div" and name == "aria-label"]
    assert all(labels)
    assert any("true gradient" in label for label in labels)


def test_hostile_strings_are_text(frame, tmp_path):
    hostile = frame[frame["step"].isin([0.0, 100.0]) & (frame["layer"] == 0)].assign(model=HOSTILE)
    hostile["control"] = hostile["control"].replace("shuffled_g", HOSTILE)
    hostile["site"] = hostile["site"].str.replace("W_Q", HOSTILE + "W_Q")
    path = write_report(
        tmp_path / "r.html", hostile, title=HOSTILE, provenance={HOSTILE: HOSTILE, "lone": "\ud83d"}, notes=[HOSTILE]
    )
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert page.texts["h1"] == [HOSTILE]
    assert page.texts["title"] == [HOSTILE]
    assert HOSTILE in page.texts["dt"]
    assert "49" not in page.texts["h1"][0]
    for script in page.scripts("application/json"):
        assert "<" not in script
        json.loads(script)


def test_missing_values_are_said_to_be_missing(frame, tmp_path):
    lost = frame.copy()
    gone = (lost["control"] == "input_energy") & (lost["step"] == 100)
    lost.loc[gone, ["value", "control_value"]] = math.nan
    lost.loc[(lost["control"] == "sign_flip") & lost["site"].str.endswith("W_Q"), ["value", "control_value"]] = math.nan
    page = Page(write_report(tmp_path / "r.html", lost, title="t", provenance={}).read_text(encoding="utf-8"))
    row = next(text for text in page.texts["tr"] if text.split()[:2] == ["input", "energy"])
    assert "no data" in row
    assert "12 of 12 missing" in row
    row = next(text for text in page.texts["tr"] if text.split()[:2] == ["sign", "flip"])
    assert "3 of 12 missing" in row


def test_small_differences_of_isotropy_keep_their_digits(tmp_path):
    frame = isotropy_frame((math.nan,), n_layers=1)
    normal = (frame["measure"] == "isoscore_star") & (frame["control"] == "normal")
    frame.loc[normal, ["value", "control_value"]] = (0.00275, 0.00241)
    page = Page(write_report(tmp_path / "r.html", frame, title="t", provenance={}).read_text(encoding="utf-8"))
    row = next(text for text in page.texts["tr"] if text.split()[:1] == ["readers"])
    assert row.split()[-3:] == ["0.00275", "0.00241", "+0.000340"]


def test_methods_are_told_by_kind_of_gradient_in_words(tmp_path):
    frame = energy_frame((math.nan,), n_layers=1)
    is_weight = frame["gradient"] == "weight"
    frame["unit"] = is_weight.map({True: "sequence", False: "token"})
    frame["exclude"] = is_weight.map({True: "nothing", False: "special+sink"})
    page = Page(write_report(tmp_path / "r.html", frame, title="t", provenance={}).read_text(encoding="utf-8"))
    facts = dict(zip(page.texts["dt"], page.texts["dd"], strict=True))
    assert facts["one row is"] == "weight gradients: the gradient of one sequence; activation gradients: one token"
    assert facts["tokens left out"].startswith("weight gradients: none; activation gradients: special tokens and")
    assert facts["measured on documents that planes were not fitted on"] == "yes"


def test_one_checkpoint(tmp_path):
    frame = energy_frame((math.nan,), n_layers=2)
    page = Page(write_report(tmp_path / "r.html", frame, title="t", provenance={}).read_text(encoding="utf-8"))
    assert "readers (8 sites)" in page.texts["th"]
    assert "blocks.1.mlp.W_in" in page.texts["th"]
    assert "nan" not in "".join(page.texts["main"]).split()


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(path, energy_frame((math.nan,), n_layers=1), title="t", provenance={})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.html"]


def test_nothing_is_written_for_what_cannot_be_shown(tmp_path):
    with pytest.raises(TlAnisoError, match="directory"):
        write_report(tmp_path, energy_frame(), title="t", provenance={})
    with pytest.raises(UndefinedMeasureError):
        write_report(tmp_path / "a" / "r.html", energy_frame().iloc[:0], title="t", provenance={})
    assert os.listdir(tmp_path) == []


def test_marks_of_direction_are_shown_and_never_obeyed(tmp_path):
    marks = "\u202e\u2066\u200f"
    frame = energy_frame().assign(model=f"a{marks}b")
    path = write_report(
        tmp_path / "r.html", frame, title=f"t{marks}t", provenance={f"k{marks}": f"v{marks}"}, notes=[f"n{marks}n"]
    )
    text = path.read_text(encoding="utf-8")
    page = text.split("<script>")[0]  # plotly itself follows
    assert not set(marks) & set(page)
    for shown in ("t{}t", "k{}", "v{}", "n{}n"):
        assert shown.format("[U+202E][U+2066][U+200F]") in page
