"""One document alone, padded on either side, and in a mixed batch: by the model itself, and by the library."""

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from tl_aniso.capturing.hooks import tapped
from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.run import capture
from tl_aniso.capturing.store import Capture
from tl_aniso.doctor.check import Check
from tl_aniso.doctor.delivery import Listener
from tl_aniso.doctor.subject import Subject, evaluating, logits_of, padded, relative, spread
from tl_aniso.sites import residual_site
from tl_aniso.subspace import TangentProxies, TangentProxy
from tl_aniso.text import document_hash, shard_of

__all__ = ["check_left_padding", "check_library", "check_right_padding"]

_RANK = 4


def check_right_padding(subject: Subject) -> Check:
    """What stands behind a document changes nothing before it: on this every batch of the library relies."""
    name, layout = "no token sees what comes after it", subject.layout
    ids, own = subject.documents[0][: layout.context // 2], len(subject.documents[0][: layout.context // 2])
    behind = [i for other in subject.documents[1:] for i in other][:16] or [0] * 16
    room = min(16, layout.context - own)
    with evaluating(layout):
        alone = logits_of(layout, torch.tensor([ids]))[0]
        zeros = logits_of(layout, torch.tensor([ids + [0] * room]))[0, :own]
        words = logits_of(layout, torch.tensor([ids + (behind * 16)[:room]]))[0, :own]
    error = max(spread(zeros, alone), spread(words, alone))
    if error > subject.tolerance:
        return Check(
            name,
            "fail",
            f"{room} tokens behind a document move its logits by {error:.2g} of their deviation: attention is not "
            "causal, and no mask is passed",
            "load a causal decoder, or take out what makes it look ahead",
        )
    return Check(
        name,
        "pass",
        f"{room} tokens behind a document, pads or words, move its logits by {error:.1g} of their deviation",
    )


def check_left_padding(subject: Subject) -> Check:
    """What the model itself makes of a batch padded on the left; the library never pads there."""
    name, layout = "the model's own left padding", subject.layout
    documents = tuple(ids[: layout.context] for ids in sorted(subject.documents, key=len)[:3])
    extra = min(5, layout.context - max(map(len, documents)))
    fill, first = _positions(layout)
    ids, mask = padded(documents, left=True, fill=fill, extra=extra)
    positions = (mask.cumsum(1) - 1).clamp(min=0) + first
    outcomes: dict[str, float] = {}
    for label, inputs in (
        ("with the mask alone", {"attention_mask": mask.long()}),
        ("with mask and position ids", {"attention_mask": mask.long(), "position_ids": positions}),
    ):
        with evaluating(layout):
            try:
                batch = logits_of(layout, ids, **inputs)
            except TypeError:  # this class takes no position ids
                continue
            outcomes[label] = max(
                spread(batch[row][mask[row].to(batch.device)], logits_of(layout, torch.tensor([document]))[0])
                for row, document in enumerate(documents)
            )
    said = "; ".join(f"{label} logits move by {error:.1g} of their deviation" for label, error in outcomes.items())
    if outcomes and max(outcomes.values()) <= subject.tolerance:
        return Check(name, "pass", said)
    return Check(
        name,
        "info",
        f"{said}. The library always pads on the right, so its numbers do not depend on this",
        "in code of your own: pad on the right, or pass position ids",
    )


def _positions(layout: Layout) -> tuple[int, int]:
    """What an encoder is padded with, and the number of its first position: RoBERTa counts behind the id of the pad."""
    if layout.attends == "causal":
        return 0, 0
    pad = getattr(getattr(layout.root, "config", None), "pad_token_id", None)
    tables = [
        module.padding_idx
        for label, module in layout.root.named_modules()
        if "position_embeddings" in label and isinstance(module, nn.Embedding)
    ]
    skipped = next((idx for idx in tables if idx is not None), None)
    return pad if isinstance(pad, int) else 0, 0 if skipped is None else int(skipped) + 1


@dataclass(frozen=True)
class _Places:
    """Sites in the first, middle and last layer, and proxies for them."""

    residuals: tuple[str, ...]
    weights: tuple[str, ...]
    proxies: TangentProxies


def check_library(subject: Subject) -> Check:
    """Rows and per-sequence energies of one document, whatever stands beside it and on whichever side pads are."""
    name = "a document's numbers do not depend on its batch"
    documents = tuple(sorted(subject.of_one_half(), key=len))
    mine, longest = documents[0], documents[-1]
    places = _places(subject)
    errors: dict[str, tuple[float, str]] = {"rows in a mixed batch": _row_errors(subject, documents, places)}
    alone = _energies(subject, [mine], places)
    fill = 1 if mine[0] != 1 else 2
    for label, left in (("energies, padded right", False), ("energies, padded left", True)):
        ids, mask = padded((mine,), left=left, fill=fill, extra=max(1, len(longest) - len(mine)))
        given = {"input_ids": ids, "attention_mask": mask.long()}
        errors[label] = _energy_errors(_energies(subject, given, places), alone, mine, places)
    together = _energies(subject, list(documents), places, batch_size=len(documents))
    errors["energies in a mixed batch"] = _energy_errors(together, alone, mine, places)
    table = (
        ("compared with the document alone", "largest relative error", "at"),
        *((label, f"{error:.1g}", site) for label, (error, site) in errors.items()),
    )
    worst = max(errors, key=lambda label: errors[label][0])
    error, site = errors[worst]
    said = f"{len(mine)} tokens alone, padded right, padded left, and beside {len(documents) - 1} longer documents"
    if error > subject.tolerance:
        return Check(
            name,
            "fail",
            f"{worst} differ from those of the document alone by {error:.2g} at {site}",
            "a layer that mixes the rows of a batch, or looks ahead; if the model is stock, please report this",
            table,
        )
    return Check(name, "pass", f"{said}: rows and energies agree to {error:.1g}", table=table)


def _places(subject: Subject) -> _Places:
    layout = subject.layout
    residuals, weights, spaces = [], [], []
    for number, layer in enumerate(subject.layers):
        readers, writers = subject.readers(layer), subject.writers(layer)
        chosen = (readers[number % len(readers)], writers[number % len(writers)])
        residuals.append(residual_site(layer, "pre"))
        weights += [matrix.sites[0] for matrix in chosen]
        spaces += [matrix.activation for matrix in chosen]
    residuals.append(residual_site(subject.layers[-1], "post"))
    generator = torch.Generator().manual_seed(0)
    rank = min(_RANK, max(1, layout.d_model // 2))
    proxies = []
    for site in dict.fromkeys((*residuals, *spaces)):
        basis, _ = torch.linalg.qr(torch.randn(layout.d_model, rank, generator=generator, dtype=torch.float64))
        # Any fixed plane will do: it is asked whether a number repeats, not what it means.
        proxies.append(TangentProxy(site, PCA(rank), basis, True, rank, {}))
    return _Places(tuple(residuals), tuple(weights), TangentProxies(proxies))


class _Rows(Listener):
    """Keeps the rows of a few residual sites."""

    def __init__(self, wanted: tuple[str, ...]) -> None:
        super().__init__()
        self.wanted = wanted
        self.rows: dict[str, Tensor] = {}

    def residual(self, site: str, value: Tensor) -> None:
        """Keep it, if it is wanted."""
        if site in self.wanted:
            self.rows[site] = value.float().clone()


def _row_errors(subject: Subject, documents: tuple[list[int], ...], places: _Places) -> tuple[float, str]:
    """The largest error of a document's rows over residual sites and documents, right-padded in one batch."""
    batch = _rows(subject, documents, places)
    worst = (0.0, places.residuals[0])
    for row, document in enumerate(documents):
        alone = _rows(subject, (document,), places)
        for site, value in alone.items():
            worst = max(worst, (relative(batch[site][row, : len(document)], value[0]), site))
    return worst


def _rows(subject: Subject, documents: tuple[list[int], ...], places: _Places) -> dict[str, Tensor]:
    listener = _Rows(places.residuals)
    ids, mask = padded(documents, left=False)
    nothing: frozenset[str] = frozenset()
    with tapped(subject.layout, listener, gradients=False, matrices=nothing, residuals=nothing) as tap:
        tap.forward(ids.to(subject.layout.device), mask.to(subject.layout.device))
    return listener.rows


def _energies(subject: Subject, text: Any, places: _Places, *, batch_size: int = 1) -> Capture:
    return capture(
        subject.model,
        text,
        proxies=places.proxies,
        sites=[*places.residuals, *places.weights],
        objective=subject.objective,
        n_shards=_n_shards(text),
        batch_size=batch_size,
        progress=False,
    )


def _n_shards(text: Any) -> int:
    """As many shards as give every document one of its own, so that energies can be read sequence by sequence."""
    digests = [document_hash(ids) for ids in text] if isinstance(text, list) else []
    return next(n for n in range(64, 1025) if len({shard_of(digest, n) for digest in digests}) == len(digests))


def _energy_errors(found: Capture, alone: Capture, document: list[int], places: _Places) -> tuple[float, str]:
    """The largest error over sites and controls of one document's energies, relative to its whole energy."""
    digest = document_hash(document)
    worst = (0.0, places.weights[0])
    controls = ("none", *alone.metadata["options"]["controls"])
    asked: list[tuple[Any, str, str]] = [("weight_gradient", site, c) for site in places.weights for c in controls]
    asked += [("activation_gradient", site, "none") for site in places.residuals]
    for kind, site, control in asked:
        numbers = []
        for capture_ in (found, alone):
            energies = capture_.energies(kind, site, control=control)
            if energies is None:
                return float("inf"), f"{site}, which gave none"
            numbers.append(energies.sum(0)[shard_of(digest, energies.shape[1])])
        named = site if control == "none" else f"{site}, control {control}"
        worst = max(worst, (relative(numbers[0], numbers[1]), named))
    return worst
