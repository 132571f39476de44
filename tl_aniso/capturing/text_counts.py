"""What a text holds that is likely not meant as text: padding without a mask, and special tokens written out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tl_aniso.text import Document, TokenisedTexts

__all__ = ["TextCounts", "count_text", "pad_of"]


@dataclass(frozen=True)
class TextCounts:
    """Documents as they were given, before any is dropped.

    Attributes:
        n_given: documents.
        padded: the pad token's id, as text -> documents that begin or end with it once attention masks trimmed them.
        written: special token -> documents in which it stands written out; of ids, the mask token alone ("id 3").
    """

    n_given: int = 0
    padded: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)


def pad_of(tokenizer: Any, config: Any) -> tuple[int, int] | None:
    """The pad token, and how many of it at an end are padding: one alone is none where the token also ends texts.

    Example:
        >>> from transformers import LlamaConfig
        >>> pad_of(None, LlamaConfig(pad_token_id=0)), pad_of(None, LlamaConfig(pad_token_id=2, eos_token_id=2))
        ((0, 1), (2, 2))
    """
    for source in (tokenizer, config):
        pad = getattr(source, "pad_token_id", None)
        if isinstance(pad, int) and pad >= 0:
            others = [getattr(source, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep")]
            ends = {i for other in others for i in (other if isinstance(other, list | tuple) else [other])}
            return pad, 2 if pad in ends else 1
    return None


def count_text(
    documents: Iterable[Document], tokens: TokenisedTexts, tokenizer: Any, config: Any, mask_token_id: int | None
) -> TextCounts:
    """What documents hold, beside their ids.

    Args:
        documents: as they were given.
        tokens: their ids, in the same order.
        tokenizer: which special tokens a text may hold written out; None where it came as ids.
        config: of the model, which names the pad token where no tokenizer does.
        mask_token_id: under a masked objective.

    Example:
        >>> from tl_aniso.text import iter_documents, tokenise
        >>> documents = list(iter_documents([[5, 6, 0, 0], [7, 3, 8]]))
        >>> from transformers import LlamaConfig
        >>> count_text(documents, tokenise(documents), None, LlamaConfig(pad_token_id=0), 3)
        TextCounts(n_given=2, padded={'0': 1}, written={'id 3': 1})
    """
    pad = pad_of(tokenizer, config)
    names = [str(name) for name in getattr(tokenizer, "all_special_tokens", None) or ()]
    convert = getattr(tokenizer, "convert_tokens_to_ids", None)
    special = {name: convert(name) for name in names} if convert is not None else {}
    padded, written = 0, Counter[str]()
    for document, ids in zip(documents, tokens, strict=True):
        if document.text is not None:
            written.update(name for name, token in special.items() if name in document.text and token in ids)
            continue
        if mask_token_id is not None and mask_token_id in ids:
            written[f"id {mask_token_id}"] += 1
        padded += pad is not None and _is_padded(ids, *pad)
    return TextCounts(len(tokens), {str(pad[0]): padded} if pad is not None else {}, dict(sorted(written.items())))


def _is_padded(ids: Any, pad: int, least: int) -> bool:
    if len(ids) < least:
        return False
    return bool(np.all(ids[:least] == pad) or np.all(ids[-least:] == pad))
