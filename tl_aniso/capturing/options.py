"""What a user may ask of a capture, checked before anything runs."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.masked_lm import MaskedLM
from tl_aniso.capturing.objective_identity import objective_id
from tl_aniso.capturing.objectives import Losses, check_objective
from tl_aniso.checks import MOST_SEED, as_integer, as_names
from tl_aniso.controls.names import LABEL_PASSES, PERMUTED_TOKENS
from tl_aniso.errors import TlAnisoError, TlAnisoWarning
from tl_aniso.sites import BASES
from tl_aniso.weight_moments import CONTROL_NAMES

__all__ = ["EXTRA_PASSES", "GRADIENTS", "UNITS", "Options", "check_options"]

GRADIENTS = ("activation", "weight")
EXTRA_PASSES = (*LABEL_PASSES, PERMUTED_TOKENS)
UNITS = ("sequence", "batch")
_FILTERS = ("special", "sink", "masked", "unmasked")
# Sinks are a property of a residual value; a weight gradient without them would be no gradient of the loss.
_WEIGHT_FILTERS = ("special", "masked", "unmasked")
# More would be more than documents, and a jackknife leaves out each in turn.
_MOST_SHARDS = 1024
_DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Options:
    """The checked options of one capture; all of them are part of its metadata.

    Attributes:
        objective: name of the loss.
        objective_id: digest of a loss of the user's, which tells it from others of its name.
        losses: the loss itself where it is the user's.
        masked_lm: how tokens are masked, where the loss is of masked tokens.
        heads: whether attention matrices are measured head by head too.
        keep_rows: rows kept of each activation site and half.
    """

    gradients: tuple[str, ...]
    controls: tuple[str, ...]
    extra_passes: tuple[str, ...]
    objective: str
    unit: str
    basis: str
    exclude: tuple[str, ...]
    weight_exclude: tuple[str, ...]
    n_shards: int
    dtype: str
    seed: int
    losses: Losses | None = None
    masked_lm: MaskedLM | None = None
    heads: bool = False
    keep_rows: int = 0
    objective_id: str | None = None

    @property
    def label_passes(self) -> tuple[str, ...]:
        """The extra passes that send a gradient of other targets back; the others run forward on other text."""
        return tuple(name for name in self.extra_passes if name in LABEL_PASSES)

    @property
    def autocast(self) -> torch.dtype | None:
        """The autocast type, None for the weights' own."""
        return _DTYPES[self.dtype]


def check_options(
    layout: Layout,
    *,
    gradients: Any,
    controls: Any,
    extra_passes: Any,
    objective: Any,
    unit: str,
    basis: str,
    exclude: Any,
    weight_exclude: Any,
    keep_rows: Any,
    n_shards: Any,
    dtype: Any,
    seed: Any,
    heads: Any = False,
) -> Options:
    """Turn a user's arguments into `Options` for a model.

    Raises:
        TlAnisoError: a value that is unknown, or not supported of this model; the message lists those that are.
    """
    if unit not in UNITS:
        raise TlAnisoError(
            f"unit {unit!r} is not supported; use unit='sequence', the gradient of one sequence, or unit='batch', that "
            "of a whole batch"
        )
    if basis not in BASES:
        raise TlAnisoError(
            f"basis {basis!r} is not supported; use basis='own', the matrix' own input or output, or basis='residual', "
            "the residual stream that it reads or writes"
        )
    if not isinstance(heads, bool):
        raise TlAnisoError(f"heads must be True or False, got {heads!r}; name single heads with sites=...")
    name = str(dtype).removeprefix("torch.") if dtype is not None else "float32"
    if name not in _DTYPES:
        raise TlAnisoError(f"dtype {dtype!r} is not supported; use one of {', '.join(_DTYPES)} (autocast)")
    passes = _known(extra_passes, EXTRA_PASSES, "extra_passes")
    chosen = check_objective(objective, layout)
    loss_name, losses = chosen.name, chosen.losses
    if losses is not None and "shuffled_labels" in passes:
        raise TlAnisoError(
            f"shuffled_labels permutes what 'causal' and 'masked' predict; the labels of objective {loss_name} are its "
            "own business: leave it out, or capture again with an objective whose labels are permuted"
        )
    return Options(
        gradients=_known(gradients, GRADIENTS, "gradients"),
        controls=_known(controls, CONTROL_NAMES, "controls"),
        extra_passes=passes,
        objective=loss_name,
        unit=unit,
        basis=basis,
        exclude=_filters(exclude, _FILTERS, "exclude", chosen.masked_lm, loss_name),
        weight_exclude=_filters(weight_exclude, _WEIGHT_FILTERS, "weight_exclude", chosen.masked_lm, loss_name),
        n_shards=as_integer("n_shards", n_shards, least=1, most=_MOST_SHARDS),
        dtype=name,
        seed=as_integer("seed", seed, least=0, most=MOST_SEED),
        losses=losses,
        masked_lm=chosen.masked_lm,
        heads=heads,
        keep_rows=as_integer("keep_rows", keep_rows, least=0),
        objective_id=None if losses is None else _identity(loss_name, losses),
    )


def _identity(name: str, losses: Losses) -> str:
    found, untold = objective_id(losses)
    if untold and not getattr(losses, "objective_name", None):
        warnings.warn(
            f"the objective {name} holds values of type {', '.join(untold)}, which cannot be recorded: captures under "
            "objectives that differ in these alone would merge; set its objective_name to a name of its own",
            TlAnisoWarning,
            stacklevel=4,
        )
    return found


def _filters(
    values: Any, known: tuple[str, ...], argument: str, masked_lm: MaskedLM | None, objective: str
) -> tuple[str, ...]:
    """Row filters; those that go by masks belong to objectives that mask."""
    chosen = _known(values, known, argument)
    by_mask = [name for name in chosen if name in ("masked", "unmasked")]
    if by_mask and masked_lm is None:
        raise TlAnisoError(
            f"{argument} holds {' and '.join(by_mask)}, but the objective {objective} masks nothing; leave it out"
        )
    if len(by_mask) == 2:
        raise TlAnisoError(f"{argument} holds both masked and unmasked, which leaves no ordinary token; choose one")
    return chosen


def _known(values: Any, known: tuple[str, ...], argument: str) -> tuple[str, ...]:
    chosen = set(as_names(argument, () if values is None else values))
    unknown = sorted(chosen.difference(known))
    if unknown:
        raise TlAnisoError(f"{argument} holds {', '.join(unknown)}; known are {', '.join(known)}")
    return tuple(name for name in known if name in chosen)
