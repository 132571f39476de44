"""Write the figures of docs/theory.md to docs/figures. Needs kaleido and a browser."""

import argparse
import os
import shutil
from pathlib import Path

import kaleido

from tl_aniso.theory import figures

FIGURES = {
    "theory-parts": figures.parts_figure,
    "theory-share": figures.share_figure,
    "theory-slope": figures.slope_figure,
    "theory-concentration": figures.concentration_figure,
    "theory-neighbours": figures.neighbours_figure,
    "theory-crossing": figures.crossing_figure,
}


def main() -> None:
    """Draw every figure and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--png", type=Path, help="also write PNG files there, to look at")
    parser.add_argument("--only", choices=FIGURES, nargs="+", default=list(FIGURES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found:
        os.environ.setdefault("BROWSER_PATH", found)
    kaleido.start_sync_server()  # one browser for all figures
    try:
        write(options.only, options.out, options.png)
    finally:
        kaleido.stop_sync_server()


def write(names: list[str], out: Path, png: Path | None) -> None:
    """Figures as SVG, and as PNG where a directory is given."""
    for name in names:
        figure = FIGURES[name]()
        # A page may be dark; text and lines are drawn for a light ground.
        figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", width=760)
        kaleido.write_fig_sync(figure, out / f"{name}.svg")
        if png:
            png.mkdir(parents=True, exist_ok=True)
            kaleido.write_fig_sync(figure, png / f"{name}.png", opts={"scale": 1.5})
        print(f"wrote {out / name}.svg")


if __name__ == "__main__":
    main()
