"""The masked-language objective, as a user states it."""

import numbers
from dataclasses import dataclass
from typing import Any

from tl_aniso.checks import as_integer
from tl_aniso.errors import TlAnisoError

__all__ = ["MASKED", "REPLACEMENTS", "MaskedLM"]

MASKED = "masked"
REPLACEMENTS = ("bert", "mask")


@dataclass(frozen=True)
class MaskedLM:
    """Masked-language modelling: summed cross-entropy of the masked tokens, which the model reads masked.

    Which tokens are masked is a pure function of the seed, the document and its piece: the same at every checkpoint and
    batch size, at least one a sequence, never a special token (``docs/method.md``, "Objectives"; 80/10/10 is that of
    Devlin et al. 2019, arXiv:1810.04805).

    Attributes:
        rate: probability that a token is masked, above 0 and at most 1.
        replacement: "bert": of the masked tokens, 80% are replaced by the mask token, 10% by a random ordinary token,
            10% stay; "mask": all are replaced by the mask token.
        mask_token_id: the mask token; None for that of the tokenizer, else that which the model's config names.

    Raises:
        TlAnisoError: another rate, replacement or id.

    Example:
        >>> from tl_aniso import MaskedLM
        >>> str(MaskedLM()), str(MaskedLM(rate=0.15, replacement="mask"))
        ('masked', 'masked(rate=0.15, replacement=mask)')
    """

    rate: float = 0.3
    replacement: str = "bert"
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        rate: Any = self.rate
        if (
            isinstance(rate, bool) or not isinstance(rate, numbers.Real) or not 0 < float(rate) <= 1
        ):  # NaN is not above 0
            raise TlAnisoError(f"MaskedLM: rate must be a number above 0 and at most 1, got {rate!r}")
        if self.replacement not in REPLACEMENTS:
            raise TlAnisoError(f"MaskedLM: replacement must be 'bert' (80/10/10) or 'mask', got {self.replacement!r}")
        object.__setattr__(self, "rate", float(rate))
        if self.mask_token_id is not None:
            checked = as_integer("MaskedLM: mask_token_id", self.mask_token_id, least=0)
            object.__setattr__(self, "mask_token_id", checked)

    def __str__(self) -> str:
        """The name in the frame's column `objective`."""
        if (self.rate, self.replacement) == (0.3, "bert"):
            return MASKED
        return f"{MASKED}(rate={self.rate!r}, replacement={self.replacement})"
