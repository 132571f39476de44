"""Load a language model, causal or masked, and its own tokenizer, in float32."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tl_aniso.errors import ModelError
from tl_aniso.models.complete import check_complete, check_mask_token
from tl_aniso.models.kind import LOADING_ERRORS, Objective, checked_objective, commit_of, refusal

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
        objective: what it was made for: "causal", a decoder; "masked", an encoder.
    """

    model: Any
    tokenizer: Any
    name: str
    revision: str
    objective: Objective = "causal"


def load_model(name: str, *, revision: str | None = None) -> LoadedModel:
    """Load from a directory (safetensors, or a single GGUF file) or from the hub and its cache.

    The class that the config names decides whether it is loaded as a causal or as a masked-language model. Weights
    stored in half precision are loaded as float32: float16 gradients underflow to exact zeros. Code that comes with a
    checkpoint is never run.

    Args:
        name: a directory or a hub id.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: no such model, a directory without a tokenizer, a revision asked of a directory, a GGUF that cannot
            be read, a checkpoint that lacks weights (an encoder's head, say), a classifier, an encoder-decoder, one
            that only code of its own can load, or an encoder whose mask token is unknown.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import EuroBertConfig, EuroBertForMaskedLM, PreTrainedTokenizerFast
        >>> from tl_aniso.models import load_model
        >>> config = EuroBertConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                         num_attention_heads=2, pad_token_id=0)
        >>> words = Tokenizer(models.WordLevel({"<unk>": 0, "<mask>": 3, "crow": 5}, unk_token="<unk>"))
        >>> with TemporaryDirectory() as directory:
        ...     EuroBertForMaskedLM(config).save_pretrained(directory)
        ...     _ = PreTrainedTokenizerFast(tokenizer_object=words, mask_token="<mask>").save_pretrained(directory)
        ...     loaded = load_model(directory)
        >>> type(loaded.model).__name__, loaded.objective
        ('EuroBertForMaskedLM', 'masked')
    """
    directory = Path(name)
    local = bool(name) and directory.exists()
    if not local and not _HUB_ID.fullmatch(name):  # the hub need not be asked
        raise ModelError(f"there is no directory {name!r}; give a directory that holds a model, or a hub id")
    if local and revision is not None:
        raise ModelError(f"{name} is a local path and has no revisions; leave --revision out, or give a hub id")
    if local and not directory.is_dir():
        raise ModelError(f"{name} is a file; give the directory that holds the model")
    commit = None if local else commit_of(name, revision)
    extra: dict[str, Any] = {"revision": commit or revision} if commit or revision else {}
    gguf = _gguf_file(directory) if local else None
    if gguf:
        extra["gguf_file"] = gguf
    elif local:
        _check_tokenizer(directory)
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging

    # A GGUF has no config that names a class; what transformers reads from one are decoders.
    objective: Objective = "causal" if gguf else checked_objective(name, local=local, **extra)
    auto_class: Any = AutoModelForMaskedLM if objective == "masked" else AutoModelForCausalLM
    extra["trust_remote_code"] = False
    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # its redrawn lines would fill a log file
    try:
        model, report = auto_class.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **extra)
        tokenizer = AutoTokenizer.from_pretrained(name, **extra)
    except LOADING_ERRORS as error:
        raise refusal(name, error, local=local) from error
    check_complete(name, model, report)
    if objective == "masked":
        check_mask_token(name, tokenizer, model.config)
    return LoadedModel(model.eval(), tokenizer, name, "local" if local else commit or revision or "main", objective)


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
