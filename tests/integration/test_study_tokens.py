"""Single tokens of a study: what is measured where, what the page holds of it, and going on after harm."""

import json
import re
import shutil
from base64 import b64decode

import numpy as np
import pytest

from tests.study_models import save_checkpoints, save_texts, small_config
from tl_aniso import Study, TangentProxies
from tl_aniso.cli import main
from tl_aniso.errors import TlAnisoWarning
from tl_aniso.models import load_model
from tl_aniso.study import pages
from tl_aniso.study.tokens import read_tokens
from tl_aniso.token_views import token_shares

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory, one_thread):
    directory = tmp_path_factory.mktemp("tokens")
    save_checkpoints(directory / "models", (0, 100, 1000))
    save_texts(directory / "texts.jsonl")
    return directory


@pytest.fixture(scope="module")
def config(place):
    return small_config(place / "models", place / "texts.jsonl", extra_passes=[], controls=[])


@pytest.fixture(scope="module")
def finished(place, config):
    study = Study(config, place / "out", progress=False)
    study.run()
    return study


def planned(out):
    (model,) = json.loads((out / "plan.json").read_text())["models"]
    return model


def held(out):
    return {one["checkpoint"]: read_tokens(out / "tokens" / one["key"]) for one in planned(out)["tokens"]}


def test_the_last_early_checkpoint_and_the_last_are_measured_in_the_early_planes(finished, place, config):
    found = held(finished.out)
    assert list(found) == ["step100", "step1000"]
    shares = found["step1000"].shares
    assert 0 < len(shares) <= 400
    assert [(one.quantity, one.place) for one in shares.series] == [
        ("activation", "hook_resid_pre"),
        ("activation gradient", "hook_resid_pre"),
        ("weight gradient", "attn.W_V"),
    ]
    loaded = load_model(str(place / "models" / "step1000"))
    early = TangentProxies.load(finished.out / "proxies" / planned(finished.out)["proxies"] / "early")
    ids = [shares.ids[shares.sequence == number] for number in range(len(shares.document))]
    expected = token_shares(
        loaded.model, ids, early, sites=config["sites"], tokenizer=loaded.tokenizer, seq_len=24, progress=False
    )
    assert shares.tokens == expected.tokens
    for mine, theirs in zip(shares.series, (s for s in expected.series if s.place != "mlp.W_out"), strict=True):
        for labels in theirs.share:
            np.testing.assert_allclose(mine.share[labels], theirs.share[labels], atol=1e-6)
    assert found["step1000"].top
    assert {row["direction"] for row in found["step1000"].lens} == {0, 1, 2, 3}


def test_the_page_holds_the_shares(finished):
    page = finished.report().read_text(encoding="utf-8")
    views = re.findall(r'class="tl-data">(.*?)</script>', page)
    assert len(views) == 2
    for view, found in zip(views, held(finished.out).values(), strict=True):
        for drawn, series in zip(json.loads(view)["series"], found.shares.series, strict=True):
            for packed, labels in zip(drawn["share"], drawn["labels"], strict=True):
                codes = np.frombuffer(b64decode(packed), dtype="<u2").reshape(series.share[labels].shape)
                values = np.where(codes == 65535, np.nan, codes / 65534)
                np.testing.assert_allclose(values, series.share[labels], atol=1e-5)
    assert page.count('querySelectorAll(".tl-tokens:not([data-drawn])")') == 1
    assert page.index('id="figures"') < page.index('id="tokens"') < page.index('id="methods"')
    assert "tiny, step1000 (late): directions at blocks.1.hook_resid_pre" in page


@pytest.mark.slow
def test_a_page_that_is_too_large_has_less_of_them_and_says_so(finished, monkeypatch):
    whole = finished.report().stat().st_size
    monkeypatch.setattr(pages, "_MOST_BYTES", whole - 1)
    page = finished.report()
    assert page.stat().st_size < whole
    assert "left out: weights. The study" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(pages, "_MOST_BYTES", 1000)
    text = finished.report().read_text(encoding="utf-8")
    assert "all but the last checkpoint of each model; every checkpoint. The study" in text
    assert "tl-data" not in text


def test_what_is_missing_or_damaged_is_made_again_with_the_same_bytes(finished, place, config):
    out = place / "harmed"
    shutil.copytree(finished.out, out)
    first, last = (one["key"] for one in planned(out)["tokens"])
    before = {path: path.read_bytes() for path in (finished.out / "tokens").rglob("*.*")}
    shutil.rmtree(out / "tokens" / first)
    harmed = out / "tokens" / last / "shares" / "shares.safetensors"
    harmed.write_bytes(harmed.read_bytes()[:-1])
    with pytest.warns(TlAnisoWarning, match=rf"token views of tiny at step1000 \(tokens/{last}\) is damaged"):
        text = Study(config, out, progress=False).report().read_text(encoding="utf-8")
    assert text.count("is not there: run the study again") == 2
    Study(config, out, progress=False).run()
    after = {finished.out / path.relative_to(out): path.read_bytes() for path in (out / "tokens").rglob("*.*")}
    assert after == before


def test_a_study_without_has_the_same_keys(finished, place, config):
    out = place / "plain"
    shutil.copytree(finished.out, out)
    before = planned(out)
    study = Study({**config, "token_views": False}, out, progress=False)
    study.run()
    plan = json.loads((out / "plan.json").read_text())
    assert "token_views" not in plan["config"]
    (model,) = plan["models"]
    assert model == {name: value for name, value in before.items() if name != "tokens"}
    assert (out / "results.parquet").read_bytes() == (finished.out / "results.parquet").read_bytes()
    assert "tl-data" not in study.report().read_text(encoding="utf-8")


def test_the_plan_counts_them(finished, config):
    found = finished.outline()
    without = Study({**config, "token_views": False}, finished.out).outline()
    (model,) = found.models
    assert found.n_captures(model) == without.n_captures(model) + 2
    assert found.seconds(model, 1000, 1e9) > without.seconds(model, 1000, 1e9)
    assert main(["report", str(finished.out)]) == 0
