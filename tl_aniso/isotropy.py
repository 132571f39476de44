"""How evenly variance spreads over directions: IsoScore, IsoScore*, participation ratio and relatives.

Everything here depends on a covariance through its trace and Frobenius norm (or its eigenvalues); rows are
samples.
"""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_floating, as_square, to_float64
from tl_aniso.errors import TlAnisoError, TlAnisoWarning, UndefinedMeasureError

__all__ = [
    "Target",
    "effective_rank",
    "isoscore",
    "isoscore_star",
    "participation_ratio",
    "score",
    "shrunk",
    "top_share",
]

Target: TypeAlias = Literal["scaled_identity", "identity"]


def covariance_of(
    points: Float[ArrayLike, "n d"] | None, covariance: Float[ArrayLike, "d d"] | None
) -> tuple[Float[Tensor, "d d"], torch.dtype]:
    """The covariance in float64, from points or as given, and the precision that the answer should have."""
    if (points is None) == (covariance is None):
        raise TlAnisoError("pass either points (rows are samples) or covariance=, not both and not neither")
    if covariance is not None:
        matrix = as_floating(covariance, "covariance")
        return as_square(matrix, "covariance"), _precision(matrix)
    rows = as_floating(points, "points")  # type: ignore[arg-type]
    if rows.ndim != 2 or 0 in rows.shape:
        raise TlAnisoError(f"points must be n x d, samples first, got shape {tuple(rows.shape)}")
    n, d = rows.shape
    values = rows.detach()
    if n < 2:
        raise UndefinedMeasureError("isotropy needs at least two rows, got one")
    if not torch.isfinite(values).all():
        raise UndefinedMeasureError("points holds values that are not finite")
    if bool((values == values[0]).all()):
        raise UndefinedMeasureError("all rows of points are equal: their isotropy is undefined")
    if n < d:
        warnings.warn(
            f"points has {n} rows and {d} columns: read as {n} samples in {d} dimensions, whose scores are biased "
            f"low; if it holds {d} samples in {n} dimensions, pass points.T",
            TlAnisoWarning,
            stacklevel=3,
        )
    exact = to_float64(rows)
    centred = exact - exact.mean(0)
    matrix = centred.T @ centred / (n - 1)
    trace = float(matrix.detach().trace())
    if not torch.isfinite(matrix.detach()).all() or not trace > 0.0:
        raise UndefinedMeasureError("the squares of points overflow or underflow; rescale the points")
    return matrix, _precision(rows)


