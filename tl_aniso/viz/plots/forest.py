"""Claims as a forest plot: both verdicts on each, every test behind them, thresholds."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tl_aniso.claims import ClaimsTable
from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz.axes import listed, log_axis
from tl_aniso.viz.colours import COLOURS, MISSING
from tl_aniso.viz.style import control_name, finish, plain

__all__ = ["claims_forest"]

_KEYS = ["claim", "quantity", "model", "gradient"]
_TITLES = {
    "ratio": "ratio (log)",
    "difference": "difference of IsoScore*",
    "correlation": "correlation with depth",
    "correlation with frequency": "correlation of distance with log frequency",
    "difference of correlations": "difference of correlations with log frequency",
    "slope": "slope of log normal on log tangent amplitude",
    "difference of slopes": "difference of slopes",
    "difference of groups": "rare less frequent types",
    "share of models": "share of models",
}
# Shape and colour both tell a verdict; an open shape is "beyond controls".
_VERDICTS = {
    "holds": ("circle", COLOURS[0]),
    "does not hold": ("x", COLOURS[1]),
    "not testable": ("diamond", MISSING),
}
_KINDS = {"as_stated": ("as stated", 0.2, ""), "beyond_controls": ("beyond controls", -0.2, "-open")}
_ABOUT = {"weight": "weights", "activation": "activation gradients", "none": "activations"}


@dataclass(frozen=True)
class _Panel:
    scale: str
    rows: list[tuple[Any, ...]]  # keys, from top to bottom
    verdicts: pd.DataFrame
    tests: pd.DataFrame


def claims_forest(table: ClaimsTable) -> go.Figure:
    """Every claim by model and kind of gradient: as stated (filled) and, below it, beyond controls (open).

    Read off which intervals lie on the claimed side of their threshold, the short upright line. Grey strokes on the
    lower line are the tests against every control: the verdict beyond controls hangs on the one at its mark.

    Args:
        table: of `tl_aniso.claims.judge`; of several with `pandas.concat` of their frames.

    Returns:
        One panel for each scale, ratios logarithmic. The verdict is told by shape and colour. What is not testable
        and has no effect stands at the left edge; how many such verdicts there are is in the title, and so are
        effects without an interval.

    Raises:
        TlAnisoError: no `ClaimsTable`.
        UndefinedMeasureError: it holds no verdict.

    Example:
        >>> import pandas as pd
        >>> from tl_aniso.claims.table import COLUMNS, CONTROL_COLUMNS
        >>> row = dict.fromkeys(COLUMNS, float("nan")) | {"claim": "C1", "quantity": "energy", "model": "m",
        ...     "gradient": "weight", "kind": "as_stated", "verdict": "holds", "control": "normal", "effect": 20.0,
        ...     "ci_low": 18.0, "ci_high": 22.0, "threshold": 1.0, "scale": "ratio", "reason": ""}
        >>> table = ClaimsTable(pd.DataFrame([row]), pd.DataFrame(columns=CONTROL_COLUMNS), {"C1": "R is above 1"})
        >>> [trace.x for trace in claims_forest(table).data if trace.name == "holds, as stated"]
        [(20.0,)]
    """
    if not isinstance(table, ClaimsTable):
        raise TlAnisoError(f"table must be a ClaimsTable, as judge returns it, got {type(table).__name__}")
    verdicts = table.frame
    if verdicts.empty:
        raise UndefinedMeasureError("the table holds no verdict")
    panels = _panels(verdicts, table.controls)
    counts = [max(len(panel.rows), 2) + 1 for panel in panels]
    figure = make_subplots(
        len(panels), 1, row_heights=counts, vertical_spacing=2.0 / sum(counts) if len(panels) > 1 else 0.0
    )
    named: set[str] = set()
    for at, panel in enumerate(panels, start=1):
        _draw(figure, panel, at, named)
    finish(figure, height=180 + 36 * sum(counts))
    figure.update_layout(
        title={"text": _title(verdicts), "font": {"size": 13}, "x": 0.01, "y": 0.99, "yanchor": "top"},
        margin={"t": 76, "b": 96},
    )
    return figure


def _title(verdicts: pd.DataFrame) -> str:
    parts = []
    for kind, (label, _, _) in _KINDS.items():
        counts = verdicts.loc[verdicts["kind"] == kind, "verdict"].value_counts()
        said = ", ".join(f"{counts.get(verdict, 0)} {word}" for verdict, word in _COUNTED.items())
        parts.append(f"{label}: {said}")
    bare = int((np.isfinite(verdicts["effect"]) & ~np.isfinite(verdicts["ci_low"])).sum())
    if bare:
        parts.append(f"{bare} effects without an interval")
    return "<br>".join(map(plain, parts))


_COUNTED = {"holds": "hold", "does not hold": "do not", "not testable": "not testable"}


def _panels(verdicts: pd.DataFrame, tests: pd.DataFrame) -> list[_Panel]:
    """Every verdict on the panel of its scale; one without goes where the same claim, or quantity, has its others."""
    own = verdicts.assign(scale=verdicts["scale"].where(verdicts["scale"].isin(list(_TITLES))))
    known = own.dropna(subset=["scale"])
    by_row = known.groupby(_KEYS, dropna=False)["scale"].first()
    by_claim = known.groupby(["claim", "quantity"])["scale"].first()
    scales = []
    for *key, scale in own[[*_KEYS, "scale"]].itertuples(index=False):
        usual = "ratio" if key[1] == "energy" else "difference"
        near = by_row.get(tuple(key), by_claim.get((key[0], key[1]), usual))
        scales.append(scale if isinstance(scale, str) else near)
    own["scale"] = scales
    panels = []
    for scale in _TITLES:
        mine = own[own["scale"] == scale]
        if len(mine):
            keys = [tuple(key) for key in mine[_KEYS].drop_duplicates().to_numpy().tolist()]
            panels.append(_Panel(scale, keys, mine, _of(tests[tests["scale"] == scale], keys)))
    return panels


def _of(frame: pd.DataFrame, keys: list[tuple[Any, ...]]) -> pd.DataFrame:
    found = pd.MultiIndex.from_frame(frame[_KEYS]).isin(keys)
    return frame[found]


def _draw(figure: go.Figure, panel: _Panel, at: int, named: set[str]) -> None:
    places = {key: len(panel.rows) - index for index, key in enumerate(panel.rows)}
    verdicts = panel.verdicts
    tests = panel.tests[np.isfinite(panel.tests["effect"].astype(float))]
    low, high, axis = _range(panel.scale, verdicts, tests)
    figure.add_trace(_tests(tests, places, "every control's test" not in named), row=at, col=1)
    named.add("every control's test")
    figure.add_trace(_thresholds(verdicts, places, "threshold" not in named), row=at, col=1)
    named.add("threshold")
    for kind in _KINDS:
        for verdict in _VERDICTS:
            part = verdicts[(verdicts["kind"] == kind) & (verdicts["verdict"] == verdict)]
            if len(part):
                trace = _marks(part, places, kind, verdict, (low, high), panel.scale)
                trace.update(showlegend=trace.name not in named)
                named.add(trace.name)
                figure.add_trace(trace, row=at, col=1)
    labels = [_label(key) for key in panel.rows]
    figure.update_yaxes(
        tickvals=list(places.values()), ticktext=labels, range=[0.4, len(panel.rows) + 0.6], row=at, col=1
    )
    figure.update_xaxes(title_text=_TITLES[panel.scale], title_standoff=4, row=at, col=1, **axis)


def _label(key: tuple[Any, ...]) -> str:
    claim, quantity, model, gradient = (str(part) for part in key)
    about = _ABOUT.get(gradient, gradient)
    if quantity == "isotropy":
        about = f"IsoScore* of {'weight gradients' if gradient == 'weight' else about}"
    elif quantity != "energy":  # C6 to C8 say it in words
        about = quantity
    return plain(f"{claim} · {model} · {about}")


def _range(scale: str, verdicts: pd.DataFrame, tests: pd.DataFrame) -> tuple[float, float, dict[str, Any]]:
    """The ends of the axis on the scale of the numbers, with room at the left for what has no effect."""
    drawn = pd.concat([verdicts[["effect", "ci_low", "ci_high", "threshold"]], tests[["effect"]]])
    numbers = drawn.to_numpy(dtype=np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if scale == "ratio":
        numbers = numbers[numbers > 0]
        axis = log_axis(numbers)
        low, high = axis.get("range", [-1.0, 1.0])
        reach = high - low
        low, high = low - 0.06 * reach, high + 0.03 * reach
        return 10.0**low, 10.0**high, {**axis, "range": [low, high]}
    low, high = (min(numbers.min(), 0.0), max(numbers.max(), 0.0)) if len(numbers) else (0.0, 1.0)
    if scale == "share of models":
        low, high = 0.0, 1.0
    elif scale.startswith("correlation"):
        low, high = -1.0, 1.0
    reach = high - low or 1.0
    low, high = low - 0.08 * reach, high + 0.04 * reach
    return float(low), float(high), {"range": [float(low), float(high)]}


def _inner(low: float, high: float, scale: str) -> float:
    """Where marks without an effect stand: just inside the left edge."""
    if scale == "ratio":
        return low * (high / low) ** 0.015
    return low + 0.015 * (high - low)


def _tests(tests: pd.DataFrame, places: dict[Any, int], in_legend: bool) -> go.Scatter:
    return go.Scatter(
        x=listed(tests["effect"].to_numpy(dtype=np.float64)),
        y=[places[tuple(key)] + _KINDS["beyond_controls"][1] for key in tests[_KEYS].to_numpy().tolist()],
        name="every control's test",
        legendgroup="tests",
        showlegend=in_legend,
        mode="markers",
        marker={"symbol": "line-ns", "size": 10, "line": {"color": MISSING, "width": 2}},
        text=[
            plain(f"{control_name(str(c))}{f', {p}' if isinstance(p, str) and p else ''}")
            for c, p in zip(tests["control"], tests["part"], strict=True)
        ],
        hovertemplate="%{text}: %{x:.3g}<extra></extra>",
    )


def _thresholds(verdicts: pd.DataFrame, places: dict[Any, int], in_legend: bool) -> go.Scatter:
    """One upright stroke for every threshold of a row."""
    known = verdicts[np.isfinite(verdicts["threshold"].astype(float))]
    x: list[Any] = []
    y: list[Any] = []
    for key, threshold in known[[*_KEYS, "threshold"]].drop_duplicates().set_index(_KEYS)["threshold"].items():
        x += [float(threshold)] * 2 + [None]
        y += [places[key] - 0.42, places[key] + 0.42, None]
    return go.Scatter(
        x=x,
        y=y,
        name="threshold",
        legendgroup="threshold",
        showlegend=in_legend,
        mode="lines",
        line={"color": MISSING, "width": 1.5, "dash": "dot"},
        hovertemplate="threshold %{x:.3g}<extra></extra>",
    )


def _marks(
    part: pd.DataFrame, places: dict[Any, int], kind: str, verdict: str, ends: tuple[float, float], scale: str
) -> go.Scatter:
    label, shift, opening = _KINDS[kind]
    symbol, colour = _VERDICTS[verdict]
    effect, low, high = (part[name].to_numpy(dtype=np.float64) for name in ("effect", "ci_low", "ci_high"))
    known = np.isfinite(effect) & ((effect > 0) | (scale != "ratio"))
    at = np.where(known, effect, _inner(*ends, scale))
    bounded = known & np.isfinite(low) & np.isfinite(high)
    size = {"size": 10, "symbol": symbol + opening, "color": colour, "line": {"width": 2, "color": colour}}
    return go.Scatter(
        x=at.tolist(),
        y=[places[tuple(key)] + shift for key in part[_KEYS].to_numpy().tolist()],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [float(b - a) if k else 0.0 for a, b, k in zip(at, high, bounded, strict=True)],
            "arrayminus": [float(a - b) if k else 0.0 for a, b, k in zip(at, low, bounded, strict=True)],
            "color": colour,
            "thickness": 2,
            "width": 0,
        },
        name=f"{verdict}, {label}",
        legendgroup=f"{verdict}, {label}",
        mode="markers",
        marker=size,
        customdata=[
            [
                _number(e) if k else "no effect known",
                plain(control_name(str(c)) if isinstance(c, str) else ""),
                plain(_wrapped(str(reason))),
            ]
            for e, k, c, reason in zip(effect, known, part["control"], part["reason"], strict=True)
        ],
        hovertemplate=(
            f"{label}: {verdict}, %{{customdata[0]}} (%{{customdata[1]}})<br>%{{customdata[2]}}<extra></extra>"
        ),
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def _wrapped(text: str) -> str:
    return text if len(text) <= 160 else text[:159] + "…"
