"""Text for a capture: the model's own tokenizer, sequences, special tokens, and the size of a batch."""

import warnings
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePath
from typing import Any

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.masked_lm import MaskedLM
from tl_aniso.capturing.text_counts import TextCounts, count_text
from tl_aniso.checks import as_integer
from tl_aniso.errors import TextError, TlAnisoError, TlAnisoWarning
from tl_aniso.text import SequenceSet, iter_documents, make_sequences, tokenise
from tl_aniso.text.masking import Masking, ordinary_places

__all__ = ["PreparedText", "default_batch_size", "find_tokenizer", "prepare_text"]

DEFAULT_SEQ_LEN = 512
# Tokens in a batch by default: enough rows for products to run at full speed, little enough memory for a laptop.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class PreparedText:
    """Sequences and what is known about their tokens.

    Attributes:
        sequences: cut to length, with what was dropped.
        seq_len: the length they were cut to.
        special: token ids whose rows the filter "special" leaves out.
        n_with_bos: documents that begin with a BOS.
        n_doubled_bos: documents from which a second BOS was taken.
        tokenizer: name of the tokenizer, "ids" where the text came as ids.
        masking: how tokens are masked; None where the objective masks none.
        counts: what the text holds that is likely not meant as text.
        mask_remark: what is odd about the mask token.
    """

    sequences: SequenceSet
    seq_len: int
    special: tuple[int, ...]
    n_with_bos: int
    n_doubled_bos: int
    tokenizer: str
    masking: Masking | None = None
    counts: TextCounts = field(default_factory=TextCounts)
    mask_remark: str | None = None

    @property
    def halves(self) -> tuple[str, ...]:
        """The halves that hold documents."""
        return tuple(sorted({sequence.half for sequence in self.sequences.sequences}))

    def restricted(self, half: str) -> "PreparedText":
        """Only the documents of one half."""
        kept = tuple(s for s in self.sequences.sequences if s.half == half)
        documents = tuple(dict.fromkeys(s.document for s in kept))
        n_tokens = sum(len(s) for s in kept)
        return replace(self, sequences=SequenceSet(kept, documents, self.sequences.dropped, n_tokens))


def find_tokenizer(model: Any) -> Any | None:
    """The tokenizer the model was published with, or None.

    TransformerLens reloads tokenizers with a BOS that the model's own may not add, so the original is loaded again
    from where the hooked model says it came from; where that fails, the hooked model's own serves, with a warning.
    """
    held = getattr(model, "tokenizer", None)
    config = getattr(model, "config", None) or getattr(getattr(model, "original_model", None), "config", None)
    places = [getattr(held, "name_or_path", ""), getattr(config, "_name_or_path", "")]
    from transformers import AutoTokenizer

    for place in filter(None, places):
        try:
            return AutoTokenizer.from_pretrained(place)
        except (OSError, ValueError, KeyError):
            continue
    if held is not None and (hasattr(model, "original_model") or hasattr(model, "run_with_cache")):
        warnings.warn(
            "the model's own tokenizer could not be loaded again, so the hooked model's is used, which may add a BOS "
            "that the model was not trained with; pass tokenizer=... to be sure",
            TlAnisoWarning,
            stacklevel=2,
        )
    return held


def prepare_text(
    model: Any,
    layout: Layout,
    text: Any,
    *,
    tokenizer: Any,
    seq_len: int | None,
    n_shards: int,
    masked_lm: MaskedLM | None = None,
) -> PreparedText:
    """Tokenise and cut a user's text for a model, and find out how to mask it.

    Args:
        masked_lm: the objective, where it is one of masked tokens. Sequences without a token that may be masked are
            then dropped and counted (`no_maskable_token`).

    Raises:
        TextError: empty text, no tokenizer for strings, ids outside the model's vocabulary, or for masks, a mask token
            that is not known or text of special tokens alone.
        TlAnisoError: `seq_len` above the model's context, or a tokenizer that is only the name of one.
    """
    if isinstance(tokenizer, str | PurePath | type):
        named = f"the class {tokenizer.__name__}" if isinstance(tokenizer, type) else repr(str(tokenizer))
        raise TlAnisoError(
            f"tokenizer must be a tokenizer, got {named}, which is only the name of one; load it first: "
            "transformers.AutoTokenizer.from_pretrained(...)"
        )
    length = min(DEFAULT_SEQ_LEN, layout.context) if seq_len is None else as_integer("seq_len", seq_len, least=2)
    if length > layout.context:
        raise TlAnisoError(f"seq_len {length} is beyond the model's context of {layout.context} tokens")
    documents = iter_documents(text)
    first = next(documents, None)
    if first is None:
        raise TextError("the text holds no documents")
    if first.text is not None and tokenizer is None:
        tokenizer = find_tokenizer(model)
        if tokenizer is None:
            raise TextError(
                "the text is made of strings and the model's tokenizer was not found; pass tokenizer=..., or token ids"
            )
    # Ids made elsewhere, with a BOS written and one added, would otherwise go unnoticed.
    config = getattr(layout.root, "config", None)
    bos = getattr(config, "bos_token_id", None)
    given = list(chain([first], documents))
    tokens = tokenise(given, tokenizer, bos=bos if isinstance(bos, int) else None)
    sequences = make_sequences(tokens, length, layout.vocab_size, n_shards, sources=tokens.sources)
    name = "ids" if tokenizer is None else str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    special = _special_ids(layout, tokenizer)
    masking, remark = None, None
    if masked_lm is not None:
        masking = _masking(masked_lm, layout, tokenizer, special)
        remark = _mask_remark(masking.mask_token_id, config, tokenizer)
        special, sequences = masking.special, _maskable(sequences, masking)
    counts = count_text(given, tokens, tokenizer, config, masking.mask_token_id if masking is not None else None)
    return PreparedText(
        sequences, length, special, tokens.n_with_bos, tokens.n_doubled_bos, name, masking, counts, remark
    )


