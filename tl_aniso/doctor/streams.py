"""What the residual stream holds: sinks, and gradients that underflowed to exact zeros."""

import torch
from torch import Tensor

from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.row_filters import SINK_FACTOR
from tl_aniso.capturing.run import capture
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.delivery import Listener
from tl_aniso.doctor.subject import Subject, percent
from tl_aniso.questions.source import MOST_ZEROS

__all__ = ["check_sinks", "check_zeros"]

# d x d sums held while zeros are counted, in bytes: residual sites are skipped evenly until they fit.
_BUDGET = 256 * 2**20


def check_zeros(subject: Subject) -> Check:
    """Share of exact zeros among activation gradients: what underflow leaves."""
    name, layout = "activation gradients are not exactly zero", subject.layout
    sites = list(dict.fromkeys(layout.canonical(site) for site in layout.residual_sites))
    most = max(3, _BUDGET // (2 * 8 * layout.d_model**2))
    chosen = sites[:: -(-len(sites) // most)]
    held = capture(
        subject.model,
        list(subject.documents[:2]),
        sites=chosen,
        objective=subject.objective,
        gradients="activation",
        exclude=(),
        progress=False,
    )
    shares = {site: held.zero_share(site) for site in chosen}
    worst = max(shares, key=lambda site: shares[site])
    most_zeros = f"at most {percent(shares[worst])}" if shares[worst] else "none"
    found = f"{most_zeros} of the entries at {len(chosen)} residual sites" + (f" ({worst})" if shares[worst] else "")
    if shares[worst] > MOST_ZEROS:
        return Check(
            name,
            "warn",
            f"{found}: small gradients underflow, and what is measured of them is only the large ones",
            "convert the model to float32 (model.float()); with saturated or dead layers zeros are the model's own",
            (("residual site", "exact zeros"), *((site, percent(share)) for site, share in shares.items())),
        )
    return Check(name, "pass", found)


class _Norms(Listener):
    """Norms of the rows of every residual site."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: dict[str, Tensor] = {}

    def residual(self, site: str, value: Tensor) -> None:
        """Keep the norms alone."""
        self.norms[site] = value.float().norm(dim=-1)[0].cpu().double()


def check_sinks(subject: Subject) -> Check:
    """Positions whose residual norm exceeds 10 times the median of their document, and what they hold."""
    name, layout = "attention sinks", subject.layout
    energy: dict[str, list[float]] = {}
    places: dict[str, list[tuple[float, str]]] = {}
    first = True
    nothing: frozenset[str] = frozenset()
    for ids in subject.documents:
        listener = _Norms()
        with tapped(layout, listener, gradients=False, matrices=nothing, residuals=nothing) as tap:
            tap.forward(torch.tensor([ids], device=layout.device))
        for site, norms in listener.norms.items():
            median = norms.median()
            beyond = (norms > SINK_FACTOR * median).nonzero()[:, 0].tolist()
            totals = energy.setdefault(site, [0.0, 0.0])
            totals[0] += float(norms[beyond].square().sum())
            totals[1] += float(norms.square().sum())
            for position in beyond:
                token = f"position {position} ({_spelled(subject, ids[position])})"
                places.setdefault(site, []).append((float(norms[position] / median), token))
                first = first and position == 0
    if not places:
        return Check(name, "pass", f"no residual norm exceeds {SINK_FACTOR:g} times the median of its document")
    rows = tuple(
        (
            site,
            f"{len(found)}",
            f"{max(found)[0]:.3g}",
            max(found)[1],
            percent(energy[site][0] / max(energy[site][1], 1e-300)),
        )
        for site, found in places.items()
    )
    largest = max(places, key=lambda site: max(places[site]))
    most = max(places, key=lambda site: energy[site][0] / energy[site][1])
    where = "always the first position" if first else max(places[largest])[1]
    return Check(
        name,
        "info",
        f"at {len(places)} of {len(energy)} residual sites, {where}: up to {max(places[largest])[0]:.3g} times the "
        f"median norm ({largest}), holding up to {percent(energy[most][0] / energy[most][1])} of the energy ({most}); "
        "the filter 'sink', on by default, leaves these rows out",
        "ask for both readings: exclude=() keeps them",
        (("residual site", "sinks", "largest, in medians", "where", "share of energy"), *rows),
    )


def _spelled(subject: Subject, token: int) -> str:
    decode = getattr(subject.tokenizer, "decode", None)
    return repr(decode([token])) if callable(decode) else f"id {token}"
