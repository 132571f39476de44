"""Gaperon over its training: ``python experiments/gaperon.py``, or with --smoke tiny models, offline."""

import sys

from tl_aniso.experiments import run_family


def main(arguments: list[str] | None = None) -> int:
    """Run the study; see --help."""
    return run_family("gaperon", arguments)


if __name__ == "__main__":
    sys.exit(main())
