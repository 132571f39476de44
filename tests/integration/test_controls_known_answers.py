"""Every control where it equals the effect, and where a planted excess must be recovered within its interval.

Inputs and gradients are drawn from known distributions and go through the library's sums, planes and tables, once from
d x d sums and once projected. `untrained`, which needs a model, is in tests/integration/test_controls.py.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.planted import AXES, LENGTH, RANK, READERS, D, Planted, rows_of, spectrum, white
from tl_aniso import fit_tangent_proxies, tangent_energy
from tl_aniso.controls import fit_control_planes
from tl_aniso.controls.planes import DRAWS

pytestmark = pytest.mark.usefixtures("one_thread")

A, B = 9.0, 1.0  # variance in the tangent plane, and in each other direction
LEADING = spectrum((RANK, A), (D - RANK, B))
SECOND = spectrum((RANK, B), (RANK, A), (D - 2 * RANK, B))
TANGENT = AXES[:, :RANK]


@pytest.fixture(params=["sums", "projected"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def odds_of(diagonal: Tensor, columns: slice) -> float:
    """Odds of the share that some axes hold of a diagonal second moment."""
    inside = float(diagonal[columns].sum())
    return inside / (float(diagonal.sum()) - inside)


def equals(row: object, *, width: float = 0.3) -> None:
    """The interval holds 1, and is narrow enough to mean something."""
    assert row["ci_low"] <= 1 <= row["ci_high"]  # type: ignore[index]
    assert row["ci_high"] - row["ci_low"] < width  # type: ignore[index]
    assert row["value"] == pytest.approx(1, abs=width / 2)  # type: ignore[index]


def recovers(row: object, expected: float) -> None:
    """The interval holds the planted value and excludes 1."""
    assert row["ci_low"] <= expected <= row["ci_high"]  # type: ignore[index]
    assert not row["ci_low"] <= 1 <= row["ci_high"]  # type: ignore[index]
    assert row["value"] == pytest.approx(expected, rel=0.15)  # type: ignore[index]


def in_tangent(rows: Tensor) -> Tensor:
    return (rows @ TANGENT).norm(dim=1, keepdim=True)


# -- how output gradients g are tied to inputs x ------------------------------------------------------------------


def independent(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """g is white and knows nothing of x."""
    return rows_of(LEADING)(generator), white(generator)


def tied_in_length(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """g points anywhere, but is as long as x is in the tangent plane."""
    rows = rows_of(LEADING)(generator)
    return rows, white(generator) * in_tangent(rows)


MEAN = 2.0


def coherent(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One g for all tokens of a document, whose inputs have their mean in the tangent plane."""
    return rows_of(LEADING, mean=MEAN)(generator), white(generator)[:1].expand(LENGTH, -1)


