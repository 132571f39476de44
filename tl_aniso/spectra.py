"""Eigenvalues of a covariance before and after a plane is taken out, against normal planes of the same rank."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_basis, as_square
from tl_aniso.checks import MOST_SEED, as_integer
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.planes import complement_frames

__all__ = ["SPECTRA", "spectra_without"]

SPECTRA = ("full", "without tangent", "without normal")

# An eigenvalue below this share of the trace times the width is rounding, not variance.
_ROUNDING = 1e-13


def spectra_without(
    covariance: Float[ArrayLike, "d d"], Q: Float[ArrayLike, "d k"], *, n_planes: int = 20, seed: int = 0
) -> Any:
    """Spectra of a covariance as it is, without a plane, and without normal planes of the same rank.

    A removal leaves d - k dimensions (``docs/method.md``, section 5; arXiv:2604.08764): the eigenvalues are those of
    the covariance restricted to the complement of the plane. Normal planes are Haar in the complement of Q.

    Args:
        covariance: centred covariance, or uncentred second moment; any scale.
        Q: orthonormal tangent basis of rank at most d // 2.
        n_planes: normal planes drawn.
        seed: of a local generator.

    Returns:
        A pandas frame with columns series ("full", "without tangent", "without normal"), index (from 1, largest
        first), value, low, high, rank, d, n_planes. ``value`` is a share of the full trace; of "without normal" the
        mean over planes, with the smallest and largest in ``low`` and ``high``. NaN for eigenvalues that are
        rounding.

    Raises:
        TlAnisoError: shapes that do not fit, a basis that is not orthonormal, a rank above d // 2.
        UndefinedMeasureError: a covariance that is not finite, or zero.

    Example:
        >>> import torch
        >>> from tl_aniso.spectra import spectra_without
        >>> table = spectra_without(torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0])), torch.eye(4)[:, :1], n_planes=5)
        >>> table[table["series"] == "without tangent"]["value"].round(6).tolist()
        [0.2, 0.1, 0.1]
    """
    import pandas as pd

    n_planes = as_integer("n_planes", n_planes, least=1)
    seed = as_integer("seed", seed, least=0, most=MOST_SEED)
    matrix = as_square(covariance, "covariance").detach()
    d = matrix.shape[0]
    basis = as_basis(Q, d).to(matrix.device)
    k = basis.shape[1]
    if k > d // 2:
        raise TlAnisoError(f"rank {k} is above d // 2 = {d // 2}: no normal plane of that rank exists; lower the rank")
    trace = float(matrix.trace())
    if not trace > 0 or not bool(torch.isfinite(matrix).all()):
        raise UndefinedMeasureError("the covariance holds no variance, or values that are not finite")
    matrix = matrix / trace
    basis = torch.linalg.qr(basis).Q
    normal = torch.cat(
        [
            torch.stack([_left(matrix, plane) for plane in planes])
            for planes in complement_frames(basis, n_planes, seed=seed)
        ]
    )
    found = {
        "full": (_falling(matrix),) * 3,
        "without tangent": (_left(matrix, basis),) * 3,
        "without normal": (normal.mean(0), normal.min(0).values, normal.max(0).values),
    }
    parts = []
    for series, (value, low, high) in found.items():
        table = pd.DataFrame({"series": series, "index": range(1, len(value) + 1)})
        is_drawn = series == "without normal"
        table["value"] = _known(value, d)
        table["low"] = _known(low, d) if is_drawn else float("nan")
        table["high"] = _known(high, d) if is_drawn else float("nan")
        parts.append(table)
    return pd.concat(parts, ignore_index=True).assign(rank=k, d=d, n_planes=n_planes)


def _left(matrix: Float64[Tensor, "d d"], plane: Float64[Tensor, "d k"]) -> Float64[Tensor, " m"]:
    """Eigenvalues in the complement of a plane, largest first."""
    rest = torch.linalg.qr(plane, mode="complete").Q[:, plane.shape[1] :]
    return _falling(rest.T @ matrix @ rest)


def _falling(matrix: Float64[Tensor, "m m"]) -> Float64[Tensor, " m"]:
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)


def _known(values: Float64[Tensor, " m"], d: int) -> Any:
    return torch.where(values > _ROUNDING * d, values, torch.nan).cpu().numpy()
