"""Proxies of every estimator go to disk and back; places and arguments that cannot be written are one clear error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import decomposition

from tests.models import tiny_model
from tl_aniso import Capture, TlAnisoError, capture
from tl_aniso.estimators import describe, fit_rows
from tl_aniso.moments import Moments
from tl_aniso.subspace import TangentProxies, TangentProxy, fit_pca

ESTIMATORS = (
    "TruncatedSVD",
    "IncrementalPCA",
    "FactorAnalysis",
    "FastICA",
    "SparsePCA",
    "MiniBatchSparsePCA",
    "DictionaryLearning",
    "MiniBatchDictionaryLearning",
    "NMF",
)
PLACES = ("/proc/foo", "x" * 300, "a\0b", None, 3, b"x", 1.5)


def proxies() -> TangentProxies:
    rows = torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    pca = fit_pca(Moments(12).update(rows), 3)
    return TangentProxies([TangentProxy.from_pca("blocks.0.attn.input", pca, centred=True, requested_rank=3)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_proxies_of_every_estimator_come_back(name: str, tmp_path: Path) -> None:
    rows = np.abs(np.random.default_rng(0).normal(size=(80, 12)))
    fitted = (
        fit_rows(getattr(decomposition, name)(n_components=3, random_state=0), rows, 3, site="unembed.input")
        if (name != "IncrementalPCA")
        else fit_rows(decomposition.IncrementalPCA(n_components=3), rows, 3, site="unembed.input")
    )
    basis = torch.from_numpy(fitted.basis.copy())
    saved = TangentProxy("unembed.input", fitted.estimator, basis, True, 3, {}, ())
    back = TangentProxies.load(TangentProxies([saved]).save(tmp_path / "p"))["unembed.input"]
    assert torch.equal(back.basis, basis)
    assert back.proxy_id == saved.proxy_id
    assert np.array_equal(back.estimator.components_, fitted.estimator.components_)
    assert describe(back.estimator)[0] == describe(fitted.estimator)[0]


@pytest.mark.parametrize("place", PLACES)
def test_places_that_cannot_be_written(place: Any) -> None:
    got = capture(tiny_model("llama", layers=1), [[5, 6, 7, 8]], gradients=(), progress=False)
    for act in (proxies().save, TangentProxies.load, got.save, Capture.load):
        with pytest.raises(TlAnisoError, match=r"directory must be a path|null byte|proxies|capture"):
            act(place)
