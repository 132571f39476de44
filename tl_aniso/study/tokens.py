"""Single tokens of a study: a few documents of half B in the frozen early planes, and what directions are about."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.plan import available_sites
from tl_aniso.errors import ModelError, TlAnisoError
from tl_aniso.sites import UNEMBEDDING, role_of, select_sites
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.phases import Chosen
from tl_aniso.study.work import Subject, read_planes
from tl_aniso.subspace import TangentProxies
from tl_aniso.token_views import TokenShares, lens, token_shares, top_tokens

__all__ = [
    "N_CONTEXT_TOKENS",
    "N_TOKENS",
    "TOKENS",
    "MeasuredTokens",
    "few_documents",
    "read_tokens",
    "take_tokens",
    "token_places",
    "token_sites",
]

TOKENS = "tokens"
# Tokens that are coloured, and those among which the farthest along a direction are looked for, with no gradients.
N_TOKENS, N_CONTEXT_TOKENS = 400, 4000
_N_DIRECTIONS, _N_TOP, _CONTEXT, _N_LENS = 4, 3, 6, 8
_WEIGHTS = ("attn.W_V", "mlp.W_in")
_SHARES, _DIRECTIONS = "shares", "directions.json"


@dataclass(frozen=True, eq=False)
class MeasuredTokens:
    """What `take_tokens` keeps of one checkpoint.

    Attributes:
        shares: of the coloured tokens; None where no site of the study has rows in a plane.
        top: rows as of `tl_aniso.token_views.TopTokens.frame`, of a few directions.
        lens: rows as of `tl_aniso.token_views.Lens.frame`, of the same directions.
        n_rows: site -> rows among which the farthest were looked for.
        notes: what a reader must know.
    """

    shares: TokenShares | None
    top: tuple[dict[str, Any], ...] = ()
    lens: tuple[dict[str, Any], ...] = ()
    n_rows: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def token_places(chosen: Sequence[Chosen], config: StudyConfig) -> list[int]:
    """Which of the measured checkpoints are looked at token by token, by place: the last early one, and the last."""
    if not config.token_views or not chosen:
        return []
    early = [place for place, one in enumerate(chosen) if one.phase == "early"]
    return sorted({*early[-1:], len(chosen) - 1})


def few_documents(
    documents: Sequence[Int64[np.ndarray, " length"]], n_tokens: int
) -> list[Int64[np.ndarray, " length"]]:
    """Documents of about `n_tokens` tokens, and never more, evenly spread over all of them, in their order.

    A first document longer than that is cut.

    Example:
        >>> [len(ids) for ids in few_documents([np.arange(n) for n in (30, 40, 50, 60)], 100)]
        [30, 50]
        >>> [len(ids) for ids in few_documents([np.arange(200)], 100)]
        [100]
    """
    mean = max(1.0, sum(map(len, documents)) / max(1, len(documents)))
    n = min(len(documents), max(1, int(n_tokens / mean)))
    found: list[Int64[np.ndarray, " length"]] = []
    for i in range(n):
        ids = documents[i * len(documents) // n][:n_tokens]
        if sum(map(len, found)) + len(ids) <= n_tokens:
            found.append(ids)
    return found


def token_sites(layout: Layout, config: StudyConfig, proxies: TangentProxies) -> list[str]:
    """The residual stream between blocks, W_V and W_in, where the study measures them; else whatever it measures."""

    def has_plane(site: str) -> bool:
        role = role_of(site)
        if role not in ("residual", "reader", "writer") or site == UNEMBEDDING:
            return False
        place = site if role == "residual" else layout.proxy_site(site, "own")
        return place in proxies or layout.canonical(place) in proxies

    chosen = [s for s in select_sites(config.sites, available_sites(layout, heads=False)) if has_plane(s)]
    if "weight" not in config.gradients:
        chosen = [site for site in chosen if role_of(site) == "residual"]
    stream = [s for s in chosen if role_of(s) == "residual" and not s.endswith("hook_resid_mid")]
    few = [s for s in chosen if s in stream or s.endswith(_WEIGHTS)]
    return few or chosen


def take_tokens(place: Path, subject: Subject, planes: Path) -> None:
    """Measure single tokens in the early planes, true beside shuffled labels; keep their shares and what is farthest.

    A head through which directions are not read linearly leaves the lens out, with a note.
    """
    model, tokenizer = subject.load()
    proxies, layout = read_planes(planes).early, bind(model)
    shared: dict[str, Any] = {**subject.options, "tokenizer": tokenizer}
    sites, notes = token_sites(layout, subject.config, proxies), list[str]()
    if sites:
        text = few_documents(subject.measured_on, N_TOKENS)
        token_shares(model, text, proxies, sites=sites, **shared).save(place / _SHARES)
    else:
        notes.append("no site of this study has rows token by token in a plane of its own")
    held: dict[str, Any] = {"top": [], "lens": [], "n_rows": {}}
    streams = [site for site in layout.residual_sites if site in sites and site in proxies]
    shown = list(dict.fromkeys((streams[len(streams) // 2], streams[-1]))) if streams else []
    if shown:
        text = few_documents(subject.measured_on, N_CONTEXT_TOKENS)
        found = top_tokens(model, text, proxies, sites=shown, n=_N_TOP, context=_CONTEXT, **shared)
        held["top"], held["n_rows"] = _records(found.frame), found.n_rows
        try:
            held["lens"] = _records(lens(model, proxies, sites=shown, n=_N_LENS, tokenizer=tokenizer).frame)
        except ModelError as error:
            notes.append(f"without a lens: {error}")
    # In ASCII: a token's text may hold lone surrogates, which have no bytes in UTF-8.
    (place / _DIRECTIONS).write_text(json.dumps({**held, "notes": notes}, indent=1) + "\n", encoding="ascii")


def read_tokens(place: Path) -> MeasuredTokens:
    """Read what `take_tokens` wrote.

    Raises:
        TlAnisoError: it is not there, or not as it was written.
    """
    try:
        held = json.loads((place / _DIRECTIONS).read_text(encoding="ascii"))
        shares = TokenShares.load(place / _SHARES) if (place / _SHARES).is_dir() else None
        return MeasuredTokens(
            shares, tuple(held["top"]), tuple(held["lens"]), dict(held["n_rows"]), tuple(held["notes"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TlAnisoError(f"cannot read the token views in {place}: {error!r}") from error


def _records(frame: Any) -> list[dict[str, Any]]:
    few = frame[frame["direction"] < _N_DIRECTIONS]
    return [dict(record) for record in few.to_dict("records")]
