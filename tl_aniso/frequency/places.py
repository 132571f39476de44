"""From type captures to what is correlated: which types, their distances, and what the controls make of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_aniso.errors import MergeError, TlAnisoError, UndefinedMeasureError
from tl_aniso.frequency.distances import VARIANTS, over_checkpoints, rounded
from tl_aniso.frequency.rows import Place
from tl_aniso.frequency.store import SiteRows, TypeCapture
from tl_aniso.frequency.surrogate import gaussian_distances, moving_distances, within_covariance
from tl_aniso.sites import EMBEDDING, UNEMBEDDING, layer_of

__all__ = ["TABLES", "alike", "places_over", "places_within"]

TABLES = ("input", "output", "contextual")
_SITES = {"input": EMBEDDING, "output": UNEMBEDDING}


def alike(captures: Sequence[TypeCapture]) -> tuple[TypeCapture, ...]:
    """Checkpoints of one vocabulary over one text, in the order of their steps where all are known.

    Raises:
        MergeError: captures of other vocabularies, texts, sites or options.
    """
    first = captures[0]
    for number, other in enumerate(captures[1:], 2):
        for what, mine, theirs in (
            ("the size of the vocabulary", first.n_types, other.n_types),
            ("tied tables", first.tied, other.tied),
            ("the tables", tuple(first.tables), tuple(other.tables)),
            ("the sites", first.sites, other.sites),
            ("the options", _asked(first), _asked(other)),
            ("the documents", first.metadata["text"]["documents"], other.metadata["text"]["documents"]),
        ):
            if mine != theirs:
                shown = "" if isinstance(mine, dict | list) else f": {mine} and {theirs}"
                raise MergeError(f"capture 1 and capture {number} differ in {what}{shown}; give checkpoints of one run")
        if not torch.equal(first.counts, other.counts):
            raise MergeError(f"capture 1 and capture {number} differ in the counts of types; capture one text in all")
        if first.tokens is not None and other.tokens is not None and tuple(first.tokens) != tuple(other.tokens):
            raise MergeError(f"capture 1 and capture {number} differ in their vocabularies: ids mean other tokens")
    steps = [capture.metadata["model"]["step"] for capture in captures]
    if all(step is not None for step in steps):
        return tuple(captures[i] for i in sorted(range(len(steps)), key=lambda i: float(steps[i])))
    return tuple(captures)


def _asked(capture: TypeCapture) -> dict[str, Any]:
    """Options without the tokenizer's name, a directory of each checkpoint's own: its tokens are compared instead."""
    return {name: value for name, value in capture.metadata["options"].items() if name != "tokenizer"}


def places_over(
    captures: Sequence[TypeCapture], tables: Sequence[str], sites: Sequence[str], n_min: int, n_draws: int, seed: int
) -> list[Place]:
    """Distances to the centroid over checkpoints: of tables, and of contextual means at every site."""
    first = captures[0]
    found = []
    fields = {**_fields(first), "model": _shared_name(captures), "revision": "", "step": math.nan}
    fields["tokens_seen"] = math.nan
    for table, site in _SITES.items():
        if table not in tables or site not in first.tables:
            continue
        types = _types(first, n_min)
        read = [_rows_of(capture.tables[site]) for capture in captures]
        moved = over_checkpoints(read, types, site, seed=seed)
        drawn = {
            v: moving_distances(
                moved.movement[v], None, first.counts[types].numpy(), len(captures), n_draws=n_draws, seed=seed
            )
            for v in VARIANTS
        }
        found.append(
            _place(
                first,
                site,
                "tied" if first.tied else table,
                "over_checkpoints",
                types,
                torch.full((len(types),), len(captures)),
                moved.values,
                moved.norm,
                None,
                {},
                drawn,
                fields,
            )
        )
    for site in sites if "contextual" in tables else ():
        held = [capture.rows[site] for capture in captures]
        count = torch.stack([rows.all.count for rows in held]).amin(0)
        types = _types(first, n_min, count)
        moved = over_checkpoints([rows.all.means for rows in held], types, site, seed=seed)
        noise = torch.stack([within_covariance(rows) for rows in held]).mean(0)
        drawn = {
            v: moving_distances(
                moved.movement[v], noise, count[types].numpy(), len(captures), n_draws=n_draws, seed=seed
            )
            for v in VARIANTS
        }
        full = _full(held, types, first)
        twin = over_checkpoints([rows.matched.means for rows in held], types[full], site, seed=seed, covariances=False)
        found.append(
            _place(
                first,
                site,
                "contextual",
                "over_checkpoints",
                types,
                count[types] * len(captures),
                moved.values,
                moved.norm,
                full,
                twin.values,
                drawn,
                fields,
            )
        )
    return found


def places_within(capture: TypeCapture, sites: Sequence[str], n_min: int, n_draws: int, seed: int) -> list[Place]:
    """Distances of contextual rows to the mean of their type, within one checkpoint."""
    found = []
    for site in sites:
        rows = capture.rows[site]
        count = rows.all.count
        types = _types(capture, n_min, count)
        values, norm = _spread(rows.all, types, site)
        full = _full([rows], types, capture)
        twin, _ = _spread(rows.matched, types[full], site)
        drawn = gaussian_distances(within_covariance(rows), count[types].numpy(), n_draws=n_draws, seed=seed)
        found.append(
            _place(
                capture,
                site,
                "contextual",
                "within",
                types,
                count[types],
                {"raw": values},
                norm,
                full,
                {"raw": twin},
                {"raw": drawn},
                _fields(capture),
            )
        )
    return found


def _spread(moments: Any, types: Tensor, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Distance and norm of some types, both root mean square."""
    squares = moments.squares[types] / moments.count[types]
    norm = (moments.means(types).square().sum(1) + squares).sqrt().numpy()
    distance = moments.variance()[types].sqrt().numpy()
    if not (np.isfinite(norm).all() and np.isfinite(distance).all()):
        raise UndefinedMeasureError(f"{site}: the rows of some types hold values that are not finite")
    return rounded(distance, norm), norm


