"""The tokens of a small study in its page: opened without a network, the slider moved, values as they are stored."""

import json

import numpy as np
import pytest
import torch

from tests.study_models import save_checkpoints, save_texts, small_config
from tl_aniso import Study
from tl_aniso.study.tokens import read_tokens

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    save_checkpoints(directory / "models", (0, 1000))
    save_texts(directory / "texts.jsonl")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Study(small_config(directory / "models", directory / "texts.jsonl"), directory / "out", progress=False)
    found.run()
    found.report()
    torch.set_num_threads(before)
    return found


def test_the_slider_shows_the_stored_shares(opened, study):
    page = opened(study.out / "report.html")
    (model,) = json.loads((study.out / "plan.json").read_text())["models"]
    shares = read_tokens(study.out / "tokens" / model["tokens"][0]["key"]).shares
    view = page.locator(".tl-tokens").first
    series = shares.series[1]  # shown first: the first with both labels
    slider = view.get_by_role("slider")
    for layer, key in ((0, "Home"), (1, "End")):
        slider.focus()
        page.keyboard.press(key)
        view.page.wait_for_function(
            "layer => document.querySelector('.tl-tokens').dataset.layer === layer", arg=str(series.layers[layer])
        )
        text = view.locator(".tl-text").first
        text.focus()
        page.keyboard.press("Home")
        for token in range(3):
            for line in view.locator(".tl-value").all():
                value = series.share[line.get_attribute("data-labels")][layer][token]
                got = line.get_attribute("data-share")
                assert got == "missing" if np.isnan(value) else float(got) == pytest.approx(value, abs=1e-5)
            page.keyboard.press("ArrowRight")
    page.get_by_text("directions at blocks.1.hook_resid_pre").first.click()
    assert page.locator(".directions .hit").first.is_visible()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
