"""Axes of figures: what stands where along a layer or a step, and numbers as a figure stores them."""

from typing import Any

import numpy as np

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.style import plain
from tl_aniso.viz.tables import steps_of

__all__ = [
    "listed",
    "log_axis",
    "need_steps",
    "only_step",
    "order",
    "ordered",
    "with_place",
    "x_axis",
    "xs",
]


def only_step(values: Any, instead: str) -> None:
    """Refuse several steps where only one can be shown."""
    n = len(steps_of(values))
    if n > 1:
        raise TlAnisoError(f"the frame holds {n} steps; select one, or use {instead}")


def need_steps(values: Any, instead: str) -> None:
    """Refuse rows without a step where steps are the axis."""
    if np.isnan(steps_of(values)[0]):
        raise TlAnisoError(f"the rows of the frame have no step; set the column step, or use {instead}")


def with_place(values: Any) -> Any:
    """The layer as a category, so that embedding and unembedding, which have none, keep a place."""
    pairs = zip(values["site"], values["layer"], strict=True)
    places = [site.split(".")[0] if np.isnan(layer) else f"{layer:g}" for site, layer in pairs]
    return values.assign(place=places)


def ordered(places: Any) -> list[str]:
    """Places from the first layer to the last, then those without a layer."""
    return sorted(
        {str(place) for place in places},
        key=lambda place: (not place.isdigit(), int(place) if place.isdigit() else 0, place),
    )


def order(x: Any) -> list[int]:
    """The order of rows along an axis of steps or places."""
    if x.dtype.kind == "f":
        return list(np.argsort(x.to_numpy(), kind="stable"))
    rank = {place: index for index, place in enumerate(ordered(x))}
    return sorted(range(len(x)), key=lambda i: rank[str(x.iloc[i])])


def xs(x: Any) -> list[Any]:
    """Positions along an axis, as numbers or as text."""
    return [float(v) for v in x] if x.dtype.kind == "f" else [plain(v) for v in x]


def x_axis(values: Any, x: str) -> dict[str, Any]:
    """What the axis of layers or of steps looks like."""
    if x == "place":
        places = [plain(place) for place in ordered(values[x])]
        return {"type": "category", "categoryorder": "array", "categoryarray": places, "tickangle": 0}
    steps = np.array([step for step in steps_of(values) if step > 0])
    # Log-spaced checkpoints would all sit at the left edge of a linear axis, and a log axis has no step 0.
    if len(steps) > 3 and steps.max() > 20 * np.median(steps):
        return {"type": "category", "categoryorder": "array", "categoryarray": steps_of(values)}
    return {"type": "linear"}


def log_axis(numbers: Any) -> dict[str, Any]:
    """A logarithmic axis with few round ticks, whether the numbers span a tenth or four decades."""
    known = np.asarray(numbers, dtype=np.float64)
    known = known[np.isfinite(known) & (known > 0)]
    if not len(known):
        return {"type": "log"}
    low, high = min(np.log10(known.min()), 0.0) - 0.05, max(np.log10(known.max()), 0.0) + 0.05
    digits = (1, 1.2, 1.5, 2, 3, 5, 7) if high - low < 0.7 else (1, 2, 5) if high - low < 2.2 else (1,)
    ticks = [digit * 10.0**power for power in range(int(low) - 1, int(high) + 2) for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.4g}" for tick in ticks], "range": [low, high]}


def listed(numbers: Any) -> list[Any]:
    """Plain lists with None for what is missing: a gap in every reader of JSON."""
    array = np.asarray(numbers)
    if array.ndim > 1:
        return [listed(row) for row in array]
    return [None if not np.isfinite(v) else v.item() for v in array]
