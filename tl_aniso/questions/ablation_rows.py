"""Rows of `ablation_isotropy`: IsoScore and IsoScore* of one site before and after a plane is removed."""

import math
from collections.abc import Sequence
from typing import Any

from tl_aniso.ablation import Ablation, ablate
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.isotropy import effective_rank, participation_ratio, top_share
from tl_aniso.moments import Moments
from tl_aniso.questions.energy_rows import ranks_of
from tl_aniso.questions.frame import Row, capture_fields, site_fields
from tl_aniso.questions.kept_rows import kept_row_rows
from tl_aniso.questions.source import Measured

__all__ = ["ABLATION_KINDS", "ablation_rows", "moments_at"]

ABLATION_KINDS = ("none", "activation", "weight")

_SPECTRUM = {"participation_ratio": participation_ratio, "effective_rank": effective_rank, "top_share": top_share}

# Below this many rows per dimension scores are biased low.
_ENOUGH = 20


def ablation_rows(
    found: Measured, site: str, gradient: str, ranks: Sequence[int] | None, settings: dict[str, Any]
) -> tuple[list[Row], bool]:
    """Every row of one site, and whether it has too few rows to compare across sizes."""
    capture, proxy = found.capture, found.proxy(site)
    moments = moments_at(found, site, gradient)
    if moments is None:
        raise TlAnisoError(
            f"the capture holds no d x d sums at {site} for gradients={gradient!r}; capture again without proxies, or "
            "with pooled='effect'"
        )
    try:
        matrix = moments.second_moment() if gradient == "weight" else moments.covariance()
        rows: list[Row] = []
        base = {
            **capture_fields(capture, found.held_out),
            **site_fields(capture, site, gradient, site),
            "centred": proxy.centred,
            "proxy_id": proxy.proxy_id,
            "n_rows": moments.count,
        }
        spectrum = {name: float(of(covariance=matrix)) for name, of in _SPECTRUM.items()}
        kept = _kept_rows(found, site) if gradient == "none" else None
        for rank in ranks_of(proxy, ranks):
            basis, common = proxy.basis[:, :rank], {**base, "rank": rank}
            rows += _rows(common, ablate(matrix, basis, **settings), spectrum)
            if kept is not None:
                n_controls, seed = settings.get("n_controls", 100), settings.get("seed", 0)
                rows += kept_row_rows(common, kept, basis, n_controls=n_controls, seed=seed)
    except UndefinedMeasureError as error:
        raise UndefinedMeasureError(f"isotropy of the {_what(gradient)} at {site}: {error}") from error
    return rows, gradient != "weight" and moments.count < _ENOUGH * moments.d


def _what(gradient: str) -> str:
    return "activations" if gradient == "none" else f"{gradient} gradients"


def moments_at(found: Measured, site: str, gradient: str) -> Moments | None:
    """The sums of one site, None where the capture does not hold them."""
    capture = found.capture
    if gradient == "none":
        return capture.activations.get(site)
    return (capture.weight_gradients if gradient == "weight" else capture.activation_gradients).get(site)


def _kept_rows(found: Measured, site: str) -> Any:
    """The rows kept at an activation site, None where there are none."""
    return (getattr(found.capture, "rows", None) or {}).get(site)


def _rows(base: Row, result: Ablation, spectrum: dict[str, float]) -> list[Row]:
    rows: list[Row] = [{**base, "measure": name, "control": "none", "value": v} for name, v in spectrum.items()]
    for measure, prefix in (("isoscore", "raw_"), ("isoscore_star", "")):
        before, after = getattr(result, f"{prefix}before"), getattr(result, f"{prefix}without_tangent")
        mean, std = getattr(result, f"{prefix}without_normal_mean"), getattr(result, f"{prefix}without_normal_std")
        rows.append({**base, "measure": measure, "control": "none", "value": before})
        rows.append(
            {
                **base,
                "measure": measure,
                "control": "normal",
                "value": after,
                "control_value": mean,
                "null_mean": mean,
                "null_std": std,
                "z": (after - mean) / std if std > 0 else math.nan,
                "p_value": getattr(result, f"{prefix}p_value"),
            }
        )
    rows.append(
        {**base, "measure": "delta_isoscore_star", "control": "normal", "value": result.delta, "control_value": 0.0}
    )
    return rows
