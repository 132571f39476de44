"""Checkpoints of a model, and where they come from: a directory of model directories, or models in memory."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tl_aniso.errors import ConfigError, ModelError
from tl_aniso.models import LoadedModel, Objective, load_model
from tl_aniso.models.revisions import Revision, parse_revision
from tl_aniso.text.fingerprint import tokenizer_fingerprint

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "DirectoryCheckpoints",
    "MemoryCheckpoints",
    "later_stages",
    "shortened",
    "tokenizer_id",
]

# What decides a model's numbers; the tokenizer beside it is known by the text that it makes.
_WEIGHTS = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """One state of a model in training.

    Attributes:
        name: as it was published, e.g. ``step512``.
        step: optimiser steps; None where unknown.
        tokens_seen: None where unknown.
        key: what identifies the weights: a commit, or a hash of them. Captures of equal keys are taken for equal.
        load: gives the model in evaluation mode.
        forget: removes what `load` put on disk; None where nothing may be removed.
        download: bytes that `load` fetches, 0 where they are on disk; None where unknown.
    """

    name: str
    step: int | None
    tokens_seen: int | None
    key: str
    load: Callable[[], LoadedModel]
    forget: Callable[[], None] | None = None
    download: int | None = 0


@runtime_checkable
class CheckpointSource(Protocol):
    """The checkpoints of one model. What lists a hub's revisions implements the same three methods."""

    def checkpoints(self) -> Sequence[Checkpoint]:
        """Every checkpoint that was published, in the order of training."""

    def tokenizer(self) -> Any:
        """The tokenizer that all of them share; None where texts are given as ids."""

    def config(self) -> Any:
        """The model's Hugging Face config, for estimates; None where it is not at hand."""


