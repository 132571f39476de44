"""The tidy table of results: one row per (site, gradient, rank, measure, control)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tl_aniso.capturing.store import Capture
from tl_aniso.sites import layer_of

__all__ = ["COLUMNS", "Row", "capture_fields", "site_fields", "to_frame"]

COLUMNS = (
    "model",
    "family",
    "objective",
    "revision",
    "step",
    "tokens_seen",
    "phase",
    "layer",
    "site",
    "gradient",
    "unit",
    "basis",
    "centred",
    "held_out",
    "rank",
    "proxy_id",
    "measure",
    "value",
    "control",
    "control_value",
    "null_mean",
    "null_std",
    "z",
    "p_value",
    "p_holm",
    "ci_low",
    "ci_high",
    "n_rows",
    "n_sequences",
    "n_documents",
    "seq_len",
    "exclude",
    "excluded_share",
    "seed",
)

Row = dict[str, Any]


def capture_fields(capture: Capture, held_out: bool) -> Row:
    """What is the same in every row of one capture."""
    metadata = capture.facts
    model, options, text = metadata["model"], metadata["options"], metadata["text"]
    halves = capture.halves
    return {
        "model": model["name"],
        "family": model["family"],
        "objective": options["objective"],
        "revision": model["revision"],
        "step": math.nan if model["step"] is None else model["step"],
        "tokens_seen": math.nan if model["tokens_seen"] is None else model["tokens_seen"],
        "phase": math.nan,
        "held_out": held_out,
        "n_sequences": sum(text["n_sequences"][half] for half in halves),
        "n_documents": sum(half in halves for half in text["halves"].values()),
        "seq_len": options["seq_len"],
        "seed": options["seed"],
    }


def site_fields(capture: Capture, site: str, gradient: str, residual: str) -> Row:
    """What depends on the site: its layer, its unit and the filters that applied."""
    options = capture.facts["options"]
    filters = options["weight_exclude"] if gradient == "weight" else options["exclude"]
    layer = layer_of(site)
    return {
        "layer": math.nan if layer is None else layer,
        "site": site,
        "gradient": gradient,
        "unit": options["unit"] if gradient == "weight" else "token",
        "basis": options["basis"],
        "exclude": "+".join(filters) or "nothing",
        # Weight gradients are sums over all tokens unless weight_exclude says otherwise; then the share is unknown.
        "excluded_share": (math.nan if filters else 0.0) if gradient == "weight" else capture.excluded_share(residual),
    }


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame with all of `COLUMNS`, in order; what a row does not say is NaN."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    numeric = ("value", "control_value", "null_mean", "null_std", "z", "p_value", "p_holm", "ci_low", "ci_high")
    for name in (*numeric, "step", "tokens_seen", "layer", "excluded_share"):
        frame[name] = frame[name].astype("float64")
    return frame
