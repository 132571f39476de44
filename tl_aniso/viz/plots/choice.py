"""One figure that holds several of a kind and shows one: the list that chooses, and the title that says which."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from tl_aniso.errors import TlAnisoError
from tl_aniso.viz.style import panel_menu, plain

__all__ = ["add_choice"]


def add_choice(
    figure: go.Figure,
    labels: Sequence[str],
    owners: Sequence[int],
    *,
    titles: Sequence[str] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> None:
    """Show the traces of the first label, and a list that shows those of another.

    Args:
        figure: with as many traces as `owners`.
        labels: what can be chosen, as text.
        owners: of every trace, the number of the label that it belongs to.
        titles: of the figure, by label; the labels themselves by default.
        texts: of the annotations, by label, as plotly takes them.

    Raises:
        TlAnisoError: lengths that differ.
    """
    shown = labels if titles is None else titles
    if (
        len(owners) != len(figure.data)
        or len(shown) != len(labels)
        or (texts is not None and len(texts) != len(labels))
    ):
        raise TlAnisoError(
            f"a choice of {len(labels)} with {len(shown)} titles and {len(owners)} owners does not fit a figure of "
            f"{len(figure.data)} traces"
        )
    updates: list[list[dict[str, Any]]] = []
    for index, title in enumerate(shown):
        layout = {"title.text": plain(title)}
        for at, text in enumerate(texts[index] if texts is not None else ()):
            layout[f"annotations[{at}].text"] = text
        updates.append([{"visible": [owner == index for owner in owners]}, layout])
    for trace, owner in zip(figure.data, owners, strict=True):
        trace.visible = owner == 0
    menu = panel_menu(list(labels), updates)
    for entry in menu:  # right of the title, which stands at the left
        entry.update(x=1, xanchor="right", y=1, yanchor="bottom", pad={"b": 6})
    figure.update_layout(
        title={
            "text": plain(shown[0]),
            "font": {"size": 14},
            "x": 0.01,
            "xanchor": "left",
            "y": 0.985,
            "yanchor": "top",
        },
        updatemenus=menu,
        margin={"t": 84 if menu else 48},
    )
