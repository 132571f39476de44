"""Gradients of a linear readout on a curved sample: rows and their sums, split into tangent and normal parts.

Rows are e_i x_i, the gradient that one token contributes to the weights of a linear readout y = W x under squared loss
(y - target)^2 / 2, with error e = y - target. Over N independent tokens

    E|sum of rows|^2 = N E|row|^2 + N (N - 1) |E row|^2,

so what a sum shows is decided by the mean row, and upper bounds on single rows (tangent O(t), normal O(t^2)) do not
bound it: the tangent part of the mean row is zero or itself O(t^2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.checks import as_list
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.theory.density import Density, as_positive, radial_moment
from tl_aniso.theory.known import KnownManifold, as_manifold
from tl_aniso.theory.manifold import Sample
from tl_aniso.theory.quadratic import SecondFundamentalForm

__all__ = ["Energies", "Errors", "GradientMoments", "counterexample", "gradient_moments", "gradient_rows"]


class Energies(NamedTuple):
    """Expected energies of a gradient along the tangent plane and beside it.

    Example:
        >>> Energies(3.0, 1.0).ratio, Energies(3.0, 1.0).tangent_share
        (0.333..., 0.75)
    """

    tangent: float
    normal: float

    @property
    def ratio(self) -> float:
        """Normal over tangent; infinite where there is no tangent energy."""
        return self.normal / self.tangent if self.tangent > 0.0 else math.inf if self.normal > 0.0 else math.nan

    @property
    def tangent_share(self) -> float:
        """Tangent energy over the sum of both."""
        total = self.tangent + self.normal
        return self.tangent / total if total > 0.0 else math.nan


@dataclass(frozen=True)
class Errors:
    """Errors of tokens, e = mean + slope . u + std z, z standard normal and independent of u.

    Attributes:
        mean: the part that all tokens share; -target for a readout of zero.
        std: of what is independent of the position.
        slope: k numbers, how the error changes along the tangent plane; empty for not at all. Quadratic graphs alone
            have closed forms with it.

    Raises:
        TlAnisoError: values that are not finite, or a negative std.
    """

    mean: float = 1.0
    std: float = 0.0
    slope: Sequence[float] = field(default=())

    def __post_init__(self) -> None:
        as_positive("std", self.std, zero=True)
        given: Any = self.slope
        slope = as_list(given)
        if slope is None or isinstance(given, str):
            raise TlAnisoError(f"slope must be a list of numbers, empty for none, got {self.slope!r}")
        for name, value in (("mean", self.mean), *(("slope", entry) for entry in slope)):
            try:
                if isinstance(value, bool | str) or not math.isfinite(value):
                    raise TypeError
            except (TypeError, ValueError):
                raise TlAnisoError(f"{name} must be finite and a number, got {value!r}") from None

    def vector(self, k: int) -> Float64[Tensor, " k"]:
        """The slope as k numbers.

        Raises:
            TlAnisoError: another number of them.
        """
        if not len(self.slope):
            return torch.zeros(k, dtype=torch.float64)
        if len(self.slope) != k:
            raise TlAnisoError(f"slope has {len(self.slope)} numbers, the tangent plane {k} dimensions")
        return torch.as_tensor(list(self.slope), dtype=torch.float64)


@dataclass(frozen=True)
class GradientMoments:
    """Energies of one row and of the mean row: all that sums over independent tokens depend on.

    Attributes:
        row: E|row|^2.
        coherent: |E row|^2.

    Example:
        >>> moments = gradient_moments(counterexample(), 0.1, "uniform")
        >>> round(moments.row.ratio, 6), round(moments.crossing(), 9), round(moments.summed(600).ratio, 2)
        (0.006, 299.2, 2.0)
    """

    row: Energies
    coherent: Energies

    def summed(self, n: float) -> Energies:
        """E|sum over n tokens|^2; n may be a fraction, for curves.

        Raises:
            TlAnisoError: n below 1.
        """
        if not n >= 1.0:
            raise TlAnisoError(f"a sum needs at least one token, got n = {n!r}")
        pairs = n * (n - 1.0)
        return Energies(*(n * row + pairs * mean for row, mean in zip(self.row, self.coherent, strict=True)))

    def crossing(self) -> float:
        """The number of tokens at which tangent and normal energy of the sum are equal; infinite where there is none.

        1 + (T - N) / (|E row_N|^2 - |E row_T|^2), with T and N the energies of a row.
        """
        apart = self.row.tangent - self.row.normal
        gain = self.coherent.normal - self.coherent.tangent
        if apart == 0.0:
            return 1.0
        return 1.0 + apart / gain if gain != 0.0 and apart / gain > 0.0 else math.inf

    def limit_ratio(self) -> float:
        """Normal over tangent energy of a sum of very many tokens.

        Raises:
            UndefinedMeasureError: the mean row is zero; the ratio stays that of a row.
        """
        if max(self.coherent) <= 0.0:
            raise UndefinedMeasureError("the mean row is zero, so sums keep the ratio of a row: see row.ratio")
        return self.coherent.ratio


def counterexample() -> SecondFundamentalForm:
    """The parabola x = (u, u^2) in the plane.

    With u uniform on [-t, t] and all errors 1 (W = 0, target -1), a row has normal over tangent energy 3 t^2 / 5, and
    the normal part of a sum over N tokens is the larger one from N t^2 = 3 - 4 t^2 / 5 on.

    Example:
        >>> import torch
        >>> counterexample().points(torch.tensor([[0.5]])).tolist()
        [[0.5, 0.25]]
    """
    return SecondFundamentalForm(torch.full((1, 1, 1), 2.0, dtype=torch.float64), d=2)


def gradient_moments(
    manifold: KnownManifold, radius: float, density: Density = "shell", errors: Errors | None = None
) -> GradientMoments:
    """Closed forms of row and mean row energies on a manifold without noise.

    With errors of mean m and spread s that do not depend on u,

        row: (m^2 + s^2) E|x_T|^2 and (m^2 + s^2) E|x_N|^2;  mean row: 0 and m^2 |E x_N|^2.

    With a slope b, on a quadratic graph, the mean row is (b E t^2 / k, m tr II E t^2 / (2 k)): both parts of second
    order, in the ratio m^2 |tr II|^2 / (4 |b|^2) at every radius.

    Args:
        manifold: exact for all of `tl_aniso.theory` without a slope, for quadratic graphs with one.
        radius: of the density.
        density: of the radius.
        errors: of tokens; 1 for all by default.

    Raises:
        TlAnisoError: no manifold of `tl_aniso.theory`, values out of range, or a slope on a manifold that is no
            quadratic graph.

    Example:
        >>> from tl_aniso.theory import Paraboloid
        >>> bowl, saddle = Paraboloid((1.0, 1.0), d=3), Paraboloid((1.0, -1.0), d=3)
        >>> [round(gradient_moments(m, 0.1).crossing()) for m in (bowl,)], gradient_moments(saddle, 0.1).crossing()
        ([400], inf)
    """
    manifold, errors = as_manifold(manifold), Errors() if errors is None else errors
    if not isinstance(errors, Errors):
        raise TlAnisoError(f"errors must be tl_aniso.theory.Errors or None, got {errors!r}")
    slope, k = errors.vector(manifold.k), manifold.k
    spread = errors.mean**2 + errors.std**2
    tangent = spread * manifold.tangent_energy(radius, density)
    normal = spread * manifold.normal_energy(radius, density)
    mean_normal = errors.mean**2 * float(manifold.mean_normal(radius, density).square().sum())
    mean_tangent = 0.0
    if float(slope.abs().max()) > 0.0:
        if not isinstance(manifold, SecondFundamentalForm):
            raise TlAnisoError(f"errors with a slope have closed forms on quadratic graphs alone, not on {manifold!r}")
        second, fourth, sixth = (radial_moment(q, k, radius, density) for q in (2, 4, 6))
        tangent += float(slope.square().sum()) * fourth / k
        normal += _along(manifold.second_fundamental_form(), slope) * sixth / 4.0
        mean_tangent = float(slope.square().sum()) * (second / k) ** 2
    return GradientMoments(Energies(tangent, normal), Energies(mean_tangent, mean_normal))


def _along(form: Float64[Tensor, "m k k"], b: Float64[Tensor, " k"]) -> float:
    """E (b . w)^2 |II(w, w)|^2 over unit vectors w: the 15 pairings of six factors, over k (k + 2) (k + 4)."""
    k = len(b)
    trace = form.diagonal(dim1=1, dim2=2).sum(-1)
    applied = form @ b
    pairings = (
        float(b.square().sum()) * float(trace.square().sum() + 2.0 * form.square().sum())
        + 4.0 * float((applied @ b) @ trace)
        + 8.0 * float(applied.square().sum())
    )
    return pairings / (k * (k + 2.0) * (k + 4.0))


def gradient_rows(sample: Sample, errors: Errors, generator: torch.Generator) -> Float64[Tensor, "n d"]:
    """Rows e_i x_i of a sample, errors drawn.

    Raises:
        TlAnisoError: a slope of another length than the tangent plane's.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> sample = counterexample().sample(4, radius=0.1, generator=generator)
        >>> torch.equal(gradient_rows(sample, Errors(), generator), sample.points)
        True
    """
    error = errors.mean + sample.tangent_coordinates @ errors.vector(sample.tangent_coordinates.shape[1])
    if errors.std > 0.0:
        error = error + errors.std * torch.randn(len(error), generator=generator, dtype=torch.float64)
    return error[:, None] * sample.points
