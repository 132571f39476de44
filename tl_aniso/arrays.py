"""Turn what a user passes into checked float64 tensors, with one clear error where that cannot be done."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError

__all__ = ["ArrayLike", "as_basis", "as_floating", "as_square", "to_float64"]

ArrayLike: TypeAlias = Tensor | np.ndarray

# Looser than float32 rounding (a float32 basis is orthonormal to about 1e-6), far tighter than any basis that
# was never orthonormalised.
_ORTHONORMAL_TOLERANCE = 1e-4
_SYMMETRY_TOLERANCE = 1e-4
# A sum of squares in float32 may fall this far below zero, as a share of the largest, and no further.
_NEGATIVE_TOLERANCE = 1e-6


def as_floating(values: ArrayLike, name: str) -> Tensor:
    """A floating tensor of `values`; integers become float64, the graph of a tensor is kept.

    Raises:
        TlAnisoError: `values` is not a real tensor or array.
    """
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise TlAnisoError(f"{name} must be a tensor or an array of numbers, got {type(values).__name__}") from error
    if tensor.is_complex():
        raise TlAnisoError(f"{name} is complex; pass real numbers")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def to_float64(tensor: Tensor) -> Tensor:
    """`tensor` in float64, on its own device where that has float64 and on the CPU where not."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)


def as_square(matrix: ArrayLike, name: str) -> Tensor:
    """A finite symmetric matrix in float64 with a positive trace (differentiable where `matrix` is).

    Raises:
        TlAnisoError: not square, not symmetric, or with a negative diagonal. That the matrix is positive semidefinite
            beyond its diagonal is not checked: it would take an eigendecomposition.
        UndefinedMeasureError: non-finite entries, or nothing on the diagonal.
    """
    result = to_float64(as_floating(matrix, name))
    if result.ndim != 2 or result.shape[0] != result.shape[1] or result.shape[0] == 0:
        raise TlAnisoError(f"{name} must be a square d x d matrix, got shape {tuple(result.shape)}")
    values = result.detach()
    if not torch.isfinite(values).all():
        raise UndefinedMeasureError(f"{name} holds values that are not finite")
    trace = float(values.diagonal().sum())
    if trace <= 0.0:
        raise UndefinedMeasureError(
            f"{name} has trace {trace:g}: there is no energy to share out (constant or zero rows?)"
        )
    diagonal = values.diagonal()
    if float(diagonal.min()) < -_NEGATIVE_TOLERANCE * float(diagonal.max()):
        raise TlAnisoError(
            f"{name} has {float(diagonal.min()):.3g} on its diagonal: a second moment or a covariance has no negative "
            "energy there"
        )
    if float((values - values.T).abs().max()) > _SYMMETRY_TOLERANCE * float(values.abs().max()):
        raise TlAnisoError(f"{name} is not symmetric; pass a second moment or a covariance, not rows")
    return result


def as_basis(basis: ArrayLike, d: int, name: str = "Q") -> Tensor:
    """An orthonormal d x k basis in float64.

    Raises:
        TlAnisoError: not d x k with 1 <= k <= d, not finite, or columns that are not orthonormal.
    """
    result = to_float64(as_floating(basis, name).detach())
    if result.ndim != 2 or result.shape[0] != d or not 1 <= result.shape[1] <= d:
        raise TlAnisoError(
            f"{name} must be d x k with d = {d} and 1 <= k <= d, got shape {tuple(result.shape)}; "
            "scikit-learn's components_ are k x d, pass their transpose"
        )
    gram = result.T @ result
    defect = float((gram - torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)).abs().max())
    if not defect <= _ORTHONORMAL_TOLERANCE:
        raise TlAnisoError(
            f"the columns of {name} are not orthonormal (largest defect {defect:.2g}); pass torch.linalg.qr({name}).Q"
        )
    return result
