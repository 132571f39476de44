"""One finding, and all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import fill
from typing import Literal

__all__ = ["Check", "Diagnosis", "Status"]

Status = Literal["pass", "info", "warn", "fail", "skip"]

# What a status is called where there is room for a word.
WORDS: Mapping[str, str] = {
    "pass": "pass",
    "info": "to know",
    "warn": "warning",
    "fail": "FAIL",
    "skip": "not checked",
}


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: what was asked, e.g. "weights and logits are finite".
        status: "pass"; "info", of the model and no fault; "warn"; "fail"; "skip", because another check failed.
        found: what was seen, with names and numbers.
        remedy: what to do about it; empty where nothing is to be done.
        table: heading and rows of what was seen in full; empty where `found` says all.
        seconds: how long it took.

    Example:
        >>> Check("weights are finite", "pass", "272 parameters").status
        'pass'
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    table: tuple[tuple[str, ...], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Every check of one model. Made by `diagnose`.

    Attributes:
        model: what was examined, in words.
        checks: in the order in which they ran.
        facts: versions and text, by name.

    Example:
        >>> found = Diagnosis("a model", (Check("weights are finite", "fail", "NaN in layer 3", "load it again"),))
        >>> found.passed, [check.name for check in found.failures]
        (False, ['weights are finite'])
        >>> print(found.summary())
        a model: 1 check failed
        FAIL         weights are finite: NaN in layer 3
                     -> load it again
    """

    model: str
    checks: tuple[Check, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def verdict(self) -> str:
        """One clause: how it came out."""
        n_failed, n_warned = len(self.failures), sum(check.status == "warn" for check in self.checks)
        if n_failed:
            return f"{n_failed} check{'s' * (n_failed > 1)} failed"
        return f"all checks passed, {n_warned} with a warning" if n_warned else "all checks passed"

    def summary(self, width: int = 100) -> str:
        """The list as plain text.

        Args:
            width: characters in a line.
        """
        lines = [_clean(f"{self.model}: {self.verdict}")]
        for check in self.checks:
            head = f"{WORDS[check.status]:<13}"
            lines.append(_wrapped(f"{check.name}: {check.found}", width, head))
            if check.remedy:
                lines.append(_wrapped(check.remedy, width, f"{'':<13}-> "))
        return "\n".join(lines)

    def to_html(self) -> str:
        """The whole page, self-contained."""
        from tl_aniso.doctor.page import page_of

        return page_of(self)

    def _repr_html_(self) -> str:
        from tl_aniso.doctor.page import fragment_of

        return fragment_of(self)

    def __repr__(self) -> str:
        return self.summary()


def _clean(text: str) -> str:
    """On one line and printable: control characters of a hostile name must not reach a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


def _wrapped(text: str, width: int, head: str) -> str:
    return fill(
        _clean(text),
        max(width, len(head) + 20),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
    )
