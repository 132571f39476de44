"""The findings as text and as a page: whole, without a network, every string shown as text."""

from html.parser import HTMLParser

import pytest

from tl_aniso.doctor import Check, Diagnosis

HOSTILE = "</style></script><img src=x onerror=alert(1)> \"a\" 'b' \u2028 {{ 7 * 7 }} <!-- <b> \x1b[31m \ud800"
FOUND = Diagnosis(
    HOSTILE,
    (
        Check("weights are finite", "pass", "272 parameters"),
        Check("precision", "warn", "bfloat16", "model.float()"),
        Check("sinks", "info", "position 0", table=(("site", "where"), ("blocks.0.hook_resid_pre", HOSTILE))),
        Check(HOSTILE, "fail", HOSTILE, HOSTILE, seconds=1.6),
        Check("cost", "skip", "the check before it failed"),
    ),
    {"text": HOSTILE},
)


class Page(HTMLParser):
    """Tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("page", [FOUND.to_html(), FOUND._repr_html_()])
def test_every_string_is_text(page: str) -> None:
    read = Page(page)
    assert not {"script", "img", "b", "iframe"} & set(read.tags)
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert read.text.count("<img src=x onerror=alert(1)>") >= 4
    assert "{{ 7 * 7 }}" in read.text
    assert "49" not in read.text


def test_the_page_fetches_nothing_and_shows_all() -> None:
    read = Page(FOUND.to_html())
    links = [value for _, name, value in read.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert links == ["data:,", "#check-3"]  # to what failed, from the top of the page
    assert any("default-src 'none'" in (value or "") for _, _, value in read.attributes)
    for words in ("pass", "warning", "to know", "FAIL", "not checked", "1 check failed", "not fit to be measured"):
        assert words in read.text
    assert read.tags.count("li") == len(FOUND.checks) + 1
    assert "blocks.0.hook_resid_pre" in read.text
    assert "url(" not in FOUND.to_html()
    assert "@import" not in FOUND.to_html()


def test_the_list_fits_a_terminal_and_hides_nothing() -> None:
    shown = FOUND.summary(width=60)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert "\\x1b[31m" in shown
    assert max(map(len, FOUND.summary(width=80).splitlines()[1:])) <= 80
    for check in FOUND.checks[:3]:
        assert f"{check.name}: {check.found}" in shown
    assert "-> model.float()" in shown


def test_warnings_do_not_fail() -> None:
    sound = Diagnosis("m", FOUND.checks[:3])
    assert sound.passed
    assert sound.verdict == "all checks passed, 1 with a warning"
    assert not FOUND.passed
    assert [check.name for check in FOUND.failures] == [HOSTILE]
    assert "healthy" in sound.to_html()
