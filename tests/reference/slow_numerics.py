"""Slow, independent versions of the numerics: numpy, explicit loops, eigenvalues. They import nothing they check."""

import math
from collections.abc import Sequence

import numpy as np

__all__ = [
    "expected_share_by_basis",
    "isoscore_of_eigenvalues",
    "jackknife_logit",
    "moments_by_loop",
    "orthogonal_complement",
    "restricted_eigenvalues",
    "share_by_rows",
]


def moments_by_loop(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and centred scatter, one row and one outer product at a time, in float64."""
    rows = np.asarray(rows, dtype=np.float64)
    mean = np.zeros(rows.shape[1])
    for row in rows:
        mean += row / len(rows)
    scatter = np.zeros((rows.shape[1], rows.shape[1]))
    for row in rows:
        scatter += np.outer(row - mean, row - mean)
    return mean, scatter


def orthogonal_complement(basis: np.ndarray) -> np.ndarray:
    """An orthonormal d x (d - k) basis of what is orthogonal to `basis`."""
    k = basis.shape[1]
    return np.linalg.svd(basis, full_matrices=True)[0][:, k:]


def share_by_rows(rows: np.ndarray, basis: np.ndarray) -> float:
    """Energy of the rows' projections over the energy of the rows."""
    inside = sum(float(np.sum((basis.T @ row) ** 2)) for row in rows)
    return inside / sum(float(row @ row) for row in rows)


def expected_share_by_basis(moment: np.ndarray, basis: np.ndarray) -> float:
    """Mean share of k of the axes of any basis of the complement: the Haar mean, by symmetry."""
    complement = orthogonal_complement(basis)
    along = [float(axis @ moment @ axis) for axis in complement.T]
    return basis.shape[1] * float(np.mean(along)) / float(np.trace(moment))


def restricted_eigenvalues(covariance: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Eigenvalues of the covariance inside the complement of `removed`: exactly d - k of them."""
    complement = orthogonal_complement(removed)
    return np.linalg.eigvalsh(complement.T @ covariance @ complement)


def isoscore_of_eigenvalues(values: Sequence[float] | np.ndarray) -> float:
    """IsoScore step by step, as Rudman et al. (2022) define it (not through the participation ratio)."""
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    normalised = values * math.sqrt(n) / math.sqrt(sum(v * v for v in values))
    defect = math.sqrt(sum((v - 1.0) ** 2 for v in normalised)) / math.sqrt(2 * (n - math.sqrt(n)))
    return ((n - defect**2 * (n - math.sqrt(n))) ** 2 - n) / (n * (n - 1))


def jackknife_logit(selected: Sequence[float], total: Sequence[float]) -> tuple[float, float, float]:
    """Logit of the pooled share, its delete-one jackknife standard error, and the degrees of freedom."""
    n = len(selected)

    def logit(keep: list[int]) -> float:
        share = sum(selected[i] for i in keep) / sum(total[i] for i in keep)
        return math.log(share / (1 - share))

    deleted = [logit([j for j in range(n) if j != i]) for i in range(n)]
    centre = sum(deleted) / n
    variance = (n - 1) / n * sum((value - centre) ** 2 for value in deleted)
    freedom = sum(total) ** 2 / sum(t * t for t in total) - 1
    return logit(list(range(n))), math.sqrt(variance), freedom
