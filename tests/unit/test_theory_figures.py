"""Figures of the theory show the closed forms, and samples that agree with them."""

import numpy as np
import plotly.graph_objects as go
import pytest

from tl_aniso.errors import TlAnisoError
from tl_aniso.theory import Sphere, counterexample, figures, gradient_moments


def traces(figure: go.Figure, mode: str) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.mode == mode]


@pytest.mark.parametrize("centred", [False, True])
def test_shares_lie_on_their_lines(centred: bool) -> None:
    figure = figures.share_figure(density="uniform", centred=centred, n=3000)
    lines, marks = traces(figure, "lines"), traces(figure, "markers")
    manifolds = figures.example_manifolds()
    assert [line.name for line in lines] == list(manifolds)
    for line, mark, manifold in zip(lines, marks, manifolds.values(), strict=True):
        for t, share, half in zip(mark.x, mark.y, mark.error_y.array, strict=True):
            # 4.5 standard errors, and 2 per cent for the mean of the sample, which the interval takes as known.
            expected = manifold.visible_share(t, "uniform", centred=centred)
            assert abs(share - expected) < 4.5 / 1.96 * half + 0.02 * expected
        assert line.y[0] == pytest.approx(manifold.visible_share(line.x[0], "uniform", centred=centred))


def test_a_share_that_is_nothing_is_left_out() -> None:
    figure = figures.share_figure({"<b>sphere</b>": Sphere(1.0, 2, 3)}, centred=True, n=100)
    line = traces(figure, "lines")[0]
    assert line.name == "&lt;b&gt;sphere&lt;/b&gt;"
    assert all(value is None or np.isnan(value) for value in line.y)
    with pytest.raises(TlAnisoError, match="no manifolds"):
        figures.share_figure({})


def test_slopes_are_two_without_noise_and_with_noise_of_second_order() -> None:
    figure = figures.slope_figure(n=500)
    slopes = []
    for mark in traces(figure, "markers"):
        slopes.append(float(np.log(mark.y[1] / mark.y[0]) / np.log(mark.x[1] / mark.x[0])))
    assert slopes[:2] == pytest.approx([2.0, 2.0], abs=0.02)
    assert slopes[2] < 0.1


def test_the_crossing_is_where_the_ratio_is_one() -> None:
    figure = figures.crossing_figure((0.1, 0.5), trials=300, most=1000)
    for t, line in zip((0.1, 0.5), traces(figure, "lines")[::2], strict=True):
        crossing = float(np.interp(0.0, np.log(line.y), np.log(line.x)))
        assert np.exp(crossing) == pytest.approx(3 - 4 * t**2 / 5, rel=0.02)
    for t, mark in zip((0.1, 0.5), traces(figure, "markers"), strict=True):
        moments = gradient_moments(counterexample(), t, "uniform")
        for x, y in zip(mark.x, mark.y, strict=True):
            assert y == pytest.approx(moments.summed(x / t**2).ratio, rel=0.45)


def test_concentration_neighbours_and_the_parts_of_a_point() -> None:
    figure = figures.concentration_figure(concentrations=(0.0, 8.0), n=200)
    assert len(traces(figure, "lines")) == 8
    assert sum(trace.showlegend is not False for trace in figure.data) == 4
    for line in traces(figure, "lines")[:4]:
        assert list(line.y) == sorted(line.y, reverse=True)
    falling = figures.neighbours_figure((1, 2), numbers=(1000, 100_000))
    for line, power in zip(falling.data, (-2.0, -1.0), strict=True):
        slope = np.log(line.y[-1] / line.y[0]) / np.log(line.x[-1] / line.x[0])
        assert slope == pytest.approx(power, abs=0.01)
    assert "normal part, t²/2" in {trace.name for trace in figures.parts_figure().data}