def nearly_coherent(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A common part and noise, both independent of x: the tokens' g can be exchanged."""
    rows, common = coherent(generator)
    return rows, common + 0.5 * white(generator)


# Gaussian x with variance A in k directions: E|x_T|^2 |x_T|^2 / (E|x_T|^2 E|x_T|^2) = (k + 2) / k.
TIED = (RANK + 2) / RANK


@cache
def planted(name: str) -> Planted:
    measure = {f.__name__: f for f in (independent, tied_in_length, coherent, nearly_coherent)}[name]
    return Planted(fit=[rows_of(LEADING)] * 2, measure=[measure] * 2)


def test_input_energy_is_all_there_is_where_gradients_ignore_inputs(route: str) -> None:
    equals(planted("independent").excess("input_energy", route=route))


def test_input_energy_leaves_what_gradients_add_along_the_plane(route: str) -> None:
    recovers(planted("tied_in_length").excess("input_energy", route=route), TIED)


def test_sign_flip_is_all_there_is_where_signs_are_random(route: str) -> None:
    # The lengths of g are tied to x, which this control keeps: what input_energy leaves, it explains.
    equals(planted("tied_in_length").excess("sign_flip", route=route))


def test_sign_flip_leaves_what_coherence_adds(route: str) -> None:
    # G = g (sum x)^T: the mean adds up L^2-fold, the rest L-fold.
    inside = RANK * A
    expected = (LENGTH * MEAN**2 + inside) / (MEAN**2 + inside)
    recovers(planted("coherent").excess("sign_flip", route=route), expected)


def test_shuffled_g_is_all_there_is_where_gradients_are_exchangeable(route: str) -> None:
    equals(planted("nearly_coherent").excess("shuffled_g", route=route))


def test_shuffled_g_leaves_what_the_link_adds(route: str) -> None:
    # Of N tokens a permutation keeps one in place: (k + 2) / k becomes (k + 2) / (k + 2 / N).
    recovers(planted("tied_in_length").excess("shuffled_g", route=route), (RANK + 2) / (RANK + 2 / LENGTH))


def labelled(measure: str) -> Planted:
    chosen = {"independent": independent, "tied": tied_in_length}[measure]
    return Planted(fit=[rows_of(LEADING)] * 2, measure=[chosen] * 2, labels=lambda generator, rows: white(generator))


def test_shuffled_labels_are_all_there_is_where_content_does_not_matter(route: str) -> None:
    equals(labelled("independent").excess("shuffled_labels", route=route))


def test_shuffled_labels_leave_what_true_targets_add(route: str) -> None:
    recovers(labelled("tied").excess("shuffled_labels", route=route), TIED)


# -- other planes ------------------------------------------------------------------------------------------------


def elsewhere(other: Tensor, *, permuted: bool = False) -> Planted:
    """Layer 1, or the permuted text, has its variance along `other`."""
    if permuted:
        return Planted(
            fit=[rows_of(LEADING)] * 2, measure=[independent] * 2, permuted=[rows_of(other), rows_of(LEADING)]
        )
    return Planted(fit=[rows_of(LEADING), rows_of(other)], measure=[independent] * 2)


ELSEWHERE = odds_of(LEADING, slice(RANK)) / odds_of(LEADING, slice(RANK, 2 * RANK))


def test_other_layer_equals_the_effect_where_planes_are_shared(route: str) -> None:
    equals(elsewhere(LEADING).excess("other_layer", route=route))


def test_other_layer_leaves_what_is_local(route: str) -> None:
    recovers(elsewhere(SECOND).excess("other_layer", route=route), ELSEWHERE)


def test_permuted_tokens_equal_the_effect_where_order_does_not_matter(route: str) -> None:
    equals(elsewhere(LEADING, permuted=True).excess("permuted_tokens", route=route))


def test_permuted_tokens_leave_what_order_adds(route: str) -> None:
    recovers(elsewhere(SECOND, permuted=True).excess("permuted_tokens", route=route), ELSEWHERE)


def test_covariance_drawn_equals_the_effect_where_the_data_fill_only_the_plane(route: str) -> None:
    flat = spectrum((RANK, A), (D - RANK, 0.0))
    row = Planted(fit=[rows_of(flat)] * 2, measure=[independent] * 2).excess("covariance_drawn", route=route)
    assert row["value"] == pytest.approx(1, abs=1e-4)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((1, 1), abs=1e-4)


def test_covariance_drawn_leaves_what_pca_finds(route: str) -> None:
    here = planted("independent")
    frame = here.frame("covariance_drawn", route=route)
    held = here.capture()
    planes = fit_control_planes(held, fit_tangent_proxies(held, RANK), ["covariance_drawn"])
    columns = AXES.T @ planes.at("covariance_drawn", "blocks.0.attn.input")
    drawn = columns.T.square().reshape(DRAWS, RANK, D).sum(1) @ LEADING / LEADING.sum()
    share = float(drawn.mean())
    recovers(frame.loc[("excess", "covariance_drawn")], odds_of(LEADING, slice(RANK)) / (share / (1 - share)))
    row = frame.loc[("energy_share", "covariance_drawn")]
    assert row["null_mean"] == pytest.approx(row["control_value"], rel=1e-12)
    assert row["null_mean"] == pytest.approx(share, rel=0.1)
    assert row["null_std"] == pytest.approx(float(drawn.std()), rel=0.15)


def test_planes_are_drawn_from_the_covariance() -> None:
    """The mean share of many draws is that of Gaussian draws orthonormalised by numpy."""
    from tl_aniso.controls.planes import drawn_planes

    n, rng = 4000, np.random.default_rng(5)
    columns = AXES.T @ drawn_planes(AXES, LEADING, RANK, n=n, seed=1)
    shares = (columns.T.square().reshape(n, RANK, D).sum(1) @ LEADING / LEADING.sum()).numpy()
    expected = []
    for _ in range(n):
        q = np.linalg.qr(rng.normal(size=(D, RANK)) * np.sqrt(LEADING.numpy())[:, None])[0]
        expected.append(float((q**2).sum(1) @ LEADING.numpy()) / float(LEADING.sum()))
    error = np.hypot(shares.std(), np.std(expected)) / np.sqrt(n)
    assert abs(shares.mean() - np.mean(expected)) < 4 * error
    assert shares.std() == pytest.approx(np.std(expected), rel=0.08)


STEPS = spectrum((RANK, A), (RANK, 4.0), (D - 2 * RANK, B))


def descending(rows: Tensor) -> Planted:
    return Planted(fit=[rows_of(STEPS)] * 2, measure=[lambda g: (rows_of(rows)(g), white(g))] * 2)


def test_next_k_equals_the_effect_where_the_following_directions_hold_as_much(route: str) -> None:
    level = spectrum((2 * RANK, 5.0), (D - 2 * RANK, B))
    frame = descending(level).frame("next_k", route=route)
    equals(frame.loc[("excess", "next_k")])
    # Less variance with as much energy: per unit of variance the following directions are ahead.
    row, share = frame.loc[("share_per_variance", "next_k")], float(level[:RANK].sum() / level.sum())
    variances = [float(STEPS[part].sum() / STEPS.sum()) for part in (slice(RANK), slice(RANK, 2 * RANK))]
    assert row["ci_low"] <= share / variances[0] <= row["ci_high"]
    assert row["value"] == pytest.approx(share / variances[0], rel=0.05)
    assert row["control_value"] == pytest.approx(share / variances[1], rel=0.05)


def test_next_k_leaves_what_the_leading_directions_add(route: str) -> None:
    frame = descending(STEPS).frame("next_k", route=route)
    expected = odds_of(STEPS, slice(RANK)) / odds_of(STEPS, slice(RANK, 2 * RANK))
    recovers(frame.loc[("excess", "next_k")], expected)
    # Gradients that follow the variance have as much of it per unit everywhere.
    row = frame.loc[("share_per_variance", "next_k")]
    assert row["ci_low"] <= 1 <= row["ci_high"]
    assert row["value"] == pytest.approx(1, rel=0.05)
    assert row["control_value"] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("control", ["other_layer", "permuted_tokens", "covariance_drawn", "next_k"])
def test_both_routes_and_every_lower_rank_agree(control: str) -> None:
    here = Planted(fit=[rows_of(STEPS), rows_of(SECOND)], measure=[tied_in_length] * 2, permuted=[rows_of(SECOND)] * 2)
    held = here.capture()
    proxies = fit_tangent_proxies(held, RANK)
    projected = here.capture(proxies, fit_control_planes(held, proxies, [control]))
    asked = {"proxies": proxies, "controls": control, "rank": [2, RANK], "n_controls": 0}
    frames = [tangent_energy(source, **asked).frame for source in (held, projected)]
    # Per unit of variance needs the planes themselves; energies alone do not know them.
    shown = [(f["control"] == control) & (f["measure"] != "share_per_variance") for f in frames]
    both = [frame[rows].reset_index(drop=True) for frame, rows in zip(frames, shown, strict=True)]
    names = ["value", "control_value", "ci_low", "ci_high", "null_mean", "null_std"]
    np.testing.assert_allclose(both[0][names], both[1][names], rtol=2e-5)
    alone = tangent_energy(held, rank=2, controls=control, n_controls=0).frame
    alone = alone[(alone["control"] == control) & (alone["measure"] != "share_per_variance")]
    np.testing.assert_allclose(both[0].loc[both[0]["rank"] == 2, names], alone[names], rtol=2e-5)
    assert set(alone["site"]) == set(READERS)
