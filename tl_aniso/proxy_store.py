"""Proxies on disk: safetensors for numbers, JSON for the rest, complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from tl_aniso.errors import TlAnisoError
from tl_aniso.estimators import SavedEstimator, describe
from tl_aniso.staging import staging

if TYPE_CHECKING:
    from tl_aniso.subspace import TangentProxies, TangentProxy

__all__ = ["load_proxies", "save_proxies"]

# Version 1 knew no estimator but PCA.
_FORMAT, _VERSION, _READABLE = "tl-aniso tangent proxies", 2, (1, 2)
_TENSORS, _INDEX = "proxies.safetensors", "proxies.json"
_ARRAYS = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")


def _describe(proxy: TangentProxy) -> dict[str, object]:
    return {
        "site": proxy.site,
        "rank": proxy.rank,
        "centred": proxy.centred,
        "requested_rank": proxy.requested_rank,
        "proxy_id": proxy.proxy_id,
        **_described(proxy.estimator),
        "provenance": dict(proxy.provenance),
        "notes": list(proxy.notes),
    }


def _described(estimator: Any) -> dict[str, object]:
    if isinstance(estimator, PCA):
        return {"n_samples": int(estimator.n_samples_), "noise_variance": float(estimator.noise_variance_)}
    name, parameters = describe(estimator)
    return {"estimator": name, "parameters": parameters}


def _arrays(proxy: TangentProxy) -> dict[str, object]:
    """What is stored of the estimator; of one that is not PCA, its components and the basis made of them."""
    if isinstance(proxy.estimator, PCA):
        return {name: getattr(proxy.estimator, name) for name in _ARRAYS}
    return {"components_": proxy.estimator.components_, "basis": proxy.basis.numpy()}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


def save_proxies(proxies: TangentProxies, directory: Path) -> Path:
    """Write `proxies` to `directory`, replacing proxies saved there before."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    index = {
        "format": _FORMAT,
        "version": _VERSION,
        "proxies": [_describe(proxy) for proxy in proxies.values()],
    }
    tensors = {
        f"{proxy.site}/{name}": torch.from_numpy(
            np.array(value, dtype=np.float64, order="C")
        )  # components may lie by columns
        for proxy in proxies.values()
        for name, value in _arrays(proxy).items()
    }
    try:
        if directory.exists() and not (directory / _INDEX).is_file():
            raise TlAnisoError(f"{directory} exists and holds no saved proxies; choose another directory")
        with staging(directory) as temporary:
            save_file(tensors, temporary / _TENSORS)
            (temporary / _INDEX).write_text(json.dumps(index, indent=1, default=_plain), encoding="utf-8")
            if directory.exists():
                retired = temporary.with_name(temporary.name + ".old")
                os.replace(directory, retired)
                os.replace(temporary, directory)
                shutil.rmtree(retired)
            else:
                os.replace(temporary, directory)
    except (OSError, SafetensorError) as error:
        raise TlAnisoError(f"the proxies could not be written to {directory}: {error}") from error
    return directory


def load_proxies(directory: Path) -> TangentProxies:
    """Read proxies; the planes are checked against the identifiers they were saved with."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from tl_aniso.subspace import TangentProxies

    try:
        index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
        tensors = load_file(directory / _TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise TlAnisoError(f"cannot read tangent proxies from {directory}: {error}") from error
    if not isinstance(index, dict) or index.get("format") != _FORMAT or index.get("version") not in _READABLE:
        raise TlAnisoError(
            f"{directory} is not in format {_FORMAT!r} version {' or '.join(map(str, _READABLE))}; save it again with "
            "this version"
        )
    proxies = []
    try:
        for entry in index["proxies"]:
            proxy = _restored(entry, tensors)
            if proxy.proxy_id != entry["proxy_id"]:
                raise TlAnisoError(f"the proxy of {entry['site']} in {directory} is not the one that was saved there")
            proxies.append(proxy)
    except (KeyError, TypeError) as error:
        raise TlAnisoError(f"the index of {directory} lacks {error}; save the proxies again") from error
    return TangentProxies(proxies)


def _restored(entry: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> TangentProxy:
    from tl_aniso.subspace import TangentProxy

    site = entry["site"]
    shared = {"centred": entry["centred"], "requested_rank": entry["requested_rank"]}
    if "estimator" in entry:
        components = tensors[f"{site}/components_"].numpy()
        return TangentProxy(
            site,
            SavedEstimator(entry["estimator"], MappingProxyType(dict(entry["parameters"])), components),
            tensors[f"{site}/basis"],
            provenance=MappingProxyType(dict(entry["provenance"])),
            notes=tuple(entry["notes"]),
            **shared,
        )
    arrays = {name: tensors[f"{site}/{name}"].numpy() for name in _ARRAYS}
    pca = _restore_pca(arrays, entry["n_samples"], entry["noise_variance"])
    proxy = TangentProxy.from_pca(site, pca, provenance=entry["provenance"], notes=entry["notes"], **shared)
    # A proxy cut by at_rank keeps the PCA it came from.
    return replace(proxy, basis=proxy.basis[:, : entry["rank"]].clone())


def _restore_pca(arrays: Mapping[str, np.ndarray], n_samples: int, noise_variance: float) -> PCA:
    k, d = arrays["components_"].shape
    pca = PCA(n_components=k, svd_solver="full")
    for name, value in arrays.items():
        setattr(pca, name, value)
    pca.n_components_, pca.n_features_in_, pca.n_samples_ = k, d, n_samples
    pca.noise_variance_ = noise_variance
    pca._fit_svd_solver = "full"
    return pca
