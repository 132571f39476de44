"""Progress with an estimate on a terminal or in a notebook; plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["say", "say_loading", "track"]

T = TypeVar("T")

# Without a terminal, a line now and then: often enough to see life, seldom enough for a log file.
_SECONDS_BETWEEN_LINES = 10.0


def say(message: str, *, enabled: bool = True) -> None:
    """One line to standard error, so that standard output stays clean for results."""
    if enabled:
        print(message, file=sys.stderr, flush=True)


def say_loading(name: str) -> None:
    """Where a model is looked for, at once: without a network the hub's client tries for long before it gives up."""
    where = "" if Path(name).exists() else "; there is no such directory here, so the hub or its cache is asked"
    say(f"loading {name}{where} ...")


def track(items: Iterable[T], description: str, *, total: int, enabled: bool = True) -> Iterator[T]:
    """Yield the items while showing how far it has come and how long it will take.

    Example:
        >>> list(track([1, 2], "counting", total=2, enabled=False))
        [1, 2]
    """
    if not enabled:
        yield from items
        return
    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(items, total=total, description=description)
        return
    began = last = time.monotonic()
    for done, item in enumerate(items):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES and done + 1 < total:
            left = (now - began) / (done + 1) * (total - done - 1)
            say(f"{description}: {done + 1}/{total}, about {left:.0f} s left")
            last = now
