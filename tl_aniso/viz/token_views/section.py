"""The tokens of a study as views of its page: coloured texts, and what a few tangent directions are about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from tl_aniso.token_views.shares import ShareSeries, TokenShares
from tl_aniso.viz.html import environment, source
from tl_aniso.viz.style import number
from tl_aniso.viz.token_views.parts import token_view_parts
from tl_aniso.viz.token_views.text import shown

__all__ = ["TokenFragment", "TokenPart", "fitted_sections", "token_sections"]

_QUANTITY = "weight gradient"
_DISTANT = 60  # characters of context that are shown at most on each side


@dataclass(frozen=True, eq=False)
class TokenPart:
    """What a page shows of single tokens at one checkpoint of one model.

    Attributes:
        model: name of the model.
        checkpoint: name of the checkpoint, with its phase.
        shares: of the coloured tokens, if there are any.
        top: rows as of `tl_aniso.token_views.TopTokens.frame`.
        lens: rows as of `tl_aniso.token_views.Lens.frame`.
        n_rows: site -> rows among which the farthest were looked for.
        notes: what a reader must know.
    """

    model: str
    checkpoint: str
    shares: TokenShares | None
    top: Sequence[Mapping[str, Any]] = ()
    lens: Sequence[Mapping[str, Any]] = ()
    n_rows: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


class TokenFragment(NamedTuple):
    """As `tl_aniso.viz.study_page.PageFragment` asks for it."""

    fragment: Markup
    script: Markup
    css: Markup


def token_sections(parts: Sequence[TokenPart], notes: Sequence[str] = ()) -> list[TokenFragment]:
    """Views of single tokens, one a checkpoint, the first one open; before them what they are, and the notes.

    Every token is shown as text, whatever it holds, and isolated from the direction of writing around it.
    """
    templates = environment()
    intro, template = (templates.get_template(name) for name in ("tokens_intro.html", "directions.html"))
    found = [TokenFragment(Markup(intro.render(notes=notes)), Markup(""), source("directions.css"))]
    for place, part in enumerate(parts):
        title = f"{part.model}, {part.checkpoint}"
        view = None
        if part.shares is not None:
            view = token_view_parts(part.shares, label=f"Tokens of {title}", name=f"tokens-{place + 1}")
        fragment = template.render(
            title=title,
            opened=place == 0,
            view=None if view is None else view.fragment,
            tables=_tables(part),
            notes=part.notes,
        )
        empty = Markup("")
        found.append(
            TokenFragment(Markup(fragment), empty if view is None else view.script, empty if view is None else view.css)
        )
    return found


def fitted_sections(parts: Sequence[TokenPart], notes: Sequence[str] = (), *, over: int) -> list[TokenFragment]:
    """Views that take `over` bytes less than all that there is, and a note that says what was left out.

    In this order, until it fits: weights, all but eight layers of each place, all but the last checkpoint of each
    model, everything.
    """
    kept, said = list(parts), list[str]()
    found = token_sections(kept, notes)
    most = _size(found) - over
    for words, less in _LESS:
        if _size(found) <= most:
            break
        kept = less(kept)
        said.append(words)
        note = f"For the size of this page, left out: {'; '.join(said)}. The study's directory has all of it."
        found = token_sections(kept, [*notes, note])
    return found


def _size(found: Sequence[TokenFragment]) -> int:
    once = {text for part in found for text in (part.script, part.css)}
    return sum(len(text.encode("utf-8", "replace")) for text in (*(part.fragment for part in found), *once))


def _without_weights(parts: Sequence[TokenPart]) -> list[TokenPart]:
    def rest(shares: TokenShares) -> TokenShares:
        left = tuple(one for one in shares.series if one.quantity != _QUANTITY)
        return replace(shares, series=left or shares.series[:1])

    return [part if part.shares is None else replace(part, shares=rest(part.shares)) for part in parts]


def _few_layers(parts: Sequence[TokenPart], most: int = 8) -> list[TokenPart]:
    def thin(one: ShareSeries) -> ShareSeries:
        n = len(one.sites)
        rows = sorted({round(i * (n - 1) / (most - 1)) for i in range(most)}) if n > most else list(range(n))
        return replace(
            one,
            sites=tuple(one.sites[row] for row in rows),
            layers=tuple(one.layers[row] for row in rows),
            rank=tuple(one.rank[row] for row in rows),
            share={labels: values[rows] for labels, values in one.share.items()},
            energy={labels: values[rows] for labels, values in one.energy.items()},
            sink=one.sink[np.asarray(rows)],
        )

    return [
        part
        if part.shares is None
        else replace(part, shares=replace(part.shares, series=tuple(map(thin, part.shares.series))))
        for part in parts
    ]


def _last_alone(parts: Sequence[TokenPart]) -> list[TokenPart]:
    return list({part.model: part for part in parts}.values())


_LESS: tuple[tuple[str, Callable[[Sequence[TokenPart]], list[TokenPart]]], ...] = (
    ("weights", _without_weights),
    ("all but eight layers of each place", _few_layers),
    ("all but the last checkpoint of each model", _last_alone),
    ("every checkpoint", lambda _: []),
)


def _tables(part: TokenPart) -> list[dict[str, Any]]:
    """One a site: of each direction and end the tokens farthest along it, and the output tokens that it writes."""
    keys = dict.fromkeys((row["site"], row["direction"], row["end"]) for row in (*part.top, *part.lens))
    found: dict[str, dict[str, Any]] = {}
    for site, direction, end in keys:
        key = (site, direction, end)
        at = found.setdefault(site, {"site": site, "n_rows": f"{part.n_rows.get(site, 0):,}", "rows": []})
        at["rows"].append(
            {
                "direction": direction,
                "end": {"+": "+", "-": "\u2212"}.get(end, end),
                "top": [
                    {
                        "before": _context(row["before"], last=True),
                        "token": _name(row),
                        "after": _context(row["after"], last=False),
                        "value": number(row["projection"]),
                    }
                    for row in part.top
                    if (row["site"], row["direction"], row["end"]) == key
                ],
                "lens": [
                    {"token": _name(row), "value": number(row["logit"])}
                    for row in part.lens
                    if (row["site"], row["direction"], row["end"]) == key
                ],
            }
        )
    return list(found.values())


def _name(row: Mapping[str, Any]) -> str:
    """The token's text; with its id where it is a part of a character, which all look alike."""
    text = shown(row["token"])
    return f"{text} #{row['id']}" if "\ufffd" in text else text


def _context(text: str, *, last: bool) -> str:
    """The near end of what stands beside a token; nothing where there is nothing."""
    near = text[-_DISTANT:].lstrip(" ") if last else text[:_DISTANT].rstrip(" ")
    return shown(near, most=None) if near else ""
