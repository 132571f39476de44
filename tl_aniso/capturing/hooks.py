"""Run a batch through a model and hand out its tensors; the only file that touches a user's model.

Hooks live inside one context manager. Modes, `requires_grad`, `.grad`, the user's own hooks and the random state are
as before when it ends, also after an exception. Gradients are taken on tensors with autograd, from a leaf put at the
output of the embedding, so that no parameter gradient is ever computed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.errors import ModelError, SiteError
from tl_aniso.sites import EMBEDDING, residual_site

__all__ = ["Consumer", "Tap", "first_tensor", "tapped"]


class Consumer(Protocol):
    """What receives the tensors of one batch; it must not keep them beyond the batch."""

    def residual(self, site: str, value: Float[Tensor, "batch length d"]) -> None:
        """A value of the residual stream."""

    def residual_gradient(self, site: str, gradient: Float[Tensor, "batch length d"]) -> None:
        """The loss' gradient with respect to that value."""

    def matrix(self, matrix: Matrix, inputs: Float[Tensor, "..."], outputs: Float[Tensor, "..."]) -> None:
        """What a matrix was given and what it made of it."""

    def matrix_gradient(self, matrix: Matrix, inputs: Float[Tensor, "..."], gradient: Float[Tensor, "..."]) -> None:
        """The same input, and the loss' gradient with respect to the output."""

    def embedding_gradient(self, gradient: Float[Tensor, "batch length d"]) -> None:
        """The loss' gradient with respect to the output of the embedding."""


