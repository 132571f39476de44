"""Semi-nonnegative matrix factorisation (Ding, Li and Jordan 2010) as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from jaxtyping import Float64
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["SemiNMF"]

_TINY = 1e-12
_WELL_CONDITIONED = 1e8


class SemiNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """X = W H with W >= 0 and H of any sign: rows as mixtures, without cancellation, of directions.

    Minimises the squared Frobenius norm of X - W H by the updates of Ding, Li and Jordan ("Convex and
    semi-nonnegative matrix factorizations", IEEE TPAMI 32, 2010), which never increase it:

        H = (W^T W)^-1 W^T X,   W = W * sqrt(([X H^T]+ + W [H H^T]-) / ([X H^T]- + W [H H^T]+))

    from the clusters of k-means. Uncentred: the mean of the rows is data like any other. After the last update W is
    replaced by the best one for its H (nonnegative least squares), which is also what `transform` returns. A wider
    cone of directions fits as well as a narrow one, so H is a local optimum near the clusters, not unique.

    Args:
        n_components: k, at most the number of rows.
        max_iter: updates at most.
        tol: stop when an update lowers the squared error by less than this share of the rows' squared norm.
        random_state: of k-means.

    Attributes:
        components_: H, k x d, of unit rows.
        n_components_: k.
        objectives_: the squared error after each update.
        reconstruction_err_: Frobenius norm of X - W H at the end.
        n_iter_: updates made.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.semi_nmf import SemiNMF
        >>> generator = np.random.default_rng(0)
        >>> rows = generator.exponential(size=(200, 2)) @ np.array([[1.0, -1.0, 0.0], [0.0, 1.0, 1.0]])
        >>> model = SemiNMF(2, random_state=0).fit(rows)
        >>> bool((model.transform(rows) >= 0).all()), bool(model.reconstruction_err_ < 0.02 * np.linalg.norm(rows))
        (True, True)
    """

    def __init__(
        self, n_components: int = 2, *, max_iter: int = 500, tol: float = 1e-6, random_state: Any = None
    ) -> None:
        self.n_components: Any = n_components
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the directions to rows X (n x d).

        Raises:
            ValueError: what scikit-learn refuses in X, and a k that is not in 1 ... n.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Float64[np.ndarray, "n k"]:
        """Fit, and return the weights W of the rows."""
        return self._fit(X)

    def transform(self, X: Any) -> Float64[np.ndarray, "n k"]:
        """The weights W >= 0 that bring W H nearest to the rows."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return _weights(rows, self.components_)

    def inverse_transform(self, X: Any) -> Float64[np.ndarray, "n d"]:
        """W H of weights W."""
        check_is_fitted(self)
        return np.asarray(X, dtype=np.float64) @ self.components_

    def _fit(self, X: Any) -> Float64[np.ndarray, "n k"]:
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        n, k = rows.shape[0], self.n_components
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= n:
            raise ValueError(f"n_components={k!r} must be an integer between 1 and n_samples={n}")
        if self.max_iter < 1 or self.tol < 0:
            raise ValueError(f"max_iter={self.max_iter!r} must be at least 1 and tol={self.tol!r} at least 0")
        # In units of the rows, so that no product under- or overflows and the guard against 0/0 has a meaning.
        unit = float(np.sqrt(np.mean(rows**2))) or 1.0
        scaled = rows / unit
        weights = _clusters(scaled, int(k), check_random_state(self.random_state))
        total = float(np.square(scaled).sum())
        directions, cross, error = _directions(scaled, weights, total)
        self.objectives_: list[float] = [error * unit**2]
        for count in range(1, self.max_iter + 1):
            weights = _updated(weights, directions, cross)
            before = error
            directions, cross, error = _directions(scaled, weights, total)
            self.objectives_.append(error * unit**2)
            self.n_iter_ = count
            if before - error <= self.tol * total:
                break
        else:
            if self.tol > 0:
                warnings.warn(
                    f"SemiNMF stopped after max_iter={self.max_iter} updates before it converged",
                    ConvergenceWarning,
                    stacklevel=3,
                )
        norms = np.linalg.norm(directions, axis=1, keepdims=True)
        self.components_ = directions / np.where(norms > 0, norms, 1.0)
        self.n_components_ = int(k)
        best = _weights(rows, self.components_)
        self.reconstruction_err_ = float(np.linalg.norm(rows - best @ self.components_))
        return best

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]


def _clusters(rows: np.ndarray, k: int, random: np.random.RandomState) -> np.ndarray:
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters leave some empty, which does no harm here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(k, n_init=4, random_state=random).fit(rows).labels_
    # Zeros would stay zero for ever; 0.2 is the paper's.
    return np.eye(k)[labels] + 0.2


def _directions(rows: np.ndarray, weights: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The best H of a W, X H^T, and the squared error; `total` is the squared norm of the rows."""
    gram = weights.T @ weights
    if np.linalg.cond(gram) < _WELL_CONDITIONED:
        directions = np.linalg.solve(gram, weights.T @ rows)
    else:  # slower, and exact for weights that depend on each other
        directions = np.linalg.lstsq(weights, rows, rcond=None)[0]
    cross = rows @ directions.T
    # |X - W H|^2 multiplied out: forming X - W H would cost more than all the rest.
    error = total - 2 * float((cross * weights).sum()) + float((gram * (directions @ directions.T)).sum())
    return directions, cross, max(error, 0.0)


def _updated(weights: np.ndarray, directions: np.ndarray, cross: np.ndarray) -> np.ndarray:
    gram = directions @ directions.T
    up = np.maximum(cross, 0) + weights @ np.maximum(-gram, 0)
    down = np.maximum(-cross, 0) + weights @ np.maximum(gram, 0)
    return weights * np.sqrt((up + _TINY) / (down + _TINY))


def _weights(rows: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Nonnegative least squares of every row, in the span of the directions, where the problem is k x k."""
    q, r = np.linalg.qr(directions.T)
    targets = rows @ q
    return np.array([nnls(r, target)[0] for target in targets])
