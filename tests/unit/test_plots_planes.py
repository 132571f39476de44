"""Spectra before and after a removal, and planes over training: numbers by closed form, figures by their frames."""

import math

import numpy as np
import pytest
import torch

from tl_aniso import TangentProxies
from tl_aniso.errors import SiteError, TlAnisoError, UndefinedMeasureError
from tl_aniso.spectra import spectra_without
from tl_aniso.subspace import TangentProxy, compare_over_steps, compare_proxies
from tl_aniso.viz import ablation_spectrum, angles_by_step, overlap_heat_map

NAN = math.nan


def _plane(site, basis):
    return TangentProxy(site, None, basis.double(), True, basis.shape[1], {})


def _turned(degrees, site="blocks.0.hook_resid_pre", d=6):
    """A plane of rank 2 whose second direction is turned by an angle."""
    basis = torch.zeros(d, 2)
    basis[0, 0] = 1.0
    basis[1, 1], basis[2, 1] = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _plane(site, basis)


def _spectra(**more):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 12, generator=generator, dtype=torch.float64) * torch.linspace(3, 0.2, 12)
    covariance = rows.T @ rows / 300
    basis = torch.linalg.eigh(covariance).eigenvectors[:, -3:]
    return covariance, spectra_without(covariance, basis, **more).assign(
        site="blocks.0.hook_resid_pre", gradient="none"
    )


def test_spectrum_without_its_leading_directions_is_the_rest_of_it():
    covariance, table = _spectra(n_planes=6)
    eigenvalues = torch.linalg.eigvalsh(covariance).flip(0) / covariance.trace()
    by_series = {name: rows["value"].to_numpy() for name, rows in table.groupby("series")}
    assert by_series["full"] == pytest.approx(eigenvalues.numpy())
    assert by_series["without tangent"] == pytest.approx(eigenvalues[3:].numpy())
    normal = table[table["series"] == "without normal"]
    # Interlacing (Cauchy): the i-th eigenvalue of a compression lies between the i-th and the (i + k)-th of the whole.
    assert (normal["high"].to_numpy() <= eigenvalues[:9].numpy() + 1e-12).all()
    assert (normal["low"].to_numpy() >= eigenvalues[3:].numpy() - 1e-12).all()
    assert (normal["low"] <= normal["value"]).all()
    # A normal plane lies off the tangent, so the leading eigenvalue stays.
    assert normal["value"].iloc[0] == pytest.approx(float(eigenvalues[0]))


def test_eigenvalues_that_are_rounding_are_missing():
    table = spectra_without(torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.0])), torch.eye(4)[:, :1], n_planes=3)
    full = table[table["series"] == "full"]["value"].tolist()
    assert full[:3] == pytest.approx([0.5, 1 / 3, 1 / 6])
    assert math.isnan(full[3])


def test_ablation_spectrum_draws_the_frame_with_the_band_and_counts_the_missing():
    _, table = _spectra(n_planes=6)
    table.loc[(table["series"] == "full") & (table["index"] == 12), "value"] = NAN
    figure = ablation_spectrum(table)
    curves = {trace.name: trace for trace in figure.data}
    assert set(curves) == {"band over 6 normal planes", "full (1 of 12 missing)", "without tangent", "without normal"}
    for name in ("without tangent", "without normal"):
        rows = table[table["series"] == name]
        assert list(curves[name].x) == rows["index"].tolist()
        assert list(curves[name].y) == rows["value"].tolist()
    assert curves["full (1 of 12 missing)"].y[11] is None
    normal = table[table["series"] == "without normal"]
    assert list(curves["band over 6 normal planes"].y[:9]) == normal["low"].tolist()
    assert figure.layout.title.text == "blocks.0.hook_resid_pre, activations: 3 of 12 directions removed"
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_a_spectrum_of_another_length_is_an_error():
    _, table = _spectra(n_planes=2)
    with pytest.raises(TlAnisoError, match=r"11 eigenvalues where rank 3 of 12 leaves 12"):
        ablation_spectrum(table.drop(index=0))
    with pytest.raises(TlAnisoError, match="lacks the columns series"):
        ablation_spectrum(table.drop(columns="series"))
    with pytest.raises(UndefinedMeasureError):
        ablation_spectrum(table.iloc[:0])