def _types(capture: TypeCapture, n_min: int, count: Tensor | None = None) -> Tensor:
    """Types with enough occurrences, special ones left out."""
    enough = capture.counts >= n_min
    if count is not None:
        enough &= count >= n_min
    special = [i for i in capture.metadata["options"]["special"] if i < len(enough)]
    enough[special] = False
    return enough.nonzero()[:, 0]


def _full(held: Sequence[SiteRows], types: Tensor, capture: TypeCapture) -> Tensor:
    """Of `types`, those whose size-matched sample is complete at every checkpoint."""
    size = int(capture.metadata["options"]["n_min"])
    return torch.stack([rows.matched.count[types] == size for rows in held]).all(0) & (size > 1)


def _rows_of(table: Tensor) -> Any:
    return lambda types: table[types]


def _fields(capture: TypeCapture) -> dict[str, Any]:
    model, options = capture.metadata["model"], capture.metadata["options"]
    number = {name: math.nan if model[name] is None else float(model[name]) for name in ("step", "tokens_seen")}
    return {
        "model": model["name"],
        "family": model["family"],
        "objective": options["objective"],
        "revision": model["revision"],
        "n_documents": len(capture.metadata["text"]["documents"]),
        "phase": math.nan,
        **number,
    }


def _shared_name(captures: Sequence[TypeCapture]) -> str:
    """What the names of the checkpoints share: all, or the folders above them; of nothing shared, first and last."""
    names = list(dict.fromkeys(str(capture.metadata["model"]["name"]) for capture in captures))
    if len(names) == 1:
        return names[0]
    shared = []
    for parts in zip(*(name.split("/") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared).rstrip("/") or f"{names[0]} to {names[-1]}"


def _place(
    capture: TypeCapture,
    site: str,
    table: str,
    scope: str,
    types: Tensor,
    rows: Tensor,
    distances: dict[str, np.ndarray],
    norm: np.ndarray,
    full: Tensor | None,
    matched: dict[str, np.ndarray],
    drawn: dict[str, np.ndarray],
    fields: dict[str, Any],
) -> Place:
    counts = capture.counts[types].numpy()
    total = int(capture.counts.sum())
    if not total:
        raise TlAnisoError("the capture counts no token at all; give counts of a text")
    layer = layer_of(site)
    notes = ("input and output table are equal, as tied ones are",) if table == "tied" else ()
    return Place(
        site,
        table,
        scope,
        types.numpy(),
        counts,
        rows.numpy(),
        np.log(counts / total),
        distances,
        norm,
        None if full is None else full.numpy(),
        matched,
        drawn,
        {**fields, "layer": math.nan if layer is None else layer},
        notes,
    )
