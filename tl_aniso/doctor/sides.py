"""What only an encoder promises: blocks see both sides of a token and no padding, and a mask token is known."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject, evaluating, first_tensor, logits_of, padded, spread
from tl_aniso.errors import ModelError
from tl_aniso.models.complete import check_mask_token as has_mask_token

__all__ = ["check_mask_token", "check_masked_padding", "check_sides"]

_TOKENS = 32
_PADS = 16
_SHOWN = 3


def check_sides(subject: Subject) -> Check:
    """In each block, the gradient of one token's output with respect to the tokens on either side is not zero."""
    name = "every block sees both sides of a token"
    blind: dict[str, list[str]] = {"before": [], "behind": []}
    for layer, (before, behind) in enumerate(_reach(subject)):
        if before == 0:
            blind["before"].append(f"blocks.{layer}")
        if behind == 0:
            blind["behind"].append(f"blocks.{layer}")
    n = len(subject.layout.blocks)
    if not any(blind.values()):
        return Check(name, "pass", f"in all {n} blocks what a token becomes depends on those before and behind it")
    said = [
        f"in {', '.join(blocks[:_SHOWN])}{f' and {len(blocks) - _SHOWN} more' if len(blocks) > _SHOWN else ''} "
        f"(of {n}) no token sees those {side} it"
        for side, blocks in blind.items()
        if blocks
    ]
    return Check(
        name,
        "fail",
        f"{'; '.join(said)}: that is not how an encoder attends",
        "a causal mask, or is_causal set on its attention: load the model as published, with "
        "AutoModelForMaskedLM, and without masks of your own",
    )


def _reach(subject: Subject) -> list[tuple[float, float]]:
    """Block by block, the gradient that a token in the middle sends to the tokens before and behind it."""
    layout = subject.layout
    ids = torch.tensor([subject.documents[0][:_TOKENS]])
    middle = ids.shape[1] // 2
    given: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    handles: list[Any] = []
    for layer, block in enumerate(layout.blocks):

        def after(_module: nn.Module, args: Any, kwargs: Any, output: Any, layer: int = layer) -> None:
            value, result = first_tensor((*args, *kwargs.values())), first_tensor(output)
            if value is not None and result is not None:
                given[layer], made[layer] = value, result

        handles.append(block.module.register_forward_hook(after, with_kwargs=True))
    found = []
    try:
        with evaluating(layout, gradients=True):
            logits_of(layout, ids)
            for layer in sorted(given):
                rows = _pulled(given[layer], made[layer], middle)
                found.append((float(rows[:middle].abs().max()), float(rows[middle + 1 :].abs().max())))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _pulled(given: Tensor, made: Tensor, position: int) -> Float[Tensor, "length d"]:
    """Gradient of one row of a block's output, in a direction drawn once, with respect to its input."""
    # Drawn, because behind a norm the plain sum of a row is constant.
    direction = torch.randn(made.shape[-1], generator=torch.Generator().manual_seed(0)).to(made)
    (rows,) = torch.autograd.grad((made[0, position] * direction).sum(), given, retain_graph=True)
    return rows[0]


def check_masked_padding(subject: Subject) -> Check:
    """What the mask hides behind a document changes nothing in it: every batch of unlike lengths relies on this."""
    name, layout = "no token sees padding", subject.layout
    document = subject.documents[0][: layout.context // 2]
    own = len(document)
    room = min(_PADS, layout.context - own)
    words = ([i for other in subject.documents[1:] for i in other] or [0])[:room]
    ids, mask = padded((document,), left=False, extra=room)
    other = ids.clone()
    other[0, own : own + len(words)] = torch.tensor(words)
    with evaluating(layout):
        alone = logits_of(layout, torch.tensor([document]))[0]
        error = max(
            spread(logits_of(layout, batch, attention_mask=mask.long())[0, :own], alone) for batch in (ids, other)
        )
    moved = f"{room} tokens behind a document, pads or words, hidden by the attention mask, move its logits by"
    if error > subject.tolerance:
        return Check(
            name,
            "fail",
            f"{moved} {error:.2g} of their deviation: the mask is ignored, and in a batch every document would see the "
            "padding of the others",
            "load an attention that takes masks (attn_implementation='eager' or 'sdpa'), or measure with batch_size=1",
        )
    return Check(name, "pass", f"{moved} {error:.1g} of their deviation")


def check_mask_token(subject: Subject) -> Check:
    """The token that hides others in the masked loss."""
    name, tokenizer = "a token to mask with", subject.tokenizer
    config = getattr(subject.layout.root, "config", None)
    found = getattr(tokenizer, "mask_token_id", None)
    loss = "The checks here differentiate the loss of every token with itself, which hides none"
    if tokenizer is None:
        return Check(name, "info", f"no tokenizer was given or found that would name one. {loss}")
    try:
        has_mask_token("this model", tokenizer, config)
    except ModelError as error:
        return Check(name, "fail", str(error))
    if found is None:
        named = getattr(config, "mask_token_id", None)
        return Check(name, "pass", f"the tokenizer has none; the config names id {named}. {loss}")
    return Check(name, "pass", f"{tokenizer.mask_token!r}, id {found}. {loss}")
