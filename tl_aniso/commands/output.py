"""A directory of results that appears complete or not at all, and tables on a terminal."""

import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tl_aniso.errors import TlAnisoError

__all__ = ["fresh_directory", "print_table", "print_text"]

_MARK = ".tl-aniso"


@contextmanager
def fresh_directory(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target` that takes its place when the block ends well.

    Results of an earlier run are replaced then, and only then; a directory that holds anything else is refused.

    Raises:
        TlAnisoError: `target` exists and is not the output of an earlier run.
    """
    target = target.absolute()
    if target.exists() and not (target / _MARK).exists() and (not target.is_dir() or any(target.iterdir())):
        raise TlAnisoError(f"{target} exists and is not the output of an earlier run; choose another --out")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise TlAnisoError(f"cannot write to {target.parent}: {error.strerror}") from error
    try:
        (temporary / _MARK).write_text("results of tl-aniso; replaced by the next run\n", encoding="utf-8")
        temporary.chmod(0o755)
        yield temporary
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def print_table(frame: pd.DataFrame, title: str) -> None:
    """A table on standard output; numbers to three digits, missing ones as a dash."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in frame.columns:
        table.add_column(str(column), justify="left" if frame[column].dtype == object else "right")
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    # Without a terminal nothing may be cut off: width is then that of the content.
    console.print(table) if console.is_terminal else Console(width=200).print(table)


def print_text(text: object) -> None:
    """Paragraphs on standard output, wrapped between words."""
    width = min(Console().width, 110)
    print()
    for line in str(text).splitlines():
        print(textwrap.fill(line, width, subsequent_indent="  " if line.startswith("*") else ""))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if pd.isna(value) else (f"{value:.0f}" if value.is_integer() else f"{value:.3g}")
    return str(value)
