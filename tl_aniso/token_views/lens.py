"""Which output tokens a tangent direction writes, read through the final norm's gain and the unembedding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.prepare import find_tokenizer
from tl_aniso.checks import as_integer, as_names
from tl_aniso.errors import ModelError, SiteError, TlAnisoError
from tl_aniso.sites import UNEMBEDDING_INPUT, role_of, select_sites
from tl_aniso.subspace import TangentProxies
from tl_aniso.token_views.measure import same_width
from tl_aniso.token_views.names import as_html, token_texts

__all__ = ["Lens", "lens"]

# Where the bodies of decoders and encoders keep the norm behind their last block.
_FINAL_NORMS = ("final_layer_norm", "final_norm", "ln_final", "ln_f", "norm")


@dataclass(frozen=True, eq=False)
class Lens:
    """The output tokens at both ends of each direction.

    Attributes:
        frame: one row per site, direction (from 0), end and place; ``logit`` is the change of the token's logit per
            unit of the direction, less the mean over the vocabulary, for a residual whose root mean square is 1. The
            sign of a direction is arbitrary, so "+" and "-" mean nothing but opposite ends.
        notes: what a reader must know.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return as_html(self.frame, self.notes)


def lens(
    model: Any,
    proxies: TangentProxies,
    *,
    sites: str | Sequence[str] | None = None,
    n: int = 10,
    tokenizer: Any = None,
) -> Lens:
    """Read tangent directions as output tokens: ``W_U (gamma * v)``, the largest and the smallest.

    gamma is the gain of the final norm; a norm that centres takes the mean off v first. What is linear in the norm is
    kept, its division by the length of the residual is left out: it scales all tokens alike. Later blocks, which read
    the direction too, are not looked at, so early layers say little here.

    Args:
        model: as of `tl_aniso.capture`.
        proxies: the planes.
        sites: of residual sites, writers' outputs and ``unembed.input`` (which the final norm lies before); by default
            those of them that have a proxy.
        n: tokens at each end.
        tokenizer: names the tokens; the one the model holds, or ids, without it.

    Raises:
        SiteError: readers' inputs, whose directions are read and never written, or no site with a proxy.
        ModelError: a head with a transform of its own in front of the unembedding, or no final norm to be found.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture, fit_tangent_proxies
        >>> from tl_aniso.token_views import lens
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> proxies = fit_tangent_proxies(capture(model, documents, gradients=(), progress=False), rank=2)
        >>> len(lens(model, proxies, sites="unembed.input", n=3).frame)
        12
    """
    if not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    n = as_integer("n", n, least=1)
    layout = bind(model)
    if layout.transform is not None:
        raise ModelError(
            f"this {layout.class_name} has a head with a matrix and an activation of its own in front of the "
            "unembedding, through which a direction is not read linearly; the lens is for models without one"
        )
    written = [s for s in (*layout.residual_sites, *layout.matrix_sites) if _is_written(s)]
    known = [s for s in written if s in proxies]
    if sites is not None:
        asked = select_sites(as_names("sites", sites), (*layout.residual_sites, *layout.matrix_sites))
        inputs = [s for s in asked if not _is_written(s)]
        if inputs:
            raise SiteError(
                f"{inputs[0]} holds what a matrix reads, behind a norm; its directions are not written into the "
                "residual stream. Name residual sites, writers' outputs or unembed.input"
            )
        for site in asked:
            proxies.at(site)
        known = asked
    if not known:
        raise SiteError(
            f"no residual site, writer's output or unembed.input has a proxy; there are: {', '.join(proxies)}. Are "
            "these proxies of another model?"
        )
    for site in known:
        same_width(site, proxies[site], layout)
    weight: Any = layout.unembed.module.weight
    gain, centres = _final_norm(layout)
    if tokenizer is None:
        tokenizer = getattr(model, "tokenizer", None) or (find_tokenizer(model) if _is_local(model) else None)
    rows: list[dict[str, Any]] = []
    for site in known:
        directions = proxies[site].basis.to(weight.device, torch.float32)
        if site != UNEMBEDDING_INPUT:
            directions = directions - directions.mean(0) if centres else directions
            directions = directions * gain.to(weight.device)[:, None]
        with torch.no_grad():
            logits = weight.detach().float() @ directions
        logits = (logits - logits.mean(0)).cpu()
        for direction in range(logits.shape[1]):
            order = logits[:, direction].argsort(descending=True).tolist()
            for end, ids in (("+", order[:n]), ("-", order[::-1][:n])):
                for place, (value, token) in enumerate(zip(ids, token_texts(tokenizer, ids), strict=True)):
                    rows.append(
                        {
                            "site": site,
                            "direction": direction,
                            "end": end,
                            "place": place,
                            "id": value,
                            "token": token,
                            "logit": float(logits[value, direction]),
                        }
                    )
    return Lens(pd.DataFrame(rows))


def _is_written(site: str) -> bool:
    return role_of(site) in ("residual", "output") or site == UNEMBEDDING_INPUT


def _is_local(model: Any) -> bool:
    """Whether the model says that it came from a directory of this machine, so that no network is asked."""
    from pathlib import Path

    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", "") or ""
    return bool(name) and Path(name).exists()


def _final_norm(layout: Layout) -> tuple[Float[Tensor, " d"], bool]:
    """Gain of the final norm and whether it centres, read off its values on a row of +1 and -1, whose norm is 1.

    So whatever a norm calls its gain, or adds to it, is seen as it acts.
    """
    bodies = (layout.backbone, layout.root, getattr(layout.backbone, "decoder", None))
    norm = next(
        (getattr(b, name) for b in bodies for name in _FINAL_NORMS if isinstance(getattr(b, name, None), nn.Module)),
        None,
    )
    if norm is None:
        raise ModelError(f"the final norm of this {layout.class_name} was not found, so that its gain is not known")
    weight: Any = layout.unembed.module.weight
    signs = torch.ones(layout.d_model)
    signs[1::2] = -1
    ones = signs.to(weight.device, weight.dtype)[None, None]
    with torch.no_grad():
        gain = (norm(ones) - norm(-ones)).float()[0, 0].cpu() / 2 * signs
        # A norm that centres does not feel what all directions share.
        shift = (norm(ones + 1) - norm(ones)).float().norm()
        return gain, bool(shift < 1e-3 * norm(ones).float().norm().clamp_min(1e-12))
