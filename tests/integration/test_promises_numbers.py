"""Numbers known to go wrong elsewhere: sinks, rogue dimensions, large means, small batches, ranks, signs, outliers."""

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from tests.models import VOCAB, WIDTH, random_documents, tiny_model
from tl_aniso import (
    Moments,
    TangentProxies,
    TlAnisoError,
    ablation_isotropy,
    capture,
    fit_tangent_proxies,
    isoscore,
    isoscore_star,
    tangent_energy,
)
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.planes import principal_cosines
from tl_aniso.questions.frame import COLUMNS
from tl_aniso.results import TangentEnergy
from tl_aniso.subspace import TangentProxy, fit_pca

pytestmark = pytest.mark.usefixtures("one_thread")

SITE = "blocks.0.hook_resid_pre"
RANK, SINK, BOS = 4, 60, 1
OPTIONS: dict[str, Any] = {"progress": False}


@cache
def true_plane() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.linalg.qr(torch.randn(WIDTH, RANK, generator=generator, dtype=torch.float64)).Q


def low_rank_model(*, sink: float = 1.0) -> Any:
    """A model whose embeddings lie near a plane of rank 4; the row of one token is `sink` times as long as the rest."""
    model = tiny_model("llama", layers=1)
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(VOCAB, RANK, generator=generator, dtype=torch.float64) @ true_plane().T
    rows += 0.01 * torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    across = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    across -= true_plane() @ (true_plane().T @ across)
    for token in (SINK, BOS):
        rows[token] = sink * across / across.norm() * float(rows.norm(dim=1).median())
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(rows)
    return model


@cache
def documents(token: int = SINK) -> list[list[int]]:
    """Each with the sink somewhere inside, and no other special token."""
    found = random_documents(tuple(20 + i % 9 for i in range(24)))
    return [[*ids[: 3 + i % 5], token, *ids[3 + i % 5 :]] for i, ids in enumerate(found)]


def cosine(proxy: TangentProxy) -> float:
    return float(principal_cosines(proxy.basis, true_plane()).min())


class TestSinks:
    @pytest.mark.parametrize(("token", "filters"), [(SINK, "sink"), (BOS, "special"), (SINK, ("special", "sink"))])
    def test_one_row_3000_times_the_rest_does_not_bend_the_plane(self, token: int, filters: Any) -> None:
        model, text = low_rank_model(sink=3000.0), documents(token)
        filtered = capture(model, text, gradients=(), exclude=filters, **OPTIONS)
        plain = capture(model, text, gradients=(), exclude=(), **OPTIONS)
        assert cosine(fit_tangent_proxies(filtered, RANK)[SITE]) > 0.99
        # The other reading: the row is the first direction and pushes one of the four out.
        assert cosine(fit_tangent_proxies(plain, RANK)[SITE]) < 0.5
        n_tokens = sum(map(len, text))
        assert filtered.activations[SITE].count == n_tokens - len(text)
        assert filtered.excluded_share(SITE) == pytest.approx(len(text) / n_tokens)
        assert filtered.excluded_energy_share(SITE) > 0.9999
        assert (plain.activations[SITE].count, plain.excluded_share(SITE)) == (n_tokens, 0.0)

    def test_isotropy_under_both_readings(self) -> None:
        model = low_rank_model(sink=3000.0)
        both = [capture(model, documents(), gradients=(), exclude=e, **OPTIONS) for e in (("sink",), ())]
        scores = [float(isoscore(covariance=c.activations[SITE].covariance())) for c in both]
        assert scores[0] == pytest.approx((RANK - 1) / (WIDTH - 1), rel=0.25)  # four directions of 32
        assert scores[1] < 1e-4  # one

    def test_results_name_what_was_left_out_and_how_to_have_it_back(self) -> None:
        model = low_rank_model(sink=3000.0)
        options: dict[str, Any] = {"gradients": ("weight", "activation"), "rank": RANK, "n_controls": 0, **OPTIONS}
        options["sites"] = [SITE, "blocks.0.attn.W_Q"]
        filtered = tangent_energy(model, documents(), **options)
        plain = tangent_energy(model, documents(), exclude=(), **options)
        (note,) = [note for note in filtered.notes if "exclude=()" in note]
        assert f"at {SITE}" in note
        assert "100.0% of the energy" in note
        share = filtered.frame.set_index("site").loc[SITE, "excluded_share"].iloc[0]
        assert f"{share:.2%} of the rows" in note
        assert not any("exclude=()" in note for note in plain.notes)
        # Both readings in one table: the column `exclude` tells them apart.
        table = pd.concat([filtered.frame, plain.frame])
        rows = table[(table["site"] == SITE) & (table["measure"] == "energy_share") & (table["control"] == "none")]
        readings = rows.set_index("exclude")
        assert set(readings.index) == {"special+sink", "nothing"}
        assert readings.loc["special+sink", "excluded_share"] > 0 == readings.loc["nothing", "excluded_share"]
        assert readings.loc["special+sink", "n_rows"] < readings.loc["nothing", "n_rows"]

    def test_weight_gradients_alone_name_what_their_planes_were_fitted_without(self) -> None:
        options: dict[str, Any] = {"rank": RANK, "n_controls": 0, "sites": ["blocks.0.attn.W_Q"], **OPTIONS}
        filtered = tangent_energy(low_rank_model(sink=3000.0), documents(), **options)
        assert any("100.0% of the energy" in note and "planes are fitted without" in note for note in filtered.notes)

    def test_nothing_left_out_needs_no_note(self) -> None:
        result = ablation_isotropy(low_rank_model(), random_documents((30,) * 12), gradients="none", rank=2, **OPTIONS)
        assert not any("exclude" in note for note in result.notes)

    def test_each_piece_of_a_document_is_judged_by_its_own_median(self) -> None:
        # One token in the first piece is long against its own piece only; the second piece is long throughout.
        model = tiny_model("llama", layers=1)
        with torch.no_grad():
            weight = model.model.embed_tokens.weight
            weight.copy_(torch.nn.functional.normalize(weight, dim=1))
            weight[40:90] *= 100.0
        first, second = [3, 4, 5, 6, 7, 8, 9, 45], [50, 51, 52, 53, 54, 55, 56, 57]
        got = capture(model, [*first, *second], seq_len=8, exclude="sink", gradients=(), **OPTIONS)
        assert got.activations[SITE].count == 15


