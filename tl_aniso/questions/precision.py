"""Gradients too small for the arithmetic that summed them: zero but for rounding, or with squares that underflow."""

import math
from collections.abc import Sequence

import torch

from tl_aniso.capturing.store import Capture
from tl_aniso.capturing.sums import Kind
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.questions.energy_rows import KINDS
from tl_aniso.questions.frame import Row
from tl_aniso.questions.shares import gradient_moments
from tl_aniso.sites import UNEMBEDDING

__all__ = ["refuse_all_zero", "small_gradients"]

# Of a norm in float32 over the largest norm among sites: what sums of terms that cancel leave of zero.
ROUNDING = 10 * torch.finfo(torch.float32).eps
# Mean square below which a part of the squares is near the least float32, 1.2e-38, with room for gradients that lie
# in a few entries: no gradient of a summed loss comes near.
LEAST_SQUARE = 1e-32

_BLANK = ("z", "p_value", "ci_low", "ci_high")


def small_gradients(rows: Sequence[Row]) -> tuple[str, ...]:
    """Notes on sites whose gradients are too small to mean anything; at rounding level p, z and interval become NaN.

    Args:
        rows: of `energy_rows`, one question's; changed in place.
    """
    effects = [row for row in rows if row["measure"] == "energy_share" and row["control"] == "none"]
    totals = {(row["gradient"], row["site"]): float(row["shares"].total.sum()) for row in effects}
    largest: dict[str, float] = {}
    for (gradient, _), total in totals.items():
        largest[gradient] = max(largest.get(gradient, 0.0), total)
    rounded = [key for key, total in totals.items() if total < ROUNDING**2 * largest[key[0]]]
    for row in rows:
        if (row["gradient"], row["site"]) in rounded:
            row.update({name: math.nan for name in _BLANK if name in row})
    squares = {
        (row["gradient"], row["site"]): float(row["shares"].total.sum()) / (row["n_rows"] * row["d"]) for row in effects
    }
    tiny = [key for key, square in squares.items() if square < LEAST_SQUARE and key not in rounded]
    notes: tuple[str, ...] = ()
    if rounded:
        notes += (
            f"the gradient is zero but for rounding at {_named(rounded)}: its norm is below {ROUNDING:.1g} of the "
            "largest among the sites, so its share means nothing and has no p-value and no interval; leave it out with "
            "sites=...",
        )
    if tiny:
        least = min(squares[key] for key in tiny)
        notes += (
            f"gradients are as small as {math.sqrt(least):.1g} (root mean square) at {_named(tiny)}: their squares "
            "underflow in float32, so shares are wrong; scale the objective up, which changes no share",
        )
    return notes


def refuse_all_zero(capture: Capture, pairs: Sequence[tuple[str, str]], error: UndefinedMeasureError) -> None:
    """Where several (site, gradient) have no energy, or none has, say so instead of blaming the first site.

    Raises:
        UndefinedMeasureError: more than one gradient is exactly zero.
    """
    totals = {(site, gradient): _total(capture, KINDS[gradient], site) for site, gradient in pairs}
    known = {pair: total for pair, total in totals.items() if total is not None}
    zero = [(gradient, site) for (site, gradient), total in known.items() if total == 0]
    if len(zero) < 2:
        return
    causes = (
        "Either no position carries a loss (an objective that is zero everywhere, documents too short to predict a "
        "token), or nothing comes back from the logits (an unembedding of zeros, a saturated soft cap), or the squares "
        "underflow in float32 (scale the objective up)"
    )
    if len(zero) == len(known):
        raise UndefinedMeasureError(
            f"every gradient is exactly zero (at all {len(zero)} sites), so no energy can be shared out. {causes}"
        ) from error
    if len(zero) == len(known) - sum(site == UNEMBEDDING for site, _ in known):
        raise UndefinedMeasureError(
            f"every gradient but that of {UNEMBEDDING} is exactly zero: nothing comes back from the logits, as with an "
            f"unembedding of zeros; measure {UNEMBEDDING} alone with sites=..., or load the weights"
        ) from error
    raise UndefinedMeasureError(f"{error}; the same holds at {len(zero)} of {len(known)}: {_named(zero)}") from error


def _total(capture: Capture, kind: Kind, site: str) -> float | None:
    table = capture.energies(kind, site)
    if table is not None:
        return float(table[..., -1].sum())
    parts = list(capture.shard_moments(kind, site).values())
    pooled = gradient_moments(capture, kind, site)
    parts = parts or ([] if pooled is None else [pooled])
    return sum(float(part.second_moment().trace()) * part.count for part in parts if part.count) if parts else None


def _named(keys: Sequence[tuple[str, str]]) -> str:
    sites = list(dict.fromkeys(site for _, site in keys))
    return ", ".join(sites[:3]) + (f" ... ({len(sites)} sites)" if len(sites) > 3 else "")
