"""Graphs of quadratic forms: every manifold to second order, and exact in themselves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tl_aniso.arrays import ArrayLike, as_floating, to_float64
from tl_aniso.errors import TlAnisoError
from tl_aniso.theory.known import KnownManifold, as_dimension

__all__ = ["CurvatureEnergy", "Paraboloid", "SecondFundamentalForm", "curvature_energy"]


class CurvatureEnergy(NamedTuple):
    """Normal energy per E t^4 to leading order, in 1/length^2: what bends all directions alike, and the rest.

    Attributes:
        mean: |tr II|^2 / (4 k^2), of the mean curvature. On a shell it is the same displacement at every point, which
            centring removes.
        traceless: |II_0|^2 / (2 k (k + 2)), II_0 = II - (tr II / k) I: what differs between directions.
    """

    mean: float
    traceless: float

    @property
    def total(self) -> float:
        """(|tr II|^2 + 2 |II|^2) / (4 k (k + 2)): the visible share of a small shell over t^2."""
        return self.mean + self.traceless


def curvature_energy(form: Float[Tensor, "m k k"]) -> CurvatureEnergy:
    """E|II(w, w)|^2 / 4 over uniform unit vectors w, and its mean and traceless parts.

    With E w_i w_j w_l w_m = (three pairings of Kronecker deltas) / (k (k + 2)),

        E|II(w, w)|^2 / 4 = (|tr II|^2 + 2 |II|_F^2) / (4 k (k + 2)),  E II(w, w) / 2 = tr II / (2 k),

    each summed over the m normal directions.

    Args:
        form: II, symmetric in its last two axes, in 1/length.

    Raises:
        TlAnisoError: wrong shape, not symmetric, or not finite.

    Example:
        >>> import torch
        >>> energy = curvature_energy(torch.eye(3)[None])  # a unit sphere of dimension 3
        >>> energy.mean, round(energy.traceless, 12), energy.total
        (0.25, 0.0, 0.25)
    """
    values = _as_form(form)
    k = values.shape[1]
    trace = float(values.diagonal(dim1=1, dim2=2).sum(-1).square().sum())
    rest = max(0.0, float(values.square().sum()) - trace / k)
    return CurvatureEnergy(trace / (4.0 * k**2), rest / (2.0 * k * (k + 2.0)))


def _as_form(tensor: ArrayLike) -> Float64[Tensor, "m k k"]:
    form = to_float64(as_floating(tensor, "tensor").detach()).cpu().clone()
    if form.ndim != 3 or form.shape[1] != form.shape[2] or 0 in form.shape:
        raise TlAnisoError(f"a second fundamental form must be m x k x k, got shape {tuple(form.shape)}")
    if not torch.isfinite(form).all():
        raise TlAnisoError("the second fundamental form holds values that are not finite")
    if float((form - form.mT).abs().max()) > 1e-12 * max(1e-300, float(form.abs().max())):
        raise TlAnisoError("a second fundamental form is symmetric in its last two axes; pass (II + II.mT) / 2")
    return form


class SecondFundamentalForm(KnownManifold):
    """The graph x(u) = (u, II(u, u) / 2) of a given second fundamental form; all energies exact.

    Any smooth manifold is this to second order in |u| near a point, with an error of third order in x, so its normal
    energy t^4 (...) has a relative error of order t (of order t^2 where u and -u are equally likely).

    Args:
        tensor: II, symmetric, for m normal directions, in units of 1/length.
        d: dimension of the space, at least k + m; normal axes beyond the m hold noise alone.

    Raises:
        TlAnisoError: wrong shape, not symmetric, not finite, or d too small.

    Example:
        >>> import torch
        >>> saddle = SecondFundamentalForm(torch.tensor([[[1.0, 0.0], [0.0, -1.0]]]), d=3)
        >>> saddle.points(torch.tensor([[0.2, 0.1]])).tolist()[0][2]  # (0.04 - 0.01) / 2
        0.015...
        >>> saddle.normal_energy(0.1), 0.1**4 * (0 + 2 * 2) / (4 * 2 * 4)
        (1.25...e-05, 1.25...e-05)
    """

    def __init__(self, tensor: ArrayLike, d: int) -> None:
        self._form = _as_form(tensor)
        m, k, _ = self._form.shape
        self._k = k
        self._d = as_dimension(d, k + m, f"a form with k = {k} and m = {m}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(m={len(self._form)}, k={self.k}, d={self.d})"

    @property
    def k(self) -> int:
        """Dimension of the manifold."""
        return self._k

    @property
    def d(self) -> int:
        """Dimension of the space around it."""
        return self._d

    def second_fundamental_form(self) -> Float64[Tensor, "m k k"]:
        """A copy of II."""
        return self._form.clone()

    def _embed(self, u: Float64[Tensor, "n k"]) -> Float64[Tensor, "n d"]:
        normal = torch.einsum("mij,ni,nj->nm", self._form.to(u.device), u, u) / 2.0
        rest = u.new_zeros(len(u), self.d - self.k - normal.shape[1])
        return torch.cat([u, normal, rest], dim=1)

    def _tangent(self, t: np.ndarray) -> np.ndarray:
        return t**2

    def _normal(self, t: np.ndarray) -> np.ndarray:
        return t**4 * curvature_energy(self._form).total

    def _mean_normal(self, t: np.ndarray) -> np.ndarray:
        trace = self._form.diagonal(dim1=1, dim2=2).sum(-1).numpy()
        return t[:, None] ** 2 * trace / (2.0 * self.k)


class Paraboloid(SecondFundamentalForm):
    """The graph x(u) = (u, sum_i c_i u_i^2 / 2); all energies exact.

    Args:
        curvatures: c_1 ... c_k at the base point, in units of 1/length; mixed signs make a saddle, zeros
            flat directions.
        d: dimension of the space, at least k + 1.

    Raises:
        TlAnisoError: no curvatures, values that are not finite, or d too small.

    Example:
        >>> bowl = Paraboloid((1.0, 1.0), d=3)
        >>> bowl.normal_energy(0.2), 0.2**4 / 4
        (0.0004..., 0.0004...)
        >>> bowl.normal_energy(0.2, centred=True)  # on a shell, a bowl is at one height
        0.0
    """

    def __init__(self, curvatures: Sequence[float] | Any, d: int) -> None:
        values = as_floating(torch.as_tensor(curvatures, dtype=torch.float64), "curvatures")
        if values.ndim != 1 or len(values) == 0:
            raise TlAnisoError(f"curvatures must be a list of at least one number, got {curvatures!r}")
        super().__init__(torch.diag(values)[None], d)
