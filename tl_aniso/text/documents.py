"""What counts as one document, whatever form the text arrives in."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64

from tl_aniso.errors import TextError, TlAnisoWarning

__all__ = ["Document", "iter_documents"]

_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_FORMS = (
    "a string, a list of strings, ids (a list or 1-D tensor for one document, a 2-D tensor for one a row), "
    "dataset rows with 'text' or 'input_ids', or a pathlib.Path to a .txt or .jsonl file"
)


@dataclass(frozen=True, eq=False)
class Document:
    """One document: exactly one of `ids` and `text` is set; `source` says where it came from.

    Example:
        >>> from tl_aniso.text import iter_documents
        >>> [document.source for document in iter_documents(["one", "two"])]
        ['document 0', 'document 1']
    """

    ids: Int64[np.ndarray, " length"] | None
    text: str | None
    source: str


def iter_documents(text: object) -> Iterator[Document]:
    """Yield the documents of `text`, in the order given.

    Args:
        text: A string is *one* document, never a path. A list or 1-D tensor of ids is one document; a
            list of strings, of id lists, of tensors or of dataset rows is one document an entry; a 2-D id
            tensor is one document a row. A mapping (a dataset row, a tokenizer's output) is read by its
            `input_ids`, trimmed by its `attention_mask` on either side, else by its `text`. A `pathlib.Path`:
            `.txt` is split at blank lines, `.jsonl` holds one string, id list or object a line.

    Yields:
        `Document`s, empty ones inside a larger corpus included (they are dropped and counted later).

    Raises:
        TextError: Nothing to read, or an entry of another kind; the message names the entry.

    Example:
        >>> import torch
        >>> from tl_aniso.text import iter_documents
        >>> padded = {"input_ids": torch.tensor([[0, 5, 6], [7, 8, 9]]),
        ...           "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
        >>> [document.ids.tolist() for document in iter_documents(padded)]
        [[5, 6], [7, 8, 9]]
    """
    if isinstance(text, str):
        if not text.strip():
            raise TextError("The text is an empty string; give at least one document.")
        if re.fullmatch(r"\S+\.(txt|jsonl)", text):
            warnings.warn(
                f"The text {text!r} looks like a file name but a string is taken as the document itself; "
                "for the file's content pass pathlib.Path(...).",
                TlAnisoWarning,
                stacklevel=2,
            )
    found = False
    for document in _top_level(text):
        found = True
        yield document
    if not found:
        what = f"the file {text}" if isinstance(text, Path) else f"the text ({_kind(text)})"
        raise TextError(f"No document in {what}; give at least one.")


def _top_level(text: object) -> Iterator[Document]:
    if isinstance(text, Path):
        yield from _from_path(text)
    elif isinstance(text, torch.Tensor | np.ndarray) and not text.ndim:
        raise TextError(f"The text is a single number, {text.item()!r}; a document is a list of ids.")
    elif isinstance(text, torch.Tensor | np.ndarray | list | tuple) and not len(text):
        return
    elif isinstance(text, torch.Tensor | np.ndarray) and text.ndim > 2:
        raise TextError(f"The ids have {text.ndim} dimensions; a document has 1, a batch of them 2.")
    elif _is_ids(text) or isinstance(text, str | Mapping | Document):
        yield from _from_entry(text, "document")
    elif hasattr(text, "columns") and hasattr(text, "to_dict"):
        raise TextError("A data frame is not a text; pass a column of it, such as list(frame['text']).")
    elif isinstance(text, Iterable) and not isinstance(text, bytes | bytearray):
        for number, entry in enumerate(text):
            yield from _from_entry(entry, f"document {number}")
    else:
        raise TextError(f"A text cannot be of type {_kind(text)}; give {_FORMS}.")


def _from_entry(entry: object, source: str) -> Iterator[Document]:
    if isinstance(entry, Document):
        yield entry
    elif isinstance(entry, str):
        yield Document(None, str(entry), source)  # numpy's own strings become plain ones
    elif isinstance(entry, Mapping):
        yield from _from_mapping(entry, source)
    elif isinstance(entry, Path):
        raise TextError(f"The {source} is a path ({entry.name}) inside a list; pass one path, or texts read from them.")
    else:
        yield from _from_ids(entry, None, source)


def _from_mapping(row: Mapping[object, object], source: str) -> Iterator[Document]:
    # Ids win over text: they are what the model was meant to read, tokenised already.
    if "input_ids" in row:
        yield from _from_ids(row["input_ids"], row.get("attention_mask"), source)
    elif "text" in row:
        value = row["text"]
        if isinstance(value, str):
            yield Document(None, value, source)
        elif isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            for number, item in enumerate(value):
                yield Document(None, item, f"{source}, row {number}")
        else:
            raise TextError(
                f"The 'text' of {source} is of type {_kind(value)}; it must be a string or a list of strings."
            )
    else:
        keys = ", ".join(repr(key) for key in list(row)[:6])
        raise TextError(f"The {source} has neither 'text' nor 'input_ids' but {keys or 'no keys'}; pass rows that do.")


def _from_ids(value: object, mask: object, source: str) -> Iterator[Document]:
    if _is_ids(value):
        yield Document(_trimmed(_id_array(value, source), mask, source), None, source)
        return
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim != 2:
            raise TextError(f"The ids of {source} have {value.ndim} dimensions; a document has 1, a batch of them 2.")
    elif not isinstance(value, list | tuple) or not all(_is_ids(row) for row in value):
        raise TextError(f"The {source} is of type {_kind(value)}, not token ids or text; give {_FORMS}.")
    rows = list(value)
    if mask is not None and (not hasattr(mask, "__len__") or len(mask) != len(rows)):
        raise TextError(f"The attention_mask of {source} does not have one row for each of its {len(rows)} documents.")
    masks = [None] * len(rows) if mask is None else list(mask)  # type: ignore[call-overload]
    for number, (row, row_mask) in enumerate(zip(rows, masks, strict=True)):
        name = f"{source}, row {number}" if source != "document" else f"document {number}"
        yield Document(_trimmed(_id_array(row, name), row_mask, name), None, name)


def _is_ids(value: object) -> bool:
    """One document of ids: a 1-D array, or a list whose entries are all whole numbers (or that is empty)."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim == 1 and getattr(value.dtype, "kind", "i") not in "OUST"
    return isinstance(value, list | tuple) and all(
        type(item) is int or getattr(item, "shape", None) == () for item in value
    )


def _id_array(value: object, source: str) -> Int64[np.ndarray, " length"]:
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.size and array.dtype.kind not in "iu":
        raise TextError(f"The ids of {source} have dtype {array.dtype}; token ids are whole numbers.")
    ids = array.astype(np.int64)
    ids.setflags(write=False)
    return ids


def _trimmed(ids: Int64[np.ndarray, " length"], mask: object, source: str) -> Int64[np.ndarray, " length"]:
    if mask is None:
        return ids
    keep = mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    if keep.shape != ids.shape or not np.isin(keep, (0, 1)).all():
        raise TextError(f"The attention_mask of {source} must be 0 or 1 for each of its {len(ids)} ids.")
    kept = np.flatnonzero(keep)
    if len(kept) and kept[-1] - kept[0] + 1 != len(kept):
        # Joining both sides of a hole would invent a text that nobody wrote.
        raise TextError(f"The attention_mask of {source} has a hole; only padding at the ends can be trimmed.")
    return ids[kept[0] : kept[-1] + 1] if len(kept) else ids[:0]


def _from_path(path: Path) -> Iterator[Document]:
    if path.is_dir():
        raise TextError(f"There is no file {path}: it is a directory; give one .txt or .jsonl file.")
    if path.exists() and not path.is_file():
        # A pipe has no name that says how its documents are told apart, and can be read only once.
        raise TextError(f"{path} is no regular file (a pipe or a device); save the text as .txt or .jsonl first.")
    if not path.is_file():
        raise TextError(f"There is no file {path}; give an existing .txt or .jsonl file.")
    if path.suffix.lower() not in (".txt", ".jsonl"):
        raise TextError(
            f"The file {path.name} is neither .txt (split at blank lines) nor .jsonl (one document a line)."
        )
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"The file {path.name} is not UTF-8 (byte {error.start}); convert it first.") from error
    if path.suffix.lower() == ".txt":
        pieces = (piece.strip() for piece in _BLANK_LINES.split(content))
        for number, piece in enumerate(filter(None, pieces)):
            yield Document(None, piece, f"{path.name}, paragraph {number}")
        return
    # Not splitlines(): a JSON string may hold U+2028 and its kin, which are no line ends in JSON Lines.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                what = getattr(error, "msg", str(error))
                raise TextError(
                    f"Line {number} of {path.name} is not JSON ({what}); give one document a line."
                ) from error
            yield from _from_entry(entry, f"{path.name}, line {number}")


def _kind(value: object) -> str:
    if isinstance(value, list | tuple) and value:
        return f"{type(value).__name__} of {' and '.join(sorted({type(item).__name__ for item in value}))}"
    return f"empty {type(value).__name__}" if isinstance(value, list | tuple) else type(value).__name__
