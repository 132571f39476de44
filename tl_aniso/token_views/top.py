"""The tokens, in their context, that lie farthest along each tangent direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from tl_aniso.capturing.prepare import find_tokenizer
from tl_aniso.capturing.token_rows import plan_rows
from tl_aniso.checks import as_integer, as_names, known_options
from tl_aniso.errors import SiteError, TlAnisoError
from tl_aniso.subspace import TangentProxies
from tl_aniso.token_views.measure import mean_of, same_width
from tl_aniso.token_views.names import as_html, token_texts

__all__ = ["TopTokens", "top_tokens"]

KINDS = ("activation", "gradient")


@dataclass(frozen=True, eq=False)
class TopTokens:
    """Tokens at both ends of each direction.

    Attributes:
        frame: one row per site, direction (from 0), end ("+" or "-"; the sign of a direction is arbitrary) and place;
            ``projection`` is the row's coordinate along the direction, ``before`` and ``after`` the tokens around it.
        kind: "activation" or "gradient".
        n_rows: site -> rows that were looked at, after the filters.
    """

    frame: pd.DataFrame
    kind: str
    n_rows: dict[str, int]

    def _repr_html_(self) -> str:
        return as_html(self.frame, ())


def top_tokens(
    model: Any,
    text: Any,
    proxies: TangentProxies,
    *,
    sites: str | Sequence[str],
    kind: str = "activation",
    n: int = 10,
    context: int = 8,
    tokenizer: Any = None,
    **options: Any,
) -> TopTokens:
    """For each tangent direction, the rows with the largest and the smallest coordinate along it.

    Args:
        model: as of `tl_aniso.capture`.
        text: as of `tl_aniso.capture`.
        proxies: the planes; where one is centred, coordinates are from its mean (activations only).
        sites: names or patterns of residual sites, inputs and outputs.
        kind: "activation", or "gradient" at residual sites.
        n: rows at each end.
        context: tokens shown before and after.
        tokenizer: as of `tl_aniso.token_views.token_shares`.
        **options: of `tl_aniso.capturing.token_rows.token_rows`; row filters ("special" and "sink" by default) apply.

    Raises:
        TlAnisoError: a site without a proxy, gradients of other than residual sites, and what `token_rows` raises.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture, fit_tangent_proxies
        >>> from tl_aniso.token_views import top_tokens
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> proxies = fit_tangent_proxies(capture(model, documents, gradients=(), progress=False), rank=2)
        >>> found = top_tokens(model, documents, proxies, sites="blocks.1.attn.input", n=2, progress=False)
        >>> found.frame[["direction", "end", "place"]].values.tolist()[:3]
        [[0, '+', 0], [0, '+', 1], [0, '-', 0]]
    """
    if not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    if kind not in KINDS:
        raise TlAnisoError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    known_options("top_tokens", options, plan_rows, taken=("sites", "gradients", "tokenizer"))
    n, context = as_integer("n", n, least=1), as_integer("context", context, least=0)
    names = as_names("sites", sites)
    plan = plan_rows(
        model,
        text,
        sites=names,
        gradients=names if kind == "gradient" else (),
        tokenizer=tokenizer,
        **options,
    )
    field = "activations" if kind == "activation" else "gradients"
    known = tuple(plan.chosen.activations if kind == "activation" else plan.chosen.gradient_names)
    if plan.chosen.weights:
        raise SiteError(f"{plan.chosen.weights[0]} is a weight; name residual sites, inputs or outputs")
    for site in known:
        same_width(site, proxies.at(site), plan.layout)
    if tokenizer is None and plan.prepared.tokenizer != "ids":
        tokenizer = find_tokenizer(model)
    best: dict[tuple[str, int, str], list[tuple[float, str, int, int]]] = {}
    n_rows = dict.fromkeys(known, 0)
    texts = {(s.document, s.index): s.ids for s in plan.prepared.sequences.sequences}
    for rows in plan.iterate():
        for site in known:
            keep = rows.kept[site].nonzero()[:, 0]
            n_rows[site] += len(keep)
            values = getattr(rows, field)[site][keep]
            mean = mean_of(proxies[site]) if kind == "activation" else None
            along = (values if mean is None else values - mean) @ proxies[site].basis.float()
            for direction in range(along.shape[1]):
                for end, sign in (("+", 1.0), ("-", -1.0)):
                    column = sign * along[:, direction]
                    for place in torch.topk(column, min(n, len(column))).indices.tolist():
                        row = int(keep[place])
                        part = int(rows.sequence[row] - rows.sequence[0])
                        entry = (float(column[place]), rows.document[part], rows.piece[part], int(rows.position[row]))
                        best.setdefault((site, direction, end), []).append(entry)
    table: list[dict[str, Any]] = []
    for (site, direction, end), entries in best.items():
        for place, (value, document, piece, position) in enumerate(sorted(entries, key=lambda e: (-e[0], *e[1:]))[:n]):
            ids = texts[document, piece]
            start, stop = max(0, position - context), position + 1 + context
            around = token_texts(tokenizer, ids[start:stop].tolist())
            table.append(
                {
                    "site": site,
                    "direction": direction,
                    "end": end,
                    "place": place,
                    "id": int(ids[position]),
                    "token": around[position - start],
                    "projection": value if end == "+" else -value,
                    "before": "".join(around[: position - start]),
                    "after": "".join(around[position - start + 1 :]),
                    "document": document,
                    "piece": piece,
                    "position": position,
                }
            )
    return TopTokens(pd.DataFrame(table), kind, n_rows)
