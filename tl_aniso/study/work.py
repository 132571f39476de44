"""What one task of a study does: a capture, a fit, or the rows of a capture. Each fills one directory of the store."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from tl_aniso.capturing import Capture, capture
from tl_aniso.capturing.bind import bind, check_finite
from tl_aniso.capturing.plan import available_sites
from tl_aniso.controls import ControlPlanes, fit_control_planes, reinitialised
from tl_aniso.controls.names import CLOSED_FORMS, LABEL_PASSES, LATE_FITTED, PERMUTED_TOKENS, PLANE_CONTROLS
from tl_aniso.errors import TlAnisoError
from tl_aniso.questions.control_planes import fitting_sites
from tl_aniso.sites import select_sites
from tl_aniso.study.checkpoints import Checkpoint, tokenizer_id
from tl_aniso.study.config import StudyConfig
from tl_aniso.study.planes_files import load_planes, save_planes
from tl_aniso.study.prints import write_print
from tl_aniso.subspace import TangentProxies, fit_tangent_proxies

__all__ = ["Planes", "Subject", "fit_planes", "read_planes", "take_fitting", "take_measured", "take_untrained"]

Documents = Sequence[Int64[np.ndarray, " length"]]
CAPTURE = "capture"
_EARLY, _LATE, _CONTROLS, _PLACES = "early", "late", "controls", "places.json"


@dataclass(frozen=True, eq=False)
class Subject:
    """A checkpoint and the documents that it reads.

    Attributes:
        checkpoint: loaded by the task.
        tokenizer: `tokenizer_id` of what made the ids.
        fitted_on: documents of half A.
        measured_on: documents of half B.
        config: of the study.
    """

    checkpoint: Checkpoint
    tokenizer: str
    fitted_on: Documents
    measured_on: Documents
    config: StudyConfig

    def load(self) -> tuple[Any, Any]:
        """Model and tokenizer; None for a tokenizer where the text came as ids.

        Raises:
            TlAnisoError: a checkpoint with another tokenizer than the one that froze the text.
        """
        loaded = self.checkpoint.load()
        model = _moved(loaded.model, self.config.device)
        found = tokenizer_id(loaded.tokenizer)
        if self.tokenizer == "ids":
            return model, None
        if found != self.tokenizer:
            raise TlAnisoError(
                f"{self.checkpoint.name} comes with another tokenizer ({found}) than the one that made the text into "
                f"ids ({self.tokenizer}), so it would read other tokens; study it as a model of its own"
            )
        return model, loaded.tokenizer

    @property
    def options(self) -> dict[str, Any]:
        """What every capture of the study shares."""
        config = self.config
        return {
            "objective": config.objective,
            "seq_len": config.seq_len,
            "batch_size": config.batch_size,
            "n_shards": config.n_shards,
            "dtype": config.dtype,
            "seed": config.seed,
            "progress": False,
        }


@dataclass(frozen=True, eq=False)
class Planes:
    """Frozen planes of a model.

    Attributes:
        early: tangent proxies of the early checkpoints, which everything is measured in.
        late: of the late ones; None without that control.
        controls: planes that other controls compare with, those of the late checkpoints among them.
    """

    early: TangentProxies
    late: TangentProxies | None
    controls: ControlPlanes


def _moved(model: Any, device: str | None) -> Any:
    """A model where it is to run; one that was spread over several devices stays there."""
    if device is None or len({parameter.device for parameter in model.parameters()}) > 1:
        return model
    return model.to(device)


def take_fitting(place: Path, subject: Subject) -> None:
    """Run half A forward: the activations that planes are fitted on."""
    model, tokenizer = subject.load()
    asked, layout = subject.config.all_controls, bind(model)
    # A pass forward looks at the rows of its sites alone, which weights behind them do not reach.
    check_finite(layout)
    known = available_sites(layout, heads=False)
    sites, chosen = subject.config.sites, select_sites(subject.config.sites, known)
    held = capture(
        model,
        subject.fitted_on,
        gradients=(),
        extra_passes=[PERMUTED_TOKENS] if PERMUTED_TOKENS in asked else (),
        # The control other_layer also needs the planes that it compares with.
        sites=None if sites is None else fitting_sites(layout, sites, chosen, asked, "own"),
        tokenizer=tokenizer,
        **subject.options,
    )
    _checked(held, "A").save(place / CAPTURE)
    places = sorted({layout.canonical(layout.proxy_site(site, "own")) for site in chosen})
    (place / _PLACES).write_text(json.dumps(places), encoding="utf-8")


def take_measured(place: Path, subject: Subject, planes: Path) -> None:
    """Run half B forward and backward, and project its gradients on the frozen planes."""
    model, tokenizer = subject.load()
    write_print(place, model, subject.checkpoint.name)
    found, asked = read_planes(planes), subject.config.all_controls
    held = capture(
        model,
        subject.measured_on,
        gradients=subject.config.gradients,
        proxies=found.early,
        planes=found.controls if len(found.controls) else None,
        controls=[name for name in CLOSED_FORMS if name in asked],
        extra_passes=[name for name in LABEL_PASSES if name in asked],
        sites=subject.config.sites,
        pooled="effect",
        tokenizer=tokenizer,
        **subject.options,
    )
    _checked(held, "B").save(place / CAPTURE)


def take_untrained(place: Path, subject: Subject, rank: int | None) -> None:
    """Measure the same architecture with new random weights, in planes of its own."""
    model, tokenizer = subject.load()
    twin = reinitialised(model, seed=subject.config.seed)
    shared = {**subject.options, "tokenizer": tokenizer}
    sites = subject.config.sites
    fitted = capture(twin, subject.fitted_on, gradients=(), sites=sites, **shared)
    held = capture(
        twin,
        subject.measured_on,
        gradients=subject.config.gradients,
        proxies=fit_tangent_proxies(fitted, rank),
        controls=(),
        sites=sites,
        pooled="none",
        **shared,
    )
    _checked(held, "B").save(place / CAPTURE)


def fit_planes(
    place: Path,
    early: Sequence[tuple[Path, dict[str, Any]]],
    late: Sequence[tuple[Path, dict[str, Any]]],
    config: StudyConfig,
) -> None:
    """Fit and keep the planes of a model.

    Args:
        place: to write them to.
        early: directories of fitting captures, each with the fields of `Capture.labelled`.
        late: alike; empty for no late-fitted planes.
        config: of the study.
    """
    rank = max(config.rank) if config.rank else None
    captures = [Capture.load(path / CAPTURE, lazy=True).labelled(**labels) for path, labels in early]
    proxies = fit_tangent_proxies(captures, rank)
    proxies.save(place / _EARLY)
    asked = [name for name in PLANE_CONTROLS if name in config.all_controls]
    places = json.loads((early[0][0] / _PLACES).read_text(encoding="utf-8"))
    needed = dict.fromkeys(proxies[place].site for place in places if place in proxies)
    controls = fit_control_planes(captures, proxies, asked, sites=needed, seed=config.seed, strict=config.strict)
    del captures
    columns = {name: dict(sites) for name, sites in controls.items()}
    if late:
        others = fit_tangent_proxies(
            [Capture.load(path / CAPTURE, lazy=True).labelled(**labels) for path, labels in late], rank
        )
        others.save(place / _LATE)
        columns[LATE_FITTED] = {site: others[site].basis for site in proxies if site in others}
    save_planes(ControlPlanes(columns, variance=controls.variance, notes=controls.notes), place / _CONTROLS)


def read_planes(place: Path) -> Planes:
    """What `fit_planes` wrote."""
    late = TangentProxies.load(place / _LATE) if (place / _LATE).is_dir() else None
    return Planes(TangentProxies.load(place / _EARLY), late, load_planes(place / _CONTROLS))


def _checked(held: Capture, half: str) -> Capture:
    """Refuse ids that a model reads otherwise than they were frozen: another hash may put a document in the other half.

    Raises:
        TlAnisoError: documents of the other half.
    """
    halves = held.facts["text"]["halves"]
    other = [document for document, found in halves.items() if found != half]
    if other:
        raise TlAnisoError(
            f"document {other[0][:16]}... changed its half while it was read ({len(other)} of {len(halves)} did): its "
            "ids begin with more than one BOS; write one at most"
        )
    return held
