"""Normal coordinates as quadratic forms of tangent coordinates: the second fundamental form and its energies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.neighbourhoods.estimate import Estimate
from tl_aniso.neighbourhoods.planes import LocalPlane

__all__ = ["QuadraticFit", "quadratic_features", "quadratic_fit", "rows_needed"]


def rows_needed(rank: int) -> int:
    """Fewest rows of a quadratic fit: one more than its 1 + k + k (k + 1) / 2 coefficients, and two to spare.

    Example:
        >>> from tl_aniso.neighbourhoods.quadratic import rows_needed
        >>> rows_needed(2)
        8
    """
    return 3 + rank + rank * (rank + 1) // 2


def quadratic_features(u: Float64[Tensor, "n k"]) -> Float64[Tensor, "n q"]:
    """u_a^2 / 2 and u_a u_b (a < b), so that 1/2 II(u, u) is their product with the entries of II.

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods.quadratic import quadratic_features
        >>> quadratic_features(torch.tensor([[2.0, 3.0]])).tolist()
        [[2.0, 6.0, 4.5]]
    """
    first, second = torch.triu_indices(u.shape[1], u.shape[1])
    halves = torch.where(first == second, 0.5, 1.0).to(u)
    return u[:, first] * u[:, second] * halves


@dataclass(frozen=True, eq=False)
class QuadraticFit:
    """x_N = b + A u + 1/2 II(u, u) + noise, by least squares over the rows of one neighbourhood.

    b is the foot of the surface above u = 0 and A the tilt of its tangent plane there against the plane of PCA.
    Every energy is corrected for what noise alone would give: |estimate|^2 less the trace of its variance by the
    squared residuals over 1 - leverage (HC2), exactly unbiased where the noise has one variance at all rows.

    Attributes:
        second_form: entries of II by feature (a <= b) and normal coordinate.
        bent: normal coordinates less b + A u: what is normal to the tangent plane at the foot, noise included.
        fitted: 1/2 II(u, u) of every row.
        noise: mean squared residual over all normal coordinates, per degree of freedom: an estimate of the noise's
            energy, and of everything else that is no quadratic function of u.
        noise_std: its standard error.
        tangent: u.
        df: rows less coefficients.
    """

    second_form: Float64[Tensor, "q m"]
    bent: Float64[Tensor, "n m"]
    fitted: Float64[Tensor, "n m"]
    noise: float
    noise_std: float
    tangent: Float64[Tensor, "n k"]
    df: int
    _weights: Float64[Tensor, "q n"]
    _residuals: Float64[Tensor, "n m"]  # over the root of 1 - leverage

    def energy_of(self, form: Float64[Tensor, "q q"], *, level: float = 0.95) -> Estimate:
        """tr(II^T form II) for a positive semidefinite form over the features, corrected for noise, with interval.

        The interval holds every value from which the estimate is no further than t standard errors *at that value*:
        the variance of a quadratic form of an estimate grows with the form, 2 tr (F V)^2 + 4 <F II, V F II>. So it is
        narrow below and wide above, and at no curvature it is that of noise alone. tr (F V)^2 comes from products of
        the noise of different rows, so that no distribution is assumed.
        """
        from scipy.special import stdtrit  # comes with scikit-learn; slow to import

        weights, residuals = self._weights, self._residuals
        shaped = form @ weights  # q x n
        cross = weights.T @ shaped  # n x n: w_i^T F w_j
        crude = float((self.second_form * (form @ self.second_form)).sum())
        value = crude - float((cross.diagonal() * self._gram.diagonal()).sum())
        products = (cross * self._gram).square()
        noise = 2 * float(products.sum() - products.diagonal().sum())
        # A row's own noise is taken out of the estimate that it is multiplied with.
        along = ((shaped.T @ self.second_form) * residuals).sum(1) - cross.diagonal() * self._gram.diagonal()
        slope = 4 * float(along.square().sum()) / crude if crude > 0 else 0.0
        z = float(stdtrit(self.df, 0.5 + level / 2))
        low, high = value - z * math.sqrt(noise), value + z * math.sqrt(noise)
        middle = value + z * z * slope / 2
        half = z * math.sqrt(max(noise + slope * value + (z * slope) ** 2 / 4, 0.0))
        return Estimate(
            value,
            low if low < 0 else middle - half,
            high if high < 0 else middle + half,
            math.sqrt(noise + slope * max(value, 0.0)),
        )

    def trace_squared(self, *, level: float = 0.95) -> Estimate:
        """|tr II|^2, the squared length of the mean curvature vector times k^2."""
        trace = self._diagonal.to(self.second_form)
        return self.energy_of(torch.outer(trace, trace), level=level)

    def norm_squared(self, *, level: float = 0.95) -> Estimate:
        """|II|_F^2, over both orders of the tangent indices."""
        return self.energy_of(torch.diag(2.0 - self._diagonal.to(self.second_form)), level=level)

    def energy_at(self, radius: float, *, level: float = 0.95) -> Estimate:
        """Mean of |1/2 II(u, u)|^2 over directions at |u| = radius: t^4 / (4 k (k + 2)) (|tr II|^2 + 2 |II|_F^2)."""
        trace = self._diagonal.to(self.second_form)
        k = self.tangent.shape[1]
        form = torch.outer(trace, trace) + 2 * torch.diag(2.0 - trace)
        return self.energy_of(radius**4 / (4 * k * (k + 2)) * form, level=level)

    def energy(self, *, level: float = 0.95) -> Estimate:
        """Mean of |1/2 II(u, u)|^2 over the rows as they lie, where they may be denser in some directions."""
        features = quadratic_features(self.tangent)
        return self.energy_of(features.T @ features / len(features), level=level)

    @cached_property
    def _gram(self) -> Tensor:
        return self._residuals @ self._residuals.T

    @property
    def _diagonal(self) -> Tensor:
        first, second = torch.triu_indices(self.tangent.shape[1], self.tangent.shape[1])
        return first == second


def quadratic_fit(plane: LocalPlane) -> QuadraticFit:
    """Least squares of normal on tangent coordinates, with constant, linear and quadratic terms.

    Raises:
        UndefinedMeasureError: fewer rows than `rows_needed`, or tangent coordinates that leave a coefficient open
            (such as all at one distance along one axis).

    Example:
        >>> import torch
        >>> from tl_aniso.neighbourhoods import local_plane, quadratic_fit
        >>> u = torch.linspace(-1, 1, 21, dtype=torch.float64)
        >>> fit = quadratic_fit(local_plane(torch.stack([u, 3 * u**2 / 2], 1), 1))
        >>> round(fit.norm_squared().value, 6)
        9.0
    """
    u, normal = plane.tangent, plane.normal
    n, k = u.shape
    if n < rows_needed(k):
        raise UndefinedMeasureError(
            f"a quadratic fit over {k} tangent coordinates needs {rows_needed(k)} rows or more, got {n}"
        )
    scale = u.square().mean(0).sqrt()  # unit columns, so that the condition of the fit is that of the directions
    affine = torch.cat([torch.ones(n, 1).to(u), u / scale], 1)
    features = quadratic_features(u)
    size = features.square().mean(0).sqrt()
    q, r = torch.linalg.qr(torch.cat([affine, features / size], 1))
    if float(r.diagonal().abs().min()) < 1e-8 * math.sqrt(n):
        raise UndefinedMeasureError("the tangent coordinates do not tell constant, linear and quadratic terms apart")
    weights = torch.linalg.solve_triangular(r, q.T, upper=True)  # coefficients = weights @ normal
    leverage = q.square().sum(1).clamp(max=1 - 1e-9)
    residuals = normal - q @ (q.T @ normal)
    coefficients = weights @ normal
    own = weights[k + 1 :] / size[:, None]
    second_form = own @ normal
    df = n - weights.shape[0]
    squares = residuals.square().sum(1) / (1 - leverage)
    return QuadraticFit(
        second_form=second_form,
        bent=normal - affine @ coefficients[: k + 1],
        fitted=features @ second_form,
        noise=float(residuals.square().sum()) / df,
        noise_std=float(squares.std()) / math.sqrt(n),
        tangent=u,
        df=df,
        _weights=own,
        _residuals=residuals / (1 - leverage).sqrt()[:, None],
    )
