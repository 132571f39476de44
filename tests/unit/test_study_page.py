"""The page of a study holds every part, every string as text, every number once, and asks nothing of a network."""

import json
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
from markupsafe import Markup

from tests.study_pages import HOSTILE, LONG, geometry_frame, parts_of, study_frame, study_page
from tl_aniso.claims import judge
from tl_aniso.errors import TlAnisoError
from tl_aniso.study.claims import late_fitted_table
from tl_aniso.viz.claims_page import read_claims
from tl_aniso.viz.forest import WIDTH, axis_of
from tl_aniso.viz.geometry_tables import embed_geometry
from tl_aniso.viz.html import embedded_json
from tl_aniso.viz.packing import unpack
from tl_aniso.viz.reading import read_frame
from tl_aniso.viz.study_page import study_report
from tl_aniso.viz.style import visible


class Page(HTMLParser):
    """Tags, attributes, ids, and the text of script elements and of all else."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], ""
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        self._in_script = False if tag == "script" else self._in_script

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1][1] += data
        else:
            self.text += data

    def ids(self):
        return [value for _, name, value in self.attributes if name == "id"]


@pytest.fixture(scope="module")
def page():
    return Page(study_page())


def hostile_page(**more):
    frame = study_frame()
    frame = frame[frame["model"] == "decoder"].assign(model=HOSTILE + LONG, revision=HOSTILE + frame["revision"] + LONG)
    frame["site"] = frame["site"].str.replace("W_Q", f"W_Q{HOSTILE}")
    frame["control"] = frame["control"].replace("shuffled_g", HOSTILE)
    return study_report(
        parts_of(frame, (HOSTILE, LONG)),
        f"not judged: {HOSTILE}",
        late=late_fitted_table(frame),
        rules=HOSTILE,
        facts={HOSTILE: HOSTILE},
        geometry=geometry_frame().assign(model=HOSTILE, group=HOSTILE, control=HOSTILE),
        **more,
    )


def test_its_parts_in_their_order(page):
    ids = page.ids()
    parts = ["claims", "late", "figures", "geometry", "models", "methods", "provenance"]
    assert [name for name in ids if name in parts] == [name for name in parts if name != "late"]
    assert not [name for name, n in Counter(ids).items() if n > 1]
    links = {value[1:] for _, name, value in page.attributes if name == "href" and value.startswith("#")}
    assert links <= set(ids)
    controls = {value for tag, name, value in page.attributes if tag == "label" and name == "for"}
    assert {
        f"choose-{name}" for name in ("model", "gradient", "unit", "measure", "sites", "rank", "control")
    } <= controls


def test_nothing_is_fetched(page):
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "data", "poster", "action"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
    policy = next(value for tag, _, value in page.attributes if tag == "meta" and "default-src" in (value or ""))
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:")
    assert "http" not in policy
    assert "eval" not in policy


def test_numbers_and_plotly_are_there_once(page):
    kept = [attributes.get("id") for attributes, _ in page.scripts]
    first = ["study-header", "study-numbers-0", "plotly-source", "geometry-header", "geometry-packed", None]
    assert kept == [*first, "study-numbers-1"]  # what the first figures do not need stands below the script
    code = page.scripts[5][1]
    assert code.count("class Numbers") == 1
    assert "{{" not in code
    header = json.loads(page.scripts[0][1])
    for model, at in zip(header["models"], (1, 6), strict=True):
        assert len(unpack(model["arrays"], page.scripts[at][1])) == len(model["arrays"]) > 20


def test_a_model_is_read_as_read_frame_reads_it(page):
    frame = study_frame()
    for name in frame["model"].unique():
        reading = read_frame(frame[frame["model"] == name].reset_index(drop=True))
        for finding in reading.findings:
            assert finding.text in page.text


def test_both_verdicts_are_drawn_beside_every_control():
    frame = study_frame()
    claims = read_claims(judge(frame[frame["model"] == "decoder"]))
    first = claims[0]
    assert first.name == "C1"
    row = first.rows[0]
    stated, beyond = row.marks
    assert (stated.is_square, beyond.is_square) == (False, True)
    assert stated.verdict == row.stated.replace(" ", "-")
    assert 0 < stated.low < stated.at < stated.high < WIDTH
    assert stated.threshold < stated.low
    assert row.tests[0].control == "normal plane"
    assert all(test.mark is not None for test in row.tests if test.effect != "not measured")


def test_axes_are_logarithmic_for_ratios_and_hold_what_is_known():
    axis = axis_of("ratio", [0.1, 10.0, float("nan"), -1.0], is_log=True)
    assert axis.place(1.0) == WIDTH / 2
    assert axis.place(0.0) == axis.place(0.1)
    assert axis.place(float("nan")) is None
    assert axis.mark(1.0, float("nan"), 2.0, 1.0, "holds", False).low is None
    assert axis_of("ratio", [float("nan")], is_log=True) is None


def test_hostile_strings_are_text():
    text = hostile_page()
    page = Page(text)
    assert not {"img", "b", "iframe"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text.count("<img src=x onerror=alert(1)>") > 10
    assert "{{ 7 * 7 }}" in page.text
    assert LONG.strip() in page.text
    assert not {"\x00", "\u202e"} & set(text)
    for attributes, script in page.scripts:
        if attributes.get("type") == "application/json":
            assert "<" not in script
            assert "\\u202e" not in script
    header = json.loads(page.scripts[0][1])
    assert header["models"][0]["name"].startswith(visible(HOSTILE))
    assert visible(HOSTILE) in header["blocks"][0]["series"]["excess"]


def test_json_cannot_end_its_element():
    text = str(embedded_json({HOSTILE: [HOSTILE, None]}))
    assert json.loads(text) == {HOSTILE: [HOSTILE, None]}
    assert not set("<>&\u2028") & set(text)


def test_token_views_stand_after_the_figures_with_one_script():
    view = SimpleNamespace(
        fragment=Markup("<section id=tv>seen</section>"), script=Markup("let a = 1;"), css=Markup(".tl-x {}")
    )
    raw = SimpleNamespace(fragment="<i>raw</i>", script=Markup("let a = 1;"), css=Markup(".tl-x {}"))
    text = hostile_page(token_views=[view, raw])
    assert text.count("let a = 1;") == text.count(".tl-x {}") == 1
    assert text.index('id="figures"') < text.index("<section id=tv>") < text.index('id="models"')
    assert "&lt;i&gt;raw&lt;/i&gt;" in text


def test_geometry_is_packed_and_summed_up(page):
    frame = geometry_frame()
    header = json.loads(page.scripts[3][1])
    arrays = unpack(header["arrays"], page.scripts[4][1])
    values = arrays[header["numbers"]["value"]]
    pd.testing.assert_series_equal(pd.Series(values.astype(float)), frame["value"], check_names=False, rtol=1e-6)
    assert "1 of 6 missing" in page.text
    assert "over checkpoints" not in page.text
    with pytest.raises(TlAnisoError, match="lacks the columns group"):
        embed_geometry(frame.drop(columns="group"))


def test_a_study_of_one_checkpoint_and_one_question():
    frame = study_frame()
    alone = frame[(frame["model"] == "decoder") & (frame["step"] == 0) & (frame["gradient"] == "none")]
    text = study_report(parts_of(alone), "none", late=late_fitted_table(alone), rules="r", facts={})
    header = json.loads(Page(text).scripts[0][1])
    assert header["wanted"]["measure"] == "isoscore_star"
    assert 'id="geometry"' not in text
    assert 'id="tokens"' not in text
