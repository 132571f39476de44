"""Run a batch through a HookedTransformer; the counterpart of `hooks.Tap` for matrices that are not modules.

All tensors come from forward hooks, and gradients from `Tensor.register_hook`: backward hooks on hook points can give a
wrong one. What ``hook_normalized`` holds is before the norm's gain and bias, so readers' inputs are taken where
attention and MLP receive them.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tl_aniso.capturing.hooks import Consumer, Tap, first_tensor
from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.errors import ModelError, SiteError
from tl_aniso.sites import residual_site

__all__ = ["HookedTap"]

# What attention modules build or enlarge while they run, for texts longer than any before.
_GROWING = ("rotary_sin", "rotary_cos", "alibi", "_ntk_alpha_cached")


class HookedTap(Tap):
    """A HookedTransformer with its hooks in place; see `hooks.tapped`."""

    def __init__(self, layout: Layout, consumer: Consumer, **options: Any) -> None:
        super().__init__(layout, consumer, **options)
        self._hidden: Tensor | None = None
        self._inputs: dict[nn.Module, Tensor] = {}
        self._watched: set[nn.Module] = set()
        self._grown: list[tuple[nn.Module, str, Any]] = []

    def forward(
        self, ids: Integer[Tensor, "batch length"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length d"]:
        """Run the batch up to the input of the unembedding; see `Tap.forward`."""
        self._reset()
        with torch.set_grad_enabled(self._gradients):
            # Without a return type no logits are made. A tokenizer that pads on the left would otherwise have the model
            # look for padding by token id, and move positions.
            self._layout.root(ids, return_type=None, padding_side="right")
        hidden, self._hidden = self._hidden, None
        self._inputs.clear()  # who still needs one holds it
        self._check("forward")
        if hidden is None:
            raise SiteError("the final norm did not run, so the unembedding has no input")
        if self._gradients and (self._leaf is None or not hidden.requires_grad):
            raise ModelError(
                "the forward pass keeps no graph: does the model run under no_grad or detach its residual stream?"
            )
        return hidden

    def install(self) -> None:
        """Register every hook (called by `tapped`)."""
        layout = self._layout
        root: Any = layout.root
        self._grown = [
            (block.attn, name, getattr(block.attn, name))
            for block in root.blocks
            for name in _GROWING
            if hasattr(block.attn, name)
        ]
        if self._gradients:
            self._handles.append(root.embed.register_forward_hook(self._make_leaf, prepend=True))
        for layer, block in enumerate(root.blocks):
            self._watch_stream(block.hook_resid_pre, residual_site(layer, "pre"))
            mid = layout.blocks[layer].mid
            if mid is not None:
                self._watch_stream(mid, residual_site(layer, "mid"))
        self._watch_stream(root.blocks[-1].hook_resid_post, residual_site(len(layout.blocks) - 1, "post"))

        def final(_module: nn.Module, _args: Any, output: Tensor) -> None:
            self._hidden = output

        self._handles.append(getattr(root, "ln_final", root.blocks[-1]).register_forward_hook(final))
        for matrix in self._matrices:
            self._watch_between(matrix)

    def remove(self) -> None:
        """Take every hook out again, and put back what grew."""
        super().remove()
        for module, name, value in self._grown:
            if getattr(module, name) is not value:
                setattr(module, name, value)
        self._grown.clear()

    def _reset(self) -> None:
        super()._reset()
        self._hidden = None
        self._inputs.clear()

    def _watch_stream(self, point: nn.Module, site: str) -> None:
        self._expect(site, backward=site in self._residuals)

        def after(_module: nn.Module, _args: Any, output: Tensor) -> None:
            self._deliver_residual(site, output)

        # After the user's own hooks: what they make of the stream is what the model goes on with.
        self._handles.append(point.register_forward_hook(after))

    def _watch_between(self, matrix: Matrix) -> None:
        name = "+".join(matrix.sites)
        source, sink = matrix.source, matrix.sink
        if source is None or sink is None:
            raise SiteError(f"{name} names no modules to take its tensors from")
        self._expect(name, backward=True)
        self._watch_source(source, name, reader=matrix.role == "reader")
        arranged = _by_true_heads(matrix)

        def after(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
            inputs = self._inputs.get(source)
            if inputs is None:
                raise SiteError(f"{name} ran before its input was there")
            self._deliver_matrix(matrix, inputs, output, arranged)
            # Heads are a view, and a hook of the user's that changes a view in place would cut off the gradient of what
            # was there before.
            return output.clone() if output._is_view() and len(sink._forward_hooks) > 1 else None

        # Before the user's own hooks: dL/dW needs the output that W made, not what a hook puts in its place.
        self._handles.append(sink.register_forward_hook(after, prepend=True))

    def _watch_source(self, source: nn.Module, name: str, *, reader: bool) -> None:
        """A reader's input is what its module is called with; a writer's is what the hook point before it lets out."""
        if source in self._watched:
            return
        self._watched.add(source)
        if reader:

            def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self._inputs[source] = first_tensor(args, kwargs, name).detach()

            self._handles.append(source.register_forward_pre_hook(before, with_kwargs=True))
            return

        def after(_module: nn.Module, _args: Any, output: Tensor) -> None:
            self._inputs[source] = output.detach().flatten(2)

        self._handles.append(source.register_forward_hook(after))


def _by_true_heads(matrix: Matrix) -> Callable[[Tensor], Tensor]:
    """Lay heads side by side; the copies of an ungrouped key or value head are one head of the parameter."""

    def arranged(gradient: Tensor) -> Tensor:
        if gradient.dim() == 3:
            return gradient
        heads = matrix.head_counts[0]
        if gradient.shape[2] != heads:
            gradient = gradient.unflatten(2, (heads, -1)).sum(3)
        return gradient.flatten(2)

    return arranged
