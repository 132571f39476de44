"""Run a model over a text and measure, token by token, what lies in tangent planes."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.prepare import find_tokenizer
from tl_aniso.capturing.token_rows import RowPass, TokenRows, plan_rows
from tl_aniso.checks import as_names, known_options
from tl_aniso.errors import TlAnisoError
from tl_aniso.sites import EMBEDDING, UNEMBEDDING, layer_of, output_site, role_of, select_sites
from tl_aniso.subspace import TangentProxies, TangentProxy
from tl_aniso.token_views.names import token_texts
from tl_aniso.token_views.shares import ShareSeries, TokenShares

__all__ = ["mean_of", "same_width", "token_shares"]

_NUMBER = re.compile(r"^blocks\.\d+\.")


def token_shares(
    model: Any,
    text: Any,
    proxies: TangentProxies,
    *,
    sites: str | Sequence[str] | None = None,
    basis: str = "own",
    labels: str | Sequence[str] = ("true", "shuffled"),
    tokenizer: Any = None,
    **options: Any,
) -> TokenShares:
    """Share of each token's rows in tangent planes, site by site: of activations and of both kinds of gradient.

    * An activation h: ``|Q^T (h - m)|^2 / |h - m|^2``, m the mean of the proxy where the proxy is centred.
    * An activation gradient g at a residual site: ``|Q^T g|^2 / |g|^2``.
    * A weight gradient ``G = sum_t f_t r_t^T`` (`tl_aniso.weight_moments`): of the token's summand, ``|Q^T r_t|^2 /
      |r_t|^2`` with the energy ``|f_t|^2 |r_t|^2``; r is the input of a reader, the output gradient of a writer. The
      mean of these shares, weighted with the energies, is E of the control ``sign_flip`` and not E of G, in which
      summands of different tokens interfere. A reader's share looks at its input alone: labels change its energy.

    A row that is exactly zero, or at a position that no loss reaches, has no share: NaN. Special tokens and sinks have
    one and are flagged. A plane of k directions holds k/d of a row in no particular direction. Method:
    arXiv:2604.08764; ``docs/method.md``, sections 2 to 4, and ``docs/token_views.md``.

    Args:
        model: as of `tl_aniso.capture`.
        text: as of `tl_aniso.capture`.
        proxies: the planes.
        sites: names or patterns of residual sites (activations and their gradients), inputs and outputs (activations)
            and weights; by default all that the proxies answer for. ``unembed.W_U`` has no rows of its own here.
            A block's input is the output of the block before: by default or by a pattern it stands under the latter's
            name alone, ``blocks.0.hook_resid_post`` for ``blocks.1.hook_resid_pre``, and the notes say so; names keep
            both.
        basis: "own" or "residual": which proxy belongs to a weight, as of `tl_aniso.capture`.
        labels: "true" and/or "shuffled": gradients of which targets; "true" comes first in any case.
        tokenizer: the model's tokenizer, found by itself where the text is made of strings; without one, tokens are
            shown by their ids.
        **options: of `tl_aniso.capturing.token_rows.token_rows` (``objective``, ``seq_len``, ``batch_size``, ``half``,
            ``dtype``, ``seed``, ``progress``).

    Returns:
        A `TokenShares`; sequences come in the order of the text.

    Raises:
        TlAnisoError: no site with a proxy, proxies of another width, a proxy whose mean was not kept, and all that
            `token_rows` raises.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso import capture, fit_tangent_proxies
        >>> from tl_aniso.token_views import token_shares
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> documents = torch.randint(3, 40, (20, 24), generator=torch.Generator().manual_seed(0))
        >>> proxies = fit_tangent_proxies(capture(model, documents, gradients=(), progress=False), rank=2)
        >>> shares = token_shares(model, documents[:1], proxies, sites="blocks.*.attn.W_V", progress=False)
        >>> len(shares), [series.place for series in shares.series], shares.series[0].n_missing()
        (24, ['attn.W_V'], 2)
    """
    if not isinstance(proxies, TangentProxies):
        raise TlAnisoError(f"proxies must be TangentProxies, as fit_tangent_proxies returns them, got {proxies!r}")
    wanted = as_names("labels", labels)
    unknown = sorted(set(wanted) - {"true", "shuffled"})
    known_options("token_shares", options, plan_rows, taken=("sites", "gradients", "labels", "exclude", "tokenizer"))
    if unknown:
        raise TlAnisoError(f"labels holds {', '.join(unknown)}; known are true and shuffled")
    layout = bind(model)
    planes = _Planes.of(layout, proxies, sites, basis)
    plan = plan_rows(
        model,
        text,
        sites=planes.sites,
        gradients=planes.residual,
        exclude="sink",
        tokenizer=tokenizer,
        **options,
    )
    if tokenizer is None and plan.prepared.tokenizer != "ids":
        tokenizer = find_tokenizer(model)
    passes = {"true": _ordered(plan, planes)}
    notes = [*_foreign(layout, proxies)]
    if planes.left_out:
        other, same = next(iter(planes.left_out.items()))
        notes.append(
            f"a block's input is the output of the block before, one tensor with two names, and stands under one: "
            f"{other} as {same} (others: {len(planes.left_out) - 1}); name both in sites= to have both"
        )
    if "shuffled" in wanted and plan.chosen.backward:
        if plan.options.losses is not None:
            notes.append(f"labels of the objective {plan.options.objective} are its own business and are not shuffled")
        else:
            passes["shuffled"] = _ordered(dataclasses.replace(plan, shuffled=True), planes)
    first = passes["true"]
    return TokenShares(
        tokens=token_texts(tokenizer, first.ids.tolist()),
        ids=first.ids.numpy(),
        fed=first.fed.numpy(),
        sequence=first.sequence.numpy(),
        position=first.position.numpy(),
        document=first.document,
        special=first.special.numpy(),
        carries=first.carries.numpy(),
        series=tuple(_series(layout, planes, passes)),
        objective=plan.options.objective,
        notes=tuple(notes),
    )


Plane = tuple[Float[Tensor, "d k"], Float[Tensor, " d"] | None]


@dataclass(frozen=True, eq=False)
class _Planes:
    """Which rows are projected on what.

    Attributes:
        sites: to run with.
        residual: residual sites, of which gradients are wanted too.
        activations: activation sites whose own share is wanted.
        weights: weight sites.
        planes: (field of `TokenRows`, site) -> name -> plane; "own" for an activation's share, "weight" for a weight's.
        proxies: site -> its proxy.
        left_out: residual sites with a proxy that are another name of a site measured -> that site.
    """

    sites: tuple[str, ...]
    residual: tuple[str, ...]
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    planes: Mapping[tuple[str, str], Mapping[str, Plane]]
    proxies: Mapping[str, TangentProxy]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, layout: Layout, proxies: TangentProxies, sites: Any, basis: str) -> "_Planes":
        known = (*layout.residual_sites, *layout.matrix_sites, *(s for s in layout.weight_sites if s != UNEMBEDDING))
        named = () if sites is None else as_names("sites", sites)
        chosen = select_sites(None if sites is None else named, known)
        found: dict[str, TangentProxy] = {}
        canonical: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for site in chosen:
            role = role_of(site)
            place = layout.proxy_site(site, basis) if role in ("reader", "writer", "embedding") else site
            place = place if place in proxies or layout.canonical(place) not in proxies else layout.canonical(place)
            if place not in proxies:
                if sites is not None:
                    proxies.at(site, place)  # says which proxies there are
                continue
            same = canonical.get(layout.canonical(site)) if role == "residual" else None
            if same is not None and not (site in named and _one_plane(proxies[place], found[same])):
                left_out[site] = same  # the same tensor, and measured
                continue
            canonical.setdefault(layout.canonical(site), site)
            found[site] = proxies[place]
            same_width(place, found[site], layout)
        if not found:
            raise TlAnisoError(
                f"none of the model's sites has a proxy; there are: {', '.join(proxies)}. Are these proxies of another "
                "model?"
            )
        roles = {site: role_of(site) for site in found}
        weights = tuple(s for s in found if roles[s] in ("reader", "writer", "embedding"))
        planes: dict[tuple[str, str], dict[str, Plane]] = {}
        for site, proxy in found.items():
            basis_ = proxy.basis.to(torch.float32)
            if roles[site] == "reader":
                planes.setdefault(("activations", layout.proxy_site(site)), {})["weight"] = (basis_, None)
            elif roles[site] in ("writer", "embedding"):
                planes.setdefault(("gradients", output_site(site)), {})["weight"] = (basis_, None)
            else:
                place = layout.canonical(site)
                planes.setdefault(("activations", place), {})["own"] = (basis_, mean_of(proxy))
                if roles[site] == "residual":
                    planes.setdefault(("gradients", place), {})["own"] = (basis_, None)
        residual = tuple(s for s in found if roles[s] == "residual")
        activations = tuple(s for s in found if s not in weights)
        return cls(tuple(found), residual, activations, weights, planes, found, left_out)

    def reduce(self, field: str, site: str, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n columns"]:
        """Energy in the plane and of the row, plane by plane; of the other side of a gradient, the latter alone."""
        columns = []
        for basis, mean in self.planes.get((field, site), {}).values():
            centred = rows if mean is None else rows - mean.to(rows.device)
            columns += [(centred @ basis.to(rows.device)).square().sum(1), centred.square().sum(1)]
        return torch.stack(columns or [rows.square().sum(1)], dim=1)

    def energies(self, rows: TokenRows, field: str, place: str, site: str, plane: str) -> Float[Tensor, "n 2"]:
        """What `reduce` made for one plane, found under the name that rows are handed out by."""
        column = 2 * list(self.planes[field, place]).index(plane)
        held: Mapping[str, Tensor] = getattr(rows, field)
        return held[site][:, column : column + 2].double()


def _foreign(layout: Layout, proxies: TangentProxies) -> Iterable[str]:
    """A note where no proxy was fitted on a model of as many blocks and of this family or class.

    Families can be set by hand, and wrappers have classes of their own: either will do.
    """
    held: list[Any] = [proxy.provenance.get("sources") for proxy in proxies.values()]
    models = [s["model"] for sources in held for s in sources or () if isinstance(s.get("model"), Mapping)]
    same = [
        m
        for m in models
        if m.get("n_layers") == len(layout.blocks)
        and (m.get("family") == layout.family or m.get("class") == layout.class_name)
    ]
    if models and not same:
        yield (
            f"proxies of another model? They were fitted on a {models[0].get('class')} of {models[0].get('n_layers')} "
            f"blocks, and this is a {layout.class_name} of {len(layout.blocks)}"
        )


def _one_plane(a: TangentProxy, b: TangentProxy) -> bool:
    mine, theirs = mean_of(a), mean_of(b)
    if mine is None or theirs is None:
        return mine is theirs and torch.equal(a.basis, b.basis)
    return torch.equal(mine, theirs) and torch.equal(a.basis, b.basis)


def same_width(place: str, proxy: TangentProxy, layout: Layout) -> None:
    """Refuse a proxy of another width than the model's.

    Raises:
        TlAnisoError: such a proxy.
    """
    if proxy.d != layout.d_model:
        raise TlAnisoError(
            f"proxies of another model: the proxy at {place} has width {proxy.d}, the model has d_model "
            f"{layout.d_model}"
        )


def mean_of(proxy: TangentProxy) -> Float[Tensor, " d"] | None:
    """The mean that a centred proxy takes off activations, float32; None of one that takes off nothing.

    Raises:
        TlAnisoError: the mean was not kept with the proxy's estimator.
    """
    if not proxy.centred:
        return None
    mean = getattr(proxy.estimator, "mean_", None)
    if mean is None:
        raise TlAnisoError(
            f"the proxy at {proxy.site} is centred, and the mean of its {type(proxy.estimator).__name__} was not kept; "
            "fit it again, or name gradient sites alone"
        )
    return torch.from_numpy(np.array(mean, dtype=np.float32))


def _ordered(plan: RowPass, planes: _Planes) -> TokenRows:
    """All batches as one, sequences in the order of the text."""
    batches = list(plan.iterate(planes.reduce))
    keys = [key for rows in batches for key in zip(rows.document, rows.piece, strict=True)]
    order = {document: place for place, document in enumerate(plan.prepared.sequences.documents)}
    ranked = sorted(range(len(keys)), key=lambda i: (order[keys[i][0]], keys[i][1]))
    new = torch.empty(len(keys), dtype=torch.int64)
    new[torch.tensor(ranked)] = torch.arange(len(keys))
    sequence = new[torch.cat([rows.sequence for rows in batches])]
    by = torch.argsort(sequence, stable=True)

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(parts))[by]

    def by_site(field: str) -> dict[str, Tensor]:
        held: list[Mapping[str, Tensor]] = [getattr(rows, field) for rows in batches]
        return {name: joined(part[name] for part in held) for name in held[0]}

    def listed(field: str) -> tuple[Any, ...]:
        flat = [value for rows in batches for value in getattr(rows, field)]
        return tuple(flat[i] for i in ranked)

    return TokenRows(
        ids=joined(rows.ids for rows in batches),
        fed=joined(rows.fed for rows in batches),
        sequence=sequence[by],
        position=joined(rows.position for rows in batches),
        document=listed("document"),
        piece=listed("piece"),
        shard=listed("shard"),
        half=listed("half"),
        carries=joined(rows.carries for rows in batches),
        special=joined(rows.special for rows in batches),
        kept=by_site("kept"),
        reaches=by_site("reaches"),
        activations=by_site("activations"),
        gradients=by_site("gradients"),
        outputs=by_site("outputs"),
    )


def _series(layout: Layout, planes: _Planes, passes: Mapping[str, TokenRows]) -> Iterable[ShareSeries]:
    groups: dict[tuple[str, str], list[str]] = {}
    for quantity, sites in (
        ("activation", planes.activations),
        ("activation gradient", planes.residual),
        ("weight gradient", planes.weights),
    ):
        for site in sites:
            groups.setdefault((quantity, _NUMBER.sub("", site)), []).append(site)
    for (quantity, place), sites_ in groups.items():
        share: dict[str, np.ndarray] = {}
        energy: dict[str, np.ndarray] = {}
        for labels, rows in passes.items():
            if quantity == "activation" and labels != "true":
                continue
            found = [_shares(layout, planes, rows, quantity, site) for site in sites_]
            share[labels] = np.stack([s for s, _ in found])
            energy[labels] = np.stack([e for _, e in found])
        yield ShareSeries(
            quantity=quantity,
            place=place,
            sites=tuple(sites_),
            layers=tuple(layer_of(site) for site in sites_),
            rank=tuple(planes.proxies[site].rank for site in sites_),
            d=layout.d_model,
            share=share,
            energy=energy,
            sink=np.stack([~passes["true"].kept[site].numpy() for site in sites_]),
        )


def _shares(
    layout: Layout, planes: _Planes, rows: TokenRows, quantity: str, site: str
) -> tuple[np.ndarray, np.ndarray]:
    """Share and energy of every token at one site; NaN where there is no row, or one that is zero."""
    other: Tensor | None = None
    if quantity == "weight gradient":
        reader = role_of(site) == "reader"
        field, name = ("activations", layout.proxy_site(site)) if reader else ("gradients", output_site(site))
        both = planes.energies(rows, field, name, name, "weight")
        other = rows.outputs[site][:, 0].double() if site != EMBEDDING else None
    else:
        field = "activations" if quantity == "activation" else "gradients"
        both = planes.energies(rows, field, layout.canonical(site), site, "own")
    along, total = both[:, 0], both[:, 1]
    energy = total if other is None else total * other
    there = (energy > 0) & (
        rows.reaches[site] if quantity != "activation" else torch.ones_like(energy, dtype=torch.bool)
    )
    nothing = torch.full_like(energy, torch.nan)
    share = torch.where(there, (along / total).clamp(0, 1), nothing)
    return share.float().numpy(), torch.where(there, energy, nothing).float().numpy()
