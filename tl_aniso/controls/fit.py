"""Fit the planes of controls on the captures that the tangent proxies were fitted on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from sklearn.decomposition import PCA
from torch import Tensor

from tl_aniso.checks import as_list, as_names
from tl_aniso.controls.names import COVARIANCE_DRAWN, NEXT_K, OTHER_LAYER, PERMUTED_TOKENS, PLANE_CONTROLS
from tl_aniso.controls.planes import ControlPlanes, drawn_planes, other_layer_site, site_seed
from tl_aniso.errors import SiteError, TlAnisoError, UndefinedMeasureError
from tl_aniso.pca import fit_pca, pooled_moments
from tl_aniso.subspace import TangentProxies, TangentProxy

__all__ = ["fit_control_planes"]

# Two spans of one eigendecomposition agree to rounding; another fit's differ visibly.
_SAME_PLANE = 1e-6


def fit_control_planes(
    captures: Any,
    proxies: TangentProxies,
    controls: Iterable[str] = PLANE_CONTROLS,
    *,
    sites: Iterable[str] | None = None,
    seed: int = 0,
    strict: bool = True,
) -> ControlPlanes:
    """The planes of ``other_layer``, ``permuted_tokens``, ``covariance_drawn`` and ``next_k`` beside known proxies.

    Fit them where the proxies were fitted (at the earliest checkpoints, say), hand both to later captures, and the
    gradient is projected on all of them. ``docs/method.md``, section "Controls and excess"; arXiv:2604.08764.

    Args:
        captures: one capture or several, with activations at the proxies' sites; of ``permuted_tokens``, with the
            extra pass of that name.
        proxies: tangent proxies fitted on these captures.
        controls: which planes to fit.
        sites: activation sites; those of all proxies by default.
        seed: of the planes drawn from the covariance.
        strict: raise what is missing; otherwise leave the control out and say so in ``.notes``.

    Raises:
        TlAnisoError: an unknown control, a model of one layer, a pass or a site that the captures lack, proxies whose
            PCA holds no following directions.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture, fit_tangent_proxies
        >>> from tl_aniso.controls import fit_control_planes
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> text = [list(range(3, 23)), list(range(9, 39)), list(range(5, 29))]
        >>> held = capture(LlamaForCausalLM(config), text, gradients=(), progress=False)
        >>> planes = fit_control_planes(held, fit_tangent_proxies(held), ["other_layer", "next_k"])
        >>> planes.at("next_k", "blocks.0.attn.input").shape
        torch.Size([16, 8])
    """
    several: Sequence[Any] = [captures] if hasattr(captures, "fitting_half") else as_list(captures) or []
    if not several or not all(hasattr(capture, "fitting_half") for capture in several):
        raise TlAnisoError("control planes are fitted on captures; pass one, or a list of them")
    if not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    wanted = tuple(dict.fromkeys(as_names("controls", controls)))
    unknown = sorted(set(wanted) - set(PLANE_CONTROLS))
    if unknown:
        raise TlAnisoError(f"{', '.join(unknown)} has no planes to fit; known are {', '.join(PLANE_CONTROLS)}")
    fitting = _Fitting(several, proxies, seed)
    columns: dict[str, dict[str, Tensor]] = {}
    notes: list[str] = []
    makers: dict[str, Callable[[TangentProxy], Tensor | None]] = {
        OTHER_LAYER: fitting.other_layer,
        PERMUTED_TOKENS: fitting.permuted,
        COVARIANCE_DRAWN: fitting.drawn,
        NEXT_K: fitting.following,
    }
    chosen = list(dict.fromkeys(proxies if sites is None else as_names("sites", sites)))
    for control in wanted:
        try:
            made = {site: makers[control](proxies[site]) for site in chosen}
        except TlAnisoError as error:
            if strict:
                raise
            notes.append(f"without the control {control}: {error}")
            continue
        columns[control] = {site: value for site, value in made.items() if value is not None}
    return ControlPlanes(columns, variance=fitting.variance, notes=notes)


class _Fitting:
    """Moments of the fitting halves, pooled as the proxies were, and one eigendecomposition a site."""

    def __init__(self, captures: Sequence[Any], proxies: TangentProxies, seed: int) -> None:
        self._captures = captures
        self._proxies = proxies
        self._seed = seed
        self._known: dict[str, PCA] = {}
        self.variance: dict[str, Float64[Tensor, " components"]] = {}

    def other_layer(self, proxy: TangentProxy) -> Tensor | None:
        n_layers = int(self._captures[0].metadata["model"]["n_layers"])
        other = other_layer_site(proxy.site, n_layers)
        if other is None:
            return None
        if other not in self._proxies:
            other = self._alias(other)
        if other not in self._proxies:
            raise SiteError(
                f"the control other_layer at {proxy.site} needs the proxy of {other}, which was not fitted; capture "
                "with that site too, or leave the control out"
            )
        return self._proxies[other].basis

    def permuted(self, proxy: TangentProxy) -> Tensor:
        _plane_of_pca(proxy, PERMUTED_TOKENS)
        parts = []
        for capture in self._captures:
            variant = capture.fitting_half().variants.get(PERMUTED_TOKENS)
            if variant is None or proxy.site not in variant.activations:
                raise TlAnisoError(
                    f"the capture holds no activations of permuted tokens at {proxy.site}; capture with "
                    f"extra_passes=({PERMUTED_TOKENS!r},) and without proxies, or leave the control {PERMUTED_TOKENS} "
                    "out"
                )
            parts.append(variant.activations[proxy.site])
        pca = fit_pca(
            pooled_moments(parts, _pool_of(proxy), proxy.site), proxy.rank, centred=proxy.centred, site=proxy.site
        )
        return _columns(pca)

    def drawn(self, proxy: TangentProxy) -> Tensor:
        pca = self._whole(proxy, COVARIANCE_DRAWN)
        variances = torch.from_numpy(pca.explained_variance_.copy())
        seed = site_seed(self._seed, COVARIANCE_DRAWN, proxy.site)
        try:
            return drawn_planes(_columns(pca), variances, proxy.rank, seed=seed)
        except UndefinedMeasureError as error:
            raise UndefinedMeasureError(f"the control {COVARIANCE_DRAWN} at {proxy.site}: {error}") from error

    def following(self, proxy: TangentProxy) -> Tensor:
        own = _plane_of_pca(proxy, NEXT_K)
        wanted = 2 * proxy.rank
        if own.components_.shape[0] < wanted:
            own = self._same_pca(proxy)
        self.variance[proxy.site] = torch.from_numpy(own.explained_variance_ratio_[:wanted].copy())
        return _columns(own)[:, :wanted].clone()

    def _same_pca(self, proxy: TangentProxy) -> PCA:
        """All components of the PCA whose first ones the proxy holds, if the captures are those it was fitted on."""
        remedy = (
            f"fit the proxies with twice the rank, fit_tangent_proxies(captures, {2 * proxy.rank}), and ask for "
            f"rank={proxy.rank}"
        )
        try:
            whole = self._whole(proxy, NEXT_K)
        except SiteError as error:
            raise TlAnisoError(f"the proxy at {proxy.site} holds no directions after its first; {remedy}") from error
        leading = _columns(whole)[:, : proxy.rank]
        if float((leading @ leading.T - proxy.basis @ proxy.basis.T).abs().max()) > _SAME_PLANE:
            raise TlAnisoError(
                f"the proxy at {proxy.site} was fitted elsewhere and holds no directions after its first; {remedy}"
            )
        return whole

    def _whole(self, proxy: TangentProxy, control: str) -> PCA:
        """Every principal direction at a site."""
        if proxy.site not in self._known:
            parts = []
            for capture in self._captures:
                held = capture.fitting_half().activations
                if proxy.site not in held:
                    raise SiteError(
                        f"the control {control} needs the activations at {proxy.site} that proxies are fitted on; "
                        "capture without proxies, hand over planes=fit_control_planes(...), or leave it out"
                    )
                parts.append(held[proxy.site])
            moments = pooled_moments(parts, _pool_of(proxy), proxy.site)
            self._known[proxy.site] = fit_pca(moments, moments.d, centred=proxy.centred, site=proxy.site)
        return self._known[proxy.site]

    def _alias(self, site: str) -> str:
        canonical = getattr(self._captures[0], "canonical", None)
        return str(canonical(site)) if canonical is not None else site


def _columns(pca: PCA) -> Float64[Tensor, "d components"]:
    return torch.from_numpy(pca.components_.T.astype("float64"))


def _plane_of_pca(proxy: TangentProxy, control: str) -> PCA:
    pca = proxy.estimator
    if not isinstance(pca, PCA) or not torch.allclose(_columns(pca)[:, : proxy.rank], proxy.basis, atol=_SAME_PLANE):
        raise TlAnisoError(
            f"the control {control} needs a proxy fitted by PCA, and the one at {proxy.site} was not; leave it out"
        )
    return pca


def _pool_of(proxy: TangentProxy) -> str:
    """How the proxy's captures were pooled; its planes are compared with planes of the same pool."""
    return str(proxy.provenance.get("pool", "scatter"))
