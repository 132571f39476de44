"""Intrinsic dimension of rows, by the estimators of scikit-dimension."""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float

from tl_aniso.arrays import ArrayLike
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.row_isotropy import checked_rows

__all__ = ["DimensionMethod", "intrinsic_dimension"]

DimensionMethod: TypeAlias = Literal["TwoNN", "MLE", "lPCA"]

# Below this many different rows, the estimates of nearest neighbours are noise.
_FEWEST = 10


def intrinsic_dimension(
    points: Float[ArrayLike, "n d"], *, method: DimensionMethod = "TwoNN", **parameters: Any
) -> float:
    """Number of dimensions that rows locally fill, by an estimator of scikit-dimension.

    "TwoNN" (Facco et al. 2017) and "MLE" (Levina and Bickel 2004) look at nearest neighbours, so a curved surface
    counts its own dimensions; "lPCA" counts principal components, here of all rows together. Repeated rows, which
    have no distance to their nearest neighbour, count once.

    Args:
        points: rows are samples, ten different ones or more.
        method: name of the estimator.
        **parameters: of its constructor in ``skdim.id``.

    Raises:
        TlAnisoError: scikit-dimension is not installed, an unknown method or parameter, not n x d.
        UndefinedMeasureError: equal rows, too few different ones, numbers that are not finite, or an estimate that is
            not a number.

    Example:
        >>> import numpy as np, pytest
        >>> _ = pytest.importorskip("skdim")
        >>> from tl_aniso.intrinsic import intrinsic_dimension
        >>> rows = np.random.default_rng(0).standard_normal((1000, 2)) @ np.ones((2, 9))
        >>> round(intrinsic_dimension(rows))
        1
    """
    if method not in get_args(DimensionMethod):
        raise TlAnisoError(f"method must be one of {', '.join(get_args(DimensionMethod))}, got {method!r}")
    rows = checked_rows(points, "intrinsic dimension").detach().cpu().numpy()
    rows = np.unique(rows, axis=0)
    if len(rows) < _FEWEST:
        raise UndefinedMeasureError(f"intrinsic dimension needs {_FEWEST} different rows or more, got {len(rows)}")
    try:
        import skdim  # needs numba, which takes seconds to import
    except ImportError as error:
        raise TlAnisoError(
            "intrinsic dimension needs scikit-dimension; install it with: pip install 'tl_aniso[dimension]'"
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Distances do not depend on the mean or the unit; their rounding does.
            centred = rows - rows.mean(0)
            found = float(getattr(skdim.id, method)(**parameters).fit(centred / np.abs(centred).max()).dimension_)
        except (TypeError, ValueError, np.linalg.LinAlgError) as error:
            raise TlAnisoError(
                f"{method} cannot estimate a dimension of {len(rows)} different rows: {error}"
            ) from error
    if not np.isfinite(found):
        raise UndefinedMeasureError(f"{method} gives {found} as the dimension of {len(rows)} different rows")
    return found
