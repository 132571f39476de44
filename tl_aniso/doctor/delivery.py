"""Every hook once: each residual and weight site delivers one tensor forward and one gradient back."""

from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor

from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject
from tl_aniso.errors import TlAnisoError
from tl_aniso.sites import EMBEDDING

__all__ = ["Listener", "check_delivery"]


class Listener:
    """Receives what the library's hooks deliver, and counts it. Subclasses look at it."""

    def __init__(self) -> None:
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()

    def residual(self, site: str, value: Float[Tensor, "batch length d"]) -> None:
        """A value of the residual stream."""
        self.forward[site] += 1

    def residual_gradient(self, site: str, gradient: Float[Tensor, "batch length d"]) -> None:
        """Its gradient."""
        self.backward[site] += 1

    def matrix(self, matrix: Matrix, inputs: Float[Tensor, "..."], outputs: Float[Tensor, "..."]) -> None:
        """What a matrix was given and made of it."""
        self.forward.update(matrix.sites)

    def matrix_gradient(self, matrix: Matrix, inputs: Float[Tensor, "..."], gradient: Float[Tensor, "..."]) -> None:
        """The gradient at its output."""
        self.backward.update(matrix.sites)

    def embedding_gradient(self, gradient: Float[Tensor, "batch length d"]) -> None:
        """The gradient at the embedding's output."""
        self.backward[EMBEDDING] += 1


def check_delivery(subject: Subject) -> Check:
    """One forward and one backward pass with every hook in place, counted site by site."""
    name, layout, listener = "every site delivers exactly once", subject.layout, Listener()
    residuals, matrices = _sites(layout)
    error, came_back = "", False
    try:
        with tapped(
            layout,
            listener,
            gradients=True,
            matrices=frozenset((*matrices, EMBEDDING)),
            residuals=frozenset(residuals),
        ) as tap:
            hidden = tap.forward(torch.tensor([subject.documents[0]], device=layout.device))
            came_back = True
            tap.backward(hidden, torch.ones_like(hidden), again=False)
    except TlAnisoError as raised:
        error = str(raised)
    counts, direction = (listener.backward, "backward") if came_back else (listener.forward, "forward")
    wanted = (*residuals, *matrices, *((EMBEDDING,) if came_back else ()))
    wrong = [(site, counts[site]) for site in wanted if counts[site] != 1]
    if not error and not wrong:
        return Check(
            name,
            "pass",
            f"{len(residuals)} residual sites and {len(matrices) + 1} matrices, forward and backward",
        )
    shown = ", ".join(f"{site} ({n} times)" for site, n in wrong[:4])
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    named = f"in the {direction} pass {shown}{more} did not deliver once" if wrong else ""
    return Check(
        name,
        "fail",
        "; ".join(part for part in (named, error) if part),
        "something skips, repeats or replaces these modules (a patched forward, a fused kernel, dropped layers, "
        "checkpointing, a hook that detaches): load the model without it",
        (("site", f"deliveries, {direction}"), *((site, str(n)) for site, n in wrong)) if wrong else (),
    )


def _sites(layout: Layout) -> tuple[list[str], list[str]]:
    """Residual sites by canonical name, and the weight sites that hooks watch: all but the two embeddings."""
    residuals = list(dict.fromkeys(layout.canonical(site) for site in layout.residual_sites))
    return residuals, [site for matrix in layout.matrices[:-1] for site in matrix.sites]