def default_batch_size(layout: Layout, seq_len: int) -> int:
    """Sequences in a batch when the user does not say."""
    return max(1, _BATCH_TOKENS.get(layout.device.type, 1024) // seq_len)


def _special_ids(layout: Layout, tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's special tokens; without one, those that the model's config names."""
    if tokenizer is not None and getattr(tokenizer, "all_special_ids", None) is not None:
        found = set(tokenizer.all_special_ids)
    else:
        config: Any = getattr(layout.root, "config", None)  # a HookedTransformer's names no special tokens
        found = set()
        names = ["bos_token_id", "eos_token_id", "pad_token_id"]
        if layout.attends == "both":
            names += ["cls_token_id", "sep_token_id", "mask_token_id"]
        for name in names:
            value = getattr(config, name, None)
            found |= set(value) if isinstance(value, list | tuple) else {value}
    return tuple(sorted(int(i) for i in found if i is not None and 0 <= i < layout.vocab_size))


def _masking(masked_lm: MaskedLM, layout: Layout, tokenizer: Any, special: tuple[int, ...]) -> Masking:
    """How to mask with this model's vocabulary.

    Raises:
        TextError: the mask token is not known, or outside the vocabulary.
    """
    found = masked_lm.mask_token_id
    if found is None:
        found = getattr(tokenizer, "mask_token_id", None)
    if found is None:
        found = getattr(getattr(layout.root, "config", None), "mask_token_id", None)
    if not isinstance(found, int):
        lacking = (
            f"the tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__} has no mask token"
            if tokenizer is not None
            else "the text came as ids, without a tokenizer"
        )
        remedy = "another tokenizer=..." if tokenizer is not None else "tokenizer=..."
        raise TextError(
            f"masked-language modelling needs a mask token: {lacking}, and the config of this {layout.class_name} "
            f"names none; pass {remedy}, or objective=MaskedLM(mask_token_id=...)"
        )
    if not 0 <= found < layout.vocab_size:
        raise TextError(
            f"the mask token {found} is outside the vocabulary of {layout.vocab_size} ids; pass the model's own "
            "tokenizer=..., or objective=MaskedLM(mask_token_id=...)"
        )
    known = len(tokenizer) if hasattr(tokenizer, "__len__") else layout.vocab_size
    return Masking(
        masked_lm.rate,
        masked_lm.replacement,
        found,
        tuple(sorted({*special, found})),
        min(known, layout.vocab_size),  # tables are often padded beyond the tokens there are
    )


def _mask_remark(found: int, config: Any, tokenizer: Any) -> str | None:
    """What a reader should know of the mask token: another than the tokenizer's or config's, or an ordinary one."""
    for own, whose in ((tokenizer, "the tokenizer's"), (config, "the config's")):
        named = getattr(own, "mask_token_id", None)
        if isinstance(named, int):
            if named != found:
                return f"the mask token is {found}, as the objective names it, and not {whose} own, {named}"
            break
    special = getattr(tokenizer, "all_special_ids", None)
    if special is None or found in special:
        return None
    convert = getattr(tokenizer, "convert_ids_to_tokens", None)
    spelled = f" ({convert(found)!r})" if convert is not None else ""
    return (
        f"the mask token {found}{spelled} is an ordinary token of the tokenizer: where it stands in the text it is "
        "taken for a special one, and a model that was not trained with it reads a word there"
    )


def _maskable(sequences: SequenceSet, masking: Masking) -> SequenceSet:
    """The sequences that hold a token which may be masked; the others are counted.

    Raises:
        TextError: there is none.
    """
    kept = tuple(s for s in sequences.sequences if ordinary_places(s, masking.special).any())
    n_dropped = len(sequences.sequences) - len(kept)
    if not n_dropped:
        return sequences
    if not kept:
        raise TextError(
            f"all {n_dropped} sequences are made of special tokens alone, so there is no token to mask; give text"
        )
    documents = tuple(dict.fromkeys(s.document for s in kept))
    dropped = {**sequences.dropped, "no_maskable_token": n_dropped}
    return SequenceSet(kept, documents, dropped, sum(len(s) for s in kept))
