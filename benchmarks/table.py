"""One line per measurement, a threshold each, and a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Line", "render"]


@dataclass(frozen=True)
class Line:
    """Ratios of one measurement, whose median must stay at or below (or above) a threshold.

    Attributes:
        name: what is compared.
        ratios: one per pair of runs.
        threshold: the limit of their median.
        at_least: whether the limit is a floor.
    """

    name: str
    ratios: Sequence[float]
    threshold: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the median keeps to the threshold."""
        found = median(self.ratios)
        return found >= self.threshold if self.at_least else found <= self.threshold


def render(lines: Sequence[Line]) -> str:
    """A plain table of all lines.

    Example:
        >>> print(render([Line("half the work", [0.5, 0.4, 0.6], 0.75)]))
        measurement      median     min     max  threshold
        half the work      0.50    0.40    0.60    <= 0.75  PASS
    """
    width = max(11, *(len(line.name) for line in lines))
    rows = [f"{'measurement':{width}}   median     min     max  threshold"]
    for line in lines:
        digits = 3 if max(line.ratios) < 2 and line.threshold > 1 else 2 if line.threshold < 10 else 0
        found = " ".join(f"{x:7.{digits}f}" for x in (median(line.ratios), min(line.ratios), max(line.ratios)))
        limit = f"{'>=' if line.at_least else '<='} {line.threshold:g}"
        rows.append(f"{line.name:{width}}  {found} {limit:>10}  {'PASS' if line.passed else 'FAIL'}")
    return "\n".join(rows)
