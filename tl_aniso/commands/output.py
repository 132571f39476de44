"""A directory of results that appears complete or not at all, and tables on a terminal."""

import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tl_aniso.commands.usage import UsageError
from tl_aniso.errors import TlAnisoError
from tl_aniso.staging import staging

__all__ = ["fresh_directory", "print_table", "print_text", "short_names"]

_MARK = ".tl-aniso"
_WRITER = "command: "


@contextmanager
def fresh_directory(target: Path, command: str, inputs: Iterable[str | Path | None] = ()) -> Iterator[Path]:
    """A temporary directory beside `target` that takes its place when the block ends well.

    Results of an earlier run of the same command are replaced then, and only then; a directory that holds anything else
    is refused, before anything runs.

    Args:
        target: the directory of the results.
        command: who writes them.
        inputs: what the command reads; a directory that holds one of them is not replaced.

    Raises:
        UsageError: `target` exists and is not the output of an earlier run of `command`, or holds files of the user's
            own, or one of `inputs`; or nothing can be written there.
        TlAnisoError: the finished results cannot be put in place.
    """
    target = target.resolve()  # a link is followed: what it points to is replaced, not the link
    _refuse_inputs(target, inputs)
    _refuse_foreign(target, command)
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(staging(target))
        except OSError as error:
            raise UsageError(f"cannot write to {target.parent}: {error.strerror}") from error
        yield temporary
        written = sorted(path.name for path in temporary.iterdir())
        (temporary / _MARK).write_text("\n".join((_WRITER + command, *written)), encoding="utf-8")
        _replace(target, temporary, command)


def _refuse_inputs(target: Path, inputs: Iterable[str | Path | None]) -> None:
    """A model or a text inside the directory would go with the results that are replaced."""
    for given in inputs:
        if not given or not target.exists() or not os.path.exists(given):
            continue
        # As it was written, and with its links followed: neither the link nor what it points to may go.
        for path in (Path(os.path.abspath(given)), Path(given).resolve()):
            if any(place.samefile(target) for place in (path, *path.parents)):
                raise UsageError(f"{given} is read by this run and lies in --out {target}; choose another --out")


def _refuse_foreign(target: Path, command: str) -> None:
    """Command and names of an earlier run stand in its mark; anything else is not ours to remove."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target} is a file; choose another --out")
    held = {path.name for path in target.iterdir()}
    mark = target / _MARK
    lines = mark.read_text(encoding="utf-8").splitlines() if mark.is_file() else []
    ours = {_MARK, *lines[1:]} if lines else set()
    if lines and lines[0] != _WRITER + command:
        writer = lines[0].removeprefix(_WRITER) if lines[0].startswith(_WRITER) else "an older version"
        raise UsageError(
            f"{target} holds results of {writer}, which {command} does not replace; move it or choose another --out"
        )
    foreign = sorted(held - ours)
    if foreign:
        raise UsageError(
            f"{target} holds {', '.join(foreign[:3])}, which no earlier run wrote; move it away or choose another --out"
        )


def _replace(target: Path, temporary: Path, command: str) -> None:
    """Put a finished directory in the place of an older one; a failure leaves the older one."""
    try:
        _refuse_foreign(target, command)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent)) / "old"
            target.rename(old)
            temporary.rename(target)
            shutil.rmtree(old.parent, ignore_errors=True)
        else:
            temporary.rename(target)
    except OSError as error:
        raise TlAnisoError(f"cannot put the results at {target}: {error.strerror}") from error


def short_names(table: pd.DataFrame, what: Literal["R", "excess"]) -> pd.DataFrame:
    """E and R (or excess), true and under each control, under names short enough for a terminal.

    Args:
        table: of `TangentEnergy.table` or `energy_by_step`: columns that name a row, then E, R, and "R <control>" and
            "excess <control>" of each control.
        what: "R", with E and the true R, or "excess".

    Example:
        >>> table = pd.DataFrame({"step": [0], "E": [0.5], "R": [2.0], "R sign_flip": [1.5], "excess sign_flip": [1.3]})
        >>> list(short_names(table, "R")), list(short_names(table, "excess"))
        (['step', 'E', 'true R', 'sign flip'], ['step', 'sign flip'])
    """
    first = list(table.columns[: table.columns.get_loc("E")]) + (["E", "R"] if what == "R" else [])
    controls = [name for name in table.columns if name.startswith(f"{what} ")]
    short = {name: name.removeprefix(f"{what} ").replace("_", " ") for name in controls}
    return table[first + controls].rename(columns={"R": "true R", **short})


def print_table(frame: pd.DataFrame, title: str) -> None:
    """A table on standard output; numbers to three digits, missing ones as a dash.

    On a narrow terminal headings and names break between words; numbers are never cut, whatever the width.
    """
    console = Console()
    width = console.width if console.is_terminal else 200
    table = _table(frame, title, narrow=False)
    if Console(width=1000).measure(table).maximum > width:
        table = _table(frame, title, narrow=True)
        # What does not fit even so is left to the terminal to wrap: rich would cut off digits.
        width = max(width, Console(width=1000).measure(table).maximum)
    Console(width=width).print(table)


def _table(frame: pd.DataFrame, title: str, *, narrow: bool) -> Table:
    def fitted(text: str, width: int = 10) -> str:
        return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) if narrow else text

    padding = (0, 1, 0, 0) if narrow else (0, 1)
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=padding, pad_edge=not narrow, show_edge=not narrow
    )
    is_number = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame.columns]
    for column, right in zip(frame.columns, is_number, strict=True):
        # Square brackets in a name are no markup.
        table.add_column(
            Text(fitted(str(column), 6 if right else 10)), justify="right" if right else "left", no_wrap=True
        )
    for row in frame.itertuples(index=False):
        cells = zip(row, is_number, strict=True)
        table.add_row(*(Text(_cell(value) if right else fitted(_cell(value))) for value, right in cells))
    return table


def print_text(text: object) -> None:
    """Paragraphs on standard output, wrapped between words."""
    width = min(Console().width, 110)
    print()
    for line in str(text).splitlines():
        print(textwrap.fill(line, width, subsequent_indent="  " if line.startswith("*") else ""))


def _cell(value: object) -> str:
    if isinstance(value, float):
        if pd.isna(value):
            return "-"
        return f"{value:,.0f}" if value.is_integer() or 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return str(value)
