"""Geometry frames with planted effects, in the form that studies hand to `judge_geometry`."""

import math
from collections.abc import Sequence

import pandas as pd

COLUMNS = (
    *("model", "family", "objective", "revision", "step", "tokens_seen", "phase", "layer", "site", "gradient", "scope"),
    *("measure", "variant", "group", "value", "ci_low", "ci_high", "p_value", "control", "control_value"),
    *("control_low", "control_high", "difference", "difference_low", "difference_high", "n_types", "n_rows"),
    *("n_documents", "rank", "radius", "seed", "notes"),
)
TEXT = ("model", "family", "objective", "revision", "phase", "site", "gradient", "scope", "measure", "variant", "group")
NAN = math.nan
TABLES = {"input embedding": "embed.W_E", "output embedding": "unembed.W_U", "contextual mean": None}


def rows(*entries: dict[str, object]) -> pd.DataFrame:
    """A frame of these rows; what they do not say is missing."""
    blank = {name: "" if name in TEXT or name in ("control", "notes") else NAN for name in COLUMNS}
    return pd.DataFrame([{**blank, **entry} for entry in entries], columns=list(COLUMNS))


def effect(value: float, reach: float) -> dict[str, object]:
    return {"control": "none", "value": value, "ci_low": value - reach, "ci_high": value + reach}


def correlations(
    value: float = -0.4,
    *,
    drift_removed: float = -0.3,
    reach: float = 0.1,
    p: float = 0.005,
    matched: float = -0.2,
    surrogate: float = -0.3,
    site: str = "embed.W_E",
    scope: str = "over_checkpoints",
    controls: Sequence[str] = ("shuffled_frequencies", "size_matched", "gaussian_surrogate"),
    n_types: int = 500,
    **where: object,
) -> pd.DataFrame:
    """C6: the effect, with and without drift, and its controls (`surrogate` is the difference from it)."""
    found: list[dict[str, object]] = []
    for variant, planted in (("raw", value), ("drift_removed", drift_removed)):
        if scope == "within" and variant != "raw":
            continue
        common = {"model": "decoder", "site": site, "gradient": "none", "scope": scope, "variant": variant}
        common |= {"measure": "frequency_pearson", "group": "all", "n_types": n_types, **where}
        found.append(common | effect(planted, reach))
        beside: dict[str, dict[str, object]] = {
            "shuffled_frequencies": {"control_value": 0.0, "p_value": p},
            "size_matched": {
                "control_value": matched,
                "control_low": matched - reach,
                "control_high": matched + reach,
            },
            "gaussian_surrogate": {
                "control_value": planted - surrogate,
                "difference": surrogate,
                "difference_low": surrogate - reach,
                "difference_high": surrogate + reach,
            },
        }
        found += [common | {"control": name, "value": planted, **beside[name]} for name in controls]
    return rows(*found)


def curvatures(
    slope: float = 1.8,
    density: float = 0.1,
    *,
    surrogate: float = 0.7,
    matched: float = 0.05,
    p: float = 0.01,
    reach: float = 0.02,
    layers: int = 3,
    steps: Sequence[float] = (10.0, 100.0),
    controls: Sequence[str] = ("gaussian_surrogate", "size_matched", "shuffled_frequencies"),
    **where: object,
) -> pd.DataFrame:
    """C7: the slope and what density hides, at every layer and step, and the controls of each."""
    found: list[dict[str, object]] = []
    for step in (0.0, *steps):
        for layer in range(layers):
            common = {"model": "decoder", "site": f"blocks.{layer}.hook_resid_pre", "gradient": "none"}
            common |= {"scope": "within", "step": step, "layer": float(layer), **where}
            sloped = common | {"measure": "curvature_slope", "group": "all"}
            shared = common | {"measure": "visible_share", "group": "rare - frequent"}
            found += [sloped | effect(slope, reach), shared | effect(density, reach)]
            ends = {"difference_low": surrogate - reach, "difference_high": surrogate + reach}
            if "gaussian_surrogate" in controls:
                found.append(
                    sloped | {"control": "gaussian_surrogate", "value": slope, "difference": surrogate, **ends}
                )
            if "size_matched" in controls:
                ends = {"control_low": matched - reach, "control_high": matched + reach}
                found.append(shared | {"control": "size_matched", "value": density, "control_value": matched, **ends})
            if "shuffled_frequencies" in controls:
                found.append(
                    shared | {"control": "shuffled_frequencies", "value": density, "control_value": 0.0, "p_value": p}
                )
    return rows(*found)


def local_energies(
    ratio: float = 4.0,
    excess: float = 1.5,
    *,
    gradient: str = "activation",
    spread: float = 1.1,
    layers: int = 3,
    controls: Sequence[str] = ("gaussian_surrogate", "other_type"),
    **where: object,
) -> pd.DataFrame:
    """C8: local R and the excess over each control, with intervals of a factor `spread` either way."""
    found: list[dict[str, object]] = []
    name = "hook_resid_pre" if gradient == "activation" else "attn.W_Q"
    for layer in range(layers):
        common = {"model": "decoder", "site": f"blocks.{layer}.{name}", "gradient": gradient, "scope": "within"}
        common |= {"step": 100.0, "layer": float(layer), **where}
        for measure, control, value in (
            ("local_r", "normal", ratio),
            *(("local_excess", control, excess) for control in controls),
        ):
            ends = {"value": value, "ci_low": value / spread, "ci_high": value * spread}
            found.append(common | {"measure": measure, "control": control, **ends})
    return rows(*found)
