"""Names of the places where a transformer is measured, without any model.

Residual sites and weight sites keep the names that TransformerLens users know:

* residual stream: ``blocks.{i}.hook_resid_pre``, ``hook_resid_mid``, ``hook_resid_post``
* weight matrices: ``blocks.{i}.attn.W_Q|W_K|W_V|W_O``, ``blocks.{i}.mlp.W_in|W_gate|W_out``, ``embed.W_E``,
  ``unembed.W_U``
* one attention head of a matrix: ``blocks.{i}.attn.W_Q.{h}``, and so for W_K, W_V (at their own number) and W_O
* what a reader sees, after its norm: ``blocks.{i}.attn.input``, ``blocks.{i}.mlp.input``, ``unembed.input``
* what a writer adds: ``{writer}.output``

A *reader* multiplies the residual stream (its R^d side is its input), a *writer* adds to it (its R^d side is its
output), and the embedding counts as a writer without an input.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from tl_aniso.errors import SiteError, TlAnisoError

__all__ = [
    "BASES",
    "EMBEDDING",
    "UNEMBEDDING",
    "UNEMBEDDING_INPUT",
    "Role",
    "head_site",
    "input_site",
    "layer_of",
    "output_site",
    "proxy_site",
    "residual_site",
    "role_of",
    "select_sites",
    "weight_site",
    "whole_site",
]

Role = Literal["residual", "reader", "writer", "embedding", "input", "output"]

BASES = ("own", "residual")
EMBEDDING = "embed.W_E"
UNEMBEDDING = "unembed.W_U"
UNEMBEDDING_INPUT = "unembed.input"

_ATTENTION_READERS = ("W_Q", "W_K", "W_V")
_MLP_READERS = ("W_in", "W_gate")
_WRITERS = ("W_O", "W_out")
_LAYER = re.compile(r"^blocks\.(\d+)\.")
_HEAD = re.compile(r"^(blocks\.\d+\.attn\.W_[QKVO])\.\d+$")
_PATTERNS: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"^blocks\.\d+\.hook_resid_(pre|mid|post)$"), "residual"),
    (re.compile(r"^blocks\.\d+\.attn\.W_[QKV](\.\d+)?$"), "reader"),
    (re.compile(r"^blocks\.\d+\.mlp\.W_(in|gate)$"), "reader"),
    (re.compile(r"^unembed\.W_U$"), "reader"),
    (re.compile(r"^blocks\.\d+\.(attn\.W_O(\.\d+)?|mlp\.W_out)$"), "writer"),
    (re.compile(r"^embed\.W_E$"), "embedding"),
    (re.compile(r"^(blocks\.\d+\.(attn|mlp)|unembed)\.input$"), "input"),
    (re.compile(r"^blocks\.\d+\.(attn\.W_O|mlp\.W_out)\.output$"), "output"),
)


def residual_site(layer: int, point: Literal["pre", "mid", "post"]) -> str:
    """Name of a residual site, e.g. ``blocks.3.hook_resid_mid``."""
    return f"blocks.{layer}.hook_resid_{point}"


def weight_site(layer: int, matrix: str) -> str:
    """Name of a weight site of one block, e.g. ``blocks.3.mlp.W_in`` for ``matrix="W_in"``."""
    room = "attn" if matrix in (*_ATTENTION_READERS, "W_O") else "mlp"
    return f"blocks.{layer}.{room}.{matrix}"


def input_site(layer: int, room: Literal["attn", "mlp"]) -> str:
    """Name of what the readers of one sublayer see, after their norm."""
    return f"blocks.{layer}.{room}.input"


def output_site(writer: str) -> str:
    """Name of what a writer adds to the residual stream, before any norm behind it."""
    return f"{writer}.output"


def head_site(site: str, head: int) -> str:
    """Name of one attention head of a weight site."""
    return f"{site}.{head}"


def whole_site(site: str) -> str:
    """The whole matrix of a head's site; any other site as it is.

    Example:
        >>> whole_site("blocks.3.attn.W_Q.11"), whole_site("blocks.3.attn.W_Q")
        ('blocks.3.attn.W_Q', 'blocks.3.attn.W_Q')
    """
    match = _HEAD.match(site)
    return match.group(1) if match else site


def role_of(site: str) -> Role:
    """What kind of site a name denotes.

    Raises:
        SiteError: the name follows none of the patterns of this module.
    """
    for pattern, role in _PATTERNS:
        if pattern.match(site):
            return role
    raise SiteError(
        f"{site!r} is not the name of a site; names look like 'blocks.0.hook_resid_pre', 'blocks.0.attn.W_Q', "
        "'blocks.0.mlp.input', 'embed.W_E' or 'unembed.W_U'"
    )


def layer_of(site: str) -> int | None:
    """Index of the block a site belongs to; None for the embedding and the unembedding."""
    match = _LAYER.match(site)
    return int(match.group(1)) if match else None


def proxy_site(site: str, basis: str = "own", *, has_mid: bool = True, n_layers: int | None = None) -> str:
    """The activation site whose tangent proxy belongs to a site.

    With ``basis="own"`` a reader's proxy is fitted on the reader's own input as the matrix sees it, a writer's on its
    own output. With ``basis="residual"`` it is fitted on the residual stream: where a reader reads it, before its norm,
    and where a writer has written into it. The embedding's is the input of block 0; a head's is its matrix'; an
    activation site is its own.

    Args:
        site: any site.
        basis: "own" or "residual".
        has_mid: whether blocks have a residual between attention and MLP (parallel ones do not).
        n_layers: number of blocks, which only the residual of the unembedding depends on.

    Raises:
        SiteError: an unknown name, or the unembedding's residual without `n_layers`.
        TlAnisoError: another basis.

    Example:
        >>> proxy_site("blocks.2.attn.W_K"), proxy_site("blocks.2.mlp.W_out"), proxy_site("embed.W_E")
        ('blocks.2.attn.input', 'blocks.2.mlp.W_out.output', 'blocks.0.hook_resid_pre')
        >>> proxy_site("blocks.2.attn.W_K", "residual"), proxy_site("blocks.2.attn.W_O", "residual")
        ('blocks.2.hook_resid_pre', 'blocks.2.hook_resid_mid')
    """
    if basis not in BASES:
        raise TlAnisoError(f"basis {basis!r} is not supported; use one of {', '.join(BASES)}")
    role, site = role_of(site), whole_site(site)
    if basis == "residual" and role in ("reader", "writer"):
        return _residual_of(site, has_mid, n_layers)
    if role == "reader":
        return UNEMBEDDING_INPUT if site == UNEMBEDDING else site.rsplit(".", 1)[0] + ".input"
    if role == "writer":
        return output_site(site)
    if role == "embedding":
        return residual_site(0, "pre")
    return site


def _residual_of(site: str, has_mid: bool, n_layers: int | None) -> str:
    layer = layer_of(site)
    if layer is None:
        if n_layers is None:
            raise SiteError(f"the residual site of {site} is that of the last block; say how many there are: n_layers=")
        return residual_site(n_layers - 1, "post")
    attention = ".attn." in site
    if role_of(site) == "reader":
        return residual_site(layer, "pre" if attention or not has_mid else "mid")
    return residual_site(layer, "mid" if attention and has_mid else "post")


def select_sites(wanted: Sequence[str] | None, available: Iterable[str]) -> list[str]:
    """The available sites that a user's names or shell-style patterns select, in the model's order.

    Args:
        wanted: names such as ``blocks.0.attn.W_Q`` or patterns such as ``blocks.*.attn.W_?``; None selects all.
        available: every site of the model.

    Raises:
        SiteError: a name or pattern selects nothing; near matches are listed.

    Example:
        >>> select_sites(["blocks.*.attn.W_Q"], ["blocks.0.attn.W_Q", "blocks.0.attn.W_K"])
        ['blocks.0.attn.W_Q']
    """
    names = list(available)
    if wanted is None:
        return names
    if isinstance(wanted, str):
        wanted = [wanted]
    chosen: set[str] = set()
    for pattern in wanted:
        hits = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not hits:
            near = get_close_matches(str(pattern), names, n=4, cutoff=0.3)
            raise SiteError(f"no site {pattern!r} on this model; near matches: {', '.join(near) or 'none'}")
        chosen.update(hits)
    return [name for name in names if name in chosen]
