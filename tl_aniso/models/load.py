"""Load a causal language model and its own tokenizer, in float32."""

import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tl_aniso.errors import ModelError, TlAnisoWarning

__all__ = ["LoadedModel", "load_model"]

# A name on the hub: "gpt2" or "owner/name".
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        model: the Hugging Face model, in evaluation mode, float32.
        tokenizer: as it was published with the model.
        name: what the user asked for.
        revision: commit or branch; "local" for a directory.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str


def load_model(name: str, *, revision: str | None = None) -> LoadedModel:
    """Load from a directory (safetensors, or a single GGUF file) or from the hub and its cache.

    Weights stored in half precision are loaded as float32: float16 gradients underflow to exact zeros.

    Args:
        name: a directory or a hub id.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: no such model, a directory without a tokenizer, a revision asked of a directory, or a GGUF that
            cannot be read.
    """
    directory = Path(name)
    local = bool(name) and directory.exists()
    if not local and not _HUB_ID.fullmatch(name):  # the hub need not be asked
        raise ModelError(f"there is no directory {name!r}; give a directory that holds a model, or a hub id")
    if local and revision is not None:
        raise ModelError(f"{name} is a local path and has no revisions; leave --revision out, or give a hub id")
    if local and not directory.is_dir():
        raise ModelError(f"{name} is a file; give the directory that holds the model")
    extra: dict[str, Any] = {"revision": revision} if revision else {}
    gguf = _gguf_file(directory) if local else None
    if gguf:
        extra["gguf_file"] = gguf
    elif local:
        _check_tokenizer(directory)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # its redrawn lines would fill a log file
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, **extra
        )
        tokenizer = AutoTokenizer.from_pretrained(name, **extra)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        absent = "" if local else f"there is no directory {name!r} here, and as a name on the hub it "
        failed = "did not load" if absent else f"cannot load {name}"
        raise ModelError(f"{absent}{failed}: {_shortened(error)}") from error
    _check_complete(name, report)
    commit = getattr(model.config, "_commit_hash", None)
    return LoadedModel(model.eval(), tokenizer, name, "local" if local else str(commit or revision or "main"))


def _gguf_file(directory: Path) -> str | None:
    """The name of the one GGUF file of a directory without a config."""
    if (directory / "config.json").exists():
        return None
    found = sorted(path.name for path in directory.glob("*.gguf"))
    if len(found) > 1:
        raise ModelError(f"{directory} holds {len(found)} GGUF files ({', '.join(found)}); leave one in it")
    return found[0] if found else None


def _check_tokenizer(directory: Path) -> None:
    """Without its files, transformers makes an empty tokenizer for some models, which turns every text into nothing."""
    if (directory / "config.json").exists() and not any(any(directory.glob(name)) for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{directory} holds a model without a tokenizer; save the model's own there too: "
            "tokenizer.save_pretrained(directory)"
        )


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """Weights that a checkpoint lacks were drawn at random; measuring those would look like a result."""
    missing = sorted(map(str, [*report.get("missing_keys", ()), *report.get("mismatched_keys", ())]))
    if missing:
        raise ModelError(
            f"the checkpoint of {name} lacks {len(missing)} weights that the model has ({', '.join(missing[:3])}); "
            "they would be random: is the download or the config incomplete?"
        )
    extra = sorted(map(str, report.get("unexpected_keys", ())))
    if extra:
        warnings.warn(
            f"the checkpoint of {name} holds {len(extra)} weights that the model does not use "
            f"({', '.join(extra[:3])}); does the config belong to it?",
            TlAnisoWarning,
            stacklevel=3,
        )


def _shortened(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text[:300] + " ...") if len(text) > 300 else text or type(error).__name__
