"""A byte-level BPE trained on the text at hand; texts made into training windows and measured documents."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int64
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.text import document_hash, half_of

__all__ = ["END_OF_TEXT", "MASK", "measured_documents", "pack_windows", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"


def train_tokenizer(documents: Iterable[str], vocab_size: int = 2048, *, mask: bool = False) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: any text has ids, and ids decode to the text they came from.

    Args:
        documents: Texts to count pairs in.
        vocab_size: Number of ids, the 256 bytes and the end-of-text token (id 0) included.
        mask: Whether it also has a mask token (id 1), for masked language modelling; it counts as one of the ids.

    Returns:
        A Hugging Face tokenizer that adds no special tokens by itself; `bos_token` and `eos_token` are both
        the end-of-text token, as in Pythia.

    Raises:
        TextError: Too little text for `vocab_size` ids.
        TlAnisoError: `vocab_size` below 257.

    Example:
        >>> from tl_aniso.training import train_tokenizer
        >>> tokenizer = train_tokenizer(["a rose is a rose is a rose"], vocab_size=260)
        >>> tokenizer.decode(tokenizer("is a rose").input_ids)
        'is a rose'
    """
    special = [END_OF_TEXT, MASK] if mask else [END_OF_TEXT]
    least = 256 + len(special)
    if vocab_size < least:
        raise TlAnisoError(f"vocab_size is {vocab_size}; a byte-level vocabulary needs at least {least}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        # A model built for more ids than its tokenizer has would hold embeddings that never get a gradient.
        raise TextError(
            f"The text gives {tokenizer.get_vocab_size()} ids, not {vocab_size}; "
            "give more text or a smaller vocab_size."
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        **({"mask_token": MASK} if mask else {}),
    )


def pack_windows(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, context: int = 128
) -> Int64[torch.Tensor, "window position"]:
    """Join documents by the end-of-text token and cut the stream into windows, the remainder left out.

    For training only: a window may hold the end of one document and the start of the next.

    Args:
        documents: Texts.
        tokenizer: With an `eos_token_id`, put after every document.
        context: Length of a window, in tokens.

    Returns:
        Ids of shape (window, context).

    Raises:
        TextError: Less text than one window.

    Example:
        >>> from tl_aniso.training import pack_windows, train_tokenizer
        >>> tokenizer = train_tokenizer(["ab"], vocab_size=258)
        >>> pack_windows(["ab", "ab"], tokenizer, context=2).tolist()
        [[257, 0], [257, 0]]
    """
    encoded = _encoded(documents, tokenizer)
    stream = np.concatenate([np.zeros(0, np.int64), *([*ids, tokenizer.eos_token_id] for ids in encoded)])
    n_windows = len(stream) // context
    if n_windows == 0:
        raise TextError(f"The text has {len(stream)} tokens, less than one window of {context}; give more text.")
    return torch.from_numpy(stream[: n_windows * context].astype(np.int64)).view(n_windows, context)


def measured_documents(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, *, length: int = 128, per_half: int = 32
) -> list[Int64[np.ndarray, " length"]]:
    """Documents of equal length for measuring, as many in half A as in half B.

    Tangent energies grow with the tokens summed into a gradient, so only equal lengths compare. Every entry
    is the start of another document, never two pieces of one; which are taken depends on their hashes alone.

    Args:
        documents: Texts that the model was not trained on.
        tokenizer: The model's.
        length: Tokens of each; shorter documents are passed over.
        per_half: Documents for each half.

    Returns:
        2 x `per_half` id arrays of shape (length,), in the order of their hashes.

    Raises:
        TextError: Too few documents of that length in one half.

    Example:
        >>> from tl_aniso.training import measured_documents, train_tokenizer
        >>> texts = [f"document {i} " * 8 for i in range(40)]
        >>> found = measured_documents(texts, train_tokenizer(texts, 270), length=16, per_half=4)
        >>> len(found), {len(ids) for ids in found}
        (8, {16})
    """
    encoded = _encoded(documents, tokenizer)
    starts = {document_hash(ids[:length]): ids[:length] for ids in encoded if len(ids) >= length}
    chosen: list[str] = []
    for half in ("A", "B"):
        members = [digest for digest in sorted(starts) if half_of(digest) == half]
        if len(members) < per_half:
            raise TextError(
                f"Half {half} has {len(members)} documents of {length} tokens, {per_half} are asked for; "
                "give more text, a smaller length or a smaller per_half."
            )
        chosen += members[:per_half]
    return [np.asarray(starts[digest], dtype=np.int64) for digest in sorted(chosen)]


def _encoded(documents: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    texts = list(documents)
    # An empty batch is an IndexError inside the tokenizer.
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
