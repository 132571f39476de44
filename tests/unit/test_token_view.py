"""A token view shows every string as text, every missing value as missing, and fetches nothing."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.token_texts import HOSTILE, planted_shares
from tl_aniso import TlAnisoError
from tl_aniso.viz.token_views import TokenView, circuits_script, circuits_tokens, token_view_parts
from tl_aniso.viz.token_views.colours import N_COLOURS, contrast, palette
from tl_aniso.viz.token_views.encode import ENERGY_SPAN, encoded
from tl_aniso.viz.token_views.text import shown

WORDS = tuple(f" word{i}" for i in range(12))


def test_every_step_of_the_scale_can_be_read_and_is_ordered_by_lightness() -> None:
    pairs = palette()
    assert len(pairs) == N_COLOURS
    assert min(contrast(background, ink) for background, ink in pairs) >= 4.5
    lightness = [contrast(background, "#000000") for background, _ in pairs]
    assert lightness == sorted(lightness)
    assert lightness[-1] / lightness[0] > 8


@pytest.mark.parametrize("token", HOSTILE)
def test_a_token_is_shown_as_what_it_is(token: str) -> None:
    text = shown(token)
    assert text
    assert not re.search("[\x00-\x1f\ud800-\udfff\u202a-\u202e\u2028]", text)
    assert len(text) < 120
    if token.isascii() and token.isprintable() and 0 < len(token) < 80:
        assert text == token


def test_codes_hold_the_values() -> None:
    shares = planted_shares(WORDS)
    data = encoded(shares)
    assert [s["quantity"] for s in data["series"]] == [s.quantity for s in shares.series]
    for series, held in zip(shares.series, data["series"], strict=True):
        for k, labels in enumerate(held["labels"]):
            codes = np.frombuffer(base64.b64decode(held["share"][k]), dtype="<u2").reshape(3, 12)
            there = ~np.isnan(series.share[labels])
            assert np.array_equal(codes == 65535, ~there)
            assert codes[there] / 65534 == pytest.approx(series.share[labels][there], abs=1e-5)
            codes = np.frombuffer(base64.b64decode(held["energy"][k]), dtype="<u2").reshape(3, 12)
            power = codes / 65534 * (ENERGY_SPAN[1] - ENERGY_SPAN[0]) + ENERGY_SPAN[0]
            relative = series.energy[labels] / np.nanmean(series.energy[labels], axis=1, keepdims=True)
            assert 10 ** power[there] == pytest.approx(relative[there], rel=1e-3)


def test_the_page_holds_one_script_and_no_address(tmp_path: Path) -> None:
    path = TokenView(planted_shares(HOSTILE)).save(tmp_path / "deep" / "tokens.html", title="</title><script>\0\u202e")
    page = path.read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert page.count("</script") == 2
    assert "\x00" not in page
    assert "\u202e" not in page
    assert not re.search(r"""(src|href)=["'](?!data:,)""", page)
    assert not re.search(r"https?://", page)
    assert "default-src 'none'" in page
    with pytest.raises(TlAnisoError, match="directory"):
        TokenView(planted_shares(HOSTILE)).save(tmp_path)
    with pytest.raises(TlAnisoError, match="title"):
        TokenView(planted_shares(HOSTILE)).save(tmp_path / "x.html", title=3)  # type: ignore[arg-type]


def test_parts_of_two_views_share_script_and_style() -> None:
    first, second = (token_view_parts(planted_shares(WORDS, seed=i), label="<a> & \u202e") for i in range(2))
    assert (first.script, first.css) == (second.script, second.css)
    assert first.fragment.split('id="')[1].split('"')[0] != second.fragment.split('id="')[1].split('"')[0]
    assert "&lt;a&gt; &amp; [U+202E]" in first.fragment
    assert json.loads(str(first.data_json)) == encoded(planted_shares(WORDS, seed=0))
    assert "eval(" not in first.script
    assert "innerHTML" not in first.script


def test_a_notebook_gets_the_whole_view() -> None:
    view = TokenView(planted_shares(WORDS))
    html = view._repr_html_()
    assert html.count("<script>") == html.count("<style>") == 1
    assert "http" not in html
    assert "12 tokens" in repr(view)
    assert len(view.frame) == 12 * 3 * 3
    assert view.frame["share"].isna().sum() == 1 + 2 * 4


def test_circuitsvis_is_inlined_and_gets_escaped_text() -> None:
    html = circuits_tokens(HOSTILE, np.linspace(0, 1, len(HOSTILE)), script=False)
    assert html.count("</script") == 1
    assert "<img" not in html
    assert "\\u0026lt;img" in html
    assert "</script" not in circuits_script()
    assert "https://unpkg.com" not in circuits_script()
    whole = circuits_tokens(["a"], np.array([0.5]))
    assert whole.count("</script") == 2
    with pytest.raises(TlAnisoError, match="tokens"):
        circuits_tokens(["a", "b"], np.array([0.5]), script=False)
    with pytest.raises(TlAnisoError, match="missing"):
        circuits_tokens(["a", "b"], np.array([0.5, np.nan]), script=False)
    with pytest.raises(TlAnisoError, match="longer"):
        circuits_tokens(["a"] * 201, np.zeros(201), script=False)
