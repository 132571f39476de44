"""The controlled pair, trained on this machine: ``python experiments/local.py``, or with --smoke in a minute."""

import argparse
import sys
from pathlib import Path

from tl_aniso.commands.study import print_claims
from tl_aniso.errors import ConfigError, TlAnisoError
from tl_aniso.experiments import run_local


def main(arguments: list[str] | None = None) -> int:
    """Train, measure, print the claims with intervals over seeds; see --help."""
    parser = argparse.ArgumentParser(prog="local.py", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each of the two models (3)")
    parser.add_argument("--device", help="where captures are made, e.g. cuda; the processor by default")
    parser.add_argument("--smoke", action="store_true", help="tiny models, a few steps, two seeds at most")
    parser.add_argument("--out", type=Path, default=Path("local-out"), help="directory of models and study (local-out)")
    options = parser.parse_args(arguments)
    seeds = range(min(2, options.seeds) if options.smoke else options.seeds)
    try:
        study = run_local(options.out, seeds=tuple(seeds), device=options.device, smoke=options.smoke)
        print_claims(study.claims)
    except TlAnisoError as error:
        print(f"local.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    print(f"\n{study.out / 'report.html'}: claims, every control beside them, and figures of each training")
    return 0


if __name__ == "__main__":
    sys.exit(main())
