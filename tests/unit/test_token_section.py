"""Token views as a section of a page: hostile text is text, and what does not fit is left out and named."""

import re

import numpy as np
import pytest

from tests.token_texts import HOSTILE, planted_shares
from tl_aniso.errors import TlAnisoError
from tl_aniso.token_views import TokenShares
from tl_aniso.viz.token_views import TokenPart, fitted_sections, token_sections


def part(model="decoder", checkpoint="step1", layers=12):
    rows = [
        {"site": "blocks.0.hook_resid_pre", "direction": 0, "end": end, "place": place, "id": place, "token": token}
        for end in "+-"
        for place, token in enumerate(HOSTILE)
    ]
    top = [{**row, "projection": 1.25, "before": row["token"], "after": row["token"]} for row in rows]
    return TokenPart(
        model,
        checkpoint,
        planted_shares(HOSTILE, layers=layers),
        top,
        [{**row, "logit": -0.5} for row in rows],
        {"blocks.0.hook_resid_pre": 20},
        ["<b>note</b>"],
    )


def test_hostile_tokens_are_text_everywhere():
    intro, view = token_sections([part(model="<script>alert(1)</script>")], ["</p><script>"])
    for fragment in (intro.fragment, view.fragment):
        assert not re.search(r"<(img|svg|b|i)[ />]", fragment)
        assert not re.search("[\x00\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]", fragment)
    assert view.fragment.count("<script") == view.fragment.count("</script") == 1  # that of the data
    assert "<script" not in intro.fragment
    assert view.fragment.count("<bdi>\u200f") == 0
    assert "<bdi>\u0645\u0631\u062d\u0628\u0627</bdi>" in view.fragment
    part_of_one = {"site": "s", "direction": 0, "end": "+", "place": 0, "id": 77, "token": "\ufffd", "logit": 1.0}
    assert "<bdi>\ufffd #77</bdi>" in token_sections([TokenPart("m", "c", None, (), [part_of_one])])[1].fragment
    assert len(view.fragment) < 200_000  # no token of 10,000 characters in it


def test_what_does_not_fit_is_left_out_in_order():
    parts = [part(checkpoint=f"step{i}") for i in range(2)]
    sizes = []
    for words in (
        None,
        "left out: weights. ",
        "weights; all but eight layers of each place. ",
        "weights; all but eight layers of each place; all but the last checkpoint of each model. ",
        "all but the last checkpoint of each model; every checkpoint. ",
    ):
        over = sizes[0] - sizes[-1] + 1 if sizes else 0  # a byte less than what was left before
        found = fitted_sections(parts, ["kept"], over=over)
        assert "kept" in found[0].fragment
        assert ("For the size" in found[0].fragment) == (words is not None)
        assert words is None or words in found[0].fragment
        sizes.append(sum(len(one.fragment.encode()) for one in found))
    assert sizes == sorted(sizes, reverse=True)
    assert len(found) == 1


def test_shares_come_back_from_disk_whole_or_not(tmp_path):
    shares = planted_shares(HOSTILE, pieces=2)
    path = shares.save(tmp_path / "deep" / "shares")
    back = TokenShares.load(path)
    assert back.tokens == shares.tokens
    assert (back.document, back.objective, back.notes) == (shares.document, shares.objective, shares.notes)
    for name in ("ids", "fed", "sequence", "position", "special", "carries"):
        assert np.array_equal(getattr(back, name), getattr(shares, name))
    for mine, theirs in zip(back.series, shares.series, strict=True):
        assert (mine.sites, mine.layers, mine.rank, mine.d) == (theirs.sites, theirs.layers, theirs.rank, theirs.d)
        assert list(mine.share) == list(theirs.share)
        for labels in theirs.share:
            assert np.array_equal(mine.share[labels], theirs.share[labels], equal_nan=True)
            assert np.array_equal(mine.energy[labels], theirs.energy[labels], equal_nan=True)
        assert np.array_equal(mine.sink, theirs.sink)
    with pytest.raises(TlAnisoError, match="is there already"):
        shares.save(path)
    numbers = path / "shares.safetensors"
    numbers.write_bytes(numbers.read_bytes()[:-8])
    with pytest.raises(TlAnisoError, match="cannot read token shares"):
        TokenShares.load(path)
    (path / "shares.json").write_text("[]")
    with pytest.raises(TlAnisoError, match="is not of"):
        TokenShares.load(path)
    with pytest.raises(TlAnisoError, match="cannot read"):
        TokenShares.load(tmp_path / "nothing")