class Tap:
    """A model with its hooks in place. `forward` runs a batch, `backward` sends a gradient back through it."""

    def __init__(
        self,
        layout: Layout,
        consumer: Consumer,
        *,
        gradients: bool,
        matrices: frozenset[str],
        residuals: frozenset[str],
    ) -> None:
        self._layout = layout
        self._consumer = consumer
        self._gradients = gradients
        self._matrices = [m for m in layout.matrices[:-1] if matrices.intersection((*m.sites, m.activation))]
        self._embedding_wanted = EMBEDDING in matrices
        self._residuals = residuals
        self._leaf: Tensor | None = None
        self._counts: Counter[str] = Counter()
        self._expected: dict[str, set[str]] = {"forward": set(), "backward": set()}
        self._handles: list[Any] = []

    def forward(
        self, ids: Integer[Tensor, "batch length"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length d"]:
        """Run the batch up to the input of the unembedding.

        Real tokens come first in each row, so under causal attention none of them can see the padding behind it and
        no attention mask is passed; where tokens attend to both sides, it is. Without a mask all tokens are real.

        Raises:
            SiteError: a site delivered nothing, or more than once.
        """
        self._reset()
        with torch.set_grad_enabled(self._gradients):
            if self._layout.attends == "both":
                output = self._layout.backbone(input_ids=ids, attention_mask=None if mask is None else mask.long())
            else:
                output = self._layout.backbone(input_ids=ids, use_cache=False)
            hidden: Tensor = output[0] if isinstance(output, tuple) else output.last_hidden_state
            if self._layout.transform is not None:
                hidden = self._layout.transform(hidden)
        self._check("forward")
        if self._gradients and (self._leaf is None or not hidden.requires_grad):
            raise ModelError(
                "the forward pass keeps no graph: does the model run under no_grad or detach its residual stream?"
            )
        return hidden

    def backward(
        self,
        hidden: Float[Tensor, "batch length d"],
        gradient: Float[Tensor, "batch length d"],
        *,
        again: bool,
    ) -> None:
        """Send ``dL/d(unembedding input)`` back to the embedding; the consumer receives every gradient on the way.

        Args:
            hidden: what `forward` returned.
            gradient: the loss' gradient with respect to it.
            again: whether another backward pass over the same batch follows.
        """
        self._counts.clear()
        if self._leaf is None:
            raise ModelError("backward before forward")
        try:
            (at_leaf,) = torch.autograd.grad(
                hidden, self._leaf, grad_outputs=gradient.to(hidden.device, hidden.dtype), retain_graph=again
            )
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise  # the user's own
            raise ModelError(
                "autograd cannot go back through this model: a value that a gradient needs was changed in place, by "
                f"the model's code or a hook; make that operation out of place ({error})"
            ) from error
        self._check("backward")
        if self._embedding_wanted:
            self._consumer.embedding_gradient(at_leaf)

    def install(self) -> None:
        """Register every hook (called by `tapped`)."""
        layout = self._layout
        if self._gradients:
            self._handles.append(layout.embed.register_forward_hook(self._make_leaf, prepend=True))
        for layer, block in enumerate(layout.blocks):
            self._watch_input(block.module, residual_site(layer, "pre"))
            if block.mid is not None:
                self._watch_input(block.mid, residual_site(layer, "mid"))
        last = residual_site(len(layout.blocks) - 1, "post")
        self._expect(last, backward=last in self._residuals)

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            self._deliver_residual(last, output[0] if isinstance(output, tuple) else output)

        self._handles.append(layout.blocks[-1].module.register_forward_hook(after))
        for matrix in self._matrices:
            self._watch_matrix(matrix)

    def remove(self) -> None:
        """Take every hook out again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._reset()

    def _reset(self) -> None:
        self._counts.clear()
        self._leaf = None

    def _make_leaf(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        if self._leaf is not None:
            raise SiteError(
                f"the embedding ran more than once in a forward pass, so {EMBEDDING} has no single gradient"
            )
        self._leaf = output.detach().requires_grad_(True)
        return self._leaf.clone()  # a leaf cannot be changed in place, which hooks of the user may do

    def _expect(self, site: str, *, backward: bool) -> None:
        self._expected["forward"].add(site)
        if backward:
            self._expected["backward"].add(site)

    def _watch_input(self, module: nn.Module, site: str) -> None:
        self._expect(site, backward=site in self._residuals)

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._deliver_residual(site, first_tensor(args, kwargs, site))

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))

    def _deliver_residual(self, site: str, value: Tensor) -> None:
        self._counts[site] += 1
        self._consumer.residual(site, value.detach())
        if self._gradients and site in self._residuals:

            def received(gradient: Tensor) -> None:
                self._counts[site] += 1
                self._consumer.residual_gradient(site, gradient)

            _on_gradient(value, received, site)

    def _watch_matrix(self, matrix: Matrix) -> None:
        name = "+".join(matrix.sites)
        self._expect(name, backward=True)

        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            self._deliver_matrix(matrix, first_tensor(args, kwargs, name).detach(), output)

        # Before the user's own hooks: dL/dW needs the output that W made, not what a hook puts in its place.
        self._handles.append(matrix.module.register_forward_hook(after, with_kwargs=True, prepend=True))

    def _deliver_matrix(
        self, matrix: Matrix, inputs: Tensor, output: Tensor, arranged: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Hand out what a matrix read and made, and its output's gradient later, laid out as `arranged` has it."""
        name = "+".join(matrix.sites)
        self._counts[name] += 1
        self._consumer.matrix(matrix, inputs, output.detach())
        if not self._gradients:
            return
        version = inputs._version

        def received(gradient: Tensor) -> None:
            if inputs._version != version:
                raise SiteError(
                    f"the input of {name} was changed in place after it was read; its gradient would be wrong"
                )
            self._counts[name] += 1
            self._consumer.matrix_gradient(matrix, inputs, gradient if arranged is None else arranged(gradient))

        _on_gradient(output, received, name)

    def _check(self, direction: str) -> None:
        for site in sorted(self._expected[direction]):
            if self._counts[site] != 1:
                found = f"{site} delivered {self._counts[site]} tensors in the {direction} pass instead of 1"
                if direction == "backward" and self._counts[site] > 1:
                    found += "; does the model recompute its blocks (activation checkpointing)? Switch that off"
                raise SiteError(found)


@contextmanager
def tapped(
    layout: Layout,
    consumer: Consumer,
    *,
    gradients: bool,
    matrices: frozenset[str],
    residuals: frozenset[str],
    dtype: torch.dtype | None = None,
) -> Iterator[Tap]:
    """A `Tap` on the model for the duration of a block; the model is as before afterwards.

    The model runs in evaluation mode with frozen parameters. A user's `no_grad` or `inference_mode` around the call
    does not matter.

    Args:
        layout: where the sites are.
        consumer: receives the tensors.
        gradients: whether a backward pass will follow each forward pass.
        matrices: names of the weight sites and matrix activations that are wanted.
        residuals: residual sites whose gradients are wanted.
        dtype: run under autocast of this type; None runs in the weights' own.
    """
    root = layout.root
    modes = [(module, module.training) for module in root.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in root.parameters()]
    tap = _tap_class(layout)(layout, consumer, gradients=gradients, matrices=matrices, residuals=residuals)
    kind = layout.device.type
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        tap.install()
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None),
        ):
            yield tap
    finally:
        tap.remove()
        for module, training in modes:
            module.training = training
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _tap_class(layout: Layout) -> type[Tap]:
    if layout.wrapper == "hooked_transformer":
        from tl_aniso.capturing.hooked_tap import HookedTap  # builds on this file

        return HookedTap
    return Tap


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any], site: str) -> Tensor:
    """The first tensor a module was called with: frameworks pass hidden states by position or by name."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise SiteError(f"the module at {site} was called without a tensor")


def _on_gradient(value: Tensor, received: Callable[[Tensor], None], site: str) -> None:
    if not value.requires_grad:
        raise SiteError(
            f"no gradient reaches {site}: its value is cut off from the embedding (by a hook that replaces or detaches "
            "the residual stream, or a module that runs under no_grad, as reentrant activation checkpointing does)"
        )
    value.register_hook(received)