class DirectoryCheckpoints:
    """Directories of one model, each as ``save_pretrained`` writes a model and its tokenizer, in the order of training.

    Their names are read by `parse_revision`: ``step512``, ``step1000-tokens2B``, ``checkpoint-500``, ``main``. Of a
    model that was trained in stages, the first stage alone: later ones begin to count anew.

    Args:
        directory: what holds them.
        tokens_per_step: tokens that a step sees, where names do not say.

    Raises:
        ConfigError: no such directory, none in it whose name is a checkpoint's, or two of one step.
    """

    def __init__(self, directory: str | Path, *, tokens_per_step: int | None = None) -> None:
        self._directory = Path(directory)
        self._tokens_per_step = tokens_per_step
        if not self._directory.is_dir():
            raise ConfigError(f"there is no directory {directory}; give one that holds step*/ directories")
        names = sorted(path.name for path in self._directory.iterdir() if path.is_dir())
        read = {name: parse_revision(name) for name in names}
        unread = [name for name, found in read.items() if found is None and not name.startswith(".")]
        self._found = sorted(found for found in read.values() if found is not None)
        if not self._found:
            held = f" (it holds {shortened(unread)})" if unread else ""
            raise ConfigError(
                f"{directory} holds no directory of a checkpoint, such as step0 or step512{held}; save each with "
                "model.save_pretrained and tokenizer.save_pretrained"
            )
        self._notes = [f"not read, since these names are no checkpoint's: {shortened(unread)}"] if unread else []
        stages = [one.stage for one in self._found if one.stage is not None]
        if stages:
            later = [one for one in self._found if one.step is not None and one.stage != min(stages)]
            self._found = [one for one in self._found if one not in later]
            if later:
                self._notes.append(later_stages(len(later)))
        by_step: dict[int | None, str] = {}
        for one in self._found:
            other = by_step.setdefault(one.step, one.name)
            if other != one.name:
                raise ConfigError(
                    f"{directory} holds two directories of step {one.step}, {other} and {one.name}; leave one of them"
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the directory was left out, and why."""
        return tuple(self._notes)

    def checkpoints(self) -> Sequence[Checkpoint]:
        """The checkpoints; their keys are hashes of config and weights as they are on disk."""
        return [self._checkpoint(one) for one in self._found]

    def tokenizer(self) -> Any:
        """The first checkpoint's.

        Raises:
            ModelError: it has none, or one that cannot be read.
        """
        from transformers import AutoTokenizer

        path = self._directory / self._found[0].name
        try:
            return AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"cannot load the tokenizer of {path}: {' '.join(str(error).split())[:300]}") from error

    def config(self) -> Any:
        """The first checkpoint's; None where it has none of its own (GGUF) or one that cannot be read."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self._directory / self._found[0].name)
        except (OSError, ValueError, KeyError):
            return None

    def _checkpoint(self, one: Revision) -> Checkpoint:
        seen, path = one.tokens, self._directory / one.name
        if seen is None and one.step is not None and self._tokens_per_step is not None:
            seen = one.step * self._tokens_per_step
        return Checkpoint(one.name, one.step, seen, directory_key(path), _Loading(path))


def later_stages(n: int) -> str:
    """The note on checkpoints of later stages."""
    return f"{n} checkpoints of later stages, which count their steps anew, are left out"


def shortened(names: Sequence[str], most: int = 6) -> str:
    """Names in a row, the first ones of many.

    Example:
        >>> shortened(["a", "b", "c", "d"], 2)
        'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:most]) + more


@dataclass(frozen=True)
class _Loading:
    """Loads a directory; a class, so that it can be sent to another process."""

    path: Path

    def __call__(self) -> LoadedModel:
        return load_model(str(self.path))


class MemoryCheckpoints:
    """Models at hand, by step.

    Args:
        models: step -> model.
        tokenizer: theirs; None where texts are given as ids.
        tokens_per_step: tokens that a step sees.

    Raises:
        ConfigError: no models.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> models = {step: LlamaForCausalLM(config) for step in (0, 8)}
        >>> [(c.name, c.tokens_seen) for c in MemoryCheckpoints(models, tokens_per_step=512).checkpoints()]
        [('step0', 0), ('step8', 4096)]
    """

    def __init__(self, models: Mapping[int, Any], tokenizer: Any = None, *, tokens_per_step: int | None = None) -> None:
        if not models:
            raise ConfigError("there are no models; give at least one by its step")
        self._models = dict(sorted(models.items()))
        self._tokenizer = tokenizer
        self._tokens_per_step = tokens_per_step

    def checkpoints(self) -> Sequence[Checkpoint]:
        """The checkpoints; their keys are hashes of the weights as they are now."""
        return [self._checkpoint(step, model) for step, model in self._models.items()]

    def tokenizer(self) -> Any:
        """As it was given."""
        return self._tokenizer

    def config(self) -> Any:
        """The first model's."""
        return getattr(next(iter(self._models.values())), "config", None)

    def _checkpoint(self, step: int, model: Any) -> Checkpoint:
        name, seen = f"step{step}", None if self._tokens_per_step is None else step * self._tokens_per_step
        objective: Objective = "masked" if type(model).__name__.endswith("ForMaskedLM") else "causal"
        loaded = LoadedModel(model, self._tokenizer, name, name, objective)
        return Checkpoint(name, step, seen, model_key(model), lambda: loaded)


def directory_key(path: Path) -> str:
    """A hash of the files that decide a model's numbers.

    Raises:
        ModelError: there is none, or one cannot be read.
    """
    files = sorted({file for pattern in _WEIGHTS for file in path.glob(pattern)})
    if not files:
        raise ModelError(f"{path} holds no weights; save the checkpoint there with model.save_pretrained")
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(f"{file.name}|{hashlib.file_digest(stream, 'sha256').hexdigest()}|".encode())
        except OSError as error:
            raise ModelError(f"cannot read {file}: {error.strerror}") from error
    return digest.hexdigest()[:32]


def model_key(model: Any) -> str:
    """A hash of a model's class, config and weights."""
    digest = hashlib.sha256(type(model).__name__.encode())
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        known = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
        digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(flat.view(dtype=_bytes()).numpy().tobytes())
    return digest.hexdigest()[:32]


def _bytes() -> Any:
    import torch

    return torch.uint8


def tokenizer_id(tokenizer: Any) -> str:
    """Sixteen hex digits of what a tokenizer does; "ids" where there is none.

    Example:
        >>> tokenizer_id(None)
        'ids'
    """
    if tokenizer is None:
        return "ids"
    return tokenizer_fingerprint(tokenizer)
