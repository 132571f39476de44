"""Measures of kept rows in `ablation_isotropy`, against removal and measurement by hand."""

import numpy as np
import pytest
import torch

from tests.models import random_documents, tiny_model
from tl_aniso import Capture, TlAnisoError, ablation_isotropy, capture, fit_tangent_proxies, normal_controls
from tl_aniso.intrinsic import intrinsic_dimension
from tl_aniso.isotropy import effective_rank, top_share
from tl_aniso.questions import ask, kept_rows
from tl_aniso.row_isotropy import mean_cosine, partition_isotropy

SITE, K = "blocks.1.hook_resid_pre", 4


@pytest.fixture(scope="module")
def held():
    documents = random_documents(tuple(20 + i % 9 for i in range(30)))
    return capture(tiny_model("neox-sequential"), documents, progress=False)


@pytest.fixture
def rows(held, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    d = held.activations[SITE].d
    kept = torch.randn(300, d, generator=generator) @ torch.randn(d, d, generator=generator) + 1.0
    monkeypatch.setattr(Capture, "rows", property(lambda _: {SITE: kept}), raising=False)
    return kept


def without(rows, plane):
    removed = rows.double() - (rows.double() @ plane) @ plane.T
    # Any orthonormal coordinates of the complement will do.
    left = torch.linalg.svd(torch.eye(len(plane)).double() - plane @ plane.T).U[:, : len(plane) - plane.shape[1]]
    return removed @ left


@pytest.mark.parametrize(
    ("measure", "of_rows"),
    [
        ("mean_cosine", mean_cosine),
        ("partition_isotropy", partition_isotropy),
        ("intrinsic_dimension", intrinsic_dimension),
    ],
)
def test_measures_before_and_after_removal(held, rows, measure, of_rows):
    if measure == "intrinsic_dimension":
        pytest.importorskip("skdim", reason="scikit-dimension is not installed")
    frame = ablation_isotropy(held, rank=K, gradients="none", n_controls=20, seed=3).frame
    found = frame[(frame["site"] == SITE) & (frame["measure"] == measure)].set_index("control")
    plane = fit_tangent_proxies(held, K)[SITE].basis
    assert found.loc["none", "value"] == pytest.approx(float(of_rows(rows.double())), rel=1e-6)
    after = found.loc["normal"]
    assert after["value"] == pytest.approx(float(of_rows(without(rows, plane))), rel=1e-6)
    controls = [float(of_rows(without(rows, normal))) for normal in normal_controls(plane, 5, seed=3)]
    assert after["control_value"] == pytest.approx(np.mean(controls), rel=1e-6)
    assert after["null_std"] == pytest.approx(np.std(controls, ddof=1), rel=1e-6)
    assert (found["n_rows"] == 300).all()
    assert set(frame.loc[frame["measure"] == measure, "site"]) == {SITE}


def test_the_spectrum_stands_beside_the_scores(held):
    frame = ablation_isotropy(held, n_controls=2).frame.set_index(["measure", "gradient", "site"])
    second = held.half("B").weight_gradients["blocks.0.mlp.W_in"].second_moment()
    for name, of in (("effective_rank", effective_rank), ("top_share", top_share)):
        row = frame.loc[(name, "weight", "blocks.0.mlp.W_in")]
        assert row["value"] == pytest.approx(float(of(covariance=second)), rel=1e-6)
        assert row["control"] == "none"
    assert "mean_cosine" not in frame.index.get_level_values("measure")


def test_a_missing_package_is_said(held, rows, monkeypatch):
    for module in (ask, kept_rows):
        monkeypatch.setattr(module, "has_intrinsic_dimension", lambda: False)
    result = ablation_isotropy(held, gradients="none", n_controls=2)
    assert "intrinsic_dimension" not in set(result.frame["measure"])
    assert any("scikit-dimension is not installed" in note for note in result.notes)


def test_too_few_rows_name_the_site(held, monkeypatch):
    monkeypatch.setattr(Capture, "rows", property(lambda _: {SITE: torch.zeros(1, 32)}), raising=False)
    with pytest.raises(TlAnisoError, match=r"activations at blocks\.1\.hook_resid_pre: 1 rows were kept"):
        ablation_isotropy(held, gradients="none", n_controls=2)


def test_a_model_keeps_rows_for_the_question_too() -> None:
    model, documents = tiny_model("llama"), random_documents()
    frame = ablation_isotropy(model, documents, gradients="none", keep_rows=500, n_controls=2, progress=False).frame
    held = capture(model, documents, gradients=(), keep_rows=500, progress=False)
    other = ablation_isotropy(held, gradients="none", n_controls=2).frame
    for measure in ("mean_cosine", "partition_isotropy"):
        ours, theirs = (f[f["measure"] == measure].set_index(["site", "control"])["value"] for f in (frame, other))
        assert len(ours)
        np.testing.assert_allclose(ours, theirs[ours.index], rtol=1e-4, atol=1e-5)
    with pytest.raises(TlAnisoError, match="keep_rows keeps rows of activations"):
        ablation_isotropy(model, documents, gradients="weight", keep_rows=10, progress=False)
