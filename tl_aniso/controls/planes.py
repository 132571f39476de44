"""The planes that a gradient's energy is compared in beside its own tangent proxy; no model, no text."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float64
from torch import Tensor

from tl_aniso.controls.names import COVARIANCE_DRAWN, NEXT_K
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.planes import orthonormalise

__all__ = ["DRAWS", "ControlPlanes", "columns_of", "drawn_planes", "other_layer_site", "site_seed"]

# Planes drawn from the covariance at each site: their mean share is the control, their spread stands beside it.
DRAWS = 8

_LAYER = re.compile(r"^blocks\.(\d+)\.")

# Directions side by side; `columns_of` says which of them belong to a plane of a given rank.
Columns = Float64[Tensor, "d columns"]


class ControlPlanes(Mapping[str, Mapping[str, Columns]]):
    """Planes by control and activation site, for every rank up to that of the tangent proxy at the site.

    The columns of a site hold, in the order of `columns_of`: the other plane's directions, leading ones first
    (``other_layer``, ``permuted_tokens``); the 2k leading components of the proxy's PCA (``next_k``); `DRAWS` planes of
    rank k side by side (``covariance_drawn``).

    Args:
        columns: control -> activation site -> d x columns.
        variance: activation site -> shares of variance of the PCA's components, for ``next_k`` per unit of variance.
        notes: for the reader of a result.

    Example:
        >>> import torch
        >>> planes = ControlPlanes({"other_layer": {"blocks.0.attn.input": torch.eye(8)[:, :2].double()}})
        >>> planes.at("other_layer", "blocks.0.attn.input").shape, planes.at("next_k", "blocks.0.attn.input")
        (torch.Size([8, 2]), None)
    """

    def __init__(
        self,
        columns: Mapping[str, Mapping[str, Columns]],
        *,
        variance: Mapping[str, Float64[Tensor, " components"]] | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self._columns = {control: dict(sites) for control, sites in columns.items()}
        self.variance: Mapping[str, Float64[Tensor, " components"]] = MappingProxyType(dict(variance or {}))
        self.notes = tuple(notes)

    def __getitem__(self, control: str) -> Mapping[str, Columns]:
        return MappingProxyType(self._columns[control])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def at(self, control: str, site: str) -> Columns | None:
        """The columns of a control at an activation site; None where the control has no plane there."""
        return self._columns.get(control, {}).get(site)

    def ids(self) -> dict[str, str]:
        """Twelve hex digits by control: captures along other planes have others and do not merge."""
        found = {}
        for control, sites in self._columns.items():
            digest = hashlib.sha256()
            for site in sorted(sites):
                rounded = sites[site].cpu().numpy().round(6) + 0.0  # adding 0.0 turns -0.0 into 0.0
                digest.update(f"{site}|{rounded.shape}|".encode() + rounded.astype("<f8").tobytes())
            found[control] = digest.hexdigest()[:12]
        return found

    def __repr__(self) -> str:
        held = ", ".join(f"{control} at {len(sites)} sites" for control, sites in self._columns.items())
        return f"ControlPlanes({held})"


def columns_of(control: str, rank: int, n_columns: int) -> list[slice]:
    """Which of a site's columns span the control's planes of a rank: one slice a plane, none where there are too few.

    Example:
        >>> columns_of("other_layer", 2, 4), columns_of("next_k", 2, 8), columns_of("next_k", 2, 3)
        ([slice(0, 2, None)], [slice(2, 4, None)], [])
        >>> columns_of("covariance_drawn", 1, 16)[:2]
        [slice(0, 1, None), slice(2, 3, None)]
    """
    if control == COVARIANCE_DRAWN:
        width = n_columns // DRAWS
        return [slice(i * width, i * width + rank) for i in range(DRAWS)] if rank <= width else []
    start = rank if control == NEXT_K else 0
    return [slice(start, start + rank)] if start + rank <= n_columns else []


def drawn_planes(
    directions: Float64[Tensor, "d m"], variances: Float64[Tensor, " m"], rank: int, *, n: int = DRAWS, seed: int
) -> Float64[Tensor, "d columns"]:
    """n planes where the data lie: each the span of `rank` draws from N(0, C), side by side.

    Orthonormalised one draw after the other, so that the first r columns of a plane span its first r draws.

    Args:
        directions: eigenvectors of C with positive eigenvalue.
        variances: their eigenvalues.
        rank: draws per plane.
        n: planes.
        seed: of a local generator.

    Returns:
        d x (n rank).

    Raises:
        UndefinedMeasureError: C has fewer than `rank` directions.

    Example:
        >>> import torch
        >>> planes = drawn_planes(torch.eye(6).double()[:, :2], torch.tensor([3.0, 1.0]).double(), 2, n=3, seed=0)
        >>> planes.shape, bool(planes[2:].abs().max() == 0)
        (torch.Size([6, 6]), True)
    """
    d, m = directions.shape
    if m < rank:
        raise UndefinedMeasureError(f"{rank} draws from a covariance of rank {m} span no plane of rank {rank}")
    generator = torch.Generator().manual_seed(seed)
    # One draw of every plane after the other, so that a plane of lower rank is the same whatever the highest is.
    draws = torch.stack([torch.randn(n, m, generator=generator, dtype=torch.float64) for _ in range(rank)], dim=2)
    frames = orthonormalise((directions * variances.clamp(min=0.0).sqrt()) @ draws)
    return frames.permute(1, 0, 2).reshape(d, n * rank)


def other_layer_site(site: str, n_layers: int) -> str | None:
    """The same kind of site half the depth away, in layer (i + L // 2) mod L; None for a site of no layer.

    The embedding's proxy lives before block 0 and so has an other layer; the unembedding's has none.

    Raises:
        TlAnisoError: a model of one layer.

    Example:
        >>> other_layer_site("blocks.3.mlp.input", 4), other_layer_site("unembed.input", 4)
        ('blocks.1.mlp.input', None)
    """
    if n_layers < 2:
        raise TlAnisoError(
            "the control other_layer needs a second layer, and the model has one; leave it out of controls"
        )
    match = _LAYER.match(site)
    if match is None:
        return None
    layer = (int(match.group(1)) + n_layers // 2) % n_layers
    return f"blocks.{layer}.{site[match.end() :]}"


def site_seed(seed: int, purpose: str, site: str) -> int:
    """A seed of its own for each site, the same whatever other sites are asked for."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{site}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
