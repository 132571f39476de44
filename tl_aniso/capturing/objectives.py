"""The loss: what is summed, and which positions carry gradient.

The loss is the *sum* over the tokens of a sequence, so a sequence's numbers do not depend on its batch.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from tl_aniso.capturing.layout import Layout
from tl_aniso.capturing.masked_lm import MASKED, MaskedLM
from tl_aniso.errors import TlAnisoError
from tl_aniso.text.sequences import Sequence

__all__ = [
    "CAUSAL",
    "Losses",
    "Objective",
    "Targets",
    "causal_targets",
    "check_objective",
    "name_of",
    "shuffled_targets",
]


CAUSAL = "causal"

# (logits [batch, length, vocabulary], ids [batch, length], mask [batch, length]) -> losses [batch, length]
Losses = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Targets:
    """What each position must predict, and the positions that predict anything."""

    ids: Integer[Tensor, "batch length"]
    carries: Bool[Tensor, "batch length"]


@dataclass(frozen=True)
class Objective:
    """A loss by its name, with what it takes beside.

    Attributes:
        name: as results show it.
        losses: the callable, where the loss is the user's.
        masked_lm: how tokens are masked, where they are.
    """

    name: str
    losses: Losses | None = None
    masked_lm: MaskedLM | None = None


def check_objective(objective: object, layout: Layout) -> Objective:
    """The objective that a user means for a model; None is what the model was made for.

    A callable is named by its ``objective_name``, else by its ``__name__``, else by its class. Beside it, captures
    record a digest of the callable (`tl_aniso.capturing.objective_identity`), which tells apart what shares a name.

    Raises:
        TlAnisoError: neither None, "causal", "masked", a `MaskedLM` nor a callable; a class; a callable under a name
            that cannot be its own; next-token loss of an encoder, or masked tokens of a decoder.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from tl_aniso.capturing.bind import bind
        >>> layout = bind(LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1,
        ...                                            num_attention_heads=1)))
        >>> def target_logit(logits, ids, mask):
        ...     return -logits[..., 7]
        >>> check_objective(None, layout).name, check_objective(target_logit, layout).name
        ('causal', 'target_logit')
    """
    encoder = layout.attends == "both"
    if objective is None:
        objective = MASKED if encoder else CAUSAL
    if isinstance(objective, str) and objective == CAUSAL:
        if encoder:
            raise TlAnisoError(
                f"objective 'causal' on {layout.class_name}: its tokens attend to both sides, so each sees what it is "
                "to predict; leave objective out for masked-language modelling, or pass MaskedLM(...) or a callable"
            )
        return Objective(CAUSAL)
    if isinstance(objective, MaskedLM) or (isinstance(objective, str) and objective == MASKED):
        if not encoder:
            raise TlAnisoError(
                f"objective {str(objective)!r} on {layout.class_name}: its tokens attend to those before them alone, "
                "and it was made to predict the next token; leave objective out, or pass 'causal' or a callable"
            )
        masked_lm = objective if isinstance(objective, MaskedLM) else MaskedLM()
        return Objective(str(masked_lm), masked_lm=masked_lm)
    if isinstance(objective, type):
        raise TlAnisoError(
            f"objective is the class {objective.__name__}: pass {objective.__name__}(), not the class, which makes an "
            "object and no losses"
        )
    if not callable(objective):
        raise TlAnisoError(
            f"objective {objective!r} is not supported; use 'causal' (summed next-token cross-entropy), 'masked' or "
            "MaskedLM(...) (summed cross-entropy of masked tokens, of encoders), or a callable from logits, ids and "
            "mask to per-token losses"
        )
    name: object = name_of(objective)
    if not isinstance(name, str) or name == CAUSAL or name.partition("(")[0] == MASKED:
        raise TlAnisoError(
            f"an objective of one's own cannot be named {name!r}; set its objective_name to a name that says what it is"
        )
    _check_arguments(name, objective)
    return Objective(name, losses=objective)


def name_of(objective: object) -> str:
    """Its ``objective_name``, else its ``__name__`` (for a partial: of its function), else its class.

    Example:
        >>> name_of(functools.partial(print, 1)), name_of(lambda logits, ids, mask: logits)
        ('partial(print)', '<lambda>')
    """
    name = getattr(objective, "objective_name", None) or getattr(objective, "__name__", None)
    if name is None and isinstance(objective, functools.partial):
        name = f"partial({name_of(objective.func)})"
    return name or type(objective).__name__


def _check_arguments(name: str, objective: Losses) -> None:
    try:
        signature = inspect.signature(objective)
    except (TypeError, ValueError):  # some built-in callables have none; they are judged when called
        return
    try:
        signature.bind("logits", "ids", "mask")
    except TypeError as error:
        raise TlAnisoError(
            f"the objective {name}{signature} cannot be called with (logits, ids, mask): {error}; give it three "
            "positional arguments, and fix further ones with functools.partial"
        ) from error


def causal_targets(ids: Integer[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]) -> Targets:
    """Each real position predicts the next one, if that is real too.

    Example:
        >>> import torch
        >>> causal_targets(torch.tensor([[7, 8, 0]]), torch.tensor([[True, True, False]])).carries.tolist()
        [[True, False, False]]
    """
    targets = torch.zeros_like(ids)
    targets[:, :-1] = ids[:, 1:]
    carries = torch.zeros_like(mask)
    carries[:, :-1] = mask[:, :-1] & mask[:, 1:]
    return Targets(targets, carries)


def shuffled_targets(targets: Targets, sequences: tuple[Sequence, ...], seed: int) -> Targets:
    """The targets of each sequence in another order: unigrams stay, content goes.

    The order is a pure function of (seed, document, piece), the same in every batch and at every checkpoint.
    """
    ids = targets.ids.clone()
    for row, sequence in enumerate(sequences):
        digest = hashlib.sha256(f"{seed}/{sequence.document}/{sequence.index}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        places = targets.carries[row].nonzero()[:, 0]
        order = torch.from_numpy(rng.permutation(len(places))).to(places.device)
        ids[row, places] = targets.ids[row, places[order]]
    return Targets(ids, targets.carries)
