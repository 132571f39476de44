"""What one checkpoint and one text say about every token type: counts, tables, moments of contextual rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from tl_aniso.checks import as_label, as_path
from tl_aniso.errors import MergeError, TlAnisoError
from tl_aniso.frequency.type_moments import TypeMoments
from tl_aniso.moments import Moments
from tl_aniso.sites import EMBEDDING, UNEMBEDDING

__all__ = ["FORMAT_VERSION", "SiteRows", "TypeCapture"]

FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Contextual rows of one site, by type.

    Attributes:
        all: of every row that the filters leave.
        matched: of at most `n_min` rows a type, the same number of each type that has so many: chosen before the pass
            by a seeded hash of document and place, so that it is the same at every checkpoint.
        origin: which part of a merged text a type's matched rows come from.
        pooled: of all rows together, for the covariance within types.
    """

    all: TypeMoments
    matched: TypeMoments
    origin: Int64[Tensor, " n_types"]
    pooled: Moments

    def merged(self, other: SiteRows) -> SiteRows:
        """Rows of both texts; of the matched ones, whose number must not grow, the fuller of the two by type.

        Of equally many those with the smaller origin stay, so that order and grouping do not matter.
        """
        mine, theirs = self.matched._count, other.matched._count
        taken = (theirs > mine) | ((theirs == mine) & (other.origin < self.origin))
        matched = self.matched.replaced(other.matched, taken)
        origin = torch.where(taken, other.origin, self.origin)
        return SiteRows(self.all + other.all, matched, origin, self.pooled + other.pooled)


