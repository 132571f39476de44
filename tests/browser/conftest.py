"""A headless Chromium without a network, and pages in it whose console and requests are watched."""

import os

import pytest

from tests.study_pages import study_page
from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.browser import find_browser
from tl_aniso.viz.report import write_page

# Loaded machines draw slowly; nothing here waits for a time to pass.
PATIENCE = 120_000


@pytest.fixture(scope="session")
def browser():
    try:
        found = find_browser()
    except TlAnisoError:
        pytest.skip("no Chromium on this machine: install chromium, or set BROWSER_PATH to one")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as running:
        # Root has no sandbox to be in, in a container.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = running.chromium.launch(executable_path=found, args=arguments, timeout=PATIENCE)
        yield started
        started.close()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("study") / "report.html", study_page())


@pytest.fixture
def opened(browser):
    """Opens a file as asked; fails where anything is asked of a network or said on the console."""
    contexts, faults = [], []

    def open_page(path, *, wait="html[data-drawn]", **options):
        context = browser.new_context(offline=True, **{"viewport": {"width": 1200, "height": 900}, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        url = path.as_uri()
        page.on("request", lambda request: request.url == url or faults.append(f"request: {request.url[:200]}"))
        page.goto(url, wait_until="commit", timeout=PATIENCE)
        if wait:
            page.wait_for_selector(f"{wait}, #figures-fault:not([hidden])", state="attached", timeout=PATIENCE)
            assert page.locator("#figures-fault").text_content() == ""
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