def _precision(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def participation_ratio(
    points: Float[ArrayLike, "n d"] | None = None, *, covariance: Float[ArrayLike, "d d"] | None = None
) -> Float[Tensor, ""]:
    """tr(C)^2 / tr(C^2): the number of directions that share the variance, from 1 to d. Differentiable.

    Args:
        points: rows are samples; their centred covariance is taken.
        covariance: instead of points, a covariance or an uncentred second moment.

    Returns:
        A 0-dimensional tensor: float64 for float64 input, float32 otherwise (computed in float64).

    Raises:
        UndefinedMeasureError: one row, equal rows, numbers that are not finite, no variance.
        TlAnisoError: shapes that do not fit.

    Example:
        >>> import torch
        >>> from tl_aniso import participation_ratio
        >>> participation_ratio(covariance=torch.diag(torch.tensor([2.0, 2.0, 0.0, 0.0]))).item()
        2.0
    """
    matrix, dtype = covariance_of(points, covariance)
    trace = matrix.trace()
    # Scaled first: the square of a variance of 1e-200 is zero.
    return (1.0 / (matrix / trace).square().sum()).to(dtype)


def isoscore(
    points: Float[ArrayLike, "n d"] | None = None, *, covariance: Float[ArrayLike, "d d"] | None = None
) -> Float[Tensor, ""]:
    """IsoScore of Rudman et al. (2022), which is exactly (PR - 1) / (d - 1) with PR the participation ratio.

    0 where one direction holds all the variance, 1 where all hold the same. Differentiable. Biased low with
    few rows: isotropic rows score about .66 at n = 2 d and .95 at n = 20 d.

    Args:
        points: rows are samples, d at least 2.
        covariance: instead of points.

    Returns:
        A 0-dimensional tensor between 0 and 1.

    Raises:
        UndefinedMeasureError: as `participation_ratio`, and d = 1.

    Example:
        >>> import torch
        >>> from tl_aniso import isoscore
        >>> isoscore(covariance=torch.eye(4)).item()
        1.0
        >>> round(isoscore(covariance=torch.diag(torch.tensor([3.0, 1.0]))).item(), 3)
        0.6
    """
    return isoscore_star(points, covariance=covariance, zeta=0.0)


def isoscore_star(
    points: Float[ArrayLike, "n d"] | None = None,
    *,
    covariance: Float[ArrayLike, "d d"] | None = None,
    zeta: float = 0.1,
    target: Target | Float[Tensor, "d d"] = "scaled_identity",
) -> Float[Tensor, ""]:
    """IsoScore* of Rudman & Eickhoff (2024): IsoScore of (1 - zeta) C + zeta C_0. Differentiable.

    With the plain identity as C_0 the score depends on the unit of the rows (gradients of size 1e-6 score
    1.000), so the default target is tr(C)/d I; the plain identity is there for parity with the `IsoScore`
    package.

    Args:
        points: rows are samples, d at least 2.
        covariance: instead of points.
        zeta: weight of the target, 0 to 1.
        target: "scaled_identity", "identity", or a d x d matrix.

    Returns:
        A 0-dimensional tensor between 0 and 1.

    Raises:
        UndefinedMeasureError: as `isoscore`.
        TlAnisoError: zeta outside 0 ... 1, a target that is unknown or does not fit.

    Example:
        >>> import torch
        >>> from tl_aniso import isoscore_star
        >>> C = torch.diag(torch.tensor([3.0, 1.0]))
        >>> round(isoscore_star(covariance=C).item(), 4), round(isoscore_star(covariance=1e-6 * C).item(), 4)
        (0.6632, 0.6632)
        >>> round(isoscore_star(covariance=1e-6 * C, target="identity").item(), 4)
        1.0
    """
    if not 0.0 <= zeta <= 1.0:
        raise TlAnisoError(f"zeta must lie between 0 and 1, got {zeta}")
    matrix, dtype = covariance_of(points, covariance)
    d = matrix.shape[0]
    if isinstance(target, str):
        trace = matrix.trace()
        unit = 1.0 / trace  # the trace of the covariance is taken as the unit, so that no square under- or overflows
        norm2 = (matrix * unit).square().sum()
        return score(*shrunk(torch.ones_like(norm2), norm2, d, zeta, target_scale(target, d, unit)), d).to(dtype)
    goal = as_square(target, "target").to(matrix.device)
    if goal.shape != matrix.shape:
        raise TlAnisoError(f"target must be {d} x {d}, got shape {tuple(goal.shape)}")
    mixed = (1 - zeta) * matrix + zeta * goal
    mixed = mixed / mixed.trace()
    return score(mixed.trace(), mixed.square().sum(), d).to(dtype)


def target_scale(target: str, d: int, unit: Tensor | float) -> Tensor | float:
    """s in C_0 = s I, in units where the covariance has trace 1; `unit` is one over its trace.

    Raises:
        TlAnisoError: an unknown target.
    """
    if target == "scaled_identity":
        return 1.0 / d
    if target == "identity":
        return unit
    raise TlAnisoError(f"target must be 'scaled_identity', 'identity' or a d x d tensor, got {target!r}")


def shrunk(
    trace: Tensor, norm2: Tensor, d: int, zeta: float, scale: Tensor | float
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    """Trace and squared Frobenius norm of (1 - zeta) C + zeta scale I_d, from those of C."""
    a, b = 1.0 - zeta, zeta * scale
    return a * trace + b * d, a * a * norm2 + 2 * a * b * trace + b * b * d


def score(trace: Tensor, norm2: Tensor, d: int) -> Float[Tensor, "*n"]:
    """IsoScore (PR - 1) / (d - 1) from a trace and a squared Frobenius norm.

    Raises:
        UndefinedMeasureError: d = 1, where every score would be 0/0.
    """
    if d < 2:
        raise UndefinedMeasureError("IsoScore is undefined in one dimension")
    # By Cauchy and Schwarz never below 0; rounding takes a single direction a hair under it.
    return ((trace.square() / norm2 - 1.0) / (d - 1)).clamp(min=0.0)


def _eigenvalue_shares(matrix: Float[Tensor, "d d"]) -> Float[Tensor, " d"]:
    values = torch.linalg.eigvalsh(matrix / matrix.trace()).clamp(min=0.0)
    return values / values.sum()


def effective_rank(
    points: Float[ArrayLike, "n d"] | None = None, *, covariance: Float[ArrayLike, "d d"] | None = None
) -> Float[Tensor, ""]:
    """exp of the entropy of the eigenvalue shares (Roy & Vetterli 2007), from 1 to d.

    Raises:
        UndefinedMeasureError: as `participation_ratio`.

    Example:
        >>> import torch
        >>> from tl_aniso.isotropy import effective_rank
        >>> round(effective_rank(covariance=torch.diag(torch.tensor([1.0, 1.0, 0.0]))).item(), 6)
        2.0
    """
    matrix, dtype = covariance_of(points, covariance)
    return torch.special.entr(_eigenvalue_shares(matrix)).sum().exp().to(dtype)


def top_share(
    points: Float[ArrayLike, "n d"] | None = None, *, covariance: Float[ArrayLike, "d d"] | None = None
) -> Float[Tensor, ""]:
    """Largest eigenvalue over the trace, from 1/d to 1.

    Raises:
        UndefinedMeasureError: as `participation_ratio`.

    Example:
        >>> import torch
        >>> from tl_aniso.isotropy import top_share
        >>> top_share(covariance=torch.diag(torch.tensor([3.0, 1.0]))).item()
        0.75
    """
    matrix, dtype = covariance_of(points, covariance)
    return _eigenvalue_shares(matrix).max().to(dtype)


def __getattr__(name: str) -> object:
    # Ablation builds on the scores above, and is found here as well.
    if name in ("Ablation", "ablate"):
        from tl_aniso import ablation

        return getattr(ablation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
