"""Observations of one run as arrays of sites by checkpoints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from tl_aniso.claims.observations import NORMAL

__all__ = ["UNKNOWN", "Cells", "Ends", "gather"]

UNKNOWN = "unknown"  # a plane that has no name


@dataclass(frozen=True, eq=False)
class Ends:
    """Value and ends of the interval of one control, by site and checkpoint; NaN where there is none."""

    value: Float[np.ndarray, "sites checkpoints"]
    low: Float[np.ndarray, "sites checkpoints"]
    high: Float[np.ndarray, "sites checkpoints"]
    over_text: bool


@dataclass(frozen=True, eq=False)
class Cells:
    """One run of one model, of one quantity and gradient; sites and checkpoints are those of the effect itself.

    Attributes:
        model: its name.
        run: which of its trainings.
        quantity: "energy" or "isotropy".
        sites: names.
        layers: of the sites.
        checkpoints: names.
        phases: of the checkpoints; "" where unknown.
        places: ``tokens`` and ``progress`` of the checkpoints; NaN where unknown.
        ends: by control.
        facts: ``share`` (E), ``rank_ratio`` (k/d) and ``n_rows`` by site and checkpoint.
        planes: hashes of proxies by site and checkpoint; "" where nothing was measured.
        settings: ``seq_len`` and ``unit`` that occur.
        held_out: whether planes never saw the documents measured.
    """

    model: str
    run: str
    quantity: str
    sites: tuple[str, ...]
    layers: Float[np.ndarray, " sites"]
    checkpoints: tuple[str, ...]
    phases: tuple[str, ...]
    places: Mapping[str, Float[np.ndarray, " checkpoints"]]
    ends: Mapping[str, Ends]
    facts: Mapping[str, Float[np.ndarray, "sites checkpoints"]]
    planes: np.ndarray
    settings: Mapping[str, tuple[frozenset[str], ...]]
    held_out: bool

    def of(self, control: str) -> Ends:
        """Ends of a control, all NaN where it was not measured."""
        empty = np.full((len(self.sites), len(self.checkpoints)), math.nan)
        return self.ends.get(control, Ends(empty, empty, empty, True))

    def occurring(self, setting: str) -> frozenset[str]:
        """All values of a setting over the checkpoints."""
        return frozenset().union(*self.settings[setting])

    def at(self, keep: Bool[np.ndarray, " checkpoints"]) -> "Cells":
        """Some of the checkpoints, and the sites that any of them has."""
        index = np.flatnonzero(keep)
        rows = np.flatnonzero((self.planes[:, index] != "").any(axis=1))
        cut = np.ix_(rows, index)
        return replace(
            self,
            sites=tuple(self.sites[i] for i in rows),
            layers=self.layers[rows],
            checkpoints=tuple(self.checkpoints[i] for i in index),
            phases=tuple(self.phases[i] for i in index),
            places={name: values[index] for name, values in self.places.items()},
            ends={
                control: Ends(e.value[cut], e.low[cut], e.high[cut], e.over_text) for control, e in self.ends.items()
            },
            facts={name: values[cut] for name, values in self.facts.items()},
            planes=self.planes[cut],
            settings={name: tuple(values[i] for i in index) for name, values in self.settings.items()},
        )

    def as_odds(self) -> "Cells":
        """log R turned into log odds of E, which needs no normal plane and so no width."""
        ratio = self.facts["rank_ratio"]
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.log(ratio) - np.log1p(-ratio)
        own = self.of(NORMAL)
        moved = Ends(own.value + shift, own.low + shift, own.high + shift, own.over_text)
        return replace(self, ends={**self.ends, NORMAL: moved})


def gather(seen: pd.DataFrame) -> dict[tuple[str, str], dict[str, list[Cells]]]:
    """Runs by (quantity, gradient) and model; runs in which the effect itself was not measured are left out."""
    found: dict[tuple[str, str], dict[str, list[Cells]]] = {}
    for (quantity, gradient, model, run), rows in seen.groupby(["quantity", "gradient", "model", "run"], sort=True):
        if (rows["control"] == NORMAL).any():
            cells = _cells(rows, str(model), str(run), str(quantity))
            found.setdefault((str(quantity), str(gradient)), {}).setdefault(str(model), []).append(cells)
    return found


def _cells(rows: pd.DataFrame, model: str, run: str, quantity: str) -> Cells:
    effect = rows[rows["control"] == NORMAL]
    by_site, by_checkpoint = effect.drop_duplicates("site"), effect.drop_duplicates("checkpoint")
    sites, checkpoints = list(by_site["site"]), list(by_checkpoint["checkpoint"])

    def grid(of: pd.DataFrame, name: str) -> Float[np.ndarray, "sites checkpoints"]:
        table = np.full((len(sites), len(checkpoints)), math.nan)
        i, j = _index(of["site"], sites), _index(of["checkpoint"], checkpoints)
        known = (i >= 0) & (j >= 0)
        table[i[known], j[known]] = of[name].to_numpy(dtype=np.float64)[known]
        return table

    planes = np.full((len(sites), len(checkpoints)), "", dtype=object)
    planes[_index(effect["site"], sites), _index(effect["checkpoint"], checkpoints)] = [
        p if isinstance(p, str) and p else UNKNOWN for p in effect["proxy_id"]
    ]
    settings = {
        name: {c: frozenset(map(str, values.dropna())) for c, values in effect.groupby("checkpoint", sort=False)[name]}
        for name in ("seq_len", "unit")
    }
    return Cells(
        model=model,
        run=run,
        quantity=quantity,
        sites=tuple(sites),
        layers=by_site["layer"].to_numpy(dtype=np.float64),
        checkpoints=tuple(checkpoints),
        phases=tuple(phase if isinstance(phase, str) else "" for phase in by_checkpoint["phase"]),
        places={
            "tokens": by_checkpoint["tokens_seen"].to_numpy(dtype=np.float64),
            "progress": by_checkpoint["progress"].to_numpy(dtype=np.float64),
        },
        ends={
            str(control): Ends(
                grid(of, "value"), grid(of, "low"), grid(of, "high"), bool((of["how"] == "documents").all())
            )
            for control, of in rows.groupby("control", sort=False)
        },
        facts={name: grid(effect, name) for name in ("share", "rank_ratio", "n_rows")},
        planes=planes,
        settings={name: tuple(of[c] for c in checkpoints) for name, of in settings.items()},
        held_out=bool(effect["held_out"].astype(bool).all()),
    )


def _index(values: pd.Series, names: Sequence[str]) -> np.ndarray:
    at = {name: i for i, name in enumerate(names)}
    return np.array([at.get(value, -1) for value in values], dtype=np.int64)