def test_a_rogue_dimension_is_a_direction_and_not_a_row() -> None:
    model = tiny_model("llama", layers=1)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 7] *= 1000.0
    text = random_documents((30,) * 8)
    got = capture(model, text, gradients=(), exclude=(), **OPTIONS)
    rows = model.model.embed_tokens.weight.detach()[torch.tensor(text).flatten()].double()
    exact = PCA(8, svd_solver="full").fit(rows.numpy())
    mine = fit_pca(got.activations[SITE], 8)
    assert abs(mine.components_[0, 7]) > 0.999
    assert mine.explained_variance_ratio_[0] > 0.999
    # The seven directions under it are a millionth of the variance and still right.
    np.testing.assert_allclose(mine.components_, exact.components_, atol=1e-4)
    np.testing.assert_allclose(mine.explained_variance_, exact.explained_variance_, rtol=1e-4)
    # Isotropy says one direction, whatever the unit; it does not say it of the rest.
    covariance = got.activations[SITE].covariance()
    assert float(isoscore(covariance=covariance)) < 1e-3
    keep = [i for i in range(WIDTH) if i != 7]
    assert float(isoscore(covariance=covariance[keep][:, keep])) > 0.2


def test_large_column_means_in_float32() -> None:
    # Raw sums in float32 lose every digit here: 1000 squared against a variance of 1e-3.
    model = low_rank_model()
    with torch.no_grad():
        model.model.embed_tokens.weight *= 0.1
        model.model.embed_tokens.weight += 1000.0 * torch.linspace(0.0, 1.0, WIDTH)
    text = random_documents((30,) * 8)
    got = capture(model, text, gradients=(), exclude=(), **OPTIONS)
    rows = model.model.embed_tokens.weight.detach()[torch.tensor(text).flatten()]
    exact = PCA(RANK, svd_solver="full").fit(rows.double().numpy()).components_.T.copy()
    mine = fit_pca(got.activations[SITE], RANK).components_.T.copy()
    assert float(principal_cosines(mine, exact).min()) > 0.9999
    covariance = torch.cov(rows.double().T)
    naive = rows.T @ rows / len(rows) - torch.outer(rows.mean(0), rows.mean(0))
    assert float((naive - covariance).norm() / covariance.norm()) > 1
    mine_too = got.activations[SITE].covariance()
    assert float((mine_too - covariance).norm() / covariance.norm()) < 1e-3


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_first_batch_smaller_than_the_rank(first: int) -> None:
    rows = torch.randn(60, 12, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -1, 12)
    moments = Moments(12)
    for batch in (rows[:first], rows[first : first + 1], rows[first + 1 :]):
        moments.update(batch)
    exact = PCA(6, svd_solver="full").fit(rows.double().numpy())
    np.testing.assert_allclose(fit_pca(moments, 6).components_, exact.components_, atol=1e-5)


def test_a_rank_above_the_numerical_rank_shrinks_and_results_say_so() -> None:
    model = low_rank_model()
    with torch.no_grad():
        weight = model.model.embed_tokens.weight
        weight.copy_((weight.double() @ true_plane() @ true_plane().T).float())
    text = random_documents((30,) * 16)
    result = tangent_energy(model, text, rank=8, sites="embed.W_E", n_controls=0, **OPTIONS)
    assert set(result.frame["rank"]) == {RANK}
    assert any(f"rank 8 was asked for; the rows at {SITE} have {RANK} directions" in note for note in result.notes)


