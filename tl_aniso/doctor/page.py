"""The page of a diagnosis: one file, no network, no script, every string shown as text."""

from pathlib import Path

from tl_aniso.doctor.check import WORDS, Diagnosis
from tl_aniso.viz.html import environment

__all__ = ["fragment_of", "page_of"]


def page_of(diagnosis: Diagnosis) -> str:
    """The whole page, in the style of the report."""
    return _render("doctor.html", diagnosis)


def fragment_of(diagnosis: Diagnosis) -> str:
    """The list of checks for a notebook."""
    return _render("fragment.html", diagnosis)


def _render(template: str, diagnosis: Diagnosis) -> str:
    rooms = environment(Path(__file__).parent / "templates")
    return rooms.get_template(template).render(diagnosis=diagnosis, words=WORDS)