@dataclass(frozen=True, eq=False, repr=False)
class TypeCapture:
    """Counts, tables and contextual moments by token type, of one checkpoint. Made by `type_capture`.

    Memory grows with the vocabulary and the width, not with the text: 8 bytes x vocabulary x width a site, twice.

    Attributes:
        counts: occurrences of each type in the text, whatever the filters leave of them.
        tables: ``embed.W_E`` and ``unembed.W_U``, vocabulary x d in float32; of tied tables the first alone.
        rows: contextual rows by site.
        metadata: model, options, text: plain JSON values.

    Example:
        >>> import torch
        >>> from tl_aniso.frequency import TypeCapture
        >>> held = TypeCapture.from_tables(torch.tensor([9, 4, 1]), {"embed.W_E": torch.eye(3)}, step=100)
        >>> held.tied, held.metadata["model"]["step"]
        (False, 100)
    """

    counts: Int64[Tensor, " n_types"]
    tables: Mapping[str, Float32[Tensor, "n_types d"]]
    rows: Mapping[str, SiteRows]
    metadata: dict[str, Any]
    tokens: Sequence[str] | None = field(default=None)

    @classmethod
    def from_tables(
        cls,
        counts: Int64[Tensor, " n_types"],
        tables: Mapping[str, Float32[Tensor, "n_types d"]],
        *,
        name: str = "tables",
        step: float | None = None,
        special: Sequence[int] = (),
        tied: bool = False,
        rows: Mapping[str, SiteRows] | None = None,
    ) -> Self:
        """A capture of tables that come from elsewhere, with known counts.

        Args:
            counts: occurrences of each type.
            tables: ``embed.W_E`` and/or ``unembed.W_U``.
            name: of the model.
            step: of the checkpoint.
            special: types that are left out.
            tied: whether the one table is both.
            rows: contextual rows by site.

        Raises:
            TlAnisoError: counts that are no whole numbers from 0 on, tables of other names, or without one row for each
                count.
        """
        held = _as_counts(counts)
        kept = {site: torch.as_tensor(table).detach().float().cpu() for site, table in tables.items()}
        for site, table in kept.items():
            if site not in (EMBEDDING, UNEMBEDDING):
                raise TlAnisoError(f"a table is {EMBEDDING} or {UNEMBEDDING}, got {site!r}")
            if table.ndim != 2 or len(table) != len(held):
                raise TlAnisoError(
                    f"{site} must have a row for each of {len(held)} counts, got shape {tuple(table.shape)}"
                )
        widths = [table.shape[1] for table in kept.values()]
        metadata = {
            "format_version": FORMAT_VERSION,
            "model": {
                "name": name,
                "family": "",
                "revision": "",
                "step": as_label("step", step),
                "tokens_seen": None,
                "vocab_size": len(held),
                "d_model": widths[0] if widths else None,
                "n_layers": None,
                "weights": "",
                "tied": bool(tied),
            },
            "options": {"n_min": 0, "special": [int(i) for i in special], "objective": "", "sites": [], "seed": 0},
            "text": {"documents": [], "n_tokens": int(held.sum())},
        }
        return cls(held, kept, dict(rows or {}), metadata)

    @property
    def tied(self) -> bool:
        """Whether input and output table are one."""
        return bool(self.metadata["model"]["tied"])

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites with contextual rows."""
        return tuple(self.rows)

    @property
    def n_types(self) -> int:
        """Size of the vocabulary."""
        return len(self.counts)

    def labelled(self, **fields: Any) -> TypeCapture:
        """The same with fields of ``metadata["model"]`` set, such as ``step=512``.

        Raises:
            TlAnisoError: a field that the metadata does not have, or a step or tokens_seen that is no number or None.
        """
        metadata = copy.deepcopy(self.metadata)
        unknown = sorted(set(fields) - set(metadata["model"]))
        if unknown:
            raise TlAnisoError(f"no such field: {', '.join(unknown)}; fields are {', '.join(metadata['model'])}")
        metadata["model"].update({name: as_label(name, value) for name, value in fields.items()})
        return TypeCapture(self.counts, self.tables, self.rows, metadata, self.tokens)

    def merge(self, other: TypeCapture) -> TypeCapture:
        """One capture of the text of both.

        Raises:
            MergeError: another checkpoint or other options, or a document that both hold.
        """
        if not isinstance(other, TypeCapture):
            raise MergeError(f"can only merge a TypeCapture, got {type(other).__name__}")
        for part in ("format_version", "model", "options"):
            mine, theirs = self.metadata[part], other.metadata[part]
            if mine != theirs:
                names = (
                    [k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)] if part != "format_version" else []
                )
                raise MergeError(f"type captures of unlike runs: {part} differs ({', '.join(names)})")
        shared = sorted(set(self.metadata["text"]["documents"]) & set(other.metadata["text"]["documents"]))
        if shared:
            raise MergeError(
                f"both captures hold document {shared[0][:16]}... ({len(shared)} in all); merge each document once"
            )
        metadata = copy.deepcopy(self.metadata)
        mine, theirs = self.metadata["text"], other.metadata["text"]
        metadata["text"] = {
            "documents": sorted((*mine["documents"], *theirs["documents"])),
            "n_tokens": mine["n_tokens"] + theirs["n_tokens"],
        }
        rows = {site: held.merged(other.rows[site]) for site, held in self.rows.items()}
        return TypeCapture(self.counts + other.counts, self.tables, rows, metadata, self.tokens)

    def save(self, directory: str | Path) -> Path:
        """Write the capture as a directory of safetensors and JSON, complete or not at all.

        Raises:
            TlAnisoError: the path exists, or cannot be written.
        """
        from tl_aniso.frequency.files import save_type_capture

        return save_type_capture(self, as_path("directory", directory))

    @classmethod
    def load(cls, directory: str | Path) -> TypeCapture:
        """Read what `save` wrote.

        Raises:
            TlAnisoError: nothing there, damaged files, or a format this version does not know.
        """
        from tl_aniso.frequency.files import load_type_capture

        return load_type_capture(as_path("directory", directory))

    def __repr__(self) -> str:
        model, seen = self.metadata["model"], int((self.counts > 0).sum())
        return f"TypeCapture({model['name']}, step {model['step']}, {seen} of {self.n_types} types seen)"


def _as_counts(counts: Any) -> Int64[Tensor, " n_types"]:
    try:
        given = torch.as_tensor(counts).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TlAnisoError(f"counts must be a list of whole numbers: {error}") from None
    if given.ndim != 1 or given.is_complex() or given.dtype == torch.bool:
        raise TlAnisoError(f"counts must be a list of whole numbers, got {given.dtype} of shape {tuple(given.shape)}")
    held = given.to(torch.int64)
    wrong = ((held != given) | (held < 0)).nonzero()[:, 0]
    if len(wrong):
        at = int(wrong[0])
        raise TlAnisoError(f"counts must be whole numbers of at least 0, got {given[at].item()} of type {at}")
    return held
