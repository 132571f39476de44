"""``tl-aniso study``, ``plan`` and ``report``: many checkpoints, measured in planes that were frozen early."""

import argparse
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from tl_aniso.claims import ClaimsTable
from tl_aniso.claims.table import reader_notes
from tl_aniso.commands.output import print_table, print_text, short_names
from tl_aniso.commands.usage import UsageError
from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.progress import say
from tl_aniso.questions.by_step import energy_by_step
from tl_aniso.study import Executor, LocalExecutor, RayExecutor, Study
from tl_aniso.study.claims import citation
from tl_aniso.study.config import read_config
from tl_aniso.study.estimate import flops_per_second
from tl_aniso.study.outline import ModelOutline, Outline, outline
from tl_aniso.study.pages import marked, write_pages
from tl_aniso.study.run import PLAN, RESULTS
from tl_aniso.study.table import read_table
from tl_aniso.study.trainings import refuse_unlike_trainings

__all__ = ["plan_command", "print_claims", "print_faults", "print_outline", "report_command", "study_command"]


def study_command(options: argparse.Namespace) -> None:
    """Run what is left of a study, print R by step of each model, write the pages."""
    began = time.monotonic()
    config = read_config(options.config).with_device(options.device)
    study = Study(config, options.out, executor=_executor(options))
    with _plain_warnings():
        frame = study.run()
        page = study.report()
    for model in dict.fromkeys(frame["model"]):
        rows = frame[frame["model"] == model]
        if ((rows["gradient"] == "weight") & (rows["measure"] == "r_energy")).any():
            table = energy_by_step(rows, gradient="weight", group=_group(rows))
            print_table(short_names(table, "R"), f"{model}: R by step, weight gradients of the {_group(rows)}")
    print_faults(frame)
    _claims_if_any(study)
    print(f"\n{study.out / RESULTS}: {len(frame)} rows; {page} ({time.monotonic() - began:.0f} s)")


def _executor(options: argparse.Namespace) -> Executor:
    """What was asked for.

    Raises:
        UsageError: options of Ray without it, or values that it cannot use.
    """
    if options.executor == "ray":
        try:
            return RayExecutor(threads=options.threads or 1, num_gpus=options.gpus or 0)
        except TlAnisoError as error:
            raise UsageError(str(error)) from error
    if options.threads is not None or options.gpus is not None:
        raise UsageError("--threads and --gpus are of workers: add --executor ray")
    return LocalExecutor()


def plan_command(options: argparse.Namespace) -> None:
    """Print checkpoints, downloads, memory and time of each model; with --out, write plan.json."""
    config = read_config(options.config)
    found = outline(config)
    refuse_unlike_trainings(found.models, config)
    print_outline(found, str(options.config))
    if options.out is not None:
        plan = Study(config, options.out).plan()
        print(f"\n{options.out / PLAN}: {len(plan.captures())} captures with their keys")


def print_outline(found: Outline, title: str) -> None:
    """Checkpoints, downloads, memory and time of each model, and what is known of them from where."""
    config = found.config
    n_tokens = config.n_tokens or (config.n_documents or 0) * config.seq_len
    rate = flops_per_second() if n_tokens else 0.0
    print_table(pd.DataFrame([_row(found, model, n_tokens, rate) for model in found.models]), title)
    notes = [f"* early: the first {config.early_fraction:.0%} of the {config.early_unit}, of all that were published"]
    if n_tokens:
        notes.append(
            f"* time: rough, for {n_tokens:,} tokens on this processor at {rate / 1e9:.0f} GFLOP/s; questions asked "
            "of the captures come on top"
        )
    else:
        notes.append("* time: give n_documents or n_tokens for an estimate")
    if any(model.downloads() is None for model in found.models):
        notes.append("* download: where the hub has not told sizes, at most 4 bytes a parameter and checkpoint")
    by_note: dict[str, list[str]] = {}
    for model in found.models:
        for note in (*model.listing, *model.notes):
            by_note.setdefault(note, []).append(model.entry.name)
    notes += [f"* {', '.join(names)}: {note}" for note, names in by_note.items()]
    print_text("\n".join(notes))


def print_claims(claims: ClaimsTable) -> None:
    """Both verdicts on each claim, and by which rules."""
    for name, statement in claims.statements.items():
        table = claims.table()
        rows = table[table["claim"] == name].drop(columns="claim")
        print_table(rows, f"{name}: {statement}")
    print_text("\n".join(f"* {note}" for note in (*reader_notes(claims), f"rules: {citation(claims)}")))


def report_command(options: argparse.Namespace) -> None:
    """Write the pages of a study that was run."""
    page = write_pages(options.directory, options.rank)
    print_faults(read_table(options.directory / RESULTS))
    print(page)


def _row(found: Outline, model: ModelOutline, n_tokens: int, rate: float) -> dict[str, object]:
    size = model.estimate
    seconds = found.seconds(model, n_tokens, rate) if n_tokens else None
    return {
        "model": model.entry.name,
        "published": model.n_published,
        "early": len(model.early),
        "late": len(model.late),
        "captures": found.n_captures(model),
        "parameters": "unknown" if size is None else f"{size.n_parameters / 1e6:.3g} M",
        "download": _download(model),
        "memory": _size(found.memory(model)),
        "disk": _size(found.disk(model)),
        "time": "unknown" if seconds is None else _duration(seconds),
    }


def _download(model: ModelOutline) -> str:
    known, size = model.downloads(), model.estimate
    if known is not None or size is None:
        return _size(known)
    return f"<= {_size(len(model.chosen) * 4 * size.n_parameters)}"


def print_faults(frame: pd.DataFrame) -> None:
    """Checkpoints whose weights, or some of them, are another's: what the page says of them."""
    for model in dict.fromkeys(frame["model"]):
        for fault in marked(frame, model):
            print_text(f"* {model}: {fault}")


def _claims_if_any(study: Study) -> None:
    try:
        print_claims(study.claims)
    except TlAnisoError as error:  # trainings of different models, say
        say(f"tl-aniso: the claims were not judged: {error}")


def _size(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / 1e9:.3g} GB"


def _duration(seconds: float) -> str:
    """A rough time.

    Example:
        >>> _duration(9.2), _duration(600), _duration(40_000)
        ('9 s', '10 min', '11 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _group(rows: pd.DataFrame) -> str:
    """The first group of weights that was measured, readers where there are any."""
    from tl_aniso.results import group_of

    found = {group_of(site) for site in rows.loc[rows["gradient"] == "weight", "site"].unique()}
    return next(name for name in ("readers", "writers", "unembedding", "embedding", *sorted(found)) if name in found)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """What a study warns about is for its user: one line each, without the line of code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", TlAnisoWarning)
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *more: object, **named: object) -> None:
            if issubclass(category, TlAnisoWarning):
                say(f"tl-aniso: {message}")
            else:
                before(message, category, *more, **named)  # type: ignore[arg-type]

        warnings.showwarning = show
        yield
