"""Sums of a capture against those of `tests.reference.gradients`: relative Frobenius errors, site by site."""

from typing import Any

import torch
from torch import Tensor

from tests.reference.gradients import Reference


def relative(got: Tensor, expected: Tensor) -> float:
    # A query that can see one position only has gradient zero, exactly or up to rounding as the processor has it.
    return float((got - expected).norm() / expected.norm().clamp_min(1e-12))


def weight_errors(got: Any, reference: Reference) -> dict[str, float]:
    gradients = got.weight_gradients
    return {site: relative(gradients[site].second_moment(), reference.second_moment(site)) for site in gradients}


def gradient_errors(got: Any, reference: Reference) -> dict[str, float]:
    gradients = got.activation_gradients
    return {site: relative(gradients[site].second_moment(), reference.row_moment(site)) for site in gradients}


def activation_errors(got: Any, expected: dict[str, list[Tensor]]) -> dict[str, float]:
    """Of means and of covariances, whichever is larger."""
    errors = {}
    for site, values in expected.items():
        rows = torch.cat(values)
        assert got.activations[site].count == len(rows), site
        covariance = relative(got.activations[site].covariance(), torch.cov(rows.T))
        errors[site] = max(covariance, relative(got.activations[site].mean, rows.mean(0)))
    return errors


def assert_small(errors: dict[str, float], limit: float = 1e-5) -> None:
    assert errors
    assert {site: error for site, error in errors.items() if not error < limit} == {}
