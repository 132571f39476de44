"""A small study's frame, claims and page, without a model: hostile names, missing values, all kinds of gradients."""

import math
from functools import cache

import numpy as np
import pandas as pd

from tests.claim_frames import energies, isotropies
from tl_aniso.claims import judge
from tl_aniso.study.claims import late_fitted_table
from tl_aniso.viz.study_page import ModelPart, study_report

HOSTILE = "</script><img src=x onerror=alert(1)> \"a\" 'b' \u2028 \x00 \u202e🦜 {{ 7 * 7 }} <!-- %{x} <b>"
LONG = "long " * 2000
CONTROLS = ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels", "covariance_drawn", "next_k")


@cache
def study_frame() -> pd.DataFrame:
    """Two models, the second of a hostile name; R falls over training; some values are missing."""
    parts = []
    for model, objective, scale in (("decoder", "causal", 1.0), (HOSTILE, "masked", 0.7)):

        def ratio(step, layer, control, scale=scale):
            return scale * (20 * math.exp(-step / 80) + 1 + 0.31 * layer)

        def excess(step, layer, control):
            return 1 + 0.1 * CONTROLS.index(control) + 0.013 * layer - step / 1000

        parts += [
            with_controls(energies(ratio, excess, model=model, objective=objective, controls=CONTROLS)),
            isotropies(lambda step, layer, control: 0.1 - 0.01 * layer - step / 2000, model=model, objective=objective),
        ]
    frame = pd.concat(parts, ignore_index=True)
    after = frame[frame["measure"] == "isoscore_star"]
    before = after.assign(control="none", value=0.2 + after["layer"] / 100, control_value=math.nan, null_std=math.nan)
    frame = pd.concat([frame, before], ignore_index=True)
    frame["revision"] = [f"step{step:g}" for step in frame["step"]]
    lost = (frame["site"] == "blocks.2.attn.W_Q") & (frame["step"] == 30) & (frame["model"] == "decoder")
    frame.loc[lost, ["value", "control_value", "ci_low", "ci_high"]] = math.nan
    # A site that was not measured at one checkpoint: no row, which is missing as well.
    gone = (frame["site"] == "blocks.4.attn.W_K") & (frame["step"] == 60) & (frame["model"] == "decoder")
    return frame[~gone].reset_index(drop=True)


def with_controls(frame: pd.DataFrame) -> pd.DataFrame:
    """R and E of the controls, as `tangent_energy` has them beside each excess."""
    excess = frame[frame["measure"] == "excess"]
    keys = ["step", "site", "gradient"]
    ratios = frame[frame["measure"] == "r_energy"].set_index(keys)
    shares = frame[frame["measure"] == "energy_share"].set_index(keys)
    at = pd.MultiIndex.from_frame(excess[keys])
    r, e = (rows.loc[at, "value"].to_numpy() for rows in (ratios, shares))
    odds = e / (1 - e) / r
    beside = r / excess["value"].to_numpy()
    ends = {name: ratios.loc[at, name].to_numpy() for name in ("ci_low", "ci_high")}
    of_r = excess.assign(measure="r_energy", value=r, control_value=beside, **ends)
    scaled = odds * beside
    of_e = excess.assign(
        measure="energy_share", value=e, control_value=scaled / (1 + scaled), ci_low=np.nan, ci_high=np.nan
    )
    return pd.concat([frame, of_r, of_e], ignore_index=True)


def parts_of(frame: pd.DataFrame, notes: tuple[str, ...] = ()) -> list[ModelPart]:
    return [
        ModelPart(name, rows, marked=notes, notes=notes, provenance={"model": name, **{note: note for note in notes}})
        for name, rows in frame.groupby("model", sort=False)
    ]


def geometry_frame() -> pd.DataFrame:
    """Rows of C6 to C8 at two layers and steps, with and without controls; one value is missing."""
    rows = []
    for step in (0.0, 100.0):
        for layer in range(3):
            common = {
                "model": "decoder",
                "revision": f"step{step:g}",
                "step": step,
                "layer": float(layer),
                "site": f"blocks.{layer}.hook_resid_pre",
                "gradient": "none",
                "scope": "within",
                "variant": "",
            }
            for group in ("all", "rare"):
                for control in ("none", "gaussian_surrogate"):
                    value = 1.5 + 0.1 * layer + step / 1000
                    rows.append(
                        {
                            **common,
                            "measure": "curvature_slope",
                            "group": group,
                            "control": control,
                            "value": value,
                            "ci_low": value - 0.1,
                            "ci_high": value + 0.1,
                            "control_value": math.nan if control == "none" else 1.0 + 0.05 * layer,
                            "difference": math.nan if control == "none" else value - 1.0 - 0.05 * layer,
                        }
                    )
    over = {**rows[0], "step": math.nan, "revision": "", "scope": "over_checkpoints", "measure": "frequency_pearson"}
    frame = pd.DataFrame([*rows, over | {"value": -0.4, "ci_low": -0.5, "ci_high": -0.3}])
    frame.loc[3, "value"] = math.nan
    return frame


@cache
def study_page() -> str:
    """The page of `study_frame`."""
    frame = study_frame()
    return study_report(
        parts_of(frame),
        judge(frame),
        late=late_fitted_table(frame),
        rules="data/claims.yaml",
        facts={"library": "tl_aniso"},
        geometry=geometry_frame(),
    )
