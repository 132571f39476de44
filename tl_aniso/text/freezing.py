"""Read a corpus once, and write it as token ids."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tl_aniso.checks import as_path
from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.progress import say
from tl_aniso.staging import staging
from tl_aniso.text.corpus import CorpusStream, SourcedDocument, stream
from tl_aniso.text.fingerprint import tokenizer_fingerprint, tokenizer_name
from tl_aniso.text.frozen import FORMAT, INDEX, TENSORS, VERSION, FrozenCorpus, corpus_hash, index_digest
from tl_aniso.text.reading import files_revision
from tl_aniso.text.recipe import CorpusRecipe, load_recipe
from tl_aniso.text.sequences import MIN_TAIL

__all__ = ["freeze"]

_SECONDS_BETWEEN_LINES = 10.0


def freeze(
    recipe: CorpusRecipe | object,
    tokenizer: Any,
    directory: Path | str,
    *,
    n_tokens: int | None = None,
    n_documents: int | None = None,
    seed: int = 0,
    max_document_tokens: int | None = None,
    min_document_tokens: int = MIN_TAIL,
    progress: bool = True,
) -> FrozenCorpus:
    """Write the documents of a recipe as token ids, once; called again, the same corpus is read and checked.

    The directory appears complete or not at all. The same sources, tokenizer and arguments give the same bytes.

    Args:
        recipe: what `load_recipe` returns or takes.
        tokenizer: the model's; see `stream` for it and for the arguments below.
        directory: a new one; or one that holds the corpus of the same request.
        n_tokens: of all sources together.
        n_documents: of all sources together.
        seed: of the order within each source.
        max_document_tokens: documents are cut to their first so many tokens.
        min_document_tokens: shorter documents are dropped and counted.
        progress: say now and then how far it is.

    Raises:
        TextError: what `stream` raises; no usable document; or a directory that holds something else.
        TlAnisoError: a place that cannot be written.
    """
    place = as_path("directory", directory)
    recipe = recipe if isinstance(recipe, CorpusRecipe) else load_recipe(recipe)
    request = {
        "recipe": recipe.as_dict(),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "n_tokens": n_tokens,
        "n_documents": n_documents,
        "seed": seed,
        "max_document_tokens": max_document_tokens,
        "min_document_tokens": min_document_tokens,
    }
    if place.exists():
        return _same(place, recipe, request)
    found = stream(
        recipe,
        tokenizer,
        n_tokens=n_tokens,
        n_documents=n_documents,
        seed=seed,
        max_document_tokens=max_document_tokens,
        min_document_tokens=min_document_tokens,
    )
    documents = list(_told(found, n_tokens, n_documents, progress))
    if not documents:
        raise TextError(f"the recipe {recipe.name} gave no usable document: {_reasons(found)}")
    index = _index(found, documents, request, tokenizer)
    try:
        _write(place, index, documents)
    except OSError as error:
        if not (place / INDEX).is_file():  # else another process was faster, and wrote the same or is named below
            raise TlAnisoError(f"the corpus could not be written to {place}: {error}") from error
        return _same(place, recipe, request)
    return FrozenCorpus.load(place)


def _told(
    found: CorpusStream, n_tokens: int | None, n_documents: int | None, progress: bool
) -> Iterator[SourcedDocument]:
    """The documents without their texts, and a line now and then."""
    last, tokens = time.monotonic(), 0
    wanted = f" of {n_tokens} tokens" if n_tokens else f" tokens, {n_documents} documents wanted" if n_documents else ""
    for number, document in enumerate(found, start=1):
        tokens += len(document.ids)
        yield SourcedDocument(
            "", document.ids.astype(np.int32), document.source, document.language, document.id, document.hash
        )
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"freezing {found.recipe.name}: {number} documents, {tokens}{wanted}", enabled=progress)


def _index(
    found: CorpusStream, documents: list[SourcedDocument], request: dict[str, Any], tokenizer: Any
) -> dict[str, Any]:
    sources = list(dict.fromkeys(document.source for document in documents))
    languages = list(dict.fromkeys(document.language for document in documents))
    return {
        "format": FORMAT,
        "version": VERSION,
        "hash": corpus_hash([document.hash for document in documents]),
        "n_documents": len(documents),
        "n_tokens": sum(len(document.ids) for document in documents),
        "tokenizer": {"name": tokenizer_name(tokenizer), "fingerprint": request["tokenizer"]},
        "request": request,
        "account": {
            name: {
                "revision": found.revisions[name],
                "asked": found.recipe.share(name),
                "read": tally.read,
                "documents": tally.documents,
                "tokens": tally.tokens,
                "ran_dry": tally.ran_dry,
                "dropped": dict(sorted(tally.dropped.items())),
                "duplicates": dict(sorted(tally.duplicates.items())),
            }
            for name, tally in found.tallies.items()
        },
        "hashes": [document.hash for document in documents],
        "listed": {
            "sources": sources,
            "languages": languages,
            "source": [sources.index(document.source) for document in documents],
            "language": [languages.index(document.language) for document in documents],
            "name": [document.id for document in documents],
        },
    }


def _write(place: Path, index: dict[str, Any], documents: list[SourcedDocument]) -> None:
    from safetensors.torch import save_file

    ids = torch.from_numpy(np.concatenate([document.ids for document in documents]))
    offsets = torch.from_numpy(np.cumsum([0, *(len(document.ids) for document in documents)]))
    with staging(place) as temporary:
        save_file({"ids": ids, "offsets": offsets}, temporary / TENSORS)
        whole = {**index, "digest": index_digest(index)}
        (temporary / INDEX).write_text(json.dumps(whole, indent=0), encoding="utf-8")
        temporary.rename(place)


def _same(place: Path, recipe: CorpusRecipe, request: dict[str, Any]) -> FrozenCorpus:
    """The corpus that is there already, if it is the one that is asked for."""
    if not (place / INDEX).is_file():
        raise TextError(f"{place} exists and holds no frozen corpus; choose a new directory")
    held = FrozenCorpus.load(place)
    was = held.index["request"]
    other = [key for key in request if was.get(key) != json.loads(json.dumps(request[key]))]
    if other:
        shown = "; ".join(f"{key} was {was.get(key)!r:.60}, now {request[key]!r:.60}" for key in other)
        raise TextError(f"{place} holds a corpus of another request ({shown}); choose a new directory")
    for source in recipe.sources:
        if source.kind == "files" and files_revision(source, recipe) != held.index["account"][source.name]["revision"]:
            raise TextError(
                f"{place} was frozen from other content of the files of {source.name}; choose a new directory"
            )
    return held


def _reasons(found: CorpusStream) -> str:
    parts = [
        f"{name}: {tally.read} read, "
        + (", ".join(f"{n} {why}" for why, n in sorted(tally.dropped.items())) or "none dropped")
        for name, tally in found.tallies.items()
    ]
    return "; ".join(parts)
