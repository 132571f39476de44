"""C5 of arXiv:2604.08764, "weaker in encoders than in decoders", judged on a pair: by one rule, fixed beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from tl_aniso.pair.compare import WINDOWS

__all__ = ["Judged", "PairVerdict", "combined", "judge", "judge_window"]

PairVerdict = Literal["holds", "does not hold", "unclear", "not known"]


@dataclass(frozen=True)
class Judged:
    """One quantity over one window.

    Attributes:
        window: of `tl_aniso.pair.compare.WINDOWS`.
        control: what the excess is over; "none" for E itself.
        verdict: whether the decoder's is larger, by `judge_window`.
        rows: one row a seed, of `compare`.
    """

    window: str
    control: str
    verdict: PairVerdict
    rows: pd.DataFrame

    @property
    def signs_agree(self) -> bool:
        """Whether the difference has one sign in all seeds."""
        signs = np.sign(self.rows["value"].to_numpy(dtype=np.float64))
        return bool(np.isfinite(signs).all() and len(set(signs)) == 1)


def judge_window(intervals: Sequence[tuple[float, float]]) -> PairVerdict:
    """Whether decoders have more, by every seed's interval of the difference, decoder less encoder.

    Holds: every seed's interval lies above 0. Does not hold: every seed's lies below 0, the encoder having more.
    Unclear: all else, seeds that disagree and intervals that reach 0. Not known: a seed without an interval, or none.

    Example:
        >>> judge_window([(0.1, 0.3), (0.2, 0.4)]), judge_window([(-0.1, 0.5), (0.2, 0.4)])
        ('holds', 'unclear')
        >>> judge_window([(-0.3, -0.1), (-2.0, -1.0)])
        'does not hold'
    """
    ends = np.asarray(intervals, dtype=np.float64).reshape(-1, 2)
    if not len(ends) or not np.isfinite(ends).all():
        return "not known"
    return "holds" if (ends[:, 0] > 0).all() else "does not hold" if (ends[:, 1] < 0).all() else "unclear"


def combined(verdicts: Sequence[PairVerdict]) -> PairVerdict:
    """Of a claim that must hold in every part: it holds if all do, and does not if one does not.

    Example:
        >>> combined(["holds", "holds"]), combined(["holds", "unclear"]), combined(["unclear", "does not hold"])
        ('holds', 'unclear', 'does not hold')
    """
    if not verdicts:
        return "not known"
    order: tuple[PairVerdict, ...] = ("does not hold", "not known", "unclear")
    for worst in order:
        if worst in verdicts:
            return worst
    return "holds"


def judge(differences: Any, group: str = "readers") -> list[Judged]:
    """Every quantity over every window, of a group of sites.

    Args:
        differences: of `compare`, all seeds.
        group: "readers" or "writers".

    Returns:
        E first, then the excess over every control, window by window; a window that no seed has is left out. An excess
        holds only where the decoder's is above 1 in every seed: a preference that is not there cannot be the stronger.
    """
    whole = differences[differences["decoder_step"].isna() & (differences["group"] == group)]
    n_seeds = differences["seed"].nunique()
    found = []
    for window in WINDOWS:
        rows = whole[whole["window"] == window]
        for control in rows["control"].unique():
            part = rows[rows["control"] == control]
            verdict = judge_window(list(zip(part["ci_low"], part["ci_high"], strict=True)))
            # What is to be weaker in the encoder must exist in the decoder.
            if verdict == "holds" and control != "none" and not (part["decoder"] > 1).all():
                verdict = "unclear"
            found.append(Judged(window, str(control), verdict if len(part) == n_seeds else "not known", part))
    return found
