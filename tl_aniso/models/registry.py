"""The published models that a study knows by name, and how their checkpoints are named."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from tl_aniso.errors import ModelError

__all__ = ["REGISTRY", "Entry", "find"]

# As `load_model` reads a name: "gpt2" or "owner/name".
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """One model, with all that is known of how its checkpoints are published. What is not known is None.

    Attributes:
        name: in the registry; the id or path itself of any other model.
        hub_id: the repository that holds the checkpoints of training, or a directory.
        final_id: the repository of the finished model; the same where its `main` is that.
        class_name: class of `transformers`.
        objective: what it was trained for.
        published: how branches are named, for people.
        tokens_per_step: tokens of an optimiser step.
        parameters: their number, rounded, as the model's name or card gives it: good enough to plan by.
        local: whether `hub_id` is a directory.

    Example:
        >>> find("smollm2-360m").hub_id
        'HuggingFaceTB/SmolLM2-360M-intermediate-checkpoints'
        >>> find("EleutherAI/pythia-70m").known, find("EleutherAI/pythia-1b").name
        (False, 'pythia-1b')
    """

    name: str
    hub_id: str
    final_id: str
    class_name: str | None = None
    objective: Literal["causal", "masked"] | None = None
    published: str | None = None
    tokens_per_step: int | None = None
    parameters: int | None = None
    local: bool = False

    @property
    def known(self) -> bool:
        """Whether it stands in the registry."""
        return REGISTRY.get(self.name) == self

    @property
    def tokens(self) -> str:
        """Where tokens seen come from, for people: a number a step, the name, or unknown."""
        if self.tokens_per_step is not None:
            return f"{self.tokens_per_step:,} a step"
        return "in the name" if self.published is not None and "tokens" in self.published else "unknown"

    def tokens_seen(self, step: int | None, in_name: int | None = None) -> int | None:
        """Tokens seen at a step: by the size of a step, else as the checkpoint's name says, else None.

        Example:
            >>> find("pythia-160m").tokens_seen(1000)
            2097152000
        """
        if step is None or self.tokens_per_step is None:
            return in_name
        return step * self.tokens_per_step


def _entry(name: str, hub_id: str, class_name: str, *, final_id: str | None = None, **facts: Any) -> Entry:
    return Entry(name, hub_id, final_id or hub_id, class_name, facts.pop("objective", "causal"), **facts)


def _pythia(size: str, parameters: int) -> Entry:
    return _entry(
        f"pythia-{size}",
        f"EleutherAI/pythia-{size}",
        "GPTNeoXForCausalLM",
        published="step0, 1, 2, 4 ... 512, 1000, 2000 ... 143000",
        tokens_per_step=2_097_152,
        parameters=parameters,
    )


def _smollm2(size: str, every: int, tokens_per_step: int | None, parameters: int) -> Entry:
    return _entry(
        f"smollm2-{size.lower()}",
        f"HuggingFaceTB/SmolLM2-{size}-intermediate-checkpoints",
        "LlamaForCausalLM",
        final_id=f"HuggingFaceTB/SmolLM2-{size}",
        published=f"step-{every}, every {every:,}",
        tokens_per_step=tokens_per_step,
        parameters=parameters,
    )


def _eurobert(size: str, parameters: int) -> Entry:
    return _entry(
        f"eurobert-{size}",
        f"EuroBERT/EuroBERT-{size}",
        "EuroBertForMaskedLM",
        objective="masked",
        parameters=parameters,
    )


# From public model cards and threads: the ten models of the paper, and SmolLM2-135M, small enough to try things on.
REGISTRY: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            _pythia("160m", 160_000_000),
            _pythia("410m", 410_000_000),
            _pythia("1b", 1_000_000_000),
            _entry(
                "olmo-1b",
                "allenai/OLMo-1B-hf",
                "OlmoForCausalLM",
                published="step10000-tokens41B, every 1,000, some missing",
                parameters=1_200_000_000,
            ),
            _smollm2("360M", 160_000, None, 360_000_000),
            _smollm2("1.7B", 125_000, 2_097_152, 1_700_000_000),
            _entry("gaperon-1.5b", "almanach/Gaperon-1125-1B", "LlamaForCausalLM", parameters=1_500_000_000),
            _eurobert("210m", 210_000_000),
            _eurobert("610m", 610_000_000),
            _entry(
                "moderncamembert-base",
                "almanach/moderncamembert-base",
                "ModernBertForMaskedLM",
                objective="masked",
                parameters=136_000_000,
            ),
            _smollm2("135M", 240_000, 1_048_576, 135_000_000),
        )
    }
)


def find(name: str) -> Entry:
    """The entry of a registry name, a hub id or a directory.

    Any hub id and any directory that is not in the registry is an entry of its own, of which nothing is known.

    Raises:
        ModelError: neither; the message names what is near.

    Example:
        >>> try:
        ...     find("pythia-70m")
        ... except ModelError as error:
        ...     print(str(error)[:60])
        no model 'pythia-70m' in the registry; near are pythia-410m,
    """
    given: Any = name
    if not isinstance(given, str) or not given or "\0" in given:
        raise ModelError(f"a model is named by a string, got {given!r}")
    if name.lower() in REGISTRY:
        return REGISTRY[name.lower()]
    if Path(name).is_dir():
        return Entry(name, name, name, local=True)
    for entry in REGISTRY.values():
        if name.lower() in (entry.hub_id.lower(), entry.final_id.lower()):
            return entry
    near = _near(name)
    if not _HUB_ID.fullmatch(name):
        hint = f"near are {', '.join(near)}" if near else f"the registry has {', '.join(REGISTRY)}"
        raise ModelError(f"{name!r} is no model of the registry, no hub id and no directory here; {hint}")
    if near and "/" not in name:
        raise ModelError(
            f"no model {name!r} in the registry; near are {', '.join(near)}. Another model is named by its full hub "
            "id, owner/name, or a path"
        )
    return Entry(name, name, name)


def _near(name: str) -> list[str]:
    """Names of the registry that resemble one, by name or by hub id."""
    spelled = {other: entry.name for entry in REGISTRY.values() for other in (entry.name, entry.hub_id.lower())}
    close = difflib.get_close_matches(name.lower(), spelled, n=4, cutoff=0.6)
    return list(dict.fromkeys(spelled[other] for other in close))
