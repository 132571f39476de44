"""Tokens of a sequence hidden for masked-language modelling, the same ones at every checkpoint and batch size."""

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from tl_aniso.text.sequences import Sequence

__all__ = ["Masked", "Masking", "mask_sequence", "ordinary_places"]

# Of Devlin et al. 2019: of the masked tokens 80% are replaced by the mask token, 10% by a random one, 10% left.
_TO_MASK_TOKEN = 0.8
_TO_RANDOM = 0.9


@dataclass(frozen=True)
class Masking:
    """How tokens are masked, with what is known of the vocabulary.

    Attributes:
        rate: probability that an ordinary token is masked, in (0, 1].
        replacement: "bert" (80% mask token, 10% random ordinary token, 10% left as they are) or "mask" (mask token).
        mask_token_id: the mask token.
        special: ids that are never masked and never put in, the mask token among them; sorted.
        n_tokens: random tokens are drawn from the ids below, the special ones left out.
    """

    rate: float
    replacement: str
    mask_token_id: int
    special: tuple[int, ...]
    n_tokens: int

    @property
    def n_ordinary(self) -> int:
        """Number of ids that a random token may be."""
        return self.n_tokens - sum(token < self.n_tokens for token in self.special)


@dataclass(frozen=True, eq=False)
class Masked:
    """One sequence, masked.

    Attributes:
        ids: what the model reads.
        places: which positions are masked, and so to be predicted.
    """

    ids: Int64[np.ndarray, " length"]
    places: Bool[np.ndarray, " length"]


def ordinary_places(sequence: Sequence, special: tuple[int, ...]) -> Bool[np.ndarray, " length"]:
    """Positions that may be masked: those without a special token.

    Example:
        >>> from tl_aniso.text import make_sequences
        >>> (sequence,) = make_sequences([[1, 8, 9, 2]], seq_len=8).sequences
        >>> ordinary_places(sequence, (1, 2)).tolist()
        [False, True, True, False]
    """
    return ~np.isin(sequence.ids, special)


def mask_sequence(sequence: Sequence, masking: Masking, *, seed: int) -> Masked:
    """Mask a sequence: each ordinary token with probability `rate`, and at least one.

    A pure function of the seed, the sequence's document and piece, and the masking. Each position has its own draw, so
    a higher rate masks the same positions and more, and a document with its tokens in another order is masked at the
    same positions.

    Args:
        sequence: with at least one ordinary token.
        masking: how.
        seed: of the draws.

    Example:
        >>> import numpy as np
        >>> from tl_aniso.text import make_sequences
        >>> (sequence,) = make_sequences([[1, *range(10, 20), 2]], seq_len=16).sequences
        >>> found = mask_sequence(sequence, Masking(0.3, "mask", 3, (1, 2, 3), 40), seed=0)
        >>> bool((found.ids[found.places] == 3).all()), bool((found.ids == sequence.ids)[~found.places].all())
        (True, True)
        >>> bool(found.places[[0, -1]].any()), bool(found.places.any())
        (False, True)
    """
    digest = hashlib.sha256(f"{seed}/masked/{sequence.document}/{sequence.index}".encode()).digest()
    rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
    n = len(sequence)
    chance, fate = rng.random(n), rng.random(n)
    chance[~ordinary_places(sequence, masking.special)] = np.inf
    places = chance < masking.rate
    places[np.argmin(chance)] = True
    ids = sequence.ids.copy()
    if masking.replacement == "mask":
        ids[places] = masking.mask_token_id
    else:
        ids[places & (fate < _TO_MASK_TOKEN)] = masking.mask_token_id
        drawn = places & (fate >= _TO_MASK_TOKEN) & (fate < _TO_RANDOM)
        ids[drawn] = _ordinary_ids(rng.integers(masking.n_ordinary, size=n)[drawn], masking.special)
    return Masked(ids, places)


def _ordinary_ids(ranks: Int64[np.ndarray, " n"], special: tuple[int, ...]) -> Int64[np.ndarray, " n"]:
    """The ordinary ids of given ranks among the ordinary ones: as many ids further as special ones come before."""
    before = np.array(special, dtype=np.int64) - np.arange(len(special))  # ordinary ids below each special one
    return ranks + np.searchsorted(before, ranks, side="right")
