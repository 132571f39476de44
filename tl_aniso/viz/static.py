"""Figures as files for papers: SVG, PDF or PNG at a width in millimetres, the same bytes every time."""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import plotly.graph_objects as go

from tl_aniso.checks import as_path
from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.browser import find_browser, rendered

__all__ = ["PAPERS", "Look", "save_all_static", "save_static"]

_FORMATS = ("svg", "pdf", "png")
# Ink and paper, as the pages of the library have them; the text has a contrast above 13.
PAPERS = {"light": ("#1b1f24", "#ffffff"), "dark": ("#e6e8eb", "#14171c")}
_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
# Pixels of CSS, and the size of text in figures on the screen (`tl_aniso.viz.style.finish`).
_PIXELS_PER_MM, _PIXELS_PER_PT, _FONT = 96 / 25.4, 96 / 72, 13.0
# Names that plotly.js draws at random for every drawing, so that several fit on one page.
_RANDOM = re.compile(r"\b((?:topdefs-|defs-|clip|legend|g|cb))([0-9a-f]{6})(?![0-9a-f])")
_SCREEN_WIDTH, _SCREEN_HEIGHT = 760.0, 450.0


class Look(NamedTuple):
    """How a file looks; the arguments of `save_static`."""

    width_mm: float | None = None
    height_mm: float | None = None
    font_pt: float = 8.0
    theme: Literal["light", "dark"] = "light"
    dpi: float = 300.0


def save_static(
    figure: go.Figure,
    path: str | Path,
    *,
    width_mm: float | None = None,
    height_mm: float | None = None,
    font_pt: float = 8.0,
    theme: Literal["light", "dark"] = "light",
    dpi: float = 300.0,
) -> Path:
    """Write what a figure shows at first, without its lists, as SVG, PDF or PNG by the name of the file.

    Needs kaleido (``pip install 'tl_aniso[static]'``) and a Chrome or Chromium on this machine, which runs without a
    network. Equal figures give equal bytes with the same versions of plotly and of the browser.

    Args:
        figure: of any plot of `tl_aniso.viz`.
        path: ends in .svg, .pdf or .png; an older file is replaced.
        width_mm: of the printed figure, such as 85 for one column; by default the size of the screen.
        height_mm: with `width_mm`; by default the figure's own proportions.
        font_pt: size of the text in print, points; lines and marks keep their proportion to it. Ignored without
            `width_mm`.
        theme: dark ink on white, or light ink on near-black.
        dpi: of a PNG with `width_mm`.

    Returns:
        The path.

    Raises:
        TlAnisoError: another ending, sizes that are no positive numbers, kaleido or a browser missing, a browser that
            fails.
        OSError: the file cannot be written.
    """
    return save_all_static([(figure, path, Look(width_mm, height_mm, font_pt, theme, dpi))])[0]


def save_all_static(jobs: Sequence[tuple[go.Figure, str | Path, Look]]) -> list[Path]:
    """`save_static` of many figures with one start of the browser.

    Raises:
        TlAnisoError: as `save_static`; then no file is written.
    """
    targets = [as_path("path", path) for _, path, _ in jobs]
    specs = [_spec(figure, target, look) for (figure, _, look), target in zip(jobs, targets, strict=True)]
    images = rendered(specs, find_browser())
    for (_, _, look), target, (_, options), image in zip(jobs, targets, specs, images, strict=True):
        _write(target, _settled(image, options, look))
    return targets


def _spec(figure: Any, target: Path, look: Look) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figure as plotly.js takes it, and what kaleido is told: format, width, height (pixels) and scale."""
    kind = target.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise TlAnisoError(f"{target.name!r} must end in {', '.join(f'.{name}' for name in _FORMATS)}")
    if not isinstance(figure, go.Figure):
        raise TlAnisoError(f"figure must be a plotly Figure, got {type(figure).__name__}")
    if look.theme not in PAPERS:
        raise TlAnisoError(f"theme must be one of {', '.join(PAPERS)}, got {look.theme!r}")
    for name, value in look._asdict().items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e5
        if name != "theme" and not is_number and not (value is None and name.endswith("_mm")):
            raise TlAnisoError(f"{name} must be a positive number, got {value!r}")
    if look.height_mm is not None and look.width_mm is None:
        raise TlAnisoError("height_mm needs width_mm")
    ink, paper = PAPERS[look.theme]
    drawn = go.Figure(figure)
    drawn.update_layout(paper_bgcolor=paper, font={"color": ink, "family": _FONTS}, title={"font": {"color": ink}})
    drawn.layout.updatemenus = None
    for index, trace in enumerate(drawn.data):
        trace.uid = f"{index}"
    # Room that only the list of choices needed.
    if figure.layout.updatemenus and figure.layout.margin.t:
        drawn.update_layout(margin={"t": max(48, figure.layout.margin.t - 32)})
    height = float(figure.layout.height or _SCREEN_HEIGHT)
    width, scale = float(figure.layout.width or _SCREEN_WIDTH), 1.0
    if look.width_mm is not None:
        scale = look.font_pt * _PIXELS_PER_PT / _FONT
        width = look.width_mm * _PIXELS_PER_MM / scale
        height = height if look.height_mm is None else look.height_mm * _PIXELS_PER_MM / scale
    if kind == "png":
        scale *= 1.0 if look.width_mm is None else look.dpi / 96
    drawn.update_layout(width=width, height=height)
    return drawn.to_plotly_json(), {"format": kind, "width": width, "height": height, "scale": scale}


def _settled(image: bytes, options: dict[str, Any], look: Look) -> bytes:
    """The same bytes for the same figure: without random names and times; the size of an SVG in millimetres."""
    if options["format"] == "pdf":
        # Of the same length, so that the offsets in the file's table still hold.
        return re.sub(rb"/(CreationDate|ModDate) \(([^)]*)\)", _without_time, image)
    if options["format"] == "png":
        return image
    text = image.decode("utf-8")
    known: dict[str, str] = {}
    text = _RANDOM.sub(lambda found: found[1] + known.setdefault(found[2], f"{len(known):06d}"), text)
    if look.width_mm is not None:
        height = look.height_mm or options["height"] * options["scale"] / _PIXELS_PER_MM
        size = f'width="{look.width_mm:g}mm" height="{height:.4g}mm"'
        text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', rf"\1 {size}", text, count=1)
    return text.encode("utf-8")


def _without_time(found: re.Match[bytes]) -> bytes:
    return b"/" + found[1] + b" (" + re.sub(rb"\d", b"0", found[2]) + b")"


def _write(target: Path, content: bytes) -> None:
    """Whole or not at all."""
    if target.is_dir():
        raise TlAnisoError(f"{target} is a directory; give the name of the file to write")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
