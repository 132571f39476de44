"""The page of a study in Chromium without a network: drawn whole, steered by keyboard, true to the table."""

import math
import re

import numpy as np
import pytest

from tests.study_pages import study_frame
from tl_aniso.viz.report import write_page
from tl_aniso.viz.tables import averaged, energy_values

pytestmark = pytest.mark.browser

FIGURES = ("map", "steps", "layers", "isotropy-steps", "isotropy-layers", "delta", "compare")
CLOSE = 5e-7


def redrawn(page, act):
    """What is done to the page, and the end of the redrawing that it starts."""
    before = int(page.locator("html").get_attribute("data-redraws"))
    act()
    page.wait_for_selector(f'html[data-redraws="{before + 1}"]', state="attached")


def table(page, name):
    """Headings of columns, and rows: heading -> values as the page holds them (NaN: no data, None: not measured)."""
    found = page.evaluate(
        """(id) => {
          const table = document.getElementById(id);
          return {
            columns: [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent),
            rows: [...table.tBodies[0].rows].map((row) => [row.cells[0].textContent,
              [...row.cells].slice(1).map((cell) => cell.dataset.value ?? null)]),
          };
        }""",
        f"{name}-table",
    )
    rows = {heading: [None if v is None else float(v) for v in cells] for heading, cells in found["rows"]}
    return found["columns"], rows


def choose(page, **chosen):
    for name, value in chosen.items():
        redrawn(page, lambda name=name, value=value: page.select_option(f"#choose-{name}", value))


@pytest.fixture(scope="module")
def energy():
    frame = study_frame()
    return energy_values(frame[frame["model"] == "decoder"])


def test_it_opens_whole(opened, page_file):
    page = opened(page_file)
    assert int(page.locator("html").get_attribute("data-drawn")) == len(FIGURES) + 1  # and that of local geometry
    for name in (*FIGURES, "geometry"):
        assert page.locator(f"#figure-{name} .main-svg").count() >= 1
        assert page.locator(f"#{name}-missing").text_content()
    assert page.locator(".forest circle").count() > 5
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("img").count() == 0


def test_numbers_are_those_of_the_table(opened, page_file, energy):
    page = opened(page_file)
    readers = energy[(energy["panel"] == "readers")]
    by_step = averaged(readers, "step")
    columns, rows = table(page, "steps")
    assert columns[:2] == ["true gradient", "normal plane"]
    truth = by_step[(by_step["quantity"] == "R") & (by_step["control"] == "none")].set_index("step")["value"]
    beside = by_step[(by_step["quantity"] == "R") & (by_step["control"] == "sign_flip")].set_index("step")["value"]
    for step in (0, 10, 30, 60, 100):
        assert rows[str(step)][0] == pytest.approx(truth[step], rel=CLOSE)
        assert rows[str(step)][columns.index("sign flip")] == pytest.approx(beside[step], rel=CLOSE)
    assert "1 of 18 missing" in page.locator("#steps-table tbody tr").nth(2).text_content()  # W_Q of layer 2 at step 30
    frame = study_frame()
    page.locator("#choose-pattern").fill("blocks.3.attn.W_Q")
    page.wait_for_selector('#live:has-text("1 site of")')
    choose(page, measure="excess", control="shuffled_g")
    columns, rows = table(page, "steps")
    assert columns == ["over shuffled g"]
    own = frame[(frame["model"] == "decoder") & (frame["site"] == "blocks.3.attn.W_Q") & (frame["measure"] == "excess")]
    own = own[own["control"] == "shuffled_g"].set_index("step")
    for step, (value,) in rows.items():
        assert value == pytest.approx(own.loc[float(step), "value"], rel=CLOSE)
    text = page.locator("#steps-table tbody tr").first.text_content()
    low, high = (float(x) for x in re.search(r"\(([\d.]+) to ([\d.]+)\)", text).groups())
    assert (low, high) == pytest.approx(tuple(own.loc[0.0, ["ci_low", "ci_high"]]), rel=1e-4)


def test_missing_cells_are_crossed_and_counted(opened, page_file):
    page = opened(page_file)
    page.locator("#choose-pattern").fill("*.attn.W_Q")
    page.wait_for_selector('#live:has-text("6 sites of")')
    assert page.locator("#map-missing").text_content().startswith("7 of 210 values are missing")
    page.locator("#map-numbers summary").click()
    _, rows = table(page, "map")
    assert math.isnan(rows["layer 2, step 30"][0])
    assert "no data" in page.locator("#map-table").text_content()
    crosses = page.evaluate(
        "document.getElementById('figure-map').data.filter((t) => t.type === 'scatter').flatMap((t) => t.x)"
    )
    assert crosses == ["30"] * 7
    page.locator("#choose-pattern").fill("no.such.site")
    page.wait_for_selector('#live:has-text("No site matches")')
    assert page.locator("#figure-steps").is_hidden()


