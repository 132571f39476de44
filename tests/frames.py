"""Small tidy frames as the questions make them, from chosen energy shares, without a model."""

import math
from collections.abc import Callable, Sequence

import pandas as pd

from tl_aniso.questions.frame import to_frame

D, RANK = 128, 16
CONTROLS = ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels")
READERS = ("attn.W_Q", "attn.W_K", "attn.W_V", "mlp.W_in")

Ratio = Callable[[float, int, str], float]


def share_of(ratio: float) -> float:
    """E of a given R."""
    odds = ratio * RANK / (D - RANK)
    return odds / (1 + odds)


def ratio_like_training(step: float, layer: int, control: str) -> float:
    """R that rises to about 45 at step 100 and falls, as in small decoders; input energy exceeds it."""
    step = 200.0 if math.isnan(step) else step
    base = 15 - 12 * math.exp(-step / 60) + 30 * math.exp(-(((math.log1p(step) - math.log1p(100)) / 0.8) ** 2))
    factor = {"none": 1.0, "input_energy": 1.25, "sign_flip": 0.6, "shuffled_g": 1.01, "shuffled_labels": 0.97}[control]
    return base * factor * (1.2 - 0.1 * layer)


def energy_frame(
    steps: Sequence[float] = (0.0, 50.0, 100.0, 250.0, 500.0),
    n_layers: int = 3,
    ratio: Ratio = ratio_like_training,
    *,
    intervals: bool = True,
    model: str = "demo decoder",
) -> pd.DataFrame:
    """Rows of `tangent_energy` for readers, a writer, embedding, unembedding and activation gradients."""
    rows = []
    for step in steps:
        for layer in range(n_layers):
            for name in (*READERS, "attn.W_O"):
                rows += _energy_rows(step, layer, f"blocks.{layer}.{name}", "weight", ratio, intervals)
            rows += _energy_rows(step, layer, f"blocks.{layer}.hook_resid_pre", "activation", ratio, intervals)
        rows += _energy_rows(step, None, "embed.W_E", "weight", ratio, intervals)
        rows += _energy_rows(step, None, "unembed.W_U", "weight", ratio, intervals)
    return to_frame([{**row, "model": model, "held_out": True, "n_documents": 32} for row in rows])


def isotropy_frame(
    steps: Sequence[float] = (0.0, 50.0, 100.0, 250.0, 500.0), n_layers: int = 3, *, delta: float = 0.08
) -> pd.DataFrame:
    """Rows of `ablation_isotropy` for activations, their gradients and readers; `delta` less per layer by .01."""
    rows = []
    for step in steps:
        for layer in range(n_layers):
            for gradient, name in (
                ("none", "hook_resid_pre"),
                ("activation", "hook_resid_pre"),
                ("weight", "attn.W_Q"),
            ):
                decay = 0.0 if math.isnan(step) else math.exp(-step / 100)
                before = 0.2 + 0.3 * decay + 0.02 * layer
                normal = before + 0.02
                common = {
                    "model": "demo decoder",
                    "step": step,
                    "layer": float(layer),
                    "site": f"blocks.{layer}.{name}",
                    "gradient": gradient,
                    "rank": RANK,
                    "held_out": True,
                    "measure": "isoscore_star",
                }
                after = normal + delta - 0.01 * layer
                rows.append({**common, "control": "none", "value": before})
                rows.append(
                    {
                        **common,
                        "control": "normal",
                        "value": after,
                        "control_value": normal,
                        "null_mean": normal,
                        "null_std": 0.01,
                    }
                )
                rows.append({**common, "measure": "delta_isoscore_star", "control": "normal", "value": after - normal})
    return to_frame(rows)


def _energy_rows(
    step: float, layer: int | None, site: str, gradient: str, ratio: Ratio, intervals: bool
) -> list[dict[str, object]]:
    at = 0 if layer is None else layer
    common = {
        "step": step,
        "layer": math.nan if layer is None else float(layer),
        "site": site,
        "gradient": gradient,
        "rank": RANK,
    }
    r = ratio(step, at, "none")
    e = share_of(r)
    spread = 1.05 if intervals else math.nan
    bounds = {"ci_low": r / spread, "ci_high": r * spread}
    rows: list[dict[str, object]] = [
        {**common, "measure": "energy_share", "control": "none", "value": e, "null_mean": RANK * (1 - e) / (D - RANK)},
        {**common, "measure": "r_energy", "control": "normal", "value": r, "control_value": 1.0, **bounds},
    ]
    for control in CONTROLS if gradient == "weight" else CONTROLS[-1:]:
        other = ratio(step, at, control)
        named = {**common, "control": control}
        rows.append({**named, "measure": "energy_share", "value": e, "control_value": share_of(other)})
        rows.append({**named, "measure": "r_energy", "value": r, "control_value": other, **bounds})
        x = r / other
        rows.append(
            {
                **named,
                "measure": "excess",
                "value": x,
                "control_value": 1.0,
                "ci_low": x / spread,
                "ci_high": x * spread,
            }
        )
    return rows
