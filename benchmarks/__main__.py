"""Measure everything, print one table, fail where a threshold is missed."""

import argparse
import sys
import warnings

from benchmarks import ablation_cost, capture_cost, memory
from benchmarks.table import render

__all__ = ["main"]

_PARTS = {"memory": memory.measure, "ablation": ablation_cost.measure, "capture": capture_cost.measure}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; 1 where a threshold is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="run one part")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs (default 9)")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    lines = []
    for part in [chosen.only] if chosen.only else _PARTS:
        lines += _PARTS[part](chosen.pairs, lambda text: print(text, file=sys.stderr, flush=True))
    print(render(lines))
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