def test_filters_by_keyboard(opened, page_file):
    page = opened(page_file)
    before = table(page, "layers")[1]
    page.locator("#choose-step").focus()
    said = page.locator("#step-text").text_content()
    redrawn(page, lambda: page.keyboard.press("ArrowLeft"))
    assert page.locator("#step-text").text_content() != said
    assert page.locator("#choose-step").get_attribute("aria-valuetext").startswith("step 60")
    after = table(page, "layers")[1]
    assert after["0"][0] != before["0"][0]
    page.locator("#choose-measure").focus()
    redrawn(page, lambda: page.keyboard.press("ArrowDown"))
    assert page.locator("#choose-measure").evaluate("(e) => e.selectedOptions[0].textContent") == "E"
    assert "E." in page.locator("#live").text_content()
    choose(page, gradient="none")
    assert page.locator("#choose-measure").evaluate("(e) => e.selectedOptions[0].textContent") == "IsoScore*"
    choose(page, model="1")
    assert "</script><img src=x" in page.locator("#choose-model").evaluate("(e) => e.selectedOptions[0].textContent")


def test_hovering_tells_the_value(opened, page_file):
    page = opened(page_file)
    choose(page, control="normal")
    _, rows = table(page, "steps")
    plot = page.locator("#figure-steps")
    plot.scroll_into_view_if_needed()
    x, y = page.evaluate(
        """() => {
          const plot = document.getElementById("figure-steps");
          const { xaxis, yaxis } = plot._fullLayout;
          const box = plot.getBoundingClientRect();
          const trace = plot.data.find((t) => t.mode === "lines+markers");
          return [box.left + xaxis._offset + xaxis.d2p(trace.x[3]), box.top + yaxis._offset + yaxis.d2p(trace.y[3])];
        }"""
    )
    page.mouse.move(x - 40, y)
    page.mouse.move(x, y)
    text = page.wait_for_selector("#figure-steps .hovertext").text_content()
    assert float(re.search(r"true gradient: ([\d.]+)", text).group(1)) == pytest.approx(rows["60"][0], rel=1e-4)


def test_maps_hold_every_layer_and_step(opened, page_file, energy):
    page = opened(page_file)
    choose(page, measure="excess", sites="kind:attn.W_O", control="next_k")
    (grid,) = page.evaluate(
        "document.getElementById('figure-map').data.filter((t) => t.type === 'heatmap').map((t) => t.customdata)"
    )
    own = energy[
        energy["site"].str.endswith("W_O") & (energy["quantity"] == "excess") & (energy["control"] == "next_k")
    ]
    wanted = own.pivot(index="layer", columns="step", values="value").to_numpy()
    np.testing.assert_allclose(np.array(grid, dtype=float), wanted, rtol=CLOSE)


@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"viewport": {"width": 400, "height": 800}},
    ],
    ids=["light", "dark", "400 px"],
)
def test_axe_finds_no_fault(opened, page_file, options):
    package = pytest.importorskip("axe_playwright_python")
    from pathlib import Path

    source = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = opened(page_file, **options)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.evaluate(source)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    faults = [
        (fault["id"], fault["impact"], [node["target"] for node in fault["nodes"]][:3])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_prints_light_and_within_the_paper(opened, page_file):
    page = opened(page_file, color_scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="light")
    assert page.evaluate("document.getElementById('figure-steps')._fullLayout.width") == 680
    assert page.evaluate("document.getElementById('figure-steps')._fullLayout.font.color") == "#1b1f24"
    assert page.locator("#filters").is_hidden()
    assert page.locator("#steps-table").is_visible()


def test_without_scripts_claims_tables_and_methods_are_there(opened, page_file):
    page = opened(page_file, wait=None, java_script_enabled=False)
    page.wait_for_selector("#provenance", state="attached")
    assert page.locator("noscript").count() >= 1
    text = page.locator("main").inner_text()
    for words in ("What the study says of each claim", "does not hold", "The figures need JavaScript", "How it was"):
        assert words.lower() in text.lower()
    assert page.locator("#filters").is_hidden()
    assert page.locator("#models table").count() >= 2


def test_a_page_without_its_numbers_says_so(opened, page_file, tmp_path):
    text = page_file.read_text(encoding="utf-8")
    broken = re.sub(r'(id="study-numbers-0">)[^<]+', r"\1AAAA", text)
    page = opened(write_page(tmp_path / "broken.html", broken), wait=None)
    page.wait_for_selector("#figures-fault:not([hidden])")
    assert "could not be drawn" in page.locator("#figures-fault").text_content()
