"""The one page of a study: claims, figures drawn in the browser, token views, readings and methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
from markupsafe import Markup

from tl_aniso.claims import ClaimsTable
from tl_aniso.claims.table import reader_notes
from tl_aniso.errors import UndefinedMeasureError
from tl_aniso.viz.claims_page import late_rows, read_claims
from tl_aniso.viz.embedding import embed
from tl_aniso.viz.geometry_tables import embed_geometry, geometry_table
from tl_aniso.viz.html import embedded_json, environment, plotly_deflated
from tl_aniso.viz.reading import main_panel, read_values
from tl_aniso.viz.report_facts import methods_of, spelled
from tl_aniso.viz.report_tables import energy_tables, isotropy_table
from tl_aniso.viz.style import COLOURS, control_name, visible
from tl_aniso.viz.tables import PANELS, energy_values, isotropy_values
from tl_aniso.viz.wording import MEASURES, control_words

__all__ = ["ModelPart", "PageFragment", "study_report"]

_UNITS = {"token": "one row a token", "sequence": "one row a sequence"}
_FIGURES = (
    ("steps", "By training step", "Means over the sites chosen; bands are two standard deviations over drawn planes."),
    ("layers", "By layer", "At the step chosen; small circles are single sites."),
    ("map", "By layer and step", "One map for the effect and one for every control, on one scale of colours."),
    ("isotropy-steps", "Isotropy by training step", "Before any removal, without the tangent plane, without others."),
    ("isotropy-layers", "Isotropy by layer", "At the step chosen."),
    ("delta", "Delta IsoScore* by layer", "Without the tangent plane less without another plane of the same rank."),
    (
        "compare",
        "Models beside each other",
        "Solid: the effect; dotted: one control. R does not compare across widths.",
    ),
)


class PageFragment(Protocol):
    """A view that another part of the library made, such as a `tl_aniso.viz.token_views.TokenViewParts`.

    All of it stands in the page as it is; text that is no `Markup` is shown as text. Equal scripts and style sheets of
    several views are there once.
    """

    @property
    def fragment(self) -> Markup:
        """Its elements, with their data."""

    @property
    def script(self) -> Markup:
        """What goes into one script after all views."""

    @property
    def css(self) -> Markup:
        """What goes into the page's style sheet."""


@dataclass(frozen=True)
class ModelPart:
    """What the page says of one model.

    Attributes:
        name: of the model.
        frame: its rows, one point for one set of weights.
        marked: what is wrong with its checkpoints, in a line each.
        notes: what a reader must know before its numbers.
        provenance: what was measured and how, name by name.
    """

    name: str
    frame: pd.DataFrame
    marked: Sequence[str] = ()
    notes: Sequence[str] = ()
    provenance: Mapping[str, Any] | None = None


def study_report(
    models: Sequence[ModelPart],
    claims: ClaimsTable | str,
    *,
    late: pd.DataFrame,
    rules: str,
    facts: Mapping[str, Any],
    token_views: Sequence[PageFragment] = (),
    geometry: pd.DataFrame | None = None,
) -> str:
    """The page of a study as text: it fetches nothing, and holds every number once.

    Claims, tables and methods are there without a script; figures are drawn in the browser.

    Args:
        models: at least one.
        claims: verdicts; or why there are none.
        late: early planes against late-fitted ones, as `tl_aniso.study.claims.late_fitted_table` has them.
        rules: by which rules it was judged.
        facts: what the whole study has in common, name by name.
        token_views: shown after the figures.
        geometry: rows about local geometry and frequency (C6 to C8), if the study measured them.

    Raises:
        TlAnisoError: frames without the columns of a study's table, or with rows that come twice.
    """
    whole = pd.concat([model.frame for model in models], ignore_index=True)
    packed = embed(whole)
    table = claims if isinstance(claims, ClaimsTable) else None
    measured = list(dict.fromkeys(str(name) for name in whole["control"]))
    unnamed = [name for name in whole["measure"].unique() if name not in MEASURES]
    shown = table.controls["control"].dropna() if table is not None else ()
    named = dict.fromkeys([*shown, *(name for name in measured if name != "none")])
    header = {
        **packed.header,
        "names": {
            "controls": {visible(name): visible(control_name(name)) for name in measured},
            "measures": {**MEASURES, **{visible(name): visible(name) for name in unnamed}},
            "units": _UNITS,
            "panels": list(PANELS),
        },
        "hues": list(COLOURS),
        "wanted": _wanted(packed.header),
    }
    drawn = None if geometry is None or geometry.empty else embed_geometry(geometry)
    template = environment().get_template("study.html")
    return template.render(
        claims=[] if table is None else read_claims(table),
        fault="" if table is not None else str(claims),
        notes=() if table is None else reader_notes(table),
        late=late_rows(late),
        rules=rules,
        models=[_model(model) for model in models],
        facts=[(name, spelled(value)) for name, value in facts.items()],
        controls=[(control_name(name), control_words(name)) for name in named if control_words(name)],
        figures=_FIGURES,
        header=embedded_json(header),
        numbers=[Markup(text) for text in packed.texts],
        plotly=plotly_deflated("heatmap"),
        token_views=[view.fragment for view in token_views],
        scripts=list(dict.fromkeys(view.script for view in token_views)),
        styles=list(dict.fromkeys(view.css for view in token_views)),
        geometry=None if drawn is None else embedded_json(drawn.header),
        geometry_numbers=None if drawn is None else Markup(drawn.text),
        geometry_table=None if drawn is None else geometry_table(geometry),
        n_rows=len(whole),
    )


def _model(model: ModelPart) -> dict[str, Any]:
    rows = model.frame.reset_index(drop=True)
    energy, isotropy = _or_none(energy_values, rows), _or_none(isotropy_values, rows)
    tables = [] if energy is None else list(energy_tables(energy))[:1]
    tables += [] if isotropy is None else [isotropy_table(isotropy)]
    return {
        "name": model.name,
        "marked": model.marked,
        "notes": model.notes,
        "reading": None if energy is None and isotropy is None else read_values(rows, energy, isotropy),
        "about": "" if energy is None else main_panel(energy),
        "tables": tables,
        "methods": methods_of(rows),
        "provenance": [(str(name), spelled(value)) for name, value in (model.provenance or {}).items()],
    }


def _wanted(header: Mapping[str, Any]) -> dict[str, str]:
    """What a page shows first: R of the weight gradients of the first model's readers, where there are any."""
    blocks = [block for block in header["blocks"] if block["model"] == 0]
    block = next((block for block in blocks if block["gradient"] == "weight"), blocks[0])
    found = {"model": "0", "gradient": block["gradient"], "unit": block["unit"]}
    measures = [name for name in ("r_energy", "energy_share", "isoscore_star") if name in block["series"]]
    groups = [name for name in PANELS if name in block["groups"]]
    if measures:
        found["measure"] = measures[0]
    if groups:
        found["sites"] = f"group:{groups[0]}"
    return found


def _or_none(read: Any, frame: Any) -> Any:
    try:
        return read(frame)
    except UndefinedMeasureError:
        return None
