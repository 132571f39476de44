"""Paired differences that a study hands over beside its frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tl_aniso.claims.estimates import Estimate
from tl_aniso.claims.observations import NORMAL
from tl_aniso.claims.rules import ClaimRule, Rules
from tl_aniso.errors import TlAnisoError

__all__ = ["Paired", "checked_pairs", "paired_estimate"]

_COLUMNS = ("site", "gradient", "measure", "control", "value", "ci_low", "ci_high")


@dataclass(frozen=True, eq=False)
class Paired:
    """One difference ``a - b`` of `TangentEnergy` results, and which claim it speaks to.

    Several of one claim, model and alignment (several early and late checkpoints, say) are averaged.

    Attributes:
        claim: "C3" (an early checkpoint less a late one, the same frozen proxies) or "C5" (the encoder less the
            decoder, at matched checkpoints); in general a claim of the rules whose test is "fall" or "contrast".
        model: the model; of a contrast "ENCODER - DECODER".
        difference: what ``a - b`` gave, or its frame.
        alignment: of a contrast "tokens" or "progress", else empty.

    Example:
        >>> import pandas as pd
        >>> from tl_aniso.claims import Paired
        >>> Paired("C3", "my model", pd.DataFrame()).alignment
        ''
    """

    claim: str
    model: str
    difference: Any
    alignment: str = ""

    @property
    def frame(self) -> pd.DataFrame:
        """The frame of the difference."""
        return self.difference if isinstance(self.difference, pd.DataFrame) else self.difference.frame


def checked_pairs(pairs: Any, rules: Rules, names: Sequence[str]) -> tuple[Paired, ...]:
    """The pairs, each of which some claim and model can use.

    Raises:
        TlAnisoError: anything but `Paired`, or one that no verdict would look at.
    """
    found = tuple(pairs)
    for pair in found:
        if not isinstance(pair, Paired):
            raise TlAnisoError(f"differences must hold Paired, got {type(pair).__name__}; Paired('C3', model, a - b)")
        if not isinstance(pair.difference, pd.DataFrame) and not hasattr(pair.difference, "frame"):
            raise TlAnisoError(f"the difference of {pair.model} is no a - b of two results: {type(pair.difference)}")
        missing = [name for name in _COLUMNS if name not in pair.frame.columns]
        if missing:
            raise TlAnisoError(f"the difference of {pair.model} has no column {missing[0]!r}; hand over a - b")
        rule = rules.claims.get(pair.claim)
        if rule is None or rule.test not in ("fall", "contrast"):
            known = [name for name, r in rules.claims.items() if r.test in ("fall", "contrast")]
            raise TlAnisoError(f"paired differences speak to {', '.join(known)}, not to {pair.claim!r}")
        if pair.alignment not in (rule.alignments or ("",)):
            raise TlAnisoError(
                f"a difference for {pair.claim} has the alignment {pair.alignment!r}; known are "
                f"{', '.join(map(repr, rule.alignments or ('',)))}"
            )
        if pair.model not in names:
            raise TlAnisoError(
                f"a difference is of {pair.model!r}, which the frame does not hold; known are {', '.join(names)}"
            )
    return found


def paired_estimate(
    pairs: Sequence[Paired], rule: ClaimRule, model: str, gradient: str, control: str, alignment: str, rules: Rules
) -> Estimate | None:
    """Log ratio of R (control ``normal``) or of excess, pooled over sites and pairs; None where they do not say it.

    Ends of intervals are averaged like values: sites share documents, so the interval of a mean is at most as wide.
    """
    chosen = [p for p in pairs if (p.claim, p.model, p.alignment) == (rule.name, model, alignment)]
    if not chosen:
        return None
    measure = "r_energy" if control == NORMAL else "excess"
    endings = tuple(f".{ending}" for ending in rules.sites[gradient])
    values = []
    for pair in chosen:
        frame = pair.frame
        rows = frame[
            (frame["measure"] == measure)
            & (frame["control"] == control)
            & (frame["gradient"] == gradient)
            & frame["site"].str.startswith("blocks.")
            & frame["site"].str.endswith(endings)
        ]
        table = rows[["value", "ci_low", "ci_high"]].to_numpy(dtype=np.float64)
        whole = np.isfinite(table).all(axis=1)
        if not len(table) or whole.mean() < rules.enough.sites:
            return None
        values.append(table[whole].mean(axis=0))
    value, low, high = np.mean(values, axis=0)
    return Estimate(float(value), float(low), float(high), how="documents, paired", n=len(chosen))
