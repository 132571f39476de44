"""Projected energies against the diagonal and trace of the full second moment."""

import pytest
import torch
from torch import Tensor

from tl_aniso.projection import Factor, Rows, control_energy, gradient_energy
from tl_aniso.weight_moments import CONTROL_NAMES, control_weights, gram_kernel, second_moment, weighted_second_moment

D, RANK = 12, 4


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASIS = torch.linalg.qr(normal(D, RANK, seed=9)).Q


def check(along: Tensor, total: Tensor, moments: list[Tensor]) -> None:
    for b, moment in enumerate(moments):
        torch.testing.assert_close(along[b], (BASIS.T @ moment @ BASIS).diagonal())
        torch.testing.assert_close(total[b], moment.trace())


# Side and length on both sides of where forming G is the cheaper way to its norm.
@pytest.mark.parametrize(("length", "side"), [(6, 3), (60, 2), (3, 90)])
@pytest.mark.parametrize("known", ["rows", "kernel"])
def test_gradient_energy(length: int, side: int, known: str) -> None:
    rows, factor = normal(3, length, D), normal(3, length, side, seed=1)
    carries = torch.ones(3, length, dtype=torch.bool)
    given = Factor(factor) if known == "rows" else Factor(None, gram_kernel(factor))
    moments = [second_moment(rows[b : b + 1], factor[b : b + 1]) for b in range(3)]
    check(*gradient_energy(Rows(rows, carries), given, BASIS), moments)


@pytest.mark.parametrize("name", CONTROL_NAMES)
@pytest.mark.parametrize("known", ["rows", "kernel"])
def test_control_energy(name: str, known: str) -> None:
    carries = torch.tensor([[True] * 5 + [False], [True] * 3 + [False] * 3])
    rows, factor = normal(2, 6, D), (normal(2, 6, 4, seed=1) + 0.5) * carries[..., None]
    given = Factor(factor) if known == "rows" else Factor(None, gram_kernel(factor))
    weights = control_weights(name, given.norms, given.total, carries)
    apart = [control_weights(name, given.norms[b : b + 1], given.total[b : b + 1], carries[b : b + 1]) for b in (0, 1)]
    moments = [weighted_second_moment(rows[b : b + 1], apart[b], carries[b : b + 1]) for b in (0, 1)]
    check(*control_energy(Rows(rows, carries), weights, BASIS), moments)


def test_norms_and_sums_are_the_same_from_rows_and_kernel() -> None:
    factor = normal(2, 5, 3)
    known, kernel = Factor(factor), Factor(None, gram_kernel(factor))
    torch.testing.assert_close(known.norms, kernel.norms)
    torch.testing.assert_close(known.total, kernel.total)
    torch.testing.assert_close(known.kernel, kernel.kernel)


def test_two_bases_on_the_same_rows_do_not_mix() -> None:
    rows = Rows(normal(1, 5, D), torch.ones(1, 5, dtype=torch.bool))
    factor, other = Factor(normal(1, 5, 3, seed=1)), torch.linalg.qr(normal(D, RANK, seed=4)).Q
    first = gradient_energy(rows, factor, BASIS)[0]
    assert not torch.allclose(gradient_energy(rows, factor, other)[0], first)
    torch.testing.assert_close(gradient_energy(rows, factor, BASIS)[0], first)


def test_a_factor_needs_rows_or_kernel() -> None:
    with pytest.raises(ValueError, match="rows or its kernel"):
        _ = Factor(None).kernel
