"""What isotropy becomes when the tangent plane is taken out, against normal planes of the same rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_basis, as_square
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.isotropy import Target, score, shrunk, target_scale
from tl_aniso.planes import complement_frames

__all__ = ["Ablation", "ablate", "check_settings"]

# Where a control leaves less than this share of the variance, differences of traces lose too many digits.
_CANCELS = 1e-5
_NOTHING = 1e-13


@dataclass(frozen=True, eq=False)
class Ablation:
    """IsoScore* before and after removing a plane. `raw_` is the same without shrinkage (IsoScore).

    Attributes:
        before: score of the covariance as it is, in d dimensions.
        without_tangent: score after removing the span of Q.
        without_normal_mean: mean score over normal planes removed.
        without_normal_std: their standard deviation.
        without_normal: the scores of all draws.
        delta: without_tangent - without_normal_mean.
        p_value: (1 + #{draws >= without_tangent}) / (1 + draws).
        rank: k.
        d: width of the space.
        zeta: weight of the shrinkage target.
        order: "remove_first" or "shrink_first".
        space: "complement" (scored in d - k dimensions) or "ambient" (in d).
        target: "scaled_identity" or "identity".
        seed: of the normal planes.
    """

    before: float
    without_tangent: float
    without_normal_mean: float
    without_normal_std: float
    without_normal: Float64[Tensor, " n"]
    delta: float
    p_value: float
    raw_before: float
    raw_without_tangent: float
    raw_without_normal_mean: float
    raw_without_normal_std: float
    raw_without_normal: Float64[Tensor, " n"]
    raw_delta: float
    raw_p_value: float
    rank: int
    d: int
    zeta: float
    order: str
    space: str
    target: str
    seed: int

    @property
    def n_controls(self) -> int:
        """Normal planes drawn."""
        return self.without_normal.shape[0]


def ablate(
    covariance: Float[ArrayLike, "d d"],
    Q: Float[ArrayLike, "d k"],
    *,
    zeta: float = 0.1,
    n_controls: int = 100,
    seed: int = 0,
    order: Literal["remove_first", "shrink_first"] = "remove_first",
    space: Literal["complement", "ambient"] = "complement",
    target: Target = "scaled_identity",
) -> Ablation:
    """IsoScore* without the tangent plane, and without normal planes of the same rank (arXiv:2604.08764).

    The default removes first and shrinks second, inside the space that is left: C' is C restricted to the
    complement of dimension m = d - k, C'_z = (1 - z) C' + z tr(C')/m I, scored with m. Shrinking first sets
    the scale of the target before the removal and so manufactures isotropy where the tangent held most of the
    variance.

    Normal planes M are Haar in the complement of Q. For them only products C M are formed:
    tr(PCP) = tr(C) - tr(M^T C M) and |PCP|^2 = |C|^2 - 2 |C M|^2 + |M^T C M|^2. The tangent plane can hold
    99% of the variance, where these differences lose their digits, so its PCP is formed.

    Args:
        covariance: centred covariance (activations and their gradients) or uncentred second moment (gradients
            of weights).
        Q: orthonormal tangent basis of rank at most d // 2.
        zeta: weight of the shrinkage target.
        n_controls: normal planes drawn.
        seed: of a local generator.
        order: "remove_first" or "shrink_first".
        space: "complement" scores d - k dimensions; "ambient" scores all d, k of them emptied by the removal.
        target: "scaled_identity" or "identity".

    Returns:
        The scores, with every draw.

    Raises:
        TlAnisoError: an unknown option, rank above d // 2, a basis that is not orthonormal.
        UndefinedMeasureError: a covariance that is not finite or zero, or that a removal leaves empty.

    Example:
        >>> import torch
        >>> from tl_aniso.ablation import ablate
        >>> C = torch.diag(torch.tensor([100.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
        >>> result = ablate(C, torch.eye(6)[:, :1], n_controls=20)
        >>> round(result.before, 3), round(result.without_tangent, 3), result.delta > 0.8
        (0.061, 1.0, True)
    """
    check_settings(zeta, n_controls, order, space, target)
    matrix = as_square(covariance, "covariance").detach()
    d = matrix.shape[0]
    basis = as_basis(Q, d).to(matrix.device)
    k = basis.shape[1]
    if k > d // 2:
        raise TlAnisoError(f"rank {k} is above d // 2 = {d // 2}: no normal plane of that rank exists; lower the rank")
    basis = torch.linalg.qr(basis).Q  # orthonormal to float64 rounding, where Q came in float32
    unit = 1.0 / float(matrix.trace())
    matrix = matrix * unit
    norm2 = matrix.square().sum()
    one = torch.ones_like(norm2)

    def scores(trace: Tensor, left: Tensor, z: float) -> Tensor:
        return _after(trace, left, d, k, z, unit, order, space, target)

    tangent = _restricted(matrix, basis[None])
    normal = _controls(matrix, norm2, basis, n_controls, seed)
    for what, (trace, _) in (("the tangent plane", tangent), ("a normal plane", normal)):
        if float(trace.min()) <= _NOTHING:
            raise UndefinedMeasureError(f"removing {what} of rank {k} leaves no variance to score")
    values: dict[str, float] = {}
    draws: dict[str, Tensor] = {}
    for prefix, z in (("", zeta), ("raw_", 0.0)):
        before = float(score(*shrunk(one, norm2, d, z, target_scale(target, d, unit)), d))
        without = float(scores(*tangent, z)[0])
        drawn = scores(*normal, z).cpu()
        mean = float(drawn.mean())
        reached = int((drawn >= without - 1e-12).sum())
        values[f"{prefix}before"], values[f"{prefix}without_tangent"] = before, without
        values[f"{prefix}without_normal_mean"] = mean
        values[f"{prefix}without_normal_std"] = float(drawn.std()) if n_controls > 1 else float("nan")
        values[f"{prefix}delta"], values[f"{prefix}p_value"] = (
            without - mean,
            (1 + reached) / (1 + n_controls),
        )
        draws[f"{prefix}without_normal"] = drawn
    found: dict[str, Any] = {**values, **draws}
    return Ablation(**found, rank=k, d=d, zeta=zeta, order=order, space=space, target=target, seed=seed)


def check_settings(zeta: object, n_controls: int, order: object, space: object, target: object) -> None:
    """Refuse settings that `ablate` would not take, before anything is computed.

    Raises:
        TlAnisoError: zeta outside 0 ... 1, no planes, or an unknown order, space or target.
    """
    if isinstance(zeta, bool) or not isinstance(zeta, int | float) or not 0.0 <= zeta <= 1.0:
        raise TlAnisoError(f"zeta must be a number between 0 and 1, got {zeta!r}")
    _known("order", order, ("remove_first", "shrink_first"))
    _known("space", space, ("complement", "ambient"))
    _known("target", target, ("scaled_identity", "identity"))
    if n_controls < 1:
        raise TlAnisoError(f"n_controls must be at least 1, got {n_controls}")


def _known(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise TlAnisoError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _after(
    trace: Tensor,
    norm2: Tensor,
    d: int,
    k: int,
    zeta: float,
    unit: float,
    order: str,
    space: str,
    target: str,
) -> Float64[Tensor, " n"]:
    """Score of what is left, from the trace and squared norm of PCP in units of tr(C)."""
    m = d - k
    scored = m if space == "complement" else d
    if order == "remove_first":
        scale = trace / scored if target == "scaled_identity" else unit
        return score(*shrunk(trace, norm2, scored, zeta, scale), scored)
    # P (s I) P is s times the identity of the m dimensions that are left, wherever the result is scored.
    return score(*shrunk(trace, norm2, m, zeta, target_scale(target, d, unit)), scored)


def _restricted(matrix: Float64[Tensor, "d d"], planes: Float64[Tensor, "n d k"]) -> tuple[Tensor, Tensor]:
    """Trace and squared Frobenius norm of PCP, by forming it."""
    traces, norms = [], []
    for plane in planes:
        left = matrix - plane @ (plane.T @ matrix)
        rest = left - (left @ plane) @ plane.T
        traces.append(rest.trace())
        norms.append(rest.square().sum())
    return torch.stack(traces), torch.stack(norms)


def _controls(
    matrix: Float64[Tensor, "d d"], norm2: Tensor, basis: Float64[Tensor, "d k"], n: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Trace and squared Frobenius norm of PCP for n normal planes, one product C [M1 ... Mc] per chunk."""
    d, k = basis.shape
    traces, norms = [], []
    for planes in complement_frames(basis, n, seed=seed):
        c = planes.shape[0]
        # C is symmetric: rows of planes^T times C are the columns of C times planes.
        product = (planes.mT.reshape(c * k, d) @ matrix).reshape(c, k, d)
        inner = product @ planes
        trace = 1.0 - inner.diagonal(dim1=1, dim2=2).sum(1)
        left = norm2 - 2 * product.square().sum((1, 2)) + inner.square().sum((1, 2))
        poor = (trace < _CANCELS) | (left < _CANCELS**2)
        if bool(poor.any()):
            trace[poor], left[poor] = _restricted(matrix, planes[poor])
        traces.append(trace)
        norms.append(left)
    return torch.cat(traces), torch.cat(norms)
