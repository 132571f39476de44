"""Effects as points with intervals on a common axis: drawn as SVG into tables, so that it needs no script."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["HEIGHT", "WIDTH", "Axis", "Mark", "axis_of"]

# Of a strip, in pixels; marks stay this far from its ends.
WIDTH, HEIGHT, _MARGIN = 160.0, 16.0, 7.0


@dataclass(frozen=True)
class Mark:
    """One effect in pixels from the left: a point, the ends of its interval and its threshold, where they are known.

    Attributes:
        at: the point.
        low, high: ends of the interval; None where it has none.
        threshold: what the effect is held against.
        verdict: class of its colour, such as "holds".
        is_square: a square, not a circle: beyond controls, not as stated.
    """

    at: float
    low: float | None
    high: float | None
    threshold: float | None
    verdict: str
    is_square: bool = False


@dataclass(frozen=True)
class Axis:
    """A common axis.

    Attributes:
        name: what is on it.
        low, high: its ends.
        is_log: ratios go by their logarithm: twice and half are equally far from 1.
    """

    name: str
    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float | None:
        """Pixels from the left; what lies beyond an end is at the end.

        Example:
            >>> Axis("ratio", 0.5, 2.0, True).place(1.0)
            80.0
        """
        if math.isnan(value):
            return None
        low, high, at = (self._scaled(x) for x in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(_MARGIN + (WIDTH - 2 * _MARGIN) * min(max(share, 0.0), 1.0), 1)

    def mark(self, effect: float, low: float, high: float, threshold: float, verdict: str, square: bool) -> Mark | None:
        """An effect on the axis; None where it is not known."""
        at = self.place(effect)
        if at is None:
            return None
        ends = self.place(low), self.place(high)
        return Mark(at, *(ends if None not in ends else (None, None)), self.place(threshold), verdict, square)

    def __str__(self) -> str:
        return f"{self.name} from {self.low:.3g} to {self.high:.3g}" + (" (logarithmic)" if self.is_log else "")

    def _scaled(self, value: float) -> float:
        if not self.is_log:
            return value
        return math.log(value) if value > 0 else -math.inf


def axis_of(name: str, values: Iterable[float], *, is_log: bool) -> Axis | None:
    """An axis that holds all values that are known; None if there are none.

    Example:
        >>> str(axis_of("ratio", [0.5, float("nan"), 2.0], is_log=True))
        'ratio from 0.5 to 2 (logarithmic)'
    """
    known = [float(value) for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    return Axis(name, min(known), max(known), is_log) if known else None
