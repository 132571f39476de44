"""Which positions of a sequence a loss can send gradient to, site by site.

Under causal attention, every position up to the last one that carries a loss. Where tokens attend to both sides, every
position of a sequence that carries any loss, except at sites behind the last attention: there a position's gradient is
that of its own loss alone.
"""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from tl_aniso.capturing.layout import Layout
from tl_aniso.sites import UNEMBEDDING, residual_site, weight_site

__all__ = ["Reach", "own_loss_sites"]

# Of the last block: a query bends its own position's output only, while keys and values serve every position.
_BEHIND_ATTENTION = ("W_Q", "W_O", "W_in", "W_gate", "W_out")


def own_loss_sites(n_layers: int) -> frozenset[str]:
    """Sites, weight and residual, at which a position's gradient comes from its own loss: nothing attends after them.

    Example:
        >>> sorted(own_loss_sites(1))[:3]
        ['blocks.0.attn.W_O', 'blocks.0.attn.W_Q', 'blocks.0.hook_resid_mid']
    """
    last = n_layers - 1
    residuals = (residual_site(last, "mid"), residual_site(last, "post"))
    return frozenset((UNEMBEDDING, *residuals, *(weight_site(last, matrix) for matrix in _BEHIND_ATTENTION)))


@dataclass(frozen=True)
class Reach:
    """The positions of one batch that can carry gradient.

    Attributes:
        losses: those with a loss of their own.
        anywhere: those that some loss reaches.
        own: sites at which `losses` are all.
    """

    losses: Bool[Tensor, "batch length"]
    anywhere: Bool[Tensor, "batch length"]
    own: frozenset[str]

    @classmethod
    def of(
        cls,
        layout: Layout,
        losses: Bool[Tensor, "batch length"],
        mask: Bool[Tensor, "batch length"],
        own: frozenset[str],
    ) -> "Reach":
        """From the positions whose logits have a loss, in a batch of real positions `mask`."""
        if layout.attends == "both":
            return cls(losses, mask & losses.any(1, keepdim=True), own)
        return cls(losses, losses.flip(1).cumsum(1).flip(1) > 0, own)

    def at(self, site: str) -> Bool[Tensor, "batch length"]:
        """The positions that can carry gradient at a site."""
        return self.losses if site in self.own else self.anywhere
