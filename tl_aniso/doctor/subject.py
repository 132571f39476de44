"""The model under examination: its layout, its text as token ids, and a plain forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tl_aniso.capturing.layout import Layout, Matrix
from tl_aniso.doctor.texts import TEXTS
from tl_aniso.errors import ModelError, TextError
from tl_aniso.text import document_hash, half_of, iter_documents, tokenise

__all__ = [
    "Subject",
    "evaluating",
    "first_tensor",
    "logits_of",
    "own_tokens",
    "padded",
    "percent",
    "read_text",
    "relative",
    "spread",
]

MOST_DOCUMENTS = 6
MOST_TOKENS = 96
FEWEST_TOKENS = 12
_COMPANY = 3
_RANDOM_LENGTHS = (96, 61, 74, 40, 85)


@dataclass(frozen=True)
class Subject:
    """What the checks are given.

    Attributes:
        model: as the user handed it over.
        layout: where its sites are.
        tokenizer: the model's own, or None.
        texts: the strings that were tokenised; empty where the text came as ids or was drawn at random.
        documents: token ids, a list a document, of different lengths.
    """

    model: Any
    layout: Layout
    tokenizer: Any
    texts: tuple[str, ...]
    documents: tuple[list[int], ...]

    @property
    def tolerance(self) -> float:
        """Relative error allowed to products of the model's own precision."""
        weight: Tensor = self.layout.embed.weight  # type: ignore[assignment]
        return 5e-2 if weight.dtype in (torch.bfloat16, torch.float16) else 1e-4

    @property
    def objective(self) -> Any:
        """The loss that checks differentiate: next tokens, or, of an encoder, the tokens themselves.

        An encoder's own loss hides tokens first, which takes a mask token and leaves gradients of zero elsewhere;
        unhidden, every token has a target, and the model's own head and blocks are gone through all the same.
        """
        return None if self.layout.attends == "causal" else own_tokens

    @property
    def loss(self) -> str:
        """What `objective` is, in words."""
        return "the model's own loss" if self.objective is None else "the loss of every token with itself"

    @property
    def layers(self) -> tuple[int, ...]:
        """First, middle and last layer, as many as there are."""
        last = len(self.layout.blocks) - 1
        return tuple(sorted({0, last // 2, last}))

    def readers(self, layer: int) -> list[Matrix]:
        """The matrices of a block that read the residual stream."""
        return [m for m in self.layout.blocks[layer].matrices if m.role == "reader"]

    def writers(self, layer: int) -> list[Matrix]:
        """The matrices of a block that write into it."""
        return [m for m in self.layout.blocks[layer].matrices if m.role == "writer"]

    def of_one_half(self) -> tuple[list[int], ...]:
        """The documents, each cut by a few tokens until all fall into one half, so that they can share a batch.

        Where that leaves fewer than three, documents read backwards join them.
        """
        wanted = half_of(document_hash(self.documents[0]))
        found: dict[str, list[int]] = {}
        for ids in (*self.documents, *(ids[::-1] for ids in self.documents)):
            if len(found) >= _COMPANY and ids not in self.documents:
                break
            shortest = min(len(ids), max(FEWEST_TOKENS, len(ids) - 12))
            cuts = (ids[:n] for n in range(len(ids), shortest - 1, -1))
            cut = next((cut for cut in cuts if half_of(document_hash(cut)) == wanted), None)
            if cut is not None:
                found.setdefault(document_hash(cut), cut)
        return tuple(found.values())


def read_text(layout: Layout, tokenizer: Any, texts: Any) -> tuple[tuple[str, ...], tuple[list[int], ...]]:
    """A few documents as ids, of unlike lengths; the library's own paragraphs, or ids at random, if none are given.

    Raises:
        TextError: text that holds nothing, or strings without a tokenizer.
        ModelError: ids outside the model's vocabulary.
    """
    longest = min(MOST_TOKENS, layout.context)
    if texts is None and tokenizer is None:
        return (), _random_documents(layout, longest)
    documents = list(islice(iter_documents(TEXTS if texts is None else texts), 4 * MOST_DOCUMENTS))
    tokens = tokenise(documents, tokenizer)
    found: list[list[int]] = []
    for number, array in enumerate(tokens):
        ids: list[int] = [int(i) for i in array]
        # Every document ends elsewhere, so that a batch of them is ragged.
        cut = ids[: max(FEWEST_TOKENS, longest - 7 * (number % MOST_DOCUMENTS))][:longest]
        if len(cut) >= min(FEWEST_TOKENS, longest) and cut not in found:
            found.append(cut)
    found = found[:MOST_DOCUMENTS]
    if not found:
        raise TextError(f"no document has {FEWEST_TOKENS} tokens; give more text")
    wrong = [i for ids in found for i in ids if not 0 <= i < layout.vocab_size]
    if wrong:
        raise ModelError(
            f"the id {wrong[0]} is outside the model's vocabulary of {layout.vocab_size}; is this the tokenizer of "
            "another model?"
        )
    return tuple(d.text for d in documents[:MOST_DOCUMENTS] if d.text is not None), tuple(found)


def _random_documents(layout: Layout, longest: int) -> tuple[list[int], ...]:
    generator = torch.Generator().manual_seed(0)
    lengths = [min(n, longest) for n in _RANDOM_LENGTHS]
    low = 3 if layout.vocab_size > 16 else 0  # the first few ids are often special
    return tuple(torch.randint(low, layout.vocab_size, (n,), generator=generator).tolist() for n in lengths)


@contextmanager
def evaluating(layout: Layout, *, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode for the duration of a block, with a graph or without; afterwards all is as before.

    Args:
        layout: of the model.
        gradients: let every floating-point parameter require a gradient.
    """
    root = layout.root
    modes = [(module, module.training) for module in root.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in root.parameters()]
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in flags:
            parameter.requires_grad_(gradients and parameter.is_floating_point())
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def logits_of(
    layout: Layout, ids: Integer[Tensor, "batch length"], **inputs: Tensor
) -> Float[Tensor, "batch length v"]:
    """The logits of the model's own forward pass."""
    ids = ids.to(layout.device)
    inputs = {name: value.to(layout.device) for name, value in inputs.items()}
    if layout.wrapper == "hooked_transformer":
        # Without the side it would look for padding by token id, and move positions.
        mask = inputs.get("attention_mask")
        left = mask is not None and not bool(mask[:, 0].all())
        output = layout.root(ids, padding_side="left" if left else "right", **inputs)
    elif layout.attends == "both":  # an encoder has no cache to leave out
        output = layout.root(input_ids=ids, **inputs)
    else:
        output = layout.root(input_ids=ids, use_cache=False, **inputs)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits if logits.dtype == torch.float64 else logits.float()


def own_tokens(
    logits: Float[Tensor, "batch length v"], ids: Integer[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch length"]:
    """Cross-entropy of every token with itself: a loss of an encoder that needs no mask token.

    Example:
        >>> own_tokens(torch.zeros(1, 2, 4), torch.tensor([[3, 1]]), torch.ones(1, 2, dtype=torch.bool))
        tensor([[1.3863, 1.3863]])
    """
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none") * mask


def padded(
    documents: tuple[list[int], ...], *, left: bool, fill: int = 0, extra: int = 0
) -> tuple[Integer[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """Ids and mask of a batch, padded on one side to the longest document and `extra` positions more."""
    width = max(map(len, documents)) + extra
    ids = torch.full((len(documents), width), fill, dtype=torch.int64)
    mask = torch.zeros(len(documents), width, dtype=torch.bool)
    for row, document in enumerate(documents):
        place = slice(width - len(document), width) if left else slice(0, len(document))
        ids[row, place] = torch.tensor(document)
        mask[row, place] = True
    return ids, mask


def relative(found: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of what was expected; NaN counts as infinite."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    error = float((found - expected).norm() / expected.norm().clamp(min=1e-300))
    return error if error == error else float("inf")


def spread(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the standard deviation of what was expected; NaN counts as infinite."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    error = float((found - expected).abs().max() / expected.std().clamp(min=1e-300))
    return error if error == error else float("inf")


def first_tensor(values: Any) -> Tensor | None:
    """The first floating-point tensor of what a module was called with or returned."""
    for value in values if isinstance(values, tuple | list) else (values,):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def percent(share: float) -> str:
    """A share in words that do not round to nothing.

    Example:
        >>> percent(0.5), percent(0.00001), percent(0.0)
        ('50%', '0.001%', '0%')
    """
    return f"{100 * share:.3g}%"
