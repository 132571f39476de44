"""Uniformly random planes (Haar measure on the Grassmannian), in all of R^d or beside a given plane."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_basis, as_floating
from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError

__all__ = [
    "complement_frames",
    "gaussian_frames",
    "normal_controls",
    "orthonormalise",
    "principal_cosines",
    "random_planes",
]

# float64 numbers per chunk of planes: 32 MiB.
_CHUNK = 1 << 22


def gaussian_frames(d: int, k: int, n: int, *, seed: int) -> Iterator[Float64[Tensor, "c d k"]]:
    """n standard Gaussian d x k matrices, in chunks; the span of each is a Haar plane."""
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, _CHUNK // (d * k))
    for start in range(0, n, at_once):
        # float32 normals cost a fifth, and 24 bits are plenty to choose a random direction.
        yield torch.randn(min(at_once, n - start), d, k, generator=generator).to(torch.float64)


def orthonormalise(frames: Float64[Tensor, "n d k"]) -> Float64[Tensor, "n d k"]:
    """Orthonormal frames of the same spans; Haar frames from Gaussian ones."""
    q, r = torch.linalg.qr(frames)
    # Householder signs are not uniform; a positive diagonal of R makes the frame Haar, not only its span.
    return q * torch.where(r.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0)[:, None, :]


def complement_frames(Q: Float64[Tensor, "d k"], n: int, *, seed: int) -> Iterator[Float64[Tensor, "c d k"]]:
    """Orthonormal frames, Haar in the complement of an orthonormal Q, in chunks. Q is taken as checked."""
    d, k = Q.shape
    for gaussian in gaussian_frames(d, k, n, seed=seed):
        frames = orthonormalise(_project_out(gaussian.to(Q.device), Q))
        if 3 * k > d:
            # The complement is hardly wider than the plane: a near-singular draw amplifies what was left of
            # Q.
            frames = orthonormalise(_project_out(frames, Q))
        yield frames


def _check(d: int, k: int, n: int, room: int, where: str) -> None:
    if not 1 <= k <= room:
        raise TlAnisoError(f"a plane of rank {k} does not fit into {where} (dimension {room} of {d}); lower the rank")
    as_integer("the number of planes n", n, least=1)


def random_planes(d: int, k: int, n: int, *, seed: int = 0) -> Float64[Tensor, "n d k"]:
    """n Haar-random orthonormal k-frames of R^d, from a local generator.

    Raises:
        TlAnisoError: k below 1 or above d, n below 1.

    Example:
        >>> from tl_aniso.subspace import random_planes
        >>> planes = random_planes(32, 4, 10, seed=0)
        >>> planes.shape, bool((planes.mT @ planes).sub(planes.new_ones(4).diag()).abs().max() < 1e-12)
        (torch.Size([10, 32, 4]), True)
    """
    _check(d, k, n, d, f"R^{d}")
    return torch.cat([orthonormalise(frames) for frames in gaussian_frames(d, k, n, seed=seed)])


def normal_controls(Q: Float[Tensor, "d k"], n: int = 20, *, seed: int = 0) -> Float64[Tensor, "n d k"]:
    """n random planes of the rank of Q, Haar in the orthogonal complement of Q.

    The paper's control (arXiv:2604.08764): as many directions as the tangent proxy holds, none of them shared
    with it.

    Args:
        Q: orthonormal d x k basis.
        n: number of planes.
        seed: of a local generator.

    Returns:
        Orthonormal frames, float64, on the device of Q.

    Raises:
        TlAnisoError: Q is not orthonormal, or its rank is above d // 2 (no matched-rank complement).

    Example:
        >>> import torch
        >>> from tl_aniso import normal_controls
        >>> Q = torch.eye(12)[:, :3]
        >>> planes = normal_controls(Q, 20, seed=1)
        >>> planes.shape, bool((Q.double().T @ planes).abs().max() < 1e-12)
        (torch.Size([20, 12, 3]), True)
    """
    raw = as_floating(Q, "Q")
    basis = as_basis(raw, raw.shape[0] if raw.ndim else 1)
    d, k = basis.shape
    _check(d, k, n, d - k, "the complement of Q")
    basis = torch.linalg.qr(basis).Q  # to float64 rounding, where Q came in float32
    return torch.cat(list(complement_frames(basis, n, seed=seed)))


def _project_out(frames: Float64[Tensor, "n d k"], basis: Float64[Tensor, "d k"]) -> Float64[Tensor, "n d k"]:
    return frames - basis @ (basis.T @ frames)


def principal_cosines(A: ArrayLike, B: ArrayLike) -> Float64[Tensor, " k"]:
    """Cosines of the principal angles between the spans of two orthonormal bases, largest first.

    Raises:
        TlAnisoError: a basis that is not orthonormal, or different d.

    Example:
        >>> import torch
        >>> from tl_aniso.subspace import principal_cosines
        >>> principal_cosines(torch.eye(4)[:, :2], torch.eye(4)[:, 1:3]).round(decimals=6).tolist()
        [1.0, 0.0]
    """
    first = as_floating(A, "A")
    left = as_basis(first, first.shape[0], "A")
    return torch.linalg.svdvals(left.T @ as_basis(B, left.shape[0], "B").to(left.device)).clamp(max=1.0)