def test_signs_of_components_do_not_matter() -> None:
    model, text = tiny_model("llama", layers=1), random_documents((24,) * 16)
    held = capture(model, text, **OPTIONS)
    proxies = fit_tangent_proxies(held, RANK)
    flips = torch.tensor([-1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    flipped = TangentProxies(dataclasses.replace(proxy, basis=proxy.basis * flips) for proxy in proxies.values())
    for ask in (tangent_energy, ablation_isotropy):
        frames = [ask(held, proxies=p, n_controls=20).frame for p in (proxies, flipped)]
        pd.testing.assert_frame_equal(*frames, rtol=1e-9)


class TestIsotropy:
    """Which way round, in what unit, of what."""

    def test_a_transposed_cloud_is_pointed_out_with_both_readings(self) -> None:
        rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)) * torch.logspace(0, -1, 8)
        with pytest.warns(UserWarning, match=r"8 rows and 40 columns: read as 8 samples in 40 dimensions.*points\.T"):
            other = float(isoscore(rows.T))
        assert other != pytest.approx(float(isoscore(rows)), abs=0.05)

    @pytest.mark.parametrize("unit", [1e-6, 1e3])
    def test_the_unit_does_not_matter(self, unit: float) -> None:
        rows = torch.randn(90, 8, generator=torch.Generator().manual_seed(1)).double() * torch.logspace(0, -1, 8)
        assert float(isoscore_star(unit * rows)) == pytest.approx(float(isoscore_star(rows)), rel=1e-9)
        # Which cannot be said of the plain identity.
        assert abs(float(isoscore_star(unit * rows, target="identity")) - float(isoscore_star(rows))) > 0.01

    def test_constant_activations_have_no_score_and_name_their_site(self) -> None:
        model = tiny_model("llama", layers=1)
        with torch.no_grad():
            model.model.embed_tokens.weight[:] = model.model.embed_tokens.weight[0]
        held = capture(model, random_documents((20,) * 8), gradients=(), **OPTIONS)
        with pytest.raises(UndefinedMeasureError, match="constant"):
            fit_tangent_proxies(held, 2)
        with pytest.raises(UndefinedMeasureError, match="trace 0"):
            isoscore(covariance=held.activations[SITE].covariance())
        with pytest.raises(TlAnisoError, match=SITE.replace(".", r"\.")):
            ablation_isotropy(model, random_documents((20,) * 8), gradients="none", sites=SITE, rank=2, **OPTIONS)


class TestOutliers:
    """Ratios are averaged on the log scale, and the median and the middle half of the sites stand beside on request."""

    @staticmethod
    def result(ratios: list[float]) -> TangentEnergy:
        rows = []
        for layer, ratio in enumerate(ratios):
            base = {"site": f"blocks.{layer}.attn.W_Q", "gradient": "weight", "rank": 4, "layer": layer}
            rows.append({**base, "measure": "energy_share", "control": "none", "value": ratio / (1 + ratio)})
            rows.append({**base, "measure": "r_energy", "control": "normal", "value": ratio, "control_value": 1.0})
            rows.append({**base, "measure": "r_energy", "control": "sign_flip", "value": ratio, "control_value": 2.0})
            rows.append({**base, "measure": "excess", "control": "sign_flip", "value": ratio / 2, "control_value": 1.0})
        return TangentEnergy(pd.DataFrame(rows, columns=list(COLUMNS)))

    def test_one_site_does_not_carry_the_mean(self) -> None:
        ratios = [1.9, 2.0, 2.1, 2.0, 2.0, 1.8, 2.2, 2000.0]
        table = self.result(ratios).table()
        assert np.mean(ratios) > 200
        assert table.loc[0, "R"] == pytest.approx(math.exp(np.log(ratios).mean()))
        assert table.loc[0, "R"] < 5
        assert table.loc[0, "excess sign_flip"] == pytest.approx(table.loc[0, "R"] / 2)

    def test_median_and_middle_half_on_request(self) -> None:
        ratios = [1.9, 2.0, 2.1, 2.0, 2.0, 1.8, 2.2, 2000.0]
        plain, spread = self.result(ratios).table(), self.result(ratios).table(spread=True)
        assert list(spread.columns[: len(plain.columns)]) == list(plain.columns)
        assert spread.loc[0, "median of R"] == 2.0
        assert (spread.loc[0, "lower quartile of R"], spread.loc[0, "upper quartile of R"]) == pytest.approx(
            tuple(np.quantile(ratios, [0.25, 0.75]))
        )
        assert spread.loc[0, "median of R sign_flip"] == 2.0
        assert spread.loc[0, "median of excess sign_flip"] == 1.0
