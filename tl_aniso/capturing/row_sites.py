"""Which rows a user's sites mean: what is hooked, and under which names rows are handed out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tl_aniso.capturing.layout import Layout
from tl_aniso.checks import as_names
from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.sites import EMBEDDING, UNEMBEDDING, output_site, residual_site, role_of, select_sites

__all__ = ["RowSites", "choose_row_sites"]


@dataclass(frozen=True)
class RowSites:
    """Names that rows are handed out under, and what they take.

    Attributes:
        activations: name -> the tensor it is: residual sites that carry one tensor share it (canonical), inputs and
            outputs are their own.
        gradient_names: name -> canonical residual site.
        weights: weight sites, the embedding among them.
        filters: name of any of these -> the canonical residual site whose norms tell its sinks.
        matrices: for `hooks.tapped`: weight sites and matrix activations.
        gradients: for `hooks.tapped`: canonical residual sites.
    """

    activations: Mapping[str, str]
    gradient_names: Mapping[str, str]
    weights: tuple[str, ...]
    filters: Mapping[str, str]
    matrices: frozenset[str]
    gradients: frozenset[str]

    @property
    def backward(self) -> bool:
        """Whether a gradient has to be sent back."""
        return bool(self.gradients or self.weights)


def choose_row_sites(layout: Layout, sites: Any, gradients: Any) -> RowSites:
    """The rows that `sites` and `gradients` of `token_rows` ask for.

    Raises:
        SiteError: a name or pattern that selects nothing, or the unembedding's weight.
        TlAnisoError: no names at all; "activation" without a residual site, "weight" without a weight among them.
    """
    names = as_names("sites", sites)
    if not names:
        raise TlAnisoError(
            "sites is empty: there are no rows to hand out; name residual, input, output or weight sites"
        )
    known = (*layout.residual_sites, *layout.weight_sites, *layout.matrix_sites)
    chosen = select_sites(names, known)
    if UNEMBEDDING in chosen:
        raise SiteError(
            f"{UNEMBEDDING} among sites: its gradient rows are as wide as the vocabulary and are not handed out; name "
            "the sites without it (unembed.input has the rows it reads)"
        )
    residual = [s for s in chosen if role_of(s) == "residual"]
    weights = tuple(s for s in chosen if role_of(s) in ("reader", "writer", "embedding"))
    inner = [s for s in chosen if role_of(s) in ("input", "output")]
    inner += [s for s in (layout.proxy_site(w) for w in weights if role_of(w) == "reader") if s not in inner]
    wanted = _gradients(layout, as_names("gradients", gradients), residual, weights)
    filters = {name: layout.canonical(name) for name in (*residual, *wanted)}
    for matrix in layout.matrices:
        for name in (matrix.activation, *matrix.sites):
            filters[name] = layout.canonical(matrix.residual)
    filters[EMBEDDING] = filters[output_site(EMBEDDING)] = residual_site(0, "pre")
    return RowSites(
        activations={**{s: layout.canonical(s) for s in residual}, **{s: s for s in inner}},
        gradient_names={s: layout.canonical(s) for s in wanted},
        weights=weights,
        filters=filters,
        matrices=frozenset((*weights, *inner)),
        gradients=frozenset(layout.canonical(s) for s in wanted),
    )


def _gradients(layout: Layout, names: tuple[str, ...], residual: list[str], weights: tuple[str, ...]) -> list[str]:
    """Residual sites whose gradients are wanted, in the model's order."""
    found: set[str] = set()
    patterns = []
    for name in names:
        if name == "activation":
            if not residual:
                raise TlAnisoError(
                    "gradients='activation' is of the residual sites among sites, which names none; name some"
                )
            found.update(residual)
        elif name == "weight":
            if not weights:
                raise TlAnisoError("gradients='weight' is of the weights among sites, which names none; name some")
        else:
            patterns.append(name)
    if patterns:
        found.update(select_sites(patterns, layout.residual_sites))
    return [s for s in layout.residual_sites if s in found]
