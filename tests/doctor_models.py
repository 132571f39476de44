"""A tokenizer, texts and tiny models that fit each other, for the tests of the doctor."""

from typing import Any

from tests.models import tiny_model
from tl_aniso.training import train_tokenizer

TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {b} of the {a} again, then at the {c} once more and left it alone"
    for a, b, c in [(a, b, c) for a in ("old", "red", "wet") for b in ("cat", "dog") for c in ("mat", "bed")]
]


def doctors_tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def model_for(tokenizer: Any, kind: str = "llama", **changes: Any) -> Any:
    return tiny_model(kind, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **changes)
