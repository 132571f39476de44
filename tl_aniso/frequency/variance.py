"""Do frequent token types vary less? Over checkpoints, and within one."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.checks import MOST_SEED, as_integer, as_list, as_names, known_options
from tl_aniso.errors import SiteError, TextError, TlAnisoError
from tl_aniso.frequency.capture import N_MIN, type_capture
from tl_aniso.frequency.correlation import FEWEST_TYPES
from tl_aniso.frequency.places import TABLES, alike, places_over, places_within
from tl_aniso.frequency.result import FrequencyVariance
from tl_aniso.frequency.rows import Place, place_rows, to_frame
from tl_aniso.frequency.store import TypeCapture
from tl_aniso.sites import select_sites

__all__ = ["frequency_variance"]

# Vocabularies drawn of the Gaussian surrogate: each is correlated type by type, and their mean is what is compared.
_MOST_SURROGATES = 99


def frequency_variance(
    source: Any,
    text: Any = None,
    *,
    n_min: int = N_MIN,
    tables: str | Sequence[str] = TABLES,
    sites: str | Sequence[str] | None = None,
    n_controls: int = 999,
    seed: int = 0,
    level: float = 0.95,
    **options: Any,
) -> FrequencyVariance:
    """Correlate the frequency of token types with how far their embeddings stray from their own centroid.

    Over checkpoints: root mean square distance of each type's row of the input table, of the output table, and of its
    contextual mean at each site, to its centroid over the checkpoints; raw, and with the common drift removed (at each
    checkpoint the mean over the types measured is subtracted). Within a checkpoint: root mean square distance (n - 1
    below) of contextual rows to their type's mean. Pearson's and Spearman's correlation with log frequency, intervals
    over types by jackknife. Method: arXiv:2604.08764; ``docs/frequency.md``.

    Controls: ``shuffled_frequencies`` permutes frequencies over types (`p_value`). ``size_matched`` takes equally many
    occurrences of every type. ``gaussian_surrogate`` gives all types one covariance: what the estimator shows where
    frequency means nothing.

    Args:
        source: a model, one `TypeCapture`, or several: checkpoints over training, of one vocabulary and text.
        text: for a model.
        n_min: types with fewer occurrences are left out.
        tables: of "input", "output" and "contextual".
        sites: residual sites, names or patterns; by default those of the captures, or of `type_capture`.
        n_controls: permutations of frequencies, and at most 99 surrogates.
        seed: of all draws.
        level: of confidence.
        options: of `type_capture`, where `source` is a model.

    Returns:
        A `FrequencyVariance`.

    Raises:
        TlAnisoError: unknown options or tables, options beside captures.
        MergeError: captures of unlike vocabularies, texts or options.
        UndefinedMeasureError: embeddings that are not finite, with the name of their site.

    Example:
        >>> import torch
        >>> from tl_aniso import frequency_variance
        >>> from tl_aniso.frequency import TypeCapture
        >>> generator = torch.Generator().manual_seed(0)
        >>> counts = torch.arange(8, 208)
        >>> spread = 1 / counts[:, None] ** 0.5  # frequent types move less
        >>> checkpoints = [TypeCapture.from_tables(counts, {
        ...     "embed.W_E": spread * torch.randn(200, 16, generator=generator)}, step=step) for step in range(4)]
        >>> found = frequency_variance(checkpoints, n_controls=99)
        >>> rows = found.frame.query("measure == 'frequency_pearson' and control == 'none'").set_index("variant")
        >>> bool((rows["ci_high"] < 0).all()), rows["p_value"].tolist()
        (True, [0.01, 0.01])
    """
    wanted = as_names("tables", tables)
    unknown = [name for name in wanted if name not in TABLES]
    if unknown or not wanted:
        raise TlAnisoError(f"tables must be some of {', '.join(TABLES)}, got {', '.join(unknown) or 'none'}")
    n_min = as_integer("n_min", n_min, least=2)
    n_controls = as_integer("n_controls", n_controls, least=1)
    seed = as_integer("seed", seed, least=0, most=MOST_SEED)
    given: Any = level
    if not (isinstance(given, int | float) and 0.0 < given < 1.0):
        raise TlAnisoError(f"level must lie between 0 and 1, got {level!r}")
    captures = _captures(source, text, n_min, sites, seed, options)
    held = captures[0].sites
    chosen = held if sites is None or not held else tuple(select_sites(as_names("sites", sites), held))
    if sites is not None and not held:
        raise SiteError("the captures hold no contextual rows, so there are no sites to choose from")
    places: list[Place] = []
    n_draws = min(n_controls, _MOST_SURROGATES)
    if len(captures) > 1:
        places += places_over(captures, wanted, chosen, n_min, n_draws, seed)
    if "contextual" in wanted:
        for capture in captures:
            places += places_within(capture, chosen, n_min, n_draws, seed)
    rows = [row for place in places for row in place_rows(place, n_controls=n_controls, level=level, seed=seed)]
    notes = _notes(captures, places, wanted, n_min)
    return FrequencyVariance(to_frame(rows), _types_table(places, captures[0].tokens), notes)


def _captures(
    source: Any, text: Any, n_min: int, sites: Any, seed: int, options: dict[str, Any]
) -> tuple[TypeCapture, ...]:
    given = (
        [source] if isinstance(source, TypeCapture) else as_list(source) if isinstance(source, list | tuple) else None
    )
    if given is None:
        if text is None:
            raise TextError("a model needs text to run on; pass text=..., or type captures instead of the model")
        known_options("frequency_variance", options, type_capture, taken=("n_min", "sites", "seed"))
        return (type_capture(source, text, n_min=n_min, sites=sites, seed=seed, **options),)
    wrong = [entry for entry in given if not isinstance(entry, TypeCapture)]
    if wrong or not given:
        raise TlAnisoError(
            f"source must be a model, a TypeCapture or several, got {type(wrong[0]).__name__ if wrong else 'none'}"
        )
    if text is not None or options:
        raise TlAnisoError(
            f"type captures hold their text and options already; {', '.join(options) or 'text'} would be ignored. Pass "
            "a model instead, or leave it out"
        )
    return alike(given)


def _notes(
    captures: Sequence[TypeCapture], places: Sequence[Place], tables: Sequence[str], n_min: int
) -> tuple[str, ...]:
    found = []
    if captures[0].tied and {"input", "output"} & set(tables):
        found.append("input and output table are equal, as tied ones are: one row stands for both")
    if len(captures) == 1:
        found.append("one checkpoint: tables have no centroid over checkpoints; contextual rows are measured within it")
    for place in places:
        n = len(place.types)
        if n < FEWEST_TYPES:
            found.append(
                f"{place.name}, {place.scope}: {n} types have {n_min} occurrences or more; a correlation needs 4"
            )
        elif np.ptp(place.counts) == 0:
            found.append(f"{place.name}, {place.scope}: all {n} types are equally frequent, so nothing correlates")
        elif any(np.ptp(values) == 0 for values in place.distances.values()):
            found.append(f"{place.name}, {place.scope}: all types are equally far from their centroid")
        if place.in_matched is not None and n >= FEWEST_TYPES and int(place.in_matched.sum()) < n:
            found.append(
                f"{place.name}, {place.scope}: the size-matched sample is complete of {int(place.in_matched.sum())} of "
                f"{n} types"
            )
    return tuple(dict.fromkeys(found))


def _types_table(places: Sequence[Place], tokens: Sequence[str] | None) -> pd.DataFrame:
    parts = []
    for place in places:
        n = len(place.types)
        raw = place.distances.get("raw", np.full(n, math.nan))
        matched = np.full(n, math.nan)
        if place.in_matched is not None and "raw" in place.matched:
            matched[place.in_matched] = place.matched["raw"]
        parts.append(
            pd.DataFrame(
                {
                    "scope": place.scope,
                    "step": place.fields.get("step", math.nan),
                    "site": place.site,
                    "table": place.table,
                    "id": place.types,
                    "token": ["" if tokens is None else tokens[i] for i in place.types],
                    "count": place.counts,
                    "rows": place.rows,
                    "log_frequency": place.log_frequency,
                    "distance_raw": raw,
                    "distance_drift_removed": place.distances.get("drift_removed", np.full(n, math.nan)),
                    "distance_matched": matched,
                    "norm": place.norm,
                }
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
