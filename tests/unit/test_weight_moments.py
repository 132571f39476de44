"""Second moments of weight gradients and their controls, against sums written out and averages over draws."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from tl_aniso import weight_moments
from tl_aniso.weight_moments import (
    control_weights,
    gram_kernel,
    second_moment,
    symmetric_product,
    token_kernel,
    weighted_second_moment,
)

DRAWS = 20_000


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def control(name: str, rows: Tensor, factor: Tensor, carries: Tensor) -> Tensor:
    """Closed form as a capture asks for it: from norms alone."""
    factor = factor * carries[..., None]
    weights = control_weights(name, factor.square().sum(2), factor.sum(1).square().sum(1), carries)
    return weighted_second_moment(rows, weights, carries)


def by_gradient(rows: Tensor, factor: Tensor) -> Tensor:
    gradient = factor.T @ rows
    return gradient.T @ gradient


def mean_of_draws(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(samples)
    return stacked.mean(0), stacked.std(0) / len(samples) ** 0.5


@pytest.mark.parametrize(("length", "side", "d"), [(7, 5, 4), (40, 3, 6), (3, 50, 6), (9, 8, 300), (5, 4, 257)])
def test_second_moment_is_the_sum_of_squared_gradients(length: int, side: int, d: int) -> None:
    rows, factor = normal(3, length, d), normal(3, length, side, seed=1)
    expected = sum(by_gradient(rows[b], factor[b]) for b in range(3))
    torch.testing.assert_close(second_moment(rows, factor), expected)
    torch.testing.assert_close(second_moment(rows, None, gram_kernel(factor)), expected)


def test_cheaper_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def spy(factor: Tensor) -> Tensor:
        asked.append(tuple(factor.shape))
        return gram_kernel(factor)

    monkeypatch.setattr(weight_moments, "gram_kernel", spy)
    second_moment(normal(1, 100, 8), normal(1, 100, 2))
    assert asked == []  # long and narrow: G is formed
    second_moment(normal(1, 4, 8), normal(1, 4, 200))
    assert asked == [(1, 4, 200)]


def test_neither_factor_nor_kernel() -> None:
    with pytest.raises(ValueError, match="factor or the kernel"):
        second_moment(normal(1, 4, 8), None)


@pytest.mark.parametrize("d", [3, 255, 256, 301])
def test_symmetric_product(d: int) -> None:
    rows, spread = normal(20, d), normal(20, 20, seed=1)
    other = (spread @ spread.T) @ rows
    torch.testing.assert_close(symmetric_product(rows, other), rows.T @ other, rtol=1e-9, atol=1e-9)


def test_token_kernel_counts_pairs_of_one_token() -> None:
    ids = torch.tensor([[4, 5, 4, 4, 0], [5, 5, 0, 0, 0]])
    carries = torch.tensor([[True, True, True, False, False], [True, False, False, False, False]])
    one_hot = torch.nn.functional.one_hot(ids, 6).double() * carries[..., None]
    torch.testing.assert_close(token_kernel(ids, carries, torch.float64), gram_kernel(one_hot))


# Readers: rows are inputs, factors output gradients. Writers: the other way round. Embedding: factors are one-hot.
FACTORS = {
    "reader": normal(1, 6, 3, seed=2) + 0.7,
    "writer": normal(1, 6, 9, seed=3) - 0.4,
    "embedding": torch.nn.functional.one_hot(torch.tensor([[1, 2, 1, 1, 3, 0]]), 4).double(),
}


@pytest.mark.parametrize("role", FACTORS)
class TestClosedFormsEqualAverages:
    """20,000 draws; every entry within 5 standard errors, and the whole matrix within 3% of its norm."""

    rows = normal(1, 6, 5) + 0.5
    carries = torch.tensor([[True, True, True, True, True, False]])

    def check(self, closed: Tensor, samples: list[Tensor]) -> None:
        mean, error = mean_of_draws(samples)
        assert bool(((closed - mean).abs() <= 5 * error + 1e-12).all())
        assert float((closed - mean).norm() / mean.norm()) < 0.03

    def test_sign_flip(self, role: str) -> None:
        factor = FACTORS[role][0, :5]
        signs = torch.randint(0, 2, (DRAWS, 5), generator=torch.Generator().manual_seed(7)).double() * 2 - 1
        samples = [by_gradient(self.rows[0, :5], factor * sign[:, None]) for sign in signs]
        self.check(control("sign_flip", self.rows, FACTORS[role], self.carries), samples)

    def test_shuffled_g(self, role: str) -> None:
        factor, generator = FACTORS[role][0, :5], torch.Generator().manual_seed(8)
        samples = [by_gradient(self.rows[0, :5], factor[torch.randperm(5, generator=generator)]) for _ in range(DRAWS)]
        self.check(control("shuffled_g", self.rows, FACTORS[role], self.carries), samples)

    def test_shuffled_g_over_every_permutation(self, role: str) -> None:
        factor = FACTORS[role][0, :5]
        exact = [by_gradient(self.rows[0, :5], factor[list(order)]) for order in permutations(range(5))]
        torch.testing.assert_close(
            control("shuffled_g", self.rows, FACTORS[role], self.carries), torch.stack(exact).mean(0)
        )

    def test_sign_flip_over_every_sign(self, role: str) -> None:
        factor = FACTORS[role][0, :5]
        exact = [
            by_gradient(self.rows[0, :5], factor * (1 - 2 * torch.tensor([n >> t & 1 for t in range(5)])[:, None]))
            for n in range(32)
        ]
        torch.testing.assert_close(
            control("sign_flip", self.rows, FACTORS[role], self.carries), torch.stack(exact).mean(0)
        )

    def test_input_energy_ignores_the_factor(self, role: str) -> None:
        kept = self.rows[0, :5]
        torch.testing.assert_close(control("input_energy", self.rows, FACTORS[role], self.carries), kept.T @ kept)


def test_one_carrying_position_has_nothing_to_permute() -> None:
    rows, factor = normal(1, 3, 4), normal(1, 3, 2, seed=1)
    carries = torch.tensor([[True, False, False]])
    torch.testing.assert_close(control("shuffled_g", rows, factor, carries), by_gradient(rows[0, :1], factor[0, :1]))


def test_no_carrying_position_gives_zero() -> None:
    carries = torch.zeros(1, 3, dtype=torch.bool)
    for name in weight_moments.CONTROL_NAMES:
        assert control(name, normal(1, 3, 4), normal(1, 3, 2), carries).abs().max() == 0


def test_controls_add_up_over_sequences() -> None:
    rows, factor = normal(2, 4, 3), normal(2, 4, 5, seed=1)
    carries = torch.tensor([[True, True, True, False], [True, True, False, False]])
    for name in weight_moments.CONTROL_NAMES:
        apart = sum(control(name, rows[b : b + 1], factor[b : b + 1], carries[b : b + 1]) for b in range(2))
        torch.testing.assert_close(control(name, rows, factor, carries), apart)


def test_unknown_control() -> None:
    with pytest.raises(ValueError, match="unknown control"):
        control_weights("other", torch.ones(1, 2), torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
