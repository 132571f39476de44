"""Tangent proxies: leading principal directions of activations at a site, frozen once, used everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self

import numpy as np
import sklearn
import torch
from jaxtyping import Float64
from sklearn.decomposition import PCA
from torch import Tensor

from tl_aniso.angles import compare_proxies, principal_angles, projection_kernel
from tl_aniso.checks import as_integer
from tl_aniso.errors import MergeError, SiteError, TlAnisoError
from tl_aniso.estimators import describe, fit_rows, is_centring, prepared
from tl_aniso.moments import Moments
from tl_aniso.pca import check_rank, default_rank, fit_pca, pca_rank, pooled_moments
from tl_aniso.planes import normal_controls, principal_cosines, random_planes

__all__ = [
    "TangentProxies",
    "TangentProxy",
    "check_rank",
    "compare_proxies",
    "default_rank",
    "fit_pca",
    "fit_tangent_proxies",
    "normal_controls",
    "principal_angles",
    "principal_cosines",
    "projection_kernel",
    "random_planes",
]


@dataclass(frozen=True, eq=False)
class TangentProxy:
    """A frozen plane that stands for the tangent space of the activations at one site.

    Attributes:
        site: activation site the plane was fitted at.
        estimator: the fitted scikit-learn decomposition behind it; of a proxy read from disk that is no PCA, a
            `tl_aniso.estimators.SavedEstimator`.
        basis: orthonormal d x k, float64, on the CPU; the transposed components, made orthonormal in their order.
        centred: whether the mean was subtracted.
        requested_rank: the rank asked for; `rank` is smaller where the data have fewer directions.
        provenance: model, revisions, rows, estimator, exclusions, versions (read-only).
        notes: what a reader should know, such as a rank that shrank.
    """

    site: str
    estimator: Any
    basis: Float64[Tensor, "d k"]
    centred: bool
    requested_rank: int
    provenance: Mapping[str, object]
    notes: tuple[str, ...] = ()

    @classmethod
    def from_pca(
        cls,
        site: str,
        pca: PCA,
        *,
        centred: bool,
        requested_rank: int,
        provenance: Mapping[str, object] | None = None,
        notes: Iterable[str] = (),
    ) -> Self:
        """The proxy whose basis is the components of a fitted PCA."""
        basis = torch.from_numpy(np.array(pca.components_, dtype=np.float64).T.copy())
        known = MappingProxyType(dict(provenance or {}))
        return cls(site, pca, basis, centred, requested_rank, known, tuple(notes))

    @property
    def pca(self) -> PCA:
        """The fitted scikit-learn `PCA`, where it is one.

        Raises:
            TlAnisoError: a proxy of another estimator.
        """
        if not isinstance(self.estimator, PCA):
            raise TlAnisoError(f"the proxy at {self.site} is of {describe(self.estimator)[0]}; use .estimator")
        return self.estimator

    @property
    def rank(self) -> int:
        """Number of directions k."""
        return self.basis.shape[1]

    @property
    def d(self) -> int:
        """Width of the residual space."""
        return self.basis.shape[0]

    def at_rank(self, rank: int) -> Self:
        """The proxy of the first `rank` directions.

        Raises:
            TlAnisoError: not an integer, below 1 or above `self.rank`.
        """
        rank = as_integer("rank", rank, least=1)
        if rank > self.rank:
            raise TlAnisoError(
                f"the proxy at {self.site} holds {self.rank} directions, not {rank}; fit with the larger rank"
            )
        return replace(self, basis=self.basis[:, :rank].clone(), requested_rank=rank)

    @cached_property
    def proxy_id(self) -> str:
        """Twelve hex digits of site, rank and projector: signs and rotations of the basis do not matter."""
        # Adding 0.0 turns -0.0 into 0.0, which has other bytes.
        projector = (self.basis @ self.basis.T).numpy().round(6) + 0.0
        digest = hashlib.sha256(f"{self.site}|{self.rank}|".encode())
        digest.update(projector.astype("<f8").tobytes())
        return digest.hexdigest()[:12]

    def __repr__(self) -> str:
        return f"TangentProxy({self.site!r}, rank={self.rank}, d={self.d}, id={self.proxy_id})"


class TangentProxies(Mapping[str, TangentProxy]):
    """Proxies by activation site. A weight site is answered with the proxy of the space it reads or writes.

    Args:
        proxies: the proxies; one per site.

    Raises:
        TlAnisoError: two proxies of one site.

    Example:
        >>> import torch
        >>> from tl_aniso import Moments, TangentProxies
        >>> from tl_aniso.subspace import TangentProxy, fit_pca
        >>> rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> pca = fit_pca(Moments(8).update(rows), 2)
        >>> proxy = TangentProxy.from_pca("blocks.0.attn.input", pca, centred=True, requested_rank=2)
        >>> proxies = TangentProxies([proxy])
        >>> proxies["blocks.0.attn.W_Q"].rank, list(proxies)
        (2, ['blocks.0.attn.input'])
    """

    def __init__(self, proxies: Iterable[TangentProxy]) -> None:
        self._proxies: dict[str, TangentProxy] = {}
        for proxy in proxies:
            if proxy.site in self._proxies:
                raise TlAnisoError(f"two proxies of the site {proxy.site}")
            self._proxies[proxy.site] = proxy

    def __getitem__(self, site: str) -> TangentProxy:
        if site in self._proxies:
            return self._proxies[site]
        from tl_aniso.sites import proxy_site

        resolved = proxy_site(site)
        if resolved in self._proxies:
            return self._proxies[resolved]
        raise MissingProxyError(f"no proxy for {site} (looked for {resolved}); there are: {', '.join(self._proxies)}")

    def at(self, site: str, place: str | None = None) -> TangentProxy:
        """The proxy of a site, where need be by the activation site at which it lives (``basis="residual"``).

        Args:
            site: any site; what the proxy is asked for.
            place: activation site; None for the one that belongs to `site` by its name.

        Raises:
            SiteError: no proxy there.
        """
        if place is None:
            return self[site]
        if place not in self._proxies:
            raise MissingProxyError(
                f"no proxy for {site}: with basis='residual' it lives at {place}; there are: {', '.join(self._proxies)}"
            )
        return self._proxies[place]

    def __contains__(self, site: object) -> bool:
        try:
            self[site]  # type: ignore[index]
        except SiteError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._proxies)

    def __len__(self) -> int:
        return len(self._proxies)

    def at_rank(self, rank: int) -> TangentProxies:
        """All proxies cut to their first `rank` directions. TlAnisoError where one holds fewer."""
        return TangentProxies(proxy.at_rank(rank) for proxy in self.values())

    def save(self, directory: str | Path) -> Path:
        """Write safetensors and JSON into `directory`, complete or not at all. Returns the directory.

        Raises:
            TlAnisoError: the path exists and holds something other than saved proxies.
        """
        from tl_aniso.proxy_store import save_proxies

        return save_proxies(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path) -> TangentProxies:
        """Read what `save` wrote.

        Raises:
            TlAnisoError: nothing there, damaged files, or a format this version does not know.
        """
        from tl_aniso.proxy_store import load_proxies

        return load_proxies(Path(directory))

    def __repr__(self) -> str:
        ranks = sorted({proxy.rank for proxy in self.values()})
        return f"TangentProxies({len(self)} sites, rank {', '.join(map(str, ranks))})"


class MissingProxyError(SiteError, KeyError):
    """No proxy was fitted for the space of this site."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message


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
    several = list(captures) if isinstance(captures, Iterable) else [captures]
    wrong = [entry for entry in several if not hasattr(entry, "fitting_half")]
    if wrong:
        raise TlAnisoError(f"tangent proxies are fitted on captures, got {type(wrong[0]).__name__}")
    return several


def _source(metadata: Mapping[str, Any]) -> dict[str, object]:
    """What a later reader must know about one checkpoint that was pooled."""
    options = metadata.get("options", {})
    known = {key: options[key] for key in _SOURCE_OPTIONS if key in options}
    return {"model": metadata.get("model", "unknown"), **known}
