"""Principal directions from moments, as a fitted scikit-learn `PCA`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError
from tl_aniso.moments import Moments

__all__ = ["check_rank", "default_rank", "fit_pca", "pca_rank", "pooled_moments"]


def default_rank(d: int) -> int:
    """min(16, d // 4), at least 1."""
    return max(1, min(16, d // 4))


def check_rank(rank: int, d: int) -> int:
    """`rank` if 1 <= rank <= d // 2: above that no normal space of the same rank exists.

    Raises:
        TlAnisoError: a rank outside these bounds, or not an integer.
    """
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
        raise TlAnisoError(f"rank must be an integer, got {rank!r}")
    if not 1 <= rank <= d // 2:
        raise TlAnisoError(
            f"rank {rank} is outside 1 ... d // 2 = {d // 2} (d = {d}): a tangent proxy needs a normal space of its "
            f"own rank beside it; choose a rank of at most {d // 2}"
        )
    return int(rank)


def fit_pca(moments: Moments, rank: int, *, centred: bool = True, site: str | None = None) -> PCA:
    """A fitted scikit-learn `PCA` from moments, as `PCA(rank, svd_solver="full")` on float64 rows would be.

    Eigenvectors of the float64 scatter, signs as scikit-learn sets them (largest entry of a component
    positive). A rank above the numerical rank shrinks to it: compare `n_components_` with what was asked. An
    eigenvalue counts when it stands above the rounding of the products, 4 eps tr(scatter) / sqrt(d) with eps
    that of the rows.

    Args:
        moments: of the rows, centred (uncentred moments can only be fitted with `centred=False`).
        rank: components wanted, at most d.
        centred: subtract the mean; otherwise `mean_` is zero and `explained_variance_` the uncentred second
            moment along each component.
        site: named in errors.

    Raises:
        UndefinedMeasureError: fewer than two rows, constant rows (centred), or rows of zeros.
        TlAnisoError: centred fit of uncentred moments, rank outside 1 ... d.

    Example:
        >>> import torch
        >>> from tl_aniso import Moments
        >>> from tl_aniso.subspace import fit_pca
        >>> rows = torch.tensor([[0.0, 3.0, 1.0], [0.0, -3.0, 1.0], [1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]])
        >>> pca = fit_pca(Moments(3).update(rows), 2)
        >>> abs(pca.components_).round(6).tolist(), pca.explained_variance_.round(6).tolist()
        ([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [6.0, 0.666667])
    """
    d, n, where = moments.d, moments.count, f" at {site}" if site else ""
    if not 1 <= rank <= d:
        raise TlAnisoError(f"rank {rank}{where} is outside 1 ... d = {d}")
    if n < 2 and centred:
        raise UndefinedMeasureError(f"principal directions{where} need at least two rows, got {n}")
    if centred and not moments.is_centred:
        raise TlAnisoError(f"the moments{where} are uncentred; fit them with centred=False")
    if centred and moments.is_constant:
        raise UndefinedMeasureError(f"the rows{where} are constant: they have no principal directions")
    total = moments.scatter if centred else moments.second_moment() * n
    values, vectors = np.linalg.eigh(total.cpu().numpy())
    values, vectors = np.clip(values[::-1], 0.0, None), vectors[:, ::-1]
    noise = max(d * np.finfo(np.float64).eps * values[0], 4 * moments.eps * values.sum() / np.sqrt(d))
    if not values[0] > 0.0:
        raise UndefinedMeasureError(f"the rows{where} are all zero: they have no principal directions")
    known = int((values > noise).sum())
    # Of weight gradients, n counts sequences, each a sum of many rows: it bounds no rank there.
    known = min(known, n - 1) if centred else known
    k = max(1, min(rank, known))
    components = vectors[:, :k].T.copy()
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(k), largest])[:, None]
    variances = values / (n - 1 if centred else n)
    pca = PCA(n_components=k, svd_solver="full")
    pca.components_ = components
    pca.explained_variance_ = variances[:k].copy()
    pca.explained_variance_ratio_ = variances[:k] / variances.sum()
    pca.singular_values_ = np.sqrt(values[:k])
    pca.mean_ = moments.mean.cpu().numpy() if centred else np.zeros(d)
    pca.n_components_, pca.n_features_in_, pca.n_samples_ = k, d, n
    rest = variances[k : min(n, d) if centred else d]
    pca.noise_variance_ = float(rest.mean()) if rest.size else 0.0
    pca._fit_svd_solver = "full"
    return pca


def pca_rank(estimator: Any) -> int | None:
    """`n_components` of an unfitted `PCA`, None where it is left open.

    Raises:
        TlAnisoError: a fitted or whitening PCA, or a number of components that is not an integer.
    """
    if hasattr(estimator, "components_"):
        raise TlAnisoError(f"estimator {estimator!r} is not supported: it is fitted already; pass an unfitted one")
    if estimator.whiten:
        raise TlAnisoError("estimator PCA(whiten=True) is not supported: whitened components span no other plane")
    if estimator.n_components is not None and not isinstance(estimator.n_components, int):
        raise TlAnisoError(f"PCA(n_components={estimator.n_components!r}) is not supported: give an integer, or rank=")
    return estimator.n_components


def pooled_moments(parts: Sequence[Moments], pool: str, site: str) -> Moments:
    """Moments of several checkpoints as one: all rows about their common mean, or the mean of the covariances.

    Raises:
        MergeError: moments of different widths.
    """
    if len({part.d for part in parts}) > 1:
        raise MergeError(f"the captures have different widths at {site}: {sorted({part.d for part in parts})}")
    if pool == "scatter" or len(parts) == 1:
        pooled = parts[0].copy()
        for part in parts[1:]:
            pooled.merge(part)
        return pooled
    count = sum(part.count for part in parts)
    covariance = torch.stack([part.covariance() for part in parts]).mean(0)
    mean = sum((part.mean * (part.count / count) for part in parts), torch.zeros(parts[0].d, dtype=torch.float64))
    return Moments.from_sums(count, mean, covariance * (count - 1), eps=max(part.eps for part in parts))
