"""A browser that turns figures into files, by kaleido, without a network."""

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Sequence
from threading import Thread
from typing import Any

from tl_aniso.errors import TlAnisoError

__all__ = ["find_browser", "rendered"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
_SECONDS = 90.0


def find_browser() -> str:
    """The path of a Chrome or Chromium: what ``BROWSER_PATH`` names, else the first of the usual names on the path.

    Raises:
        TlAnisoError: none is found, or ``BROWSER_PATH`` names no program.
    """
    named = os.environ.get("BROWSER_PATH")
    if named:
        found = shutil.which(named)
        if found is None:
            raise TlAnisoError(f"BROWSER_PATH is {named!r}, which is no program; set it to a Chrome or Chromium")
        return found
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise TlAnisoError(
        f"static figures need a Chrome or Chromium, and none of {', '.join(_NAMES[:4])} is on the path; install one, "
        "or set BROWSER_PATH to it"
    )


def rendered(specs: Sequence[tuple[dict[str, Any], dict[str, Any]]], browser: str) -> list[bytes]:
    """Pairs of a figure (as plotly.js takes it) and options of kaleido, as images.

    Raises:
        TlAnisoError: kaleido is not installed, or the browser fails.
    """
    if importlib.util.find_spec("kaleido") is None:
        raise TlAnisoError("static figures need kaleido: pip install 'tl_aniso[static]'")
    images: list[bytes] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            images.extend(asyncio.run(_rendered(specs, browser)))
        except BaseException as error:  # told to the thread that waits
            failed.append(error)

    # In a thread of its own: a notebook's already runs a loop, in which no other can start.
    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if failed:
        if not isinstance(failed[0], Exception):
            raise failed[0]
        raise TlAnisoError(f"{browser} could not draw the figure: {failed[0]!s:.300}") from failed[0]
    return images


async def _rendered(specs: Sequence[tuple[dict[str, Any], dict[str, Any]]], browser: str) -> list[bytes]:
    from kaleido import Kaleido

    # MathJax would be fetched from a server, and no text here needs it.
    async with Kaleido(n=1, timeout=_SECONDS, mathjax=False, path=browser) as kaleido:
        return [await kaleido.calc_fig(figure, opts=options) for figure, options in specs]
