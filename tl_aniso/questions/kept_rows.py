"""Rows of `ablation_isotropy` that need activation rows: mean cosine, partition isotropy, intrinsic dimension."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.intrinsic import intrinsic_dimension
from tl_aniso.planes import normal_controls
from tl_aniso.questions.frame import Row
from tl_aniso.row_isotropy import mean_cosine, partition_isotropy

__all__ = ["ROW_MEASURES", "has_intrinsic_dimension", "kept_row_rows"]

# Measure, rows it looks at, and the measure of rows. Rows come in a random order, so the first ones are a sample;
# eigenvectors and nearest neighbours of more would take longer than everything else.
ROW_MEASURES: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "mean_cosine": (1 << 20, mean_cosine),
    "partition_isotropy": (2048, partition_isotropy),
    "intrinsic_dimension": (1024, intrinsic_dimension),
}

# Normal planes removed in turn: every one costs as much as the tangent.
_PLANES = 5


def has_intrinsic_dimension() -> bool:
    """Whether scikit-dimension is installed."""
    return find_spec("skdim") is not None


def kept_row_rows(base: Row, kept: Tensor, basis: Tensor, *, n_controls: int, seed: int) -> Iterator[Row]:
    """Each measure before any removal, and without the tangent against without normal planes of its rank.

    Args:
        base: the columns that all rows share.
        kept: rows of the site, n x d, in random order.
        basis: orthonormal d x k tangent basis.
        n_controls: normal planes that the question asked for; at most five are removed here.
        seed: of the normal planes.

    Raises:
        UndefinedMeasureError: fewer than two rows, or equal rows.
    """
    rows, tangent = kept.to(torch.float64), basis.to(kept.device, torch.float64)
    if len(rows) < 2:
        raise UndefinedMeasureError(f"{len(rows)} rows were kept, two are needed; raise keep_rows")
    planes = normal_controls(tangent, min(n_controls, _PLANES), seed=seed)
    for measure, (most, of_rows) in ROW_MEASURES.items():
        if measure == "intrinsic_dimension" and not has_intrinsic_dimension():
            continue
        some = rows[:most]
        shared = {**base, "measure": measure, "n_rows": len(some)}
        yield {**shared, "control": "none", "value": float(of_rows(some))}
        without = np.array([float(of_rows(_without(some, plane))) for plane in planes])
        yield {
            **shared,
            "control": "normal",
            "value": float(of_rows(_without(some, tangent))),
            "control_value": float(without.mean()),
            "null_mean": float(without.mean()),
            "null_std": float(without.std(ddof=1)) if len(without) > 1 else float("nan"),
        }


def _without(rows: Tensor, plane: Tensor) -> Tensor:
    """Coordinates in the complement of a plane, of d - k dimensions: emptied ones would count as directions."""
    whole = torch.linalg.qr(plane, mode="complete").Q
    return rows @ whole[:, plane.shape[1] :]
