"""What a tokenizer does, as a short hash, so that ids are never read by a model of another tokenizer."""

import hashlib
import json
from typing import Any

from tl_aniso.errors import TextError

__all__ = ["tokenizer_fingerprint", "tokenizer_name"]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Sixteen hex digits over a tokenizer's rules, vocabulary and special tokens, whatever its name and place.

    Raises:
        TextError: no tokenizer.

    Example:
        >>> from tl_aniso.text import tokenizer_fingerprint
        >>> from tl_aniso.training import train_tokenizer
        >>> one, other = (train_tokenizer([text], vocab_size=258) for text in ("a rose is a rose", "tulips, tulips"))
        >>> tokenizer_fingerprint(one) == tokenizer_fingerprint(other)
        False
    """
    if not callable(tokenizer):
        raise TextError(
            f"a corpus is counted and frozen in tokens, and {tokenizer!r} is no tokenizer; pass the model's"
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        whole = json.loads(backend.to_str())
        # A call sets these on the backend, and each call sets them anew.
        known: Any = {name: part for name, part in whole.items() if name not in ("truncation", "padding")}
    else:
        known = sorted(tokenizer.get_vocab().items())
    special = {name: str(value) for name, value in sorted(tokenizer.special_tokens_map.items())}
    text = json.dumps([type(tokenizer).__name__, special, known], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tokenizer_name(tokenizer: Any) -> str:
    """The name or path that a tokenizer was loaded by, else its class.

    Example:
        >>> from tl_aniso.text.fingerprint import tokenizer_name
        >>> tokenizer_name(print)
        'builtin_function_or_method'
    """
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
