"""Shares of gradient energy in a plane, with exact null moments and Monte Carlo p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_basis, as_square
from tl_aniso.errors import TlAnisoError
from tl_aniso.planes import gaussian_frames, orthonormalise

__all__ = [
    "EnergyNull",
    "energy_null",
    "energy_p_value",
    "energy_p_values",
    "energy_share",
    "excess",
    "odds",
    "p_value_of_share",
    "r_energy",
]

# Shares that are equal in exact arithmetic count as ties, which makes the p-value larger.
_TIE = 1e-10
# How far rounding of sums in float32 may carry a share beyond 0 ... 1.
_OUTSIDE = 1e-4


def energy_share(S: Float[ArrayLike, "d d"], Q: Float[ArrayLike, "d k"]) -> float:
    """Share of the energy of gradient rows that lies in the span of Q: tr(Q^T S Q) / tr(S).

    Args:
        S: uncentred second moment (or sum of outer products) of gradient rows; any scale.
        Q: orthonormal basis of the plane.

    Returns:
        A share between 0 and 1; k/d for isotropic rows, whatever the plane.

    Raises:
        TlAnisoError: S is not square or not symmetric, or is seen not to be positive semidefinite (by its
            diagonal or the share; its eigenvalues are not computed), Q is not an orthonormal d x k basis.
        UndefinedMeasureError: S is not finite or holds no energy.

    Example:
        >>> import torch
        >>> from tl_aniso import energy_share
        >>> S = torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0]))
        >>> energy_share(S, torch.eye(4)[:, :1]), energy_share(torch.eye(4), torch.eye(4)[:, :2])
        (0.6, 0.5)
    """
    moment = as_square(S, "S").detach()
    basis = as_basis(Q, moment.shape[0]).to(moment.device)
    return _share(moment, basis)


def _share(moment: Float64[Tensor, "d d"], basis: Float64[Tensor, "d k"]) -> float:
    share = float(((moment @ basis) * basis).sum() / moment.trace())
    if not -_OUTSIDE <= share <= 1 + _OUTSIDE:
        raise TlAnisoError(
            f"the share of S in Q is {share:.3g}, outside 0 ... 1: S is not positive semidefinite; pass a second moment"
        )
    return share


@dataclass(frozen=True)
class EnergyNull:
    """Exact mean and standard deviation of the share of a matched-rank normal plane.

    Attributes:
        mean: mean share over planes drawn uniformly from the complement of Q.
        std: standard deviation of that share.
        rank: k.
        d: width of the space.
    """

    mean: float
    std: float
    rank: int
    d: int


def energy_null(S: Float[ArrayLike, "d d"], Q: Float[ArrayLike, "d k"]) -> EnergyNull:
    """Exact null of `energy_share`: planes of rank k, Haar in the orthogonal complement of Q.

    With P = I - Q Q^T, A = P S P, m = d - k, a1 = tr(A) / tr(S) and a2 = tr(A^2) / tr(S)^2,

        mean = k a1 / m        var = 2 k (m - k) / (m (m - 1) (m + 2)) (a2 - a1^2 / m)

    No draws are needed. The control is that of arXiv:2604.08764, which draws 20 planes.

    Args:
        S: uncentred second moment of gradient rows; any scale.
        Q: orthonormal basis of rank at most d // 2.

    Returns:
        Mean and standard deviation, as shares of tr(S).

    Raises:
        TlAnisoError: as `energy_share`, and a rank above d // 2.
        UndefinedMeasureError: S is not finite or holds no energy.

    Example:
        >>> import torch
        >>> from tl_aniso import energy_null
        >>> S = torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0]))
        >>> null = energy_null(S, torch.eye(4)[:, :1])
        >>> round(null.mean, 4), round(null.std, 4)
        (0.1333, 0.0298)
    """
    moment = as_square(S, "S").detach()
    d = moment.shape[0]
    basis = as_basis(Q, d).to(moment.device)
    k = basis.shape[1]
    m = d - k
    if k > m:
        raise TlAnisoError(f"rank {k} is above d // 2 = {d // 2}: no plane of that rank fits beside Q; lower the rank")
    moment = moment / moment.trace()
    left = moment - basis @ (basis.T @ moment)
    rest = left - (left @ basis) @ basis.T
    a1, a2 = float(rest.trace()), float(rest.square().sum())
    spread = max(a2 - a1 * a1 / m, 0.0)
    variance = 2 * k * (m - k) / (m * (m - 1) * (m + 2)) * spread if m > k else 0.0
    return EnergyNull(mean=k * a1 / m, std=math.sqrt(variance), rank=k, d=d)


def odds(share: float) -> float:
    """share / (1 - share); infinite at 1.

    Raises:
        TlAnisoError: a share outside 0 ... 1.

    Example:
        >>> from tl_aniso.energy import odds
        >>> odds(0.75)
        3.0
    """
    if math.isnan(share):
        return math.nan
    if not -1e-9 <= share <= 1 + 1e-9:
        raise TlAnisoError(f"a share lies between 0 and 1, got {share}")
    share = min(max(share, 0.0), 1.0)
    return math.inf if share == 1.0 else share / (1.0 - share)


def r_energy(share: float, rank: int, d: int) -> float:
    """Energy ratio of the tangent plane to the mean normal plane of the same rank: odds(E) / odds(k/d).

    The expectation over all normal planes, exactly. It is a function of the share alone, without upper bound,
    and grows with d at equal share: compare it at equal k and d only, and read the share beside it.

    Args:
        share: E, from `energy_share`.
        rank: k, at most d // 2.
        d: width of the space.

    Example:
        >>> from tl_aniso.energy import r_energy
        >>> round(r_energy(0.5, 16, 128), 6), round(r_energy(0.5, 16, 768), 6)
        (7.0, 47.0)
    """
    if not 1 <= rank <= d // 2:
        raise TlAnisoError(f"rank {rank} is outside 1 ... d // 2 = {d // 2}: there is no matched-rank normal plane")
    return odds(share) / odds(rank / d)


def excess(share: float, control_share: float) -> float:
    """Odds ratio of the true share over the share of a control; 1 where the control explains all of it.

    Example:
        >>> from tl_aniso.energy import excess
        >>> excess(0.5, 0.2)
        4.0
    """
    control = odds(control_share)
    if control == 0.0 or math.isinf(control):
        return math.nan if odds(share) == control else (math.inf if control == 0.0 else 0.0)
    return odds(share) / control


@lru_cache(maxsize=8)
def _null_weights(d: int, k: int, n: int, seed: int) -> Float64[Tensor, "n d"]:
    """Squared row norms of n Haar k-frames of R^d.

    The share of a Haar plane is sum_i lambda_i |q_i|^2, with lambda the eigenvalues of S over their sum and
    q_i the rows of a Haar frame, because Haar measure is the same in the eigenbasis. So the draws do not
    depend on S, and one set serves every site.
    """
    return torch.cat([orthonormalise(f).square().sum(2) for f in gaussian_frames(d, k, n, seed=seed)])


def energy_p_value(S: Float[ArrayLike, "d d"], Q: Float[ArrayLike, "d k"], *, n: int = 999, seed: int = 0) -> float:
    """Monte Carlo p-value of `energy_share` against planes drawn uniformly from all of R^d.

    p = (1 + #{null >= E}) / (1 + n). Planes come from all of R^d because the complement of Q is not
    exchangeable with Q: against it, a nominal 5% test rejects 10 to 13% of the time.

    Args:
        S: uncentred second moment of gradient rows.
        Q: orthonormal basis.
        n: planes drawn; the smallest p-value is 1 / (1 + n).
        seed: of a local generator; sites of one width and rank share their draws.

    Raises:
        TlAnisoError: as `energy_share`, and n below 1.

    Example:
        >>> import torch
        >>> from tl_aniso.energy import energy_p_value
        >>> S = torch.diag(torch.tensor([50.0] + 19 * [1.0]))
        >>> energy_p_value(S, torch.eye(20)[:, :2]), energy_p_value(torch.eye(20), torch.eye(20)[:, :2])
        (0.001, 1.0)
    """
    moment = as_square(S, "S").detach()
    basis = as_basis(Q, moment.shape[0]).to(moment.device)
    return p_value_of_share(moment, _share(moment, basis), basis.shape[1], n=n, seed=seed)


def energy_p_values(
    S: Float[ArrayLike, "d d"],
    Q: Float[ArrayLike, "d k"],
    ranks: Sequence[int],
    *,
    n: int = 999,
    seed: int = 0,
) -> dict[int, float]:
    """`energy_p_value` of the first r columns of Q for every r in `ranks`.

    Raises:
        TlAnisoError: a rank outside 1 ... k.

    Example:
        >>> import torch
        >>> from tl_aniso.energy import energy_p_values
        >>> energy_p_values(torch.eye(8), torch.eye(8)[:, :4], [1, 4])
        {1: 1.0, 4: 1.0}
    """
    moment = as_square(S, "S").detach()
    basis = as_basis(Q, moment.shape[0]).to(moment.device)
    values = torch.linalg.eigvalsh(moment)
    result = {}
    for rank in ranks:
        if not 1 <= rank <= basis.shape[1]:
            raise TlAnisoError(f"rank {rank} is outside 1 ... {basis.shape[1]}, the rank of Q")
        result[rank] = _p_value(values, _share(moment, basis[:, :rank]), rank, n, seed)
    return result


def p_value_of_share(S: Float[ArrayLike, "d d"], share: float, rank: int, *, n: int = 999, seed: int = 0) -> float:
    """`energy_p_value` where the share is known already, for instance from projections.

    Args:
        S: uncentred second moment of gradient rows.
        share: its share in the plane tested.
        rank: k, the rank of that plane.
        n: planes drawn.
        seed: of a local generator.

    Example:
        >>> import torch
        >>> from tl_aniso.energy import p_value_of_share
        >>> p_value_of_share(torch.eye(8), 0.5, 4)
        1.0
    """
    moment = as_square(S, "S").detach()
    if not 1 <= rank <= moment.shape[0]:
        raise TlAnisoError(f"rank {rank} is outside 1 ... d = {moment.shape[0]}")
    return _p_value(torch.linalg.eigvalsh(moment), share, rank, n, seed)


def _p_value(values: Float64[Tensor, " d"], share: float, rank: int, n: int, seed: int) -> float:
    if n < 1:
        raise TlAnisoError(f"the number of planes must be at least 1, got {n}")
    null = _null_weights(values.shape[0], rank, n, seed) @ (values / values.sum()).cpu()
    return (1 + int((null >= share * (1 - _TIE)).sum())) / (1 + n)
