"""Tangent planes from any scikit-learn decomposition that has `components_`, fitted on kept rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.pca import check_rank, default_rank

__all__ = ["SavedEstimator", "describe", "fit_rows", "is_centring", "orthonormal_span", "prepared"]

# A component that keeps less than this share of its length outside those before it adds no direction.
_DEPENDENT = 1e-7


@dataclass(frozen=True, eq=False)
class SavedEstimator:
    """What is known of a fitted estimator that was read from disk: its name, parameters and components.

    Attributes:
        name: as ``sklearn.decomposition.FastICA``.
        parameters: of its constructor, as JSON values.
        components_: as fitted, k x d.
    """

    name: str
    parameters: Mapping[str, object]
    components_: Float64[np.ndarray, "k d"] = field(repr=False)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters, as scikit-learn's estimators give them."""
        return dict(self.parameters)


class Fitted(NamedTuple):
    """A fitted estimator, the orthonormal basis of its components (d x k), the rank asked for, and notes."""

    estimator: Any
    basis: Float64[np.ndarray, "d k"]
    requested_rank: int
    notes: tuple[str, ...]


def describe(estimator: Any) -> tuple[str, dict[str, object]]:
    """The public name of an estimator and its parameters as JSON values (what JSON lacks, as text).

    Example:
        >>> from sklearn.decomposition import TruncatedSVD
        >>> from tl_aniso.estimators import describe
        >>> name, parameters = describe(TruncatedSVD(3))
        >>> name, parameters["n_components"]
        ('sklearn.decomposition.TruncatedSVD', 3)
    """
    if isinstance(estimator, SavedEstimator):
        return estimator.name, dict(estimator.parameters)
    kind = type(estimator)
    # scikit-learn defines its estimators in private modules.
    path = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    return ".".join((*path, kind.__qualname__)), json.loads(json.dumps(estimator.get_params(), default=_plain))


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else repr(value)


def prepared(estimator: Any, rank: int | None, d: int) -> tuple[Any, int]:
    """An unfitted copy with `n_components` set, seeded where it can be, and that number.

    Raises:
        TlAnisoError: not an unfitted scikit-learn estimator, or a rank outside 1 ... d // 2.
    """
    if isinstance(estimator, type) or not all(callable(getattr(estimator, n, None)) for n in ("fit", "get_params")):
        raise TlAnisoError(
            f"estimator {estimator!r} is not supported: pass an unfitted scikit-learn decomposition such as "
            "TruncatedSVD(), or None for PCA"
        )
    known = estimator.get_params()
    if hasattr(estimator, "components_") or "n_components" not in known:
        why = "it has no n_components" if "n_components" not in known else "it is fitted already"
        raise TlAnisoError(f"estimator {estimator!r} is not supported: {why}; pass an unfitted decomposition")
    asked = known["n_components"] if rank is None else rank
    if rank is None and asked is not None and (isinstance(asked, bool) or not isinstance(asked, int | np.integer)):
        raise TlAnisoError(f"n_components={asked!r} of {estimator!r} is not supported: give an integer, or rank=")
    wanted = check_rank(default_rank(d) if asked is None else asked, d)
    changes: dict[str, object] = {"n_components": wanted}
    if known.get("random_state", 0) is None:
        changes["random_state"] = 0  # the same planes every time
    return clone(estimator).set_params(**changes), wanted


def fit_rows(estimator: Any, rows: Float64[np.ndarray, "n d"], rank: int | None, *, site: str) -> Fitted:
    """Fit a copy of an estimator on rows as they are, and orthonormalise its components in their order.

    Args:
        estimator: unfitted scikit-learn decomposition.
        rows: not centred beforehand; an estimator that centres does so itself.
        rank: components; the estimator's own `n_components` where None.
        site: named in errors.

    Raises:
        TlAnisoError: an estimator that is not supported, that refuses the rows (NMF: negative ones), or that has no
            `components_` after fitting.
        UndefinedMeasureError: constant rows, or components that are all zero.

    Example:
        >>> import numpy as np
        >>> from sklearn.decomposition import FastICA
        >>> from tl_aniso.estimators import fit_rows
        >>> rows = np.random.default_rng(0).laplace(size=(300, 8))
        >>> fitted = fit_rows(FastICA(), rows, 3, site="blocks.0.attn.input")
        >>> fitted.basis.shape, fitted.estimator.components_.shape
        ((8, 3), (3, 8))
    """
    n, d = rows.shape
    if n < 2 or bool((rows == rows[0]).all()):
        raise UndefinedMeasureError(f"the {n} rows kept at {site} are constant: they have no directions")
    copy, wanted = prepared(estimator, rank, d)
    known = _numerical_rank(rows, wanted)
    copy.set_params(n_components=known)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            copy.fit(rows)
        except (ValueError, TypeError, np.linalg.LinAlgError) as error:
            remedy = "; tl_aniso.semi_nmf.SemiNMF takes rows of any sign" if "egative" in str(error) else ""
            raise TlAnisoError(f"{estimator!r} cannot be fitted to the rows at {site}: {error}{remedy}") from error
    components = getattr(copy, "components_", None)
    if components is None:
        raise TlAnisoError(f"{estimator!r} has no components_ after fitting; use a linear decomposition")
    basis = orthonormal_span(components, site)
    notes = tuple(
        dict.fromkeys(
            f"{type(copy).__name__} at {site}: {w.message}" for w in caught if w.category is ConvergenceWarning
        )
    )
    if basis.shape[1] < wanted:
        what = "rows" if basis.shape[1] == known else "components"
        notes += (f"rank {wanted} was asked for; the {what} at {site} have {basis.shape[1]} directions",)
    check_rank(basis.shape[1], d)
    return Fitted(copy, basis, wanted, notes)


def _numerical_rank(rows: Float64[np.ndarray, "n d"], most: int) -> int:
    """Directions of the rows above the rounding of float32, in which they were kept; counted up to `most`."""
    n, d = rows.shape
    # A random sketch has the rank of the rows, up to its width, at a fraction of the cost.
    sketch = rows @ np.random.default_rng(0).standard_normal((d, min(d, most + 8)))
    values = np.linalg.svd(sketch, compute_uv=False)
    known = int((values > values[0] * max(n, d) * np.finfo(np.float32).eps).sum())
    return max(1, min(most, known))


def orthonormal_span(components: Sequence[Sequence[float]] | np.ndarray, site: str) -> Float64[np.ndarray, "d k"]:
    """An orthonormal basis whose first r columns span the first r independent components, for every r.

    Raises:
        UndefinedMeasureError: components that are not finite, or all zero.
    """
    vectors = np.array(components, dtype=np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise UndefinedMeasureError(f"the components at {site} are not finite")
    kept = np.empty((vectors.shape[1], 0))
    for vector in vectors:
        length = np.linalg.norm(vector)
        if not length > 0:
            continue
        rest = vector / length
        for _ in range(2):  # once leaves rounding behind that a second time removes
            rest = rest - kept @ (kept.T @ rest)
        left = np.linalg.norm(rest)
        if left > _DEPENDENT:
            rest = rest / left
            rest = rest - kept @ (kept.T @ rest)
            kept = np.column_stack([kept, rest / np.linalg.norm(rest)])
    if not kept.shape[1]:
        raise UndefinedMeasureError(f"the components at {site} are all zero: they span no plane")
    return kept


def is_centring(estimator: Any) -> bool:
    """Whether a fitted estimator subtracted a mean from its rows."""
    return getattr(estimator, "mean_", None) is not None
