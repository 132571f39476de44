"""From documents to token ids, by the model's own tokenizer and with at most one BOS."""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int64

from tl_aniso.errors import TextError
from tl_aniso.text.documents import Document

__all__ = ["TokenisedTexts", "tokenise"]


class TokenisedTexts(list[Int64[np.ndarray, " length"]]):
    """Ids of one document an entry (a list of int64 arrays), with what was found on the way.

    Attributes:
        sources: Where each document came from, for error messages.
        n_doubled_bos: Documents that began with more than one BOS, of which one was left.
        n_with_bos: Documents that begin with a BOS now.

    Example:
        >>> from tl_aniso.text import iter_documents, tokenise
        >>> tokenise(iter_documents([[5, 6], [7, 8, 9]])).sources
        ['document 0', 'document 1']
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.sources: list[str] = []
        self.n_doubled_bos = 0
        self.n_with_bos = 0


def tokenise(documents: Iterable[Document], tokenizer: Any = None, *, bos: int | None = None) -> TokenisedTexts:
    """Token ids of every document, one call of the tokenizer each.

    The tokenizer's own defaults decide about special tokens; a document that ends up with two or more BOS at
    its start (one written in the text, one added) keeps one. Nothing is truncated or padded. Ids that come without a
    tokenizer are held to the same rule by `bos`.

    Args:
        documents: What `iter_documents` yields.
        tokenizer: A Hugging Face tokenizer; may be None if every document is given as ids.
        bos: The id of the BOS where there is no tokenizer to ask.

    Returns:
        A list of int64 arrays of shape (length,), one a document, empty ones included.

    Raises:
        TextError: A text without a tokenizer that can be called, or one that is not valid Unicode (a lone surrogate).

    Example:
        >>> from tl_aniso.text import iter_documents, tokenise
        >>> [ids.tolist() for ids in tokenise(iter_documents([5, 6, 7]))]
        [[5, 6, 7]]
    """
    found = TokenisedTexts()
    bos = bos if tokenizer is None else getattr(tokenizer, "bos_token_id", None)
    for document in documents:
        ids = document.ids if document.ids is not None else _tokenised(document, tokenizer)
        if bos is not None and len(ids) and ids[0] == bos:
            found.n_with_bos += 1
            others = np.flatnonzero(ids != bos)
            leading = int(others[0]) if len(others) else len(ids)
            if leading > 1:
                found.n_doubled_bos += 1
                ids = ids[leading - 1 :]
        found.append(ids)
        found.sources.append(document.source)
    return found


def _tokenised(document: Document, tokenizer: Any) -> Int64[np.ndarray, " length"]:
    text = document.text or ""
    if tokenizer is not None and not callable(tokenizer):
        raise TextError(
            f"The {document.source} is a text, and the tokenizer is of type {type(tokenizer).__name__}, which cannot "
            "be called with a text; pass a Hugging Face tokenizer (AutoTokenizer.from_pretrained(...)), or token ids."
        )
    if tokenizer is None:
        raise TextError(f"The {document.source} is a text and there is no tokenizer; pass one, or token ids.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"The {document.source} is not valid Unicode (character {error.start} is a lone surrogate)."
        ) from error
    with warnings.catch_warnings():
        # Sequences are cut afterwards, so a document above the tokenizer's maximum is no fault. Hugging Face
        # logs it unless verbose=False; other tokenizers may warn.
        warnings.filterwarnings("ignore", message=".*[Ll]onger than.*")
        encoded = tokenizer(text, truncation=False, padding=False, verbose=False)
    ids: Int64[np.ndarray, " length"] = np.asarray(encoded["input_ids"], dtype=np.int64).reshape(-1)
    ids.setflags(write=False)
    return ids
