"""Fitting tangent proxies on captures: principal directions of pooled moments, or another estimator on kept rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import sklearn
import torch
from sklearn.decomposition import PCA

from tl_aniso.checks import as_list
from tl_aniso.errors import MergeError, SiteError, TlAnisoError
from tl_aniso.estimators import describe, fit_rows, is_centring, prepared
from tl_aniso.moments import Moments
from tl_aniso.pca import check_rank, default_rank, fit_pca, pca_rank, pooled_moments
from tl_aniso.proxies import TangentProxies, TangentProxy

__all__ = ["fit_tangent_proxies"]


class FittingHalf(Protocol):
    """The half of a capture that proxies are fitted on."""

    @property
    def activations(self) -> Mapping[str, Moments]:
        """Moments of activation rows by site."""

    # Also ``rows``, site -> kept rows (n x d), which estimators other than PCA are fitted on.


class Fittable(Protocol):
    """What `fit_tangent_proxies` needs to know of a capture."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Model, revision, step, exclusions and the like."""

    @property
    def in_sample(self) -> bool:
        """Whether what is fitted and what is measured are the same documents."""

    def fitting_half(self) -> FittingHalf:
        """Half A, or everything where there is one half only."""


# What of a capture's metadata says where a plane comes from.
_SOURCE_OPTIONS = ("objective", "exclude", "seq_len", "dtype", "seed")


def fit_tangent_proxies(
    captures: Fittable | Iterable[Fittable],
    rank: int | None = None,
    *,
    centred: bool = True,
    pool: Literal["scatter", "covariance"] = "scatter",
    estimator: Any = None,
) -> TangentProxies:
    """Fit one tangent proxy per activation site: the first principal directions of its rows.

    After arXiv:2604.08764, which fits on activations of the earliest 30% of training and freezes the planes.

    Args:
        captures: one capture, or the captures of the checkpoints to pool.
        rank: directions per proxy; min(16, d // 4) by default, at most d // 2.
        centred: subtract the mean of the rows; estimators other than PCA decide that for themselves.
        pool: "scatter" pools all rows about their common mean; "covariance" averages the covariances within
            each checkpoint, so that a drift of the mean is no direction of its own (PCA only).
        estimator: an unfitted scikit-learn decomposition, PCA by default; its `n_components` is used where `rank` is
            None. PCA is computed from the captures' moments. Any other that has `components_` once fitted
            (TruncatedSVD, FastICA, FactorAnalysis, SparsePCA, DictionaryLearning, NMF, `tl_aniso.semi_nmf.SemiNMF`)
            is fitted on the rows that ``capture(..., keep_rows=n)`` kept, as they are; the plane is the span of its
            components, and of lower rank that of its first ones.

    Returns:
        Proxies by activation site, fitted on the captures' fitting halves.

    Raises:
        TlAnisoError: rank above d // 2, an estimator that is not supported or refuses the rows, captures that kept no
            rows for it, captures that do not match.
        UndefinedMeasureError: constant rows at a site.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from tl_aniso import Moments, fit_tangent_proxies
        >>> rows = torch.randn(99, 8, generator=torch.Generator().manual_seed(0))
        >>> half = SimpleNamespace(activations={"blocks.0.hook_resid_pre": Moments(8).update(rows)})
        >>> capture = SimpleNamespace(fitting_half=lambda: half, metadata={"model": "toy"}, in_sample=False)
        >>> fit_tangent_proxies(capture)["blocks.0.hook_resid_pre"].rank
        2
    """
    several: list[Fittable] = [captures] if hasattr(captures, "fitting_half") else _listed(captures)  # type: ignore[list-item]
    if not several:
        raise TlAnisoError("no captures to fit tangent proxies on")
    if pool not in ("scatter", "covariance"):
        raise TlAnisoError(f"pool must be 'scatter' or 'covariance', got {pool!r}")
    if not isinstance(centred, bool):
        raise TlAnisoError(f"centred must be True or False, got {centred!r}")
    if pool == "covariance" and not centred:
        raise TlAnisoError("pool='covariance' averages centred covariances; use pool='scatter' with centred=False")
    by_rows = estimator is not None and type(estimator) is not PCA
    if by_rows and (pool, centred) != ("scatter", True):
        raise TlAnisoError(
            f"pool={pool!r} and centred={centred} are choices of PCA; {estimator!r} is fitted on the pooled rows and "
            "centres them or not by itself"
        )
    if estimator is not None and not by_rows:
        wanted = pca_rank(estimator)
        rank = wanted if rank is None else rank
    halves = [capture.fitting_half().activations for capture in several]
    sites = list(halves[0])
    for half in halves[1:]:
        if set(half) != set(sites):
            odd = sorted(set(half) ^ set(sites))
            raise MergeError(f"the captures hold different activation sites; only some have {', '.join(odd)}")
    if not sites:
        raise SiteError("the captures hold no activations to fit tangent proxies on")
    # Every rank is checked before the first eigendecomposition.
    if by_rows:
        for site in sites:
            prepared(estimator, rank, halves[0][site].d)
        return _fitted_on_rows(several, sites, rank, estimator)
    ranks = {site: check_rank(default_rank(m.d) if rank is None else rank, m.d) for site, m in halves[0].items()}
    provenance = {**_provenance(several), "estimator": "sklearn.decomposition.PCA", "pool": pool}
    proxies = []
    for site in sites:
        pooled = pooled_moments([half[site] for half in halves], pool, site)
        pca = fit_pca(pooled, ranks[site], centred=centred, site=site)
        notes = []
        if pca.n_components_ < ranks[site]:
            notes.append(f"rank {ranks[site]} was asked for; the rows at {site} have {pca.n_components_} directions")
        proxies.append(
            TangentProxy.from_pca(
                site,
                pca,
                centred=centred,
                requested_rank=ranks[site],
                provenance={**provenance, "rows": pooled.count},
                notes=notes,
            )
        )
    return TangentProxies(proxies)


