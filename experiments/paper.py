"""All ten models of the paper: ``python experiments/paper.py --device cuda``; --smoke on tiny ones, offline."""

import argparse
import sys
from pathlib import Path

from tl_aniso.experiments.paper import run_paper


def main(arguments: list[str] | None = None) -> int:
    """Run the study of paper.yaml and print the paper's table and the claims; see --help."""
    parser = argparse.ArgumentParser(prog="paper.py", description=__doc__)
    config = Path(__file__).with_name("paper.yaml")
    parser.add_argument("--config", type=Path, default=config, help="the study (paper.yaml)")
    parser.add_argument("--device", help="where models are moved, e.g. cuda; the processor by default")
    parser.add_argument("--smoke", action="store_true", help="tiny models of the same architectures, offline")
    parser.add_argument("--out", type=Path, default=Path("paper-out"), help="directory of the study (paper-out)")
    return run_paper(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
