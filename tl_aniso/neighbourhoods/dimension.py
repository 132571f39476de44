"""How many dimensions a neighbourhood fills."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

__all__ = ["spectral_dimension"]


def spectral_dimension(spectrum: Float64[Tensor, " r"]) -> float:
    """Participation ratio of a local spectrum, (sum of eigenvalues)^2 over the sum of their squares.

    At most n - 1 from n rows and biased low by few of them: compare at equal n.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods.dimension import spectral_dimension
        >>> spectral_dimension(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    return float(spectrum.sum().square() / spectrum.square().sum())
