"""Tangent shares of single tokens as data: what a view draws, and what its table holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Int64

from tl_aniso.checks import as_path
from tl_aniso.errors import TlAnisoError
from tl_aniso.token_views.files import load_shares, save_shares

__all__ = ["QUANTITIES", "ShareSeries", "TokenShares"]

QUANTITIES = ("activation", "activation gradient", "weight gradient")


@dataclass(frozen=True, eq=False)
class ShareSeries:
    """One quantity at one kind of site, through all its layers.

    Attributes:
        quantity: one of `QUANTITIES`.
        place: the sites' common name without the layer, such as ``attn.W_Q``.
        sites: one a layer.
        layers: their layers; None of embedding and unembedding.
        rank: k of the planes, by site.
        d: width of the rows.
        share: labels ("true", "shuffled") -> share of each token's row in the plane, 0 to 1, layers x tokens; NaN where
            there is none. Activations know no labels and have "true" alone.
        energy: labels -> squared norm of the row (of a weight, of the token's summand of G), which is what a share is
            to be weighted with; NaN where there is none.
        sink: tokens whose residual norm exceeds 10 times the median of their sequence.
    """

    quantity: str
    place: str
    sites: tuple[str, ...]
    layers: tuple[int | None, ...]
    rank: tuple[int, ...]
    d: int
    share: Mapping[str, Float32[np.ndarray, "layers tokens"]]
    energy: Mapping[str, Float32[np.ndarray, "layers tokens"]]
    sink: Bool[np.ndarray, "layers tokens"]

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise TlAnisoError(f"quantity must be one of {', '.join(QUANTITIES)}, got {self.quantity!r}")
        n_layers, n_tokens = self.sink.shape
        for name, held in (("sites", self.sites), ("layers", self.layers), ("rank", self.rank)):
            if len(held) != n_layers:
                raise TlAnisoError(
                    f"{self.quantity} at {self.place}: {len(held)} {name} for {n_layers} layers of values"
                )
        if "true" not in self.share or set(self.share) != set(self.energy):
            raise TlAnisoError(
                f"{self.quantity} at {self.place}: shares and energies must have the same labels, 'true' first"
            )
        for labels in self.share:
            for name, values in (("shares", self.share[labels]), ("energies", self.energy[labels])):
                if values.shape != (n_layers, n_tokens):
                    raise TlAnisoError(
                        f"{self.quantity} at {self.place}: {name} of {labels} labels have shape {values.shape}, "
                        f"expected {(n_layers, n_tokens)}"
                    )

    def n_missing(self, labels: str = "true") -> int:
        """How many shares there are not."""
        return int(np.isnan(self.share[labels]).sum())


@dataclass(frozen=True, eq=False)
class TokenShares:
    """Tokens of a text, and the shares of their rows in tangent planes.

    Attributes:
        tokens: text of each token.
        ids: ids of the text.
        fed: what the model read there, another id where it was masked.
        sequence: which sequence (piece of a document) a token belongs to, from 0.
        position: place in the sequence.
        document: hash of the document, by sequence.
        special: special tokens.
        carries: positions with a loss of their own.
        series: the values.
        objective: name of the loss.
        notes: what a reader must know.
    """

    tokens: tuple[str, ...]
    ids: Int64[np.ndarray, " tokens"]
    fed: Int64[np.ndarray, " tokens"]
    sequence: Int64[np.ndarray, " tokens"]
    position: Int64[np.ndarray, " tokens"]
    document: tuple[str, ...]
    special: Bool[np.ndarray, " tokens"]
    carries: Bool[np.ndarray, " tokens"]
    series: tuple[ShareSeries, ...]
    objective: str = "causal"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        for name in ("ids", "fed", "sequence", "position", "special", "carries"):
            if getattr(self, name).shape != (n,):
                raise TlAnisoError(f"{name} has shape {getattr(self, name).shape}, and there are {n} tokens")
        if not n or not self.series:
            raise TlAnisoError("there are no tokens, or no values of them, to show")
        for series in self.series:
            if series.sink.shape[1] != n:
                raise TlAnisoError(
                    f"{series.quantity} at {series.place} has values of {series.sink.shape[1]} tokens, and there "
                    f"are {n}"
                )
        if set(np.unique(self.sequence).tolist()) != set(range(len(self.document))):
            raise TlAnisoError(f"sequence must number the {len(self.document)} entries of document, from 0")

    def __len__(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def save(self, path: str | Path) -> Path:
        """Write all of it to a new directory, as safetensors and JSON, whole or not at all; returns the directory.

        Raises:
            TlAnisoError: the directory is there already, or cannot be written.

        Example:
            >>> import tempfile
            >>> values = {"true": np.array([[0.5, np.nan]], dtype=np.float32)}
            >>> series = ShareSeries("activation", "hook_resid_pre", ("blocks.0.hook_resid_pre",), (0,), (2,), 8,
            ...                      values, values, np.zeros((1, 2), dtype=bool))
            >>> two, no = np.arange(2), np.zeros(2, dtype=bool)
            >>> shares = TokenShares(("a", "b"), two, two, 0 * two, two, ("ab",), no, no, (series,))
            >>> TokenShares.load(shares.save(Path(tempfile.mkdtemp()) / "shares")).tokens
            ('a', 'b')
        """
        return save_shares(self, as_path("path", path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            TlAnisoError: no such directory, another format, or files that were cut or altered.
        """
        return cast(Self, load_shares(as_path("path", path)))

    @property
    def frame(self) -> pd.DataFrame:
        """One row per token, site, quantity and labels. ``share`` is NaN where there is none, ``energy`` its weight."""
        n = len(self)
        parts = []
        for series in self.series:
            for row, site in enumerate(series.sites):
                for labels, share in series.share.items():
                    parts.append(
                        pd.DataFrame(
                            {
                                "document": np.asarray(self.document, dtype=object)[self.sequence],
                                "sequence": self.sequence,
                                "position": self.position,
                                "id": self.ids,
                                "token": np.asarray((*self.tokens, None), dtype=object)[:n],
                                "special": self.special,
                                "sink": series.sink[row],
                                "carries": self.carries,
                                "layer": np.nan if series.layers[row] is None else float(series.layers[row] or 0),
                                "site": site,
                                "quantity": series.quantity,
                                "labels": labels,
                                "rank": series.rank[row],
                                "share": share[row].astype(np.float64),
                                "energy": series.energy[labels][row].astype(np.float64),
                            }
                        )
                    )
        return pd.concat(parts, ignore_index=True)
