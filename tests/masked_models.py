"""Text for encoders, its masks, and the gradients of its masked tokens by autograd."""

from functools import cache
from typing import Any

import numpy as np

from tests.encoder_models import MASK, VOCAB, tiny_encoder
from tests.models import random_documents
from tests.reference.gradients import Reference, reference_gradients
from tl_aniso.text import make_sequences
from tl_aniso.text.masking import Masking, mask_sequence

__all__ = ["DOCUMENTS", "SPECIAL", "encoder", "masked_by_hand", "masked_reference"]

SPECIAL = (0, 1, 2, MASK)  # as the tiny encoders' config names them
# Like text of an encoder: a first and a last token that are special, ragged lengths.
DOCUMENTS = [[1, *ids, 2] for ids in random_documents(low=MASK + 1)]


@cache
def encoder(seed: int = 0) -> Any:
    return tiny_encoder("EuroBert", seed=seed)


def masked_by_hand(
    documents: list[list[int]], *, seed: int = 0, rate: float = 0.3, replacement: str = "bert"
) -> tuple[list[list[int]], list[list[int]]]:
    """What the model reads, and the labels: the token where one is masked, -100 elsewhere."""
    masking = Masking(rate, replacement, MASK, SPECIAL, VOCAB)
    pieces = make_sequences(documents, 160).sequences
    masked = [mask_sequence(piece, masking, seed=seed) for piece in pieces]
    labels = [np.where(m.places, p.ids, -100).tolist() for m, p in zip(masked, pieces, strict=True)]
    return [m.ids.tolist() for m in masked], labels


@cache
def masked_reference(seed: int = 0, rate: float = 0.3, replacement: str = "bert") -> Reference:
    """Of `DOCUMENTS` and the encoder, by autograd on an untouched copy."""
    fed, labels = masked_by_hand(DOCUMENTS, seed=seed, rate=rate, replacement=replacement)
    return reference_gradients(encoder(), fed, labels=labels)
