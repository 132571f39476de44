"""Figures of docs/theory.md: closed forms as lines, seeded samples as marks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from tl_aniso.theory.concentration import neighbour_share
from tl_aniso.theory.density import Density
from tl_aniso.theory.drawing import (
    curve_style,
    drawn_share,
    example_manifolds,
    finish_theory,
    line_and_marks,
    parts,
    some_manifolds,
)
from tl_aniso.theory.gradients import Errors, counterexample, gradient_moments, gradient_rows
from tl_aniso.theory.known import KnownManifold
from tl_aniso.theory.manifold import Sample
from tl_aniso.theory.quadratic import Paraboloid
from tl_aniso.theory.round import Sphere
from tl_aniso.viz.style import COLOURS

__all__ = [
    "concentration_figure",
    "crossing_figure",
    "example_manifolds",
    "neighbours_figure",
    "parts_figure",
    "share_figure",
    "slope_figure",
]


def parts_figure(t: float = 0.8) -> go.Figure:
    """A point of the parabola x = (u, u^2 / 2), its tangent part u and its normal part u^2 / 2.

    Args:
        t: u of the point.
    """
    curve = Paraboloid((1.0,), d=2)
    u = torch.linspace(-1.2, 1.2, 121, dtype=torch.float64)[:, None]
    points = curve.points(u)
    x, y = (float(value) for value in curve.points(torch.tensor([[t]], dtype=torch.float64))[0])
    figure = go.Figure()
    figure.add_scatter(
        x=[-1.2, 1.2], y=[0, 0], name="tangent line", mode="lines", line={"color": "#808080", "width": 1.5}
    )
    figure.add_scatter(
        x=points[:, 0].tolist(),
        y=points[:, 1].tolist(),
        name="manifold",
        mode="lines",
        line={"color": COLOURS[0], "width": 3, "simplify": False},
    )
    figure.add_scatter(x=[0, x], y=[0, 0], name="tangent part, t", mode="lines", line={"color": COLOURS[2], "width": 5})
    figure.add_scatter(
        x=[x, x], y=[0, y], name="normal part, t²/2", mode="lines", line={"color": COLOURS[1], "width": 5}
    )
    figure.add_scatter(
        x=[0, x], y=[0, y], mode="markers", showlegend=False, marker={"color": COLOURS[0], "size": 10}, hoverinfo="skip"
    )
    figure.add_annotation(x=0, y=0, text="base point", showarrow=False, yshift=-16)
    figure.add_annotation(x=x, y=y, text="x(u)", showarrow=False, xshift=-22, yshift=8)
    finish_theory(figure, height=360)
    figure.update_yaxes(scaleanchor="x", range=[-0.2, 0.8], title="along the normal")
    figure.update_xaxes(title="along the tangent line", range=[-1.25, 1.25])
    return figure


def share_figure(
    manifolds: Mapping[str, KnownManifold] | None = None,
    radii: Sequence[float] = (0.05, 0.1, 0.2, 0.4, 0.8),
    *,
    density: Density = "shell",
    centred: bool = False,
    n: int = 2000,
    seed: int = 0,
) -> go.Figure:
    """Normal share of energy against radius: closed forms as lines, samples as marks with 95% intervals.

    Args:
        manifolds: by name; `example_manifolds()` by default.
        radii: of the samples; the lines span them.
        density: of the radius.
        centred: whether the mean of the sample is removed from its normal part.
        n: points a sample.
        seed: of the samples.

    Raises:
        TlAnisoError: no manifolds, or values out of range.
    """
    figure = go.Figure()
    lines = np.geomspace(min(radii), max(radii), 60)
    for index, (name, manifold) in enumerate(some_manifolds(manifolds).items()):
        closed = [manifold.visible_share(float(r), density, centred=centred) for r in lines]
        drawn = [drawn_share(manifold, r, density, centred, n, seed) for r in radii]
        line_and_marks(figure, index, name, (lines, closed), (radii, drawn))
    finish_theory(figure, height=440)
    figure.update_xaxes(type="log", title="radius t", tickvals=list(radii))
    figure.update_yaxes(type="log", title="normal share of energy", exponentformat="none", dtick=1)
    return figure


def slope_figure(
    manifold: KnownManifold | None = None,
    noises: Sequence[tuple[float, int]] = ((0.0, 0), (1 / 20, 2), (0.003, 0)),
    radii: Sequence[float] = (0.02, 0.04, 0.08, 0.16, 0.32),
    *,
    n: int = 2000,
    seed: int = 0,
) -> go.Figure:
    """Normal amplitude against tangent amplitude over shells, without noise, with noise of order t^2 and of one size.

    Without noise or with noise of second order the slope is 2; noise of one size is all that is left at small t.

    Args:
        manifold: a sphere in R^8 by default.
        noises: (noise, noise_power) of each curve.
        radii: of the samples.
        n: points a sample.
        seed: of the samples.

    Raises:
        TlAnisoError: values out of range.
    """
    manifold = manifold or Sphere(1.0, k=2, d=8)
    figure = go.Figure()
    lines = np.geomspace(min(radii), max(radii), 60)
    for index, (noise, power) in enumerate(noises):
        options: dict[str, Any] = {"noise": noise, "noise_power": power}
        name = (
            "no noise"
            if not noise
            else f"noise {noise:g}" + (f" t<sup>{power}</sup>" if power else ", the same everywhere")
        )
        closed = [
            [energy(float(r), **options) ** 0.5 for r in lines]
            for energy in (manifold.tangent_energy, manifold.normal_energy)
        ]
        drawn = []
        for r in radii:
            generator = torch.Generator().manual_seed(seed)
            points = manifold.sample(n, radius=r, density="shell", generator=generator, **options).points
            drawn.append([float(part.square().sum(1).mean().sqrt()) for part in parts(points, manifold.k)])
        style = curve_style(index)
        figure.add_scatter(x=closed[0], y=closed[1], name=name, mode="lines", line=style["line"])
        figure.add_scatter(
            x=[x for x, _ in drawn], y=[y for _, y in drawn], mode="markers", marker=style["marker"], showlegend=False
        )
    finish_theory(figure, height=440)
    figure.update_xaxes(type="log", title="tangent amplitude", tickvals=list(radii))
    figure.update_yaxes(type="log", title="normal amplitude", exponentformat="none", dtick=1)
    return figure


def concentration_figure(
    manifolds: Mapping[str, KnownManifold] | None = None,
    concentrations: Sequence[float] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    *,
    radius: float = 0.8,
    n: int = 4000,
    seed: int = 0,
) -> go.Figure:
    """Normal share of energy against the concentration a of the sample, uncentred and centred.

    Args:
        manifolds: by name; `example_manifolds()` by default.
        concentrations: of the samples; the lines span them.
        radius: the largest, the same for all.
        n: points a sample.
        seed: of the samples.

    Raises:
        TlAnisoError: no manifolds, or values out of range.
    """
    titles = ("about the base point", "about the sample's mean")
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.04)
    lines = np.linspace(min(concentrations), max(concentrations), 60)
    for column, centred in enumerate((False, True), start=1):
        for index, (name, manifold) in enumerate(some_manifolds(manifolds).items()):
            closed = [manifold.visible_share(radius, float(a), centred=centred) for a in lines]
            drawn = [drawn_share(manifold, radius, a, centred, n, seed) for a in concentrations]
            line_and_marks(
                figure, index, name, (lines, closed), (concentrations, drawn), legend=column == 1, row=1, col=column
            )
    finish_theory(figure, height=440, top=40)
    figure.update_xaxes(title="concentration a")
    figure.update_yaxes(type="log", exponentformat="none", dtick=1)
    figure.update_yaxes(title="normal share of energy", col=1)
    return figure


def neighbours_figure(
    dimensions: Sequence[int] = (1, 2, 5, 20), *, neighbours: int = 50, numbers: Sequence[int] = (100, 1_000_000)
) -> go.Figure:
    """Share of normal energy among the K nearest of n points of a unit ball on a paraboloid, less dense to denser.

    Every paraboloid has the share 0.1 where the neighbourhood is the whole ball, so that the curves differ by their
    dimension alone.

    Args:
        dimensions: of the tangent plane, a curve each.
        neighbours: K.
        numbers: smallest and largest n.

    Raises:
        TlAnisoError: values out of range.
    """
    figure = go.Figure()
    counts = np.unique(np.geomspace(max(neighbours, numbers[0]), numbers[-1], 40).round().astype(int))
    for index, k in enumerate(dimensions):
        form = torch.eye(k, dtype=torch.float64)[None]
        form *= (0.1 / neighbour_share(form, neighbours, neighbours, 1.0)) ** 0.5
        shares = [neighbour_share(form, int(n), neighbours, 1.0) for n in counts]
        name = f"k = {k}" + (": falls as 1/n²" if k == 1 else ": as 1/n" if k == 2 else f": as 1/n<sup>{2 / k:g}</sup>")
        figure.add_scatter(x=counts.tolist(), y=shares, name=name, mode="lines", line=curve_style(index)["line"])
    finish_theory(figure, height=420)
    figure.update_xaxes(type="log", title="points in the ball", exponentformat="power", dtick=1)
    figure.update_yaxes(type="log", title=f"normal share of the {neighbours} nearest", exponentformat="power", dtick=2)
    return figure


def crossing_figure(
    radii: Sequence[float] = (0.05, 0.2, 0.5), *, trials: int = 400, most: int = 4000, seed: int = 0
) -> go.Figure:
    """Normal over tangent energy of summed gradients of the counterexample, against N t^2; single rows dotted.

    Args:
        radii: t of u uniform on [-t, t], a curve each.
        trials: sums behind each mark.
        most: largest N that is sampled.
        seed: of the samples.

    Raises:
        TlAnisoError: values out of range.
    """
    parabola, figure = counterexample(), go.Figure()
    for index, t in enumerate(radii):
        moments = gradient_moments(parabola, t, "uniform")
        lines = np.geomspace(1.0, max(2.0, 60.0 / t**2), 80)
        counts = [c for c in np.unique(np.geomspace(1, min(most, lines[-1]), 6).round().astype(int)) if c >= 1]
        drawn = []
        for n in counts:
            generator = torch.Generator().manual_seed(seed)
            sample: Sample = parabola.sample(int(n) * trials, radius=t, generator=generator)
            energy = gradient_rows(sample, Errors(), generator).reshape(trials, int(n), 2).sum(1).square().mean(0)
            drawn.append(float(energy[1] / energy[0]))
        style, name = curve_style(index), f"t = {t:g}"
        ratios = [moments.summed(float(n)).ratio for n in lines]
        figure.add_scatter(x=lines * t**2, y=ratios, name=name, mode="lines", line=style["line"])
        figure.add_scatter(x=counts * np.array(t**2), y=drawn, mode="markers", marker=style["marker"], showlegend=False)
        dots = {**style["line"], "dash": "dot", "width": 1.5}
        figure.add_scatter(
            x=[lines[0] * t**2, 60.0], y=[moments.row.ratio] * 2, mode="lines", line=dots, showlegend=False
        )
    finish_theory(figure, height=460)
    figure.add_hline(y=1.0, line={"color": "#808080", "width": 1.5})
    figure.add_vline(x=3.0, line={"color": "#808080", "width": 1.5, "dash": "dash"})
    figure.add_annotation(
        x=np.log10(3.0), y=0.02, yref="paper", text="N t² = 3", showarrow=False, xanchor="right", xshift=-6
    )
    figure.update_xaxes(type="log", title="N t²", exponentformat="power", dtick=1)
    figure.update_yaxes(type="log", title="normal over tangent energy of the sum", exponentformat="power", dtick=1)
    return figure
