"""Write the figures of docs/theory.md to docs/figures. Needs kaleido and a browser (the extra "static")."""

import argparse
from pathlib import Path

from tl_aniso.theory import figures
from tl_aniso.viz.static import Look, save_all_static

FIGURES = {
    "theory-parts": figures.parts_figure,
    "theory-share": figures.share_figure,
    "theory-slope": figures.slope_figure,
    "theory-concentration": figures.concentration_figure,
    "theory-neighbours": figures.neighbours_figure,
    "theory-crossing": figures.crossing_figure,
}
_LOOK = Look(width_mm=200, font_pt=9)


def main() -> None:
    """Draw every figure and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--png", type=Path, help="also write PNG files there, to look at")
    parser.add_argument("--only", choices=FIGURES, nargs="+", default=list(FIGURES))
    options = parser.parse_args()
    jobs = []
    for name in options.only:
        figure = FIGURES[name]()
        jobs.append((figure, options.out / f"{name}.svg", _LOOK))
        if options.png:
            jobs.append((figure, options.png / f"{name}.png", _LOOK._replace(dpi=110)))
    for path in save_all_static(jobs):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
