"""Text: documents, their token ids, sequences and batches, and a corpus found on any machine with Python.

Corpora of several sources: `load_recipe`, `stream`, `freeze`, `FrozenCorpus`.
"""

from tl_aniso.text.corpus import CorpusStream, SourcedDocument, SourceTally, stream
from tl_aniso.text.documents import Document, iter_documents
from tl_aniso.text.fingerprint import tokenizer_fingerprint
from tl_aniso.text.freezing import freeze
from tl_aniso.text.frozen import FrozenCorpus
from tl_aniso.text.local import local_corpus, split_documents
from tl_aniso.text.recipe import CorpusRecipe, CorpusSource, load_recipe
from tl_aniso.text.sequences import (
    Batch,
    Half,
    Sequence,
    SequenceSet,
    document_hash,
    half_of,
    make_batches,
    make_sequences,
    shard_of,
)
from tl_aniso.text.tokenise import TokenisedTexts, tokenise

__all__ = [
    "Batch",
    "CorpusRecipe",
    "CorpusSource",
    "CorpusStream",
    "Document",
    "FrozenCorpus",
    "Half",
    "Sequence",
    "SequenceSet",
    "SourceTally",
    "SourcedDocument",
    "TokenisedTexts",
    "document_hash",
    "freeze",
    "half_of",
    "iter_documents",
    "load_recipe",
    "local_corpus",
    "make_batches",
    "make_sequences",
    "shard_of",
    "split_documents",
    "stream",
    "tokenise",
    "tokenizer_fingerprint",
]
