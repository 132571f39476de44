"""Token views in Chromium, without a network: colours, slider, values and text as the frame has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.token_texts import HOSTILE, planted_shares
from tl_aniso.viz.token_views import TokenView, circuits_tokens, token_view_parts
from tl_aniso.viz.token_views.text import shown

pytestmark = pytest.mark.browser

WORDS = tuple(f" word{i}" for i in range(30))


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not fetch, complain or be taken over."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else trouble.append(request.url))
    yield page
    assert trouble == []
    assert page.evaluate("window.pwned") is None
    context.close()


def opened(page: Any, path: Path) -> Any:
    page.goto(path.as_uri())
    return page


def colours(page: Any, panel: int = 0) -> list[str]:
    script = "p => [...document.querySelectorAll('.tl-text')[p].querySelectorAll('bdi')].map(e => e.className)"
    return page.evaluate(script, panel)


def test_values_read_from_the_page_are_those_of_the_frame(page: Any, tmp_path: Path) -> None:
    view = TokenView(planted_shares(WORDS))
    opened(page, view.save(tmp_path / "tokens.html"))
    frame = view.frame
    page.get_by_role("slider").focus()
    page.keyboard.press("End")
    page.locator(".tl-text").first.focus()
    read: dict[tuple[str, int], str] = {}
    for position in range(len(WORDS)):
        page.keyboard.press("ArrowRight")
        for line in page.locator(".tl-value").all():
            read[line.get_attribute("data-labels"), position] = line.get_attribute("data-share")
    rows = frame[(frame["site"] == "blocks.2.attn.W_O")]
    assert len(read) == len(rows) == 2 * len(WORDS)
    for labels, position, share in rows[["labels", "position", "share"]].itertuples(index=False):
        got = read[labels, position]
        assert (got == "missing") == np.isnan(share)
        if got != "missing":
            assert float(got) == pytest.approx(share, abs=1e-5)
    true = rows[rows["labels"] == "true"].dropna(subset=["share"])
    summary = page.locator(".tl-summary").first.inner_text()
    assert f"mean share {true['share'].mean():.4f}" in summary
    assert f"energy {np.average(true['share'], weights=true['energy']):.3f}" in summary
    assert f"{len(WORDS) - len(true)} of {len(WORDS)} tokens without a value" in summary


def test_the_slider_moves_by_keyboard_and_changes_colours(page: Any, tmp_path: Path) -> None:
    opened(page, TokenView(planted_shares(WORDS)).save(tmp_path / "tokens.html"))
    before = colours(page)
    assert before[-1] == "tl-none"
    assert before[0].endswith("tl-special")
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.tl-tokens').dataset.layer === '1'")
    after = colours(page)
    assert sum(a != b for a, b in zip(before, after, strict=True)) > 20
    assert after[2] == "tl-none"
    assert after[0].endswith("tl-special tl-sink")
    assert "no value (2 in each)" in page.locator(".tl-legend").inner_text()
    assert page.get_by_role("slider").get_attribute("aria-valuetext") == "layer 1"


def test_selectors_change_quantity_colouring_and_text(page: Any, tmp_path: Path) -> None:
    shares = planted_shares(WORDS, places=("attn.W_O", "mlp.W_in"), pieces=2)
    opened(page, TokenView(shares).save(tmp_path / "tokens.html"))
    assert page.locator(".tl-panel:visible").count() == 2
    page.get_by_label("Show").select_option(label="activation · hook_resid_pre")
    assert page.locator(".tl-panel:visible").count() == 1
    page.get_by_label("Show").select_option(label="weight gradient · mlp.W_in")
    assert "its energy and not its share" in page.locator(".tl-tokens").inner_text()
    share = colours(page)
    page.get_by_label("Scale").select_option(label="of all layers")
    assert max(int(name.split()[0][1:]) for name in colours(page) if name.startswith("q")) < 64
    largest = np.nanmax(np.stack(list(shares.series[2].share.values())))
    assert page.locator(".tl-ends").inner_text().split()[-1] == f"{largest:.4f}"
    page.get_by_label("Colour by").select_option(index=1)
    assert colours(page) != share
    page.locator(".tl-controls label", has_text="Text").locator("select").select_option(index=1)
    assert page.locator(".tl-text").first.inner_text().strip().startswith("word15")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_tokens_are_text(page: Any, tmp_path: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(
        page,
        TokenView(planted_shares(HOSTILE)).save(tmp_path / "tokens.html", title="<img/src=x/onerror=window.pwned=1>"),
    )
    texts = page.evaluate("[...document.querySelector('.tl-text').querySelectorAll('bdi')].map(e => e.textContent)")
    assert texts == [shown(token) for token in HOSTILE]
    assert page.locator(".tl-text img, .tl-text script, .tl-text svg").count() == 0
    page.locator(".tl-text").first.focus()
    for _ in HOSTILE:
        page.keyboard.press("ArrowRight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_access_is_found(page: Any, tmp_path: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page.emulate_media(color_scheme=scheme)
    opened(page, TokenView(planted_shares((*WORDS, *HOSTILE))).save(tmp_path / "tokens.html"))
    found = axe.Axe().run(page).response["violations"]
    assert [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in found] == []


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(page: Any, tmp_path: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, TokenView(planted_shares((*WORDS, *HOSTILE))).save(tmp_path / "tokens.html"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_two_views_of_one_page_are_drawn_by_one_script(page: Any, tmp_path: Path) -> None:
    parts = [token_view_parts(planted_shares(WORDS, seed=seed)) for seed in range(2)]
    body = "".join(part.fragment for part in parts)
    html = f"<!DOCTYPE html><meta charset='utf-8'><title>two</title><style>{parts[0].css}</style>{body}"
    (tmp_path / "two.html").write_text(f"{html}<script>{parts[0].script}</script><script>{parts[0].script}</script>")
    opened(page, tmp_path / "two.html")
    assert page.locator(".tl-text").count() == 4
    assert page.locator("input[type=range]").count() == 2


def test_two_thousand_tokens_of_24_layers_respond(page: Any, tmp_path: Path) -> None:
    shares = planted_shares(WORDS * 67, layers=24, places=("attn.W_Q", "attn.W_O", "mlp.W_in", "mlp.W_out"))
    path = TokenView(shares).save(tmp_path / "tokens.html")
    assert path.stat().st_size < 5e6
    opened(page, path)
    # What the page itself does at a step of the slider; drawing comes on top. A quiet machine needs a tenth of this.
    times = page.evaluate("""async () => {
      const slider = document.querySelector("input[type=range]"), found = [];
      for (let layer = 1; layer < 10; layer += 1) {
        slider.value = layer;
        const start = performance.now();
        slider.dispatchEvent(new Event("input"));
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        found.push(performance.now() - start);
      }
      return found;
    }""")
    assert float(np.median(times)) < 1500


def test_circuitsvis_draws_hostile_tokens_offline(page: Any, tmp_path: Path) -> None:
    html = circuits_tokens(HOSTILE, np.linspace(0, 1, len(HOSTILE)))
    (tmp_path / "circuits.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'><title>c</title>{html}")
    opened(page, tmp_path / "circuits.html")
    page.wait_for_selector(".colored-tokens span span")
    assert page.locator(".colored-tokens img").count() == 0
    page.wait_for_timeout(200)  # for what a token might have started
    assert "<svg/onload=window.pwned=1>" in page.locator(".colored-tokens").inner_text()
