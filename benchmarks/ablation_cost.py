"""Cost of one ablation control, against IsoScore* of the ablated rows by the `IsoScore` package.

What a user would do without this library: remove a plane from the rows, hand the rest to
``IsoScore.IsoScore_star``, once per draw. Only that last call is timed for the peer; drawing the planes and scoring
them with and without shrinkage is timed for this library. Both in float64, N = 4 d rows, rank 16.
"""

from collections.abc import Callable
from time import perf_counter

import torch
from IsoScore import IsoScore

from benchmarks.table import Line
from tl_aniso import normal_controls
from tl_aniso.ablation import ablate

__all__ = ["measure"]

_RANK, _DRAWS = 16, 100
_FLOORS = {576: 40.0, 2048: 150.0}
# The peer takes long at d = 2048: fewer pairs there.
_PAIRS = {576: 9, 2048: 5}


def measure(repeats: int, say: Callable[[str], None]) -> list[Line]:
    """Interleave the peer with 100 draws of ours, at two widths."""
    return [_at_width(d, min(repeats, _PAIRS[d]), say) for d in _FLOORS]


def _at_width(d: int, repeats: int, say: Callable[[str], None]) -> Line:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4 * d, d, dtype=torch.float64, generator=generator) * torch.linspace(0.2, 2, d)
    covariance = torch.cov(rows.T)
    basis = torch.linalg.eigh(covariance).eigenvectors[:, -_RANK:]
    plane = normal_controls(basis, 1)[0]
    ablated = rows - rows @ plane @ plane.T
    target = torch.eye(d, dtype=torch.float64)
    ratios = []
    for i in range(repeats + 1):
        began = perf_counter()
        IsoScore.IsoScore_star(ablated, target, 0.1)
        peer = perf_counter() - began
        began = perf_counter()
        ablate(covariance, basis, n_controls=_DRAWS)
        ours = (perf_counter() - began) / _DRAWS
        if i:  # the first pair warms up
            ratios.append(peer / ours)
            say(f"ablation, d = {d}: {i}/{repeats}, {peer * 1e3:.0f} ms by IsoScore, {ours * 1e3:.2f} ms a draw here")
    return Line(f"IsoScore package / one ablation control, d = {d}", ratios, _FLOORS[d], at_least=True)
