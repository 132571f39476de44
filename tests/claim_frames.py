"""Frames with planted effects, in the form that studies hand to `judge`, and what is read from its tables."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from tl_aniso.questions.frame import to_frame

WEIGHT = ("attn.W_Q", "attn.W_K", "attn.W_O", "mlp.W_in", "mlp.W_out")
CLOSED = ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels")
PLANES = ("other_layer", "covariance_drawn", "next_k")

NAN = math.nan
HOLDS, NOT, OPEN = "holds", "does not hold", "not testable"

Planted = Callable[[float, int, str], float]


def constant(value: float) -> Planted:
    return lambda step, layer, control: value


def falling(early: float, late: float) -> Planted:
    """`early` up to step 30, `late` after it."""
    return lambda step, layer, control: early if step <= 30 else late


TWENTY, TWO, TENTH = constant(20.0), constant(2.0), constant(0.1)


def energies(
    ratio: Planted = TWENTY,
    excess: Planted = TWO,
    *,
    model: str = "decoder",
    objective: str = "causal",
    steps: Sequence[float] = (0, 10, 30, 60, 100),
    layers: int = 6,
    d: int = 128,
    rank: int = 16,
    spread: float = 1.1,
    controls: Sequence[str] = CLOSED,
    seed: int = 0,
    **columns: object,
) -> pd.DataFrame:
    """R and excess as planted, at every site, with intervals of a factor `spread` either way (NaN for none)."""
    rows = []
    for step in steps:
        for layer in range(layers):
            for gradient, names in (("weight", WEIGHT), ("activation", ("hook_resid_pre",))):
                for name in names:
                    r = ratio(step, layer, "normal")
                    odds = r * rank / (d - rank)
                    e = odds / (1 + odds)
                    common = _common(step, layer, name, gradient, rank, model, objective, seed, columns)
                    rows.append(
                        common
                        | {"measure": "energy_share", "control": "none", "value": e}
                        | {"null_mean": rank * (1 - e) / (d - rank)}
                    )
                    rows.append(
                        common
                        | {"measure": "r_energy", "control": "normal", "value": r, "control_value": 1.0}
                        | {"ci_low": r / spread, "ci_high": r * spread}
                    )
                    for control in controls if gradient == "weight" else [c for c in controls if c not in CLOSED[:3]]:
                        x = excess(step, layer, control)
                        rows.append(
                            common
                            | {"measure": "excess", "control": control, "value": x, "control_value": 1.0}
                            | {"ci_low": x / spread, "ci_high": x * spread}
                        )
    return to_frame_with(rows, columns)


def isotropies(
    delta: Planted = TENTH,
    *,
    model: str = "decoder",
    objective: str = "causal",
    steps: Sequence[float] = (0, 10, 30, 60, 100),
    layers: int = 6,
    band: float = 0.01,
    controls: Sequence[str] = ("normal",),
    seed: int = 0,
    **columns: object,
) -> pd.DataFrame:
    """delta IsoScore* as planted against the removal of normal and other planes; `band` is the spread over draws."""
    rows = []
    for step in steps:
        for layer in range(layers):
            for gradient, name in (
                ("none", "hook_resid_pre"),
                ("activation", "hook_resid_pre"),
                ("weight", "attn.W_Q"),
            ):
                common = _common(step, layer, name, gradient, 16, model, objective, seed, columns)
                for control in controls:
                    x = delta(step, layer, control)
                    spread = band if control in ("normal", "covariance_drawn") else math.nan
                    rows.append(
                        common
                        | {"measure": "isoscore_star", "control": control, "value": 0.3 + x, "control_value": 0.3}
                        | {"null_std": spread}
                    )
                    rows.append(common | {"measure": "delta_isoscore_star", "control": control, "value": x})
    return to_frame_with(rows, columns)


def to_frame_with(rows: list[dict[str, object]], columns: dict[str, object]) -> pd.DataFrame:
    """With columns that results themselves do not have, such as `progress`."""
    frame = to_frame(rows)
    if "progress" in columns:
        frame["progress"] = [row["progress"] for row in rows]
    return frame


def _common(
    step: float,
    layer: int,
    name: str,
    gradient: str,
    rank: int,
    model: str,
    objective: str,
    seed: int,
    columns: dict[str, object],
) -> dict[str, object]:
    common = {
        "model": model,
        "objective": objective,
        "step": float(step),
        "tokens_seen": 1000.0 * step,
        "phase": "early" if step <= 30 else "late",
        "layer": float(layer),
        "site": f"blocks.{layer}.{name}",
        "gradient": gradient,
        "unit": "sequence",
        "held_out": True,
        "rank": rank,
        "proxy_id": f"plane {layer} {name}",
        "n_rows": 1000,
        "seq_len": 64,
        "seed": seed,
    }
    return common | {key: value(step) if callable(value) else value for key, value in columns.items()}


def row(
    table: Any,
    claim: str,
    kind: str = "as_stated",
    *,
    gradient: str = "weight",
    quantity: str | None = None,
    model: str = "decoder",
) -> Any:
    """The one verdict of a claim."""
    frame = table.frame
    chosen = frame[
        (frame["claim"] == claim)
        & (frame["kind"] == kind)
        & (frame["gradient"] == gradient)
        & (frame["model"] == model)
        & (frame["quantity"] == (quantity or ("isotropy" if claim == "C2" else "energy")))
    ]
    assert len(chosen) == 1
    return chosen.iloc[0]


def both(table: Any, claim: str, **where: Any) -> list[str]:
    """As stated, and beyond controls."""
    return [row(table, claim, kind, **where)["verdict"] for kind in ("as_stated", "beyond_controls")]


def difference(value: float, reach: float) -> pd.DataFrame:
    """The frame of a paired difference, equal at all sites."""
    frame = energies(steps=(10,))
    frame = frame[frame["measure"].isin(("r_energy", "excess"))]
    return frame.assign(value=value, ci_low=value - reach, ci_high=value + reach)
