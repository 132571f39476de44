"""Measure everything, print one table, fail where a threshold is missed."""

import argparse
import sys
import warnings

from benchmarks import ablation_cost, capture_cost, frequency_cost, memory, ray_efficiency
from benchmarks.table import render

__all__ = ["main"]

_PARTS = ("memory", "ablation", "capture", "frequency", "ray")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; 1 where a threshold is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="run one part")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs (default 9)")
    parser.add_argument("--batches", type=int, default=1, help="batches in a run of the capture's pairs (default 1)")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    wanted = [chosen.only] if chosen.only else _PARTS
    lines = []
    if "memory" in wanted:
        lines += memory.measure(_say)
    if "ablation" in wanted:
        lines += ablation_cost.measure(chosen.pairs, _say)
    if "capture" in wanted:
        lines += capture_cost.measure(chosen.pairs, _say, chosen.batches)
    if "frequency" in wanted:
        lines += frequency_cost.measure(chosen.pairs, _say)
    if "ray" in wanted:
        lines += ray_efficiency.measure(3, _say)
    print(render(lines))
    return 0 if all(line.passed for line in lines) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
