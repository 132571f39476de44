"""What the figures of the theory share: examples, samples with intervals, curves with marks."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.errors import TlAnisoError
from tl_aniso.theory.density import Density
from tl_aniso.theory.known import KnownManifold
from tl_aniso.theory.quadratic import Paraboloid
from tl_aniso.theory.round import Cylinder, Sphere, Veronese
from tl_aniso.viz.style import finish, line_style, plain

__all__ = [
    "curve_style",
    "drawn_share",
    "example_manifolds",
    "finish_theory",
    "line_and_marks",
    "parts",
    "some_manifolds",
]


def example_manifolds() -> dict[str, KnownManifold]:
    """The manifolds that the figures show by default, under the names of their legends.

    Example:
        >>> list(example_manifolds())
        ['Veronese surface', 'sphere', 'saddle', 'cylinder']
    """
    return {
        "Veronese surface": Veronese(1.0, d=8),
        "sphere": Sphere(1.0, k=2, d=8),
        "saddle": Paraboloid((1.0, -1.0), d=8),
        "cylinder": Cylinder(1.0, k=2, d=8),
    }


def curve_style(index: int) -> dict[str, Any]:
    """Line and marker of the curve of that index."""
    style = line_style(index)
    # Plotly leaves out points of a line that it takes for straight, which shows as corners.
    style["line"]["simplify"] = False
    return style


def finish_theory(figure: go.Figure, *, height: int, top: int = 16) -> go.Figure:
    """Layout without a title, which the page around a figure has."""
    finish(figure, height=height)
    figure.update_layout(margin_t=top)
    return figure.update_yaxes(title_standoff=26)


def some_manifolds(manifolds: Mapping[str, KnownManifold] | None) -> Mapping[str, KnownManifold]:
    """Those given, or the examples.

    Raises:
        TlAnisoError: an empty mapping.
    """
    if manifolds is None:
        return example_manifolds()
    if not manifolds:
        raise TlAnisoError("there are no manifolds to draw")
    return manifolds


def parts(points: Float64[Tensor, "n d"], k: int) -> tuple[Float64[Tensor, "n k"], Float64[Tensor, "n m"]]:
    """Tangent and normal part of points."""
    return points[:, :k], points[:, k:]


def drawn_share(
    manifold: KnownManifold, radius: float, density: Density, centred: bool, n: int, seed: int
) -> tuple[float, float]:
    """The share of a sample and half of its 95% interval, of the linearised ratio; the mean removed counts as known."""
    generator = torch.Generator().manual_seed(seed)
    tangent, normal = parts(manifold.sample(n, radius=radius, density=density, generator=generator).points, manifold.k)
    if centred:
        normal = normal - normal.mean(0)
    bent, flat = normal.square().sum(1), tangent.square().sum(1)
    share = bent.sum() / (bent.sum() + flat.sum())
    error = (bent - share * (bent + flat)).std() / (bent + flat).mean() / n**0.5
    return float(share), 1.96 * float(error)


def line_and_marks(
    figure: go.Figure,
    index: int,
    name: str,
    closed: tuple[Any, Any],
    drawn: tuple[Sequence[float], Sequence[tuple[float, float]]],
    *,
    legend: bool = True,
    **where: Any,
) -> None:
    """A closed form and its samples in one colour; nothing where no share is left (a centred spherical shell)."""
    style, label = curve_style(index), plain(name)
    shown = [value if value > 1e-12 else None for value in closed[1]]
    figure.add_scatter(
        x=list(closed[0]),
        y=shown,
        name=label,
        mode="lines",
        line=style["line"],
        legendgroup=label,
        showlegend=legend,
        **where,
    )
    kept = [(x, *mark) for x, mark in zip(drawn[0], drawn[1], strict=True) if mark[0] > 1e-12]
    figure.add_scatter(
        x=[x for x, _, _ in kept],
        y=[y for _, y, _ in kept],
        error_y={"array": [e for _, _, e in kept], "width": 3},
        name=label,
        mode="markers",
        marker=style["marker"],
        legendgroup=label,
        showlegend=False,
        **where,
    )
