"""Decoder less encoder, checkpoint by checkpoint and over windows of training, with intervals over text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.errors import TlAnisoError
from tl_aniso.evidence import EnergyShares, ShareKey
from tl_aniso.pair.progress import Match
from tl_aniso.results import TangentEnergy, group_of
from tl_aniso.statistics import (
    Contrast,
    Interval,
    effective_shards,
    mean_excess_contrast,
    mean_excess_interval,
    mean_share_difference,
    mean_share_interval,
)

__all__ = ["FEW_SHARDS", "GROUPS", "WINDOWS", "compare", "few_shards_notes", "windows_of"]

GROUPS = ("readers", "writers")
# What a comparison is over: matches of equal tokens in the early and in the later steps, and those of equal progress.
WINDOWS = ("equal tokens, early", "equal tokens, late", "equal progress")

# With fewer effective shards a few documents decide, and intervals have but a degree of freedom or two.
FEW_SHARDS = 3.0

Energies = Mapping[int, TangentEnergy]


def windows_of(tokens: Sequence[Match], progress: Sequence[Match], early_until: float) -> dict[str, tuple[Match, ...]]:
    """Which matches are averaged over. Step 0 is in none: nothing is learned there.

    Args:
        tokens: matches of equal tokens.
        progress: matches of equal progress.
        early_until: last step of the early window.
    """
    early = tuple(match for match in tokens if 0 < match.decoder <= early_until)
    late = tuple(match for match in tokens if match.decoder > early_until)
    return dict(zip(WINDOWS, (early, late, tuple(progress)), strict=True))


def compare(
    decoder: Energies,
    encoder: Energies,
    windows: Mapping[str, Sequence[Match]],
    *,
    seed: int,
    controls: Sequence[str],
) -> pd.DataFrame:
    """Paired differences of E and of excess over every control, decoder less encoder, of weight gradients.

    Both models are of one width and rank, and their energies of the same documents and shards. A difference over a
    group is the mean over its sites, over a window the mean over its matches and sites; each shard of documents is
    deleted from all of them at once. R is not compared: at one k/d it is a function of E.

    Args:
        decoder: measurements by step.
        encoder: measurements by step.
        windows: of `windows_of`.
        seed: of both trainings, for the table.
        controls: whose excess is compared.

    Returns:
        One row per (window, match, group, measure, control), and one over the whole window whose steps are NaN.
        ``decoder`` and ``encoder`` are means over sites (geometric for excess); ``value`` is the difference of E, or
        log(excess of the decoder / excess of the encoder), with ``ci_low`` and ``ci_high``; ``decoder_low`` ...
        ``encoder_high`` are the ends of each model's own interval. ``decoder_shards`` and ``encoder_shards`` count
        effective shards, the fewest of any site: where few documents hold most of the energy, they are few.

    Raises:
        TlAnisoError: measurements of different documents, shards or ranks, or without energies by shard.
    """
    rows: list[dict[str, Any]] = []
    for window, matches in windows.items():
        if not matches:
            continue
        pairs = [(_shares(decoder[match.decoder]), _shares(encoder[match.encoder])) for match in matches]
        for pair in pairs:
            _same(*pair)
        for group in GROUPS:
            for match, pair in zip(matches, pairs, strict=True):
                where = {
                    "decoder_step": float(match.decoder),
                    "encoder_step": float(match.encoder),
                    "decoder_progress": match.decoder_progress,
                    "encoder_progress": match.encoder_progress,
                }
                rows += [{**where, **row} for row in _rows([pair], window, group, seed, controls)]
            rows += list(_rows(pairs, window, group, seed, controls))
    names = (
        *("seed", "window", "decoder_step", "encoder_step", "decoder_progress", "encoder_progress", "group"),
        *("measure", "control", "decoder", "encoder", "value", "ci_low", "ci_high", "p_value", "n_sites"),
        *("decoder_low", "decoder_high", "encoder_low", "encoder_high", "decoder_shards", "encoder_shards"),
    )
    return pd.DataFrame(rows, columns=names)


def _rows(
    pairs: Sequence[tuple[EnergyShares, EnergyShares]], window: str, group: str, seed: int, controls: Iterable[str]
) -> Iterator[dict[str, Any]]:
    common = {"seed": seed, "window": window, "group": group}
    keys = [key for key in pairs[0][0].energies if key.control == "none" and key.gradient == "weight"]
    keys = [key for key in keys if group_of(key.site) == group]
    shares = [tuple(_both(pair, key)) for pair in pairs for key in keys]
    found = mean_share_difference(shares)
    means = [float(np.mean([_share(term[side]) for term in shares])) for side in (0, 1)]
    ends = [mean_share_interval([term[side] for term in shares]) for side in (0, 1)]
    n_eff = [effective_shards(*(term[side][1] for term in shares)) for side in (0, 1)]
    own = {"decoder_shards": n_eff[0], "encoder_shards": n_eff[1]}
    yield {**common, "measure": "energy_share", "control": "none", **_row(found, means, ends, len(keys)), **own}
    for control in controls:
        terms = [(e[0], c[0], e[1], c[1]) for e, c in _with(pairs, keys, control)]
        found = mean_excess_contrast(terms)
        logs = np.array([[_logit(t[0]) - _logit(t[1]), _logit(t[2]) - _logit(t[3])] for t in terms])
        means = [float(np.exp(side)) for side in logs.mean(axis=0)]
        ends = [mean_excess_interval([term[side : side + 2] for term in terms]) for side in (0, 2)]
        yield {**common, "measure": "excess", "control": control, **_row(found, means, ends, len(keys)), **own}


def few_shards_notes(differences: pd.DataFrame) -> tuple[str, ...]:
    """Where a few documents carry most of the gradient energy of the readers: by seed and model, the steps.

    Args:
        differences: of `compare`, of any seeds.
    """
    single = differences[(differences["group"] == "readers") & (differences["measure"] == "energy_share")]
    notes = []
    for seed, part in single[single["decoder_step"].notna()].groupby("seed", sort=False):
        for kind in ("decoder", "encoder"):
            fewest = part.groupby(f"{kind}_step")[f"{kind}_shards"].min()
            few = fewest[fewest < FEW_SHARDS]
            if len(few):
                steps = ", ".join(f"{step:g} ({count:.1f})" for step, count in few.items())
                notes.append(
                    f"seed {seed}, {kind}: a few documents carry most of the gradient energy at a block reader at step "
                    f"{steps}; in brackets the effective number of shards there, below {FEW_SHARDS:g}. Intervals that "
                    "rest on these steps are wide, and say more about those documents than about the model."
                )
    return tuple(notes)


def _with(
    pairs: Iterable[tuple[EnergyShares, EnergyShares]], keys: Sequence[ShareKey], control: str
) -> Iterator[tuple[list[Any], list[Any]]]:
    for pair in pairs:
        for key in keys:
            yield list(_both(pair, key)), list(_both(pair, key._replace(control=control)))


def _both(pair: tuple[EnergyShares, EnergyShares], key: ShareKey) -> Iterator[Any]:
    for shares in pair:
        if key not in shares.energies:
            raise TlAnisoError(
                f"one of the two models has no energy at {key.site}, rank {key.rank}, control {key.control}; measure "
                "both with the same sites, rank and controls"
            )
        yield shares.energies[key]


def _row(found: Contrast, means: Sequence[float], ends: Sequence[Interval], n_sites: int) -> dict[str, Any]:
    return {
        "decoder": means[0],
        "encoder": means[1],
        "value": found.value,
        "ci_low": found.low,
        "ci_high": found.high,
        "p_value": found.p_value,
        "n_sites": n_sites,
        "decoder_low": ends[0].low,
        "decoder_high": ends[0].high,
        "encoder_low": ends[1].low,
        "encoder_high": ends[1].high,
    }


def _shares(result: TangentEnergy) -> EnergyShares:
    if result._shares is None:
        raise TlAnisoError("a result made from a frame alone has no energies by document; compare measured results")
    return result._shares


def _same(one: EnergyShares, other: EnergyShares) -> None:
    if one.documents != other.documents or one.n_shards != other.n_shards:
        raise TlAnisoError("the two models were measured on different documents or shards; measure both on the same")
    if one.widths != other.widths:
        raise TlAnisoError("the two models differ in width or sites; a pair differs in objective and mask alone")


def _share(energy: tuple[np.ndarray, np.ndarray]) -> float:
    return float(energy[0].sum() / energy[1].sum())


def _logit(energy: tuple[np.ndarray, np.ndarray]) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log(energy[0].sum()) - np.log(max(energy[1].sum() - energy[0].sum(), 0.0)))
