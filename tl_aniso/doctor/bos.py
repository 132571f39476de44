"""How many BOS the tokenizer puts in front of a text, and what the library makes of it."""

from typing import Any

from tl_aniso.doctor.check import Check
from tl_aniso.doctor.subject import Subject
from tl_aniso.doctor.texts import TEXTS
from tl_aniso.text import iter_documents, tokenise

__all__ = ["check_bos"]


def check_bos(subject: Subject) -> Check:
    """Zero or one BOS when the tokenizer is called as a user would; two are a fault of the tokenizer."""
    name, tokenizer = "BOS zero or one", subject.tokenizer
    if tokenizer is None:
        return Check(name, "info", "no tokenizer was given or found: token ids are taken as they are, never changed")
    bos = getattr(tokenizer, "bos_token_id", None)
    texts = subject.texts or TEXTS
    if bos is None:
        return _without_bos(name, tokenizer, texts)
    token = str(getattr(tokenizer, "bos_token", bos))
    counts = [_leading(tokenizer, text, bos) for text in texts]
    kept = tokenise(iter_documents(list(texts)), tokenizer)
    recorded = (
        f"a capture records {kept.n_with_bos} of {len(texts)} documents with a BOS and {kept.n_doubled_bos} from which "
        "a second one was taken"
    )
    if max(counts) > 1:
        return Check(
            name,
            "fail",
            f"the tokenizer puts {max(counts)} BOS ({token!r}, id {bos}) in front of {sum(n > 1 for n in counts)} of "
            f"{len(texts)} texts; the library keeps one ({recorded}), other code that calls this tokenizer will not",
            "the texts may begin with a BOS already, or it is added twice, by add_bos_token and by the "
            "post-processor: leave one of them, or load the tokenizer the model was published with",
        )
    if token and _leading(tokenizer, token + texts[0], bos) > 1:
        recorded += "; a text that begins with one already, such as a chat template's, would get two, and keeps one"
    return Check(name, "pass", f"{max(counts)} in front of a text ({token!r}, id {bos}); {recorded}")


def _without_bos(name: str, tokenizer: Any, texts: tuple[str, ...]) -> Check:
    """BERT's tokenizers put a CLS where others put a BOS; the library leaves it, or two of them, as they come."""
    cls = getattr(tokenizer, "cls_token_id", None)
    if cls is None:
        return Check(name, "pass", "the tokenizer has no BOS")
    most = max(_leading(tokenizer, text, cls) for text in texts)
    found = f"the tokenizer has no BOS, and puts {most} CLS ({tokenizer.cls_token!r}, id {cls}) in front of a text"
    if most <= 1:
        return Check(name, "pass", found)
    return Check(
        name,
        "fail",
        f"{found}; all of them would be measured as they come",
        "the texts may begin with one already, or a post-processor adds a second: leave one of them",
    )


def _leading(tokenizer: Any, text: str, bos: int) -> int:
    ids = list(tokenizer(text)["input_ids"])
    return next((n for n, found in enumerate(ids) if found != bos), len(ids))
