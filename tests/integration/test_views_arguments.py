"""What views and frequencies refuse, and what they say instead of nothing."""

import re
from functools import cache
from typing import Any

import pandas as pd
import pytest
import torch

from tests.models import random_documents, tiny_model
from tl_aniso import TangentProxies, TlAnisoError, capture, fit_tangent_proxies, frequency_variance
from tl_aniso.errors import SiteError
from tl_aniso.frequency import TypeCapture
from tl_aniso.theory import Cylinder, Errors, Paraboloid, Sphere, concentration_effect, gradient_moments
from tl_aniso.token_views import Lens, TopTokens, lens, token_shares, top_tokens
from tl_aniso.viz.plots import frequency_scatter

pytestmark = pytest.mark.usefixtures("one_thread")

DOCUMENTS = random_documents((20, 24), seed=3)
SPHERE = Sphere(1.0, k=3, d=7)
PRE, POST = "blocks.1.hook_resid_pre", "blocks.0.hook_resid_post"


@cache
def fitted() -> tuple[Any, TangentProxies]:
    model = tiny_model("llama")
    return model, fit_tangent_proxies(capture(model, random_documents(), gradients=(), progress=False), rank=2)


def test_one_tensor_of_two_names_stands_under_one_and_is_noted() -> None:
    model, proxies = fitted()
    shares = token_shares(model, DOCUMENTS, proxies, labels="true", progress=False)
    sites = set(shares.frame["site"])
    assert PRE in proxies
    assert POST in sites
    assert PRE not in sites
    assert [note for note in shares.notes if PRE in note and POST in note]
    both = token_shares(model, DOCUMENTS, proxies, sites=[PRE, POST], labels="true", progress=False)
    rows = both.frame.set_index("site")
    assert not both.notes
    for name in ("share", "energy"):
        assert rows.loc[PRE, name].tolist() == pytest.approx(rows.loc[POST, name].tolist(), nan_ok=True)
    assert len(rows.loc[PRE]) == len(rows.loc[POST]) == 2 * 44


@pytest.mark.parametrize(
    "counts", [[9.5, 4, 1], [9, -4, 1], [float("nan"), 1, 2], ["a", "b", "c"], 3, [True, False, True]]
)
def test_counts_that_are_none(counts: Any) -> None:
    with pytest.raises(TlAnisoError, match="counts must be"):
        TypeCapture.from_tables(counts, {"embed.W_E": torch.eye(3)})


@pytest.mark.parametrize("field", ["step", "tokens_seen"])
@pytest.mark.parametrize("value", ["x", True, float("nan"), [1]])
def test_labels_that_are_no_number(field: str, value: Any) -> None:
    table = TypeCapture.from_tables([9.0, 4, 1], {"embed.W_E": torch.eye(3)})
    held = capture(fitted()[0], DOCUMENTS, gradients=(), progress=False)
    for labelled in (table, held):
        with pytest.raises(TlAnisoError, match=f"{field} must be a number or None"):
            labelled.labelled(**{field: value})
        assert labelled.labelled(**{field: None}).metadata["model"][field] is None
    with pytest.raises(TlAnisoError, match="step must be a number or None"):
        TypeCapture.from_tables([9], {"embed.W_E": torch.eye(1)}, step="x")  # type: ignore[arg-type]


def test_unknown_options_and_tokenizers() -> None:
    model, proxies = fitted()
    with pytest.raises(TlAnisoError, match=r"frequency_variance has no option bogus; .*objective"):
        frequency_variance(model, DOCUMENTS, bogus=1)
    with pytest.raises(TlAnisoError, match="top_tokens has no option bogus"):
        top_tokens(model, DOCUMENTS, proxies, sites=PRE, bogus=2)
    with pytest.raises(TlAnisoError, match="token_shares has no option bogus"):
        token_shares(model, DOCUMENTS, proxies, bogus=2)
    with pytest.raises(TlAnisoError, match="tokenizer must be a tokenizer"):
        lens(model, proxies, tokenizer=3)


