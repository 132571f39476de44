"""Spectra of one site of a capture, before and after its tangent plane is taken out."""

from typing import Any

from tl_aniso.capturing.store import Capture
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.proxies import TangentProxies
from tl_aniso.questions.ablation_rows import ABLATION_KINDS, moments_at
from tl_aniso.questions.source import measured
from tl_aniso.spectra import spectra_without

__all__ = ["ablation_spectra"]


def ablation_spectra(
    capture: Capture,
    proxies: TangentProxies | None,
    site: str,
    *,
    gradient: str = "none",
    n_planes: int = 20,
    seed: int = 0,
) -> Any:
    """Eigenvalues at a site: of all directions, without the tangent plane, without normal planes of its rank.

    Measured on the half of the documents on which `tl_aniso.ablation_isotropy` measures: half B, where the
    planes were fitted on half A.

    Args:
        capture: with d x d sums at `site`.
        proxies: frozen planes; None to fit them on the capture's half A.
        site: an activation site, or with ``gradient="weight"`` a weight site.
        gradient: "none" for the activations themselves, "activation" or "weight".
        n_planes: normal planes drawn.
        seed: of the planes.

    Returns:
        The frame of `tl_aniso.spectra.spectra_without` with columns site and gradient in front, which
        `tl_aniso.viz.ablation_spectrum` draws; frames of several sites may be concatenated.

    Raises:
        TlAnisoError: an unknown kind of gradient, a site without sums or without a proxy, a rank above d // 2.
        UndefinedMeasureError: a covariance that holds no variance.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import ablation_spectra, capture
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> found = capture(LlamaForCausalLM(config), documents, progress=False)
        >>> table = ablation_spectra(found, None, "blocks.0.hook_resid_pre", n_planes=3)
        >>> table.groupby("series", sort=False).size().to_dict()
        {'full': 16, 'without tangent': 12, 'without normal': 12}
    """
    if not isinstance(capture, Capture):
        raise TlAnisoError(f"capture must be a Capture, as tl_aniso.capture returns it, got {type(capture).__name__}")
    if gradient not in ABLATION_KINDS:
        raise TlAnisoError(f"gradient must be one of {', '.join(ABLATION_KINDS)}, got {gradient!r}")
    found = measured(
        capture, None, proxies=proxies, rank=None, kinds=(gradient,), controls=(), sums="effect", seed=seed, options={}
    )
    moments = moments_at(found, site, gradient)
    if moments is None:
        raise TlAnisoError(
            f"the capture holds no d x d sums at {site} for gradient={gradient!r}; capture again without proxies, or "
            "with pooled='effect'"
        )
    matrix = moments.second_moment() if gradient == "weight" else moments.covariance()
    try:
        table = spectra_without(matrix, found.proxy(site).basis, n_planes=n_planes, seed=seed)
    except UndefinedMeasureError as error:
        raise UndefinedMeasureError(f"the spectrum at {site}: {error}") from error
    table.insert(0, "gradient", gradient)
    table.insert(0, "site", site)
    return table
