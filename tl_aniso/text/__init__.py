"""Text: documents, their token ids, sequences and batches, and a corpus found on any machine with Python."""

from tl_aniso.text.documents import Document, iter_documents
from tl_aniso.text.local import local_corpus, split_documents
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
    "Document",
    "Half",
    "Sequence",
    "SequenceSet",
    "TokenisedTexts",
    "document_hash",
    "half_of",
    "iter_documents",
    "local_corpus",
    "make_batches",
    "make_sequences",
    "shard_of",
    "split_documents",
    "tokenise",
]
