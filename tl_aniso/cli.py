"""The command line: ``tl-aniso demo``, ``measure``, ``frequency``, ``doctor``, ``models``, ``study``, ``plan`` and
``report``.

Exit codes: 0 done, 1 a run failed or a check did, 2 an argument that cannot be used.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tl_aniso.errors import ConfigError, TlAnisoError

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command and option."""
    from tl_aniso import __version__

    parser = argparse.ArgumentParser(
        prog="tl-aniso",
        description="Gradient energy in tangent directions of a language model, against controls, and isotropy.",
    )
    parser.add_argument("--version", action="version", version=f"tl-aniso {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a small decoder on text of this machine, measure it, report")
    demo.add_argument("--seed", type=_seed, default=0, help="of initialisation, text order and permuted labels (0)")
    demo.add_argument("--steps", type=_positive, help="optimiser steps (500; 800 with --pair)")
    demo.add_argument(
        "--pair",
        action="store_true",
        help="a decoder and an encoder that differ in objective and mask alone, seeds N and N + 1 (about 15 min)",
    )
    demo.add_argument("--out", type=Path, default=Path("demo-out"), help="directory of the results (demo-out)")

    measure = commands.add_parser("measure", help="measure one model, one checkpoint")
    measure.add_argument("model", metavar="MODEL", help="directory or hub id of a decoder or encoder (see README)")
    measure.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help=".txt (split at blank lines) or .jsonl"
    )
    measure.add_argument("--out", type=Path, default=Path("measure-out"), help="directory of the results (measure-out)")
    measure.add_argument("--revision", help="branch, tag or commit on the hub")
    measure.add_argument("--rank", type=_positive, help="directions of a tangent proxy (min(16, d / 4))")
    measure.add_argument("--sites", nargs="+", metavar="SITE", help="names or patterns, e.g. 'blocks.*.attn.W_Q'")
    measure.add_argument("--seq-len", type=_at_least_two, help="tokens in a sequence (min(512, context))")
    measure.add_argument("--batch-size", type=_positive, help="sequences in a batch")
    measure.add_argument("--max-documents", type=_positive, help="measure the first so many documents only")
    measure.add_argument(
        "--controls",
        type=_names,
        metavar="NAMES",
        help="controls, separated by commas, or 'all'; see docs/method.md (input_energy,sign_flip,shuffled_g)",
    )
    measure.add_argument("--shuffled-labels", action="store_true", help="a second backward pass with permuted targets")
    measure.add_argument("--objective", choices=("causal", "masked"), help="the loss (what the model was made for)")
    measure.add_argument("--mask-rate", type=_rate, metavar="RATE", help="share of tokens masked, of encoders (0.3)")
    measure.add_argument(
        "--mask-with", choices=("bert", "mask"), help="80/10/10 as BERT, or the mask token alone, of encoders (bert)"
    )
    measure.add_argument("--seed", type=_seed, default=0, help="of planes, permutations, masks, untrained weights (0)")

    frequency = commands.add_parser("frequency", help="do frequent token types vary less, within one checkpoint?")
    frequency.add_argument("model", metavar="MODEL", help="directory or hub id of a decoder or encoder")
    frequency.add_argument("--text", type=Path, required=True, metavar="FILE", help=".txt or .jsonl")
    frequency.add_argument("--out", type=Path, default=Path("frequency-out"), help="directory (frequency-out)")
    frequency.add_argument("--revision", help="branch, tag or commit on the hub")
    frequency.add_argument("--n-min", type=_at_least_two, default=8, help="fewest occurrences of a type (8)")
    frequency.add_argument("--sites", nargs="+", metavar="SITE", help="residual sites: first, middle and last block")
    frequency.add_argument("--seq-len", type=_at_least_two, help="tokens in a sequence (min(512, context))")
    frequency.add_argument("--max-documents", type=_positive, help="measure the first so many documents only")
    frequency.add_argument("--seed", type=_seed, default=0, help="of masks, permutations and samples (0)")

    doctor = commands.add_parser("doctor", help="check on your model what this library promises, in about a minute")
    doctor.add_argument("model", metavar="MODEL", help="directory or hub id of a model")
    doctor.add_argument("--text", type=Path, metavar="FILE", help=".txt or .jsonl; a few English paragraphs by default")
    doctor.add_argument("--out", type=Path, default=Path("doctor-out"), help="directory of the page (doctor-out)")
    doctor.add_argument("--revision", help="branch, tag or commit on the hub")

    models = commands.add_parser("models", help="the models known by name, and the published checkpoints of one")
    models.add_argument("name", nargs="?", metavar="NAME", help="of the registry; or any hub id or directory")
    models.add_argument("--refresh", action="store_true", help="ask the hub again, also where it was asked before")
    models.add_argument("--recorded", type=Path, metavar="FILE", help="a recorded listing to show instead")

    study = commands.add_parser("study", help="measure many checkpoints of one or several models (again: goes on)")
    study.add_argument("config", type=Path, metavar="CONFIG.yaml", help="what to measure (docs/study.md)")
    study.add_argument("--out", type=Path, default=Path("study-out"), help="directory of the study (study-out)")
    study.add_argument(
        "--executor", choices=("local", "ray"), default="local", help="where captures are made: here, or on Ray (local)"
    )
    study.add_argument("--threads", type=_positive, metavar="N", help="with ray: threads and cores of a worker (1)")
    study.add_argument("--gpus", type=float, metavar="N", help="with ray: GPUs of a capture, e.g. 1 or 0.5 (0)")
    study.add_argument("--device", help="where models are moved, e.g. cuda; overrides the config")

    plan = commands.add_parser("plan", help="checkpoints, downloads, memory and time of a study, before it runs")
    plan.add_argument("config", type=Path, metavar="CONFIG.yaml", help="what to measure (docs/study.md)")
    plan.add_argument("--out", type=Path, help="also freeze the text and write plan.json in this directory")

    report = commands.add_parser("report", help="write the page of a study that was run")
    report.add_argument("directory", type=Path, metavar="DIR", help="directory of the study")
    report.add_argument(
        "--rank", type=_positive, metavar="K", help="judge claims at this one of several ranks (the smallest)"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = build_parser().parse_args(arguments)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # other libraries' redrawn bars would fill a log file
    before = _unwind_when_told_to_stop()
    code = 0
    try:
        if options.command == "demo" and options.pair:
            from tl_aniso.commands.pair import pair_command

            pair_command(seed=options.seed, steps=options.steps, out=options.out)
        elif options.command == "demo":
            from tl_aniso.commands.demo import demo_command

            demo_command(seed=options.seed, steps=options.steps or 500, out=options.out)
        elif options.command == "doctor":
            from tl_aniso.commands.doctor import doctor_command

            code = doctor_command(options)
        elif options.command == "frequency":
            from tl_aniso.commands.frequency import frequency_command

            frequency_command(options)
        elif options.command == "models":
            from tl_aniso.commands.models import models_command

            models_command(options)
        elif options.command in ("study", "plan", "report"):
            from tl_aniso.commands import study as study_commands

            getattr(study_commands, f"{options.command}_command")(options)
        else:
            from tl_aniso.commands.measure import measure_command

            measure_command(options)
        sys.stdout.flush()
    except TlAnisoError as error:
        from tl_aniso.commands.usage import UsageError

        print(f"tl-aniso: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | ConfigError) else 1
    except BrokenPipeError:
        # A reader such as `head` has seen enough. What is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        with suppress(OSError):  # after a hang-up nobody may be there to read it
            print("tl-aniso: interrupted; nothing half-written was left behind", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


def _unwind_when_told_to_stop() -> dict[int, Any]:
    """Let the ends of a batch job and of a terminal unwind like Ctrl-C, so that temporary files go.

    Returns:
        The handlers that were there, by signal; one that is ignored, as under ``nohup``, stays ignored.
    """
    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    caught = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, signal.default_int_handler) for number in caught}


def _names(text: str) -> tuple[str, ...]:
    from tl_aniso.controls.names import ALL, CONTROLS

    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in (*CONTROLS, ALL)]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or 'no name'}: choose from {', '.join(CONTROLS)}, or {ALL}"
        )
    return names


def _positive(text: str) -> int:
    return _integer(text, "a positive integer", least=1)


def _at_least_two(text: str) -> int:
    return _integer(text, "an integer of at least 2", least=2)


def _seed(text: str) -> int:
    from tl_aniso.checks import MOST_SEED

    return _integer(text, f"an integer from 0 to {MOST_SEED}", least=0, most=MOST_SEED)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:  # NaN is not above 0
        raise argparse.ArgumentTypeError(f"must be a number above 0 and at most 1, got {text}")
    return value


def _integer(text: str, what: str, *, least: int, most: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        raise argparse.ArgumentTypeError(f"must be {what}, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
