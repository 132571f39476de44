"""Tangent proxies as objects: one frozen plane, and a collection of them by site, saved and loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float64
from sklearn.decomposition import PCA
from torch import Tensor

from tl_aniso.checks import as_integer, as_list, as_path
from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.estimators import describe

__all__ = ["MissingProxyError", "TangentProxies", "TangentProxy"]


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

    def __getstate__(self) -> dict[str, Any]:
        # A read-only view has no way between processes, which results with their planes must have.
        return {**self.__dict__, "provenance": dict(self.provenance)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, provenance=MappingProxyType(state["provenance"]))

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
        several = as_list(proxies)
        wrong = proxies if several is None else next((p for p in several if not isinstance(p, TangentProxy)), None)
        if several is None or wrong is not None:
            raise TlAnisoError(f"proxies must be a list of TangentProxy, got {wrong!r}")
        for proxy in several:
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
            TlAnisoError: the path exists and holds something other than saved proxies, or cannot be written.
        """
        from tl_aniso.proxy_store import save_proxies

        return save_proxies(self, as_path("directory", directory))

    @classmethod
    def load(cls, directory: str | Path) -> TangentProxies:
        """Read what `save` wrote.

        Raises:
            TlAnisoError: nothing there, damaged files, or a format this version does not know.
        """
        from tl_aniso.proxy_store import load_proxies

        return load_proxies(as_path("directory", directory))

    def __repr__(self) -> str:
        ranks = sorted({proxy.rank for proxy in self.values()})
        return f"TangentProxies({len(self)} sites, rank {', '.join(map(str, ranks))})"


class MissingProxyError(SiteError, KeyError):
    """No proxy was fitted for the space of this site."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message