def _provenance(captures: Iterable[Fittable]) -> dict[str, object]:
    several = list(captures)
    return {
        "sources": [_source(c.metadata) for c in several],
        "halves": sorted({half for c in several for half in getattr(c.fitting_half(), "halves", ())}),
        "versions": {
            "scikit-learn": sklearn.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def _fitted_on_rows(captures: list[Fittable], sites: list[str], rank: int | None, estimator: Any) -> TangentProxies:
    """Proxies of an estimator that needs rows; sites of which no rows were kept are an error."""
    kept = [getattr(capture.fitting_half(), "rows", None) or {} for capture in captures]
    missing = [site for site in sites if not all(site in rows and len(rows[site]) for rows in kept)]
    if missing:
        raise TlAnisoError(
            f"{type(estimator).__name__} is fitted on rows, and the capture kept none at {missing[0]}; capture again "
            "with keep_rows=4096 or so, or use PCA, which needs sums only"
        )
    shared = _provenance(captures)
    proxies = []
    for site in sites:
        widths = {rows[site].shape[1] for rows in kept}
        if len(widths) > 1:
            raise MergeError(f"the captures have different widths at {site}: {sorted(widths)}")
        rows = torch.cat([rows[site] for rows in kept]).to(torch.float64).cpu().numpy()
        fitted = fit_rows(estimator, rows, rank, site=site)
        name, parameters = describe(fitted.estimator)
        proxies.append(
            TangentProxy(
                site,
                fitted.estimator,
                torch.from_numpy(fitted.basis.copy()),
                is_centring(fitted.estimator),
                fitted.requested_rank,
                MappingProxyType(
                    {**shared, "estimator": name, "parameters": parameters, "pool": "scatter", "rows": len(rows)}
                ),
                fitted.notes,
            )
        )
    return TangentProxies(proxies)


def _listed(captures: Any) -> list[Fittable]:
    found = as_list(captures)
    several = [captures] if found is None else found
    wrong = [entry for entry in several if not hasattr(entry, "fitting_half")]
    if wrong:
        raise TlAnisoError(f"tangent proxies are fitted on captures, got {type(wrong[0]).__name__}")
    return several


def _source(metadata: Mapping[str, Any]) -> dict[str, object]:
    """What a later reader must know about one checkpoint that was pooled."""
    options = metadata.get("options", {})
    known = {key: options[key] for key in _SOURCE_OPTIONS if key in options}
    return {"model": metadata.get("model", "unknown"), **known}