def test_theory_names_wrong_arguments() -> None:
    with pytest.raises(TlAnisoError, match="generator must be"):
        SPHERE.sample(3, radius=0.1, generator=3)  # type: ignore[arg-type]
    for options in ({"mean": "a", "slope": None}, {"mean": "a"}, {"slope": None}, {"slope": "ab"}, {"slope": [None]}):
        with pytest.raises(TlAnisoError, match=r"mean must|slope must"):
            Errors(std=1, **options)
    for manifold in (None, 3):
        with pytest.raises(TlAnisoError, match="manifold must"):
            gradient_moments(manifold, None)  # type: ignore[arg-type]
        with pytest.raises(TlAnisoError, match="manifold must"):
            concentration_effect(manifold, 1, 2)  # type: ignore[arg-type]
    with pytest.raises(TlAnisoError, match="errors must"):
        gradient_moments(SPHERE, 0.1, errors=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("manifold", [SPHERE, Cylinder(2.0, k=2, d=5), Paraboloid((1.0, -1.0), d=4)])
@pytest.mark.parametrize("noise", [{}, {"noise": 0.5, "noise_power": 1}, {"noise": 0.5, "noise_power": 2}])
def test_the_share_at_a_vanishing_radius_is_the_limit(manifold: Any, noise: dict[str, Any]) -> None:
    near = manifold.visible_share(1e-6, **noise)
    assert manifold.visible_share(1e-200, **noise) == pytest.approx(near, abs=1e-9)


def test_a_scatter_of_text() -> None:
    frame = pd.DataFrame({"site": "embed.W_E", "table": "input", "token": ["a"], "count": [1], "log_frequency": [0.0],
                          "distance_raw": ["x"], "distance_drift_removed": [1.0]})  # fmt: skip
    with pytest.raises(TlAnisoError, match="column distance_raw must hold numbers"):
        frequency_scatter(frame)


def test_sites_that_are_no_residual_and_proxies_of_another_model() -> None:
    model, proxies = fitted()
    for site in ("blocks.0.attn.W_Q", "blocks.0.mlp.input"):
        with pytest.raises(SiteError, match=f"{site} is no residual site"):
            frequency_variance(model, DOCUMENTS, sites=site)
    other = tiny_model("llama", hidden_size=64)
    for ask in (
        lambda: token_shares(other, DOCUMENTS, proxies),
        lambda: top_tokens(other, DOCUMENTS, proxies, sites=PRE),
        lambda: lens(other, proxies),
    ):
        with pytest.raises(TlAnisoError, match="proxies of another model"):
            ask()


def test_proxies_of_another_model_of_the_same_width_are_noted() -> None:
    _, proxies = fitted()
    options = {"sites": POST, "labels": "true", "progress": False}
    for other in (tiny_model("llama", layers=3), tiny_model("olmo")):
        notes = token_shares(other, DOCUMENTS, proxies, **options).notes
        assert notes[0].startswith("proxies of another model?")
    assert not token_shares(tiny_model("llama", seed=1), DOCUMENTS, proxies, **options).notes


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (("run/step1", "run/step10"), "run"),
        (("run/step1", "run/step1"), "run/step1"),
        (("/a/run/1", "/a/run/2"), "/a/run"),
        (("a", "b"), "a to b"),
    ],
)
def test_rows_over_checkpoints_carry_what_their_names_share(names: tuple[str, ...], shared: str) -> None:
    generator = torch.Generator().manual_seed(0)
    held = [
        TypeCapture.from_tables(range(8, 48), {"embed.W_E": torch.randn(40, 6, generator=generator)}, name=name, step=i)
        for i, name in enumerate(names)
    ]
    assert set(frequency_variance(held, n_controls=9).frame["model"]) == {shared}


class _Short:
    """A tokenizer of five tokens, one of them hostile."""

    def __len__(self) -> int:
        return 5

    def decode(self, ids: list[int], **_: Any) -> str:
        return f"<b>{ids[0]}\u202e"


def test_ids_beyond_the_vocabulary_and_tables_in_notebooks() -> None:
    model, proxies = fitted()
    found = lens(model, proxies, sites=PRE, n=100, tokenizer=_Short())
    beyond = found.frame[found.frame["id"] >= 5]
    assert len(beyond)
    assert (beyond["token"] == [f"id {i}" for i in beyond["id"]]).all()
    for shown in (found, top_tokens(model, DOCUMENTS, proxies, sites=PRE, tokenizer=_Short(), progress=False)):
        assert isinstance(shown, Lens | TopTokens)
        page = shown._repr_html_()
        assert "<b>" not in page
        assert "&lt;b&gt;" in page
        assert "\u202e" not in page
        assert re.search(r"<table", page)
