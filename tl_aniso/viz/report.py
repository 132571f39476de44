"""One page that holds a result: it opens from a file and needs no network, in light and dark, on a phone, on paper."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tl_aniso.errors import TlAnisoError, UndefinedMeasureError
from tl_aniso.viz import figures
from tl_aniso.viz.html import embedded, environment
from tl_aniso.viz.reading import read_frame
from tl_aniso.viz.report_facts import methods_of, spelled
from tl_aniso.viz.report_tables import energy_tables, full_table, isotropy_table
from tl_aniso.viz.style import control_name
from tl_aniso.viz.tables import controls_of, energy_values, isotropy_values, steps_of
from tl_aniso.viz.wording import control_words

__all__ = ["render_page", "write_page", "write_report"]

_PLOTS = {
    "energy": "R, E and excess, true beside every control",
    "map": "By layer and step",
    "isotropy": "IsoScore* before and after removal",
    "loss": "Training loss",
}


def write_report(
    path: str | Path,
    frame: Any,
    *,
    title: str,
    provenance: Mapping[str, Any],
    loss: Sequence[tuple[int, float]] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write a frame as one self-contained HTML page: reading, tables, figures, methods, provenance.

    The page fetches nothing, and forbids itself to. Every string is shown as text, whatever it holds. The file appears
    whole or not at all.

    Args:
        path: Of the file; missing folders above it are made.
        frame: as `TangentEnergy.frame` or `AblationIsotropy.frame` holds it, or both concatenated; of one checkpoint,
            or of several with their column ``step`` set.
        title: Heading of the page.
        provenance: What was measured and how, name by name; nested mappings and sequences are spelled out.
        loss: Training loss as pairs of step and nats a token, if known.
        notes: What a reader must know before the numbers, such as ``.notes`` of the results.

    Returns:
        The path of the file.

    Raises:
        TlAnisoError: `path` is a directory, or the frame does not fit `energy_values`.
        UndefinedMeasureError: the frame holds neither energies nor isotropy.
        OSError: the file cannot be written; an older one is then still there.
    """
    return write_page(path, _page(frame, title, provenance, loss, notes))


def write_page(path: str | Path, page: str) -> Path:
    """Write a page whole or not at all; an older one stays until then.

    Raises:
        TlAnisoError: `path` is a directory.
        OSError: the file cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise TlAnisoError(f"{target} is a directory; give the name of the file to write")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
    try:
        # Lone surrogates, which a token's text may hold, have no bytes in UTF-8.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(page)
        # A temporary file is private; a report gets the mode that any new file would.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _page(frame: Any, title: str, provenance: Mapping[str, Any], loss: Any, notes: Sequence[str]) -> str:
    reading = read_frame(frame)
    tables, whole, drawn = [], None, []
    energy, isotropy = _or_none(energy_values, frame), _or_none(isotropy_values, frame)
    if energy is not None:
        tables, whole = list(energy_tables(energy)), full_table(energy)
        several = len(steps_of(energy)) > 1
        drawn.append(("energy", (figures.energy_by_step if several else figures.energy_by_layer)(frame)))
        if several:
            drawn.append(("map", figures.energy_heat_map(frame)))
    if isotropy is not None:
        several = len(steps_of(isotropy)) > 1
        drawn.append(("isotropy", (figures.isotropy_by_step if several else figures.isotropy_by_layer)(frame)))
    if loss:
        drawn.append(("loss", figures.loss_by_step(loss)))
    return render_page(
        title=title,
        reading=reading,
        notes=notes,
        tables=tables,
        isotropy=None if isotropy is None else isotropy_table(isotropy),
        whole=whole,
        figures=[(name, _PLOTS[name], figure) for name, figure in drawn],
        provenance=provenance,
        frame=frame,
        controls=[] if energy is None else controls_of(energy),
    )


def render_page(
    *,
    title: str,
    reading: Any,
    notes: Sequence[str],
    tables: Sequence[Any],
    isotropy: Any,
    whole: Any,
    figures: Sequence[tuple[str, str, go.Figure]],
    provenance: Mapping[str, Any],
    frame: Any,
    controls: Sequence[str],
) -> str:
    """The page as text, from parts that are made elsewhere.

    Args:
        title: Heading of the page.
        reading: a `tl_aniso.viz.reading.Reading`.
        notes: What a reader must know before the numbers.
        tables: `tl_aniso.viz.report_tables.Table`s, the first shown, the others folded.
        isotropy: A table of isotropy, or None.
        whole: The full table, folded, or None.
        figures: Name, caption and figure.
        provenance: What was measured and how, name by name.
        frame: The frame whose columns say how it was measured.
        controls: Controls that the page explains.
    """
    return (
        environment()
        .get_template("report.html")
        .render(
            title=title,
            reading=reading,
            notes=notes,
            tables=tables,
            isotropy=isotropy,
            whole=whole,
            figures=[_plot(name, caption, figure) for name, caption, figure in figures],
            provenance=[(str(name), spelled(value)) for name, value in provenance.items()],
            methods=methods_of(frame),
            controls=[
                (control_name(control), control_words(control)) for control in controls if control_words(control)
            ],
            plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
        )
    )


def _plot(name: str, caption: str, figure: go.Figure) -> dict[str, Any]:
    # Lists to choose from become ordinary <select>s: they work with a keyboard, a screen reader and a thumb.
    menus = [
        [{"label": button.label, "args": [button.args[0], {}]} for button in menu.buttons]
        for menu in figure.layout.updatemenus
    ]
    figure = go.Figure(figure)
    figure.layout.updatemenus = ()
    # The <select> above the figure already says what a title would.
    figure.layout.title = None
    return {
        "id": f"figure-{name}",
        "caption": caption,
        "height": int(figure.layout.height),
        "label": f"{caption}: {_described(figure)}",
        "options": [_unescaped(button["label"]) for menu in menus for button in menu],
        "json": embedded(plotly.io.to_json(figure, validate=False)),
        "updates": embedded(plotly.io.to_json({"args": [b["args"] for m in menus for b in m]}, validate=False)),
    }


def _described(figure: go.Figure) -> str:
    names = dict.fromkeys(str(trace.name) for trace in figure.data if trace.name)
    shown = ", ".join(_unescaped(name) for name in names) or "a map of cells"
    return f"an interactive figure of {shown}. The tables hold its numbers."


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _or_none(read: Any, frame: Any) -> Any:
    try:
        return read(frame)
    except UndefinedMeasureError:
        return None
