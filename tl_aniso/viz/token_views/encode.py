"""Token shares as compact JSON: values in 16 bits, the highest code for a missing one."""

import base64
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8, UInt16

from tl_aniso.token_views.shares import QUANTITIES, ShareSeries, TokenShares
from tl_aniso.viz.token_views.text import shown

__all__ = ["ENERGY_SPAN", "encoded", "quantised"]

MISSING = 65535
_MOST = 65534
# Energies go as powers of ten of their mean: from 1e-8 to 1e4 of it, a step being 0.04%.
ENERGY_SPAN = (-8.0, 4.0)
_LABELS = {"true": "True labels", "shuffled": "Shuffled labels"}
_WORDS = {
    "activation": "An activation does not depend on labels.",
    "reader": "A reader's share looks at the input of the matrix alone, so labels change its energy and not its share.",
}


def encoded(shares: TokenShares) -> dict[str, Any]:
    """What the script of a token view reads. Strings are text, to be put into text nodes and nowhere else."""
    flags = shares.special.astype(np.uint8) | (~shares.carries).astype(np.uint8) << 1
    vocabulary: dict[str, int] = {}
    index = [vocabulary.setdefault(shown(token), len(vocabulary)) for token in shares.tokens]
    pieces = []
    for number, document in enumerate(shares.document):
        places = np.flatnonzero(shares.sequence == number)
        pieces.append({"document": document[:12], "start": int(places[0]), "stop": int(places[-1]) + 1})
    return {
        "format": 1,
        "objective": shares.objective,
        "notes": list(shares.notes),
        "vocabulary": list(vocabulary),
        "index": _packed(np.asarray(index, dtype="<u4")),
        "ids": _packed(shares.ids.astype("<u4")),
        "changed": _packed((shares.fed != shares.ids).astype(np.uint8)),
        "flags": _packed(flags),
        "pieces": pieces,
        "span": list(ENERGY_SPAN),
        "series": [_series(series) for series in _in_order(shares.series)],
    }


def quantised(values: Float[np.ndarray, "..."], low: float = 0.0, high: float = 1.0) -> UInt16[np.ndarray, "..."]:
    """Values between two bounds as codes; NaN as the code of what is missing, values beyond a bound as the bound.

    Example:
        >>> quantised(np.array([0.0, 1.0, np.nan, 2.0])).tolist()
        [0, 65534, 65535, 65534]
    """
    with np.errstate(invalid="ignore"):
        codes = np.round((np.clip(values, low, high) - low) / (high - low) * _MOST)
    return np.where(np.isnan(values), MISSING, codes).astype("<u2")


def _in_order(series: tuple[ShareSeries, ...]) -> list[ShareSeries]:
    return sorted(series, key=lambda s: QUANTITIES.index(s.quantity))


def _series(series: ShareSeries) -> dict[str, Any]:
    reader = series.quantity == "weight gradient" and not (
        series.place.endswith(("W_O", "W_out")) or series.place.startswith("embed")
    )
    return {
        "quantity": series.quantity,
        "place": series.place,
        "layers": list(series.layers),
        "chance": [rank / series.d for rank in series.rank],
        "rank": list(series.rank),
        "d": series.d,
        "note": _WORDS["reader"] if reader else _WORDS.get(series.quantity, ""),
        "labels": list(series.share),
        "titles": [_LABELS[labels] for labels in series.share],
        "share": [_packed(quantised(series.share[labels])) for labels in series.share],
        "energy": [_packed(quantised(_relative(series.energy[labels]), *ENERGY_SPAN)) for labels in series.share],
        "sink": _packed(np.packbits(series.sink, axis=1, bitorder="little")),
        "stride": (series.sink.shape[1] + 7) // 8,
    }


def _relative(energy: Float[np.ndarray, "layers tokens"]) -> Float[np.ndarray, "layers tokens"]:
    """Powers of ten of the mean of each layer."""
    known = np.where(np.isnan(energy), 0.0, energy).astype(np.float64)
    count = np.maximum((~np.isnan(energy)).sum(axis=1, keepdims=True), 1)
    mean = known.sum(axis=1, keepdims=True) / count
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(energy / np.where(mean > 0, mean, np.nan))


def _packed(values: UInt8[np.ndarray, "..."] | UInt16[np.ndarray, "..."] | np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