def test_comparison_over_steps_is_that_of_pairs_and_has_the_planted_angle():
    proxies = {
        100.0: TangentProxies([_turned(90)]),
        0.0: TangentProxies([_turned(0)]),
        10.0: TangentProxies([_turned(30)]),
    }
    table = compare_over_steps(proxies).set_index(["step_a", "step_b"])
    assert table.loc[(0.0, 10.0), "largest_angle"] == pytest.approx(30.0)
    assert table.loc[(0.0, 10.0), "smallest_angle"] == pytest.approx(0.0)
    assert table.loc[(0.0, 10.0), "kernel"] == pytest.approx((1 + math.cos(math.radians(30)) ** 2) / 2)
    assert math.cos(math.radians(table.loc[(0.0, 100.0), "mean_angle"])) ** 2 == pytest.approx(0.5)
    pair = compare_proxies(proxies[10.0], proxies[100.0]).iloc[0]
    for name in ("kernel", "null_mean", "null_std", "smallest_angle", "largest_angle"):
        assert table.loc[(10.0, 100.0), name] == pair[name]
        assert table.loc[(100.0, 10.0), name] == pair[name]


def test_comparison_over_steps_refuses_what_it_cannot_compare():
    held = TangentProxies([_turned(0)])
    with pytest.raises(TlAnisoError, match="none of the steps"):
        compare_over_steps({0: held}, against=5)
    with pytest.raises(SiteError, match="no step holds a proxy for mlp"):
        compare_over_steps({0: held}, sites="mlp")
    with pytest.raises(TlAnisoError, match="map training steps"):
        compare_over_steps([held])
    with pytest.raises(TlAnisoError, match="different widths, 6 and 8"):
        compare_over_steps({0: held, 1: TangentProxies([_turned(0, d=8)])})


def _two_sites():
    first, second = "blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre"
    return compare_over_steps(
        {
            0.0: TangentProxies([_turned(0, first), _turned(0, second)]),
            10.0: TangentProxies([_turned(30, first)]),
            20.0: TangentProxies([_turned(40, first), _turned(60, second)]),
        }
    )


def test_overlap_heat_map_has_the_kernel_in_order_with_the_null_in_its_title():
    table = _two_sites()
    figure = overlap_heat_map(table)
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == [
        "blocks.0.hook_resid_pre (random planes: 0.333)",
        "blocks.1.hook_resid_pre (random planes: 0.333) (5 of 9 missing)",
    ]
    for trace, (_, rows) in zip(figure.data[:2], table.groupby("site", sort=False), strict=True):
        assert list(trace.x) == list(trace.y) == ["0", "10", "20"]
        expected = rows.pivot(index="step_a", columns="step_b", values="kernel").to_numpy()
        assert np.array(trace.z, dtype=float) == pytest.approx(expected, nan_ok=True)
    assert sorted(zip(figure.data[3].x, figure.data[3].y, strict=True)) == [
        ("0", "10"),
        ("10", "0"),
        ("10", "10"),
        ("10", "20"),
        ("20", "10"),
    ]
    with pytest.raises(TlAnisoError, match="comes twice"):
        overlap_heat_map(table.iloc[[0, 0]])


def test_angles_by_step_draw_every_site_their_mean_and_random_planes():
    table = _two_sites()
    figure = angles_by_step(table)
    first, second = [trace for trace in figure.data if trace.name == "single sites"]
    own = table[(table["step_a"] == 0) & (table["site"] == "blocks.0.hook_resid_pre")]
    assert list(first.x) == [0.0, 10.0, 20.0]
    assert list(first.y) == own["mean_angle"].tolist()
    assert second.y[1] is None
    mean = next(trace for trace in figure.data if trace.name == "mean (1 of 6 missing)")
    assert mean.y[2] == pytest.approx((first.y[2] + second.y[2]) / 2)
    largest = next(trace for trace in figure.data if trace.name == "largest")
    assert largest.y[2] == pytest.approx((40 + 60) / 2)
    random = next(trace for trace in figure.data if trace.name == "random planes")
    assert math.cos(math.radians(random.y[0])) ** 2 == pytest.approx(2 / 6)
    assert "of step 0" in figure.layout.title.text
    assert "of step 20" in angles_by_step(table, reference=20).layout.title.text
    with pytest.raises(TlAnisoError, match="reference is 5"):
        angles_by_step(table, reference=5)
