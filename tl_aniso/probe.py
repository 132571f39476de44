"""Checkpoints captured and measured as a model trains, in planes of its own early steps."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int64
from transformers import PreTrainedModel

from tl_aniso.capturing import Capture, capture
from tl_aniso.capturing.sums import HALVES
from tl_aniso.errors import TlAnisoError
from tl_aniso.questions import ablation_isotropy, tangent_energy
from tl_aniso.results import TangentEnergy
from tl_aniso.subspace import TangentProxies, fit_tangent_proxies
from tl_aniso.text import document_hash, half_of

__all__ = ["EARLY_FRACTION", "Probe"]

# Early is the first 30% of the steps, as in arXiv:2604.08764.
EARLY_FRACTION = 0.3


@dataclass
class Probe:
    """Captures checkpoints as they come; those before the planes are frozen wait as snapshots.

    Planes are fitted on half A of the documents, at the early steps that `fits_at` chooses, and frozen; everything is
    measured on half B.

    Attributes:
        documents: ids of measured documents, of both halves.
        early_until: the last step whose activations planes may be fitted on.
        batch_size: sequences in a batch of a capture.
        tokens_a_step: tokens that a step trains on.
        name: of the model.
        seed: of training; names the run, and draws permuted labels and masks.
        options: further options of `capture`, such as ``objective``.
        fits_at: which early steps planes are fitted on; None for every one that comes.
        measures_at: which steps are measured; None for every one that comes.
        on_measure: called with a step before it is measured.
    """

    documents: Iterable[Int64[np.ndarray, " length"]]
    early_until: float
    batch_size: int
    tokens_a_step: int
    name: str
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    fits_at: frozenset[int] | None = None
    measures_at: frozenset[int] | None = None
    on_measure: Callable[[int], object] | None = None
    proxies: TangentProxies | None = field(default=None, init=False)
    energies: dict[int, TangentEnergy] = field(default_factory=dict, init=False)
    frames: list[pd.DataFrame] = field(default_factory=list, init=False)
    notes: dict[str, None] = field(default_factory=dict, init=False)
    _early: list[Capture] = field(default_factory=list, init=False)
    _waiting: list[tuple[int, PreTrainedModel]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        documents = list(self.documents)
        self._halves = {half: [ids for ids in documents if half_of(document_hash(ids)) == half] for half in HALVES}

    def checkpoint(self, step: int, model: PreTrainedModel) -> None:
        """Take the model as it is at a step; steps come in order."""
        if step <= self.early_until:
            if self.fits_at is None or step in self.fits_at:
                self._early.append(capture(model, self._halves["A"], gradients=(), **self._options()))
            if self.measures_at is None or step in self.measures_at:
                self._waiting.append((step, copy.deepcopy(model)))
            return
        self.freeze()
        if self.measures_at is None or step in self.measures_at:
            self._measure(step, model)

    def freeze(self) -> TangentProxies:
        """Fit the planes on the early checkpoints, then measure those that waited; once.

        Raises:
            TlAnisoError: no early checkpoint came.
        """
        if self.proxies is None:
            if not self._early:
                raise TlAnisoError(
                    "no checkpoint lies in the first 30% of the steps, so there is nothing to fit planes on"
                )
            self.proxies = fit_tangent_proxies(self._early)
            for step, model in self._waiting:
                self._measure(step, model)
            self._waiting.clear()
        return self.proxies

    def frame(self) -> pd.DataFrame:
        """Every row of every checkpoint, in the order of steps."""
        return pd.concat(self.frames, ignore_index=True).sort_values("step", kind="stable", ignore_index=True)

    def _measure(self, step: int, model: PreTrainedModel) -> None:
        if self.on_measure is not None:
            self.on_measure(step)
        held = capture(
            model,
            self._halves["B"],
            proxies=self.proxies,
            extra_passes=("shuffled_labels",),
            pooled="effect",
            seed=self.seed,
            **self._options(),
        ).labelled(
            name=self.name,
            revision=f"seed {self.seed}",
            step=step,
            tokens_seen=step * self.tokens_a_step,
        )
        energy = tangent_energy(held, proxies=self.proxies, gradients=("activation", "weight"))
        isotropy = ablation_isotropy(held, proxies=self.proxies, gradients=("none", "activation", "weight"))
        self.notes.update(dict.fromkeys((*energy.notes, *isotropy.notes)))
        self.energies[step] = energy
        frame = pd.concat([energy.frame, isotropy.frame], ignore_index=True)
        frame["phase"] = "early" if step <= self.early_until else "late"
        self.frames.append(frame)

    def _options(self) -> dict[str, Any]:
        return {"progress": False, "batch_size": self.batch_size, **self.options}
