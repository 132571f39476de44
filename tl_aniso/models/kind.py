"""What a checkpoint is, by its config and before any weights are read: a decoder, an encoder, or neither."""

import re
from typing import Any, Literal

from safetensors import SafetensorError

from tl_aniso.errors import ModelError

__all__ = ["LOADING_ERRORS", "Objective", "checked_objective", "commit_of", "objective_of", "read_config", "refusal"]

Objective = Literal["causal", "masked"]

# What transformers raises where a checkpoint is not there, not whole, or not for it.
LOADING_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError)

# A checkpoint of BertForPreTraining holds the masked-language head and one more.
_MASKED = re.compile(r"For(MaskedLM|PreTraining)$")
_CAUSAL = re.compile(r"(ForCausalLM|LMHeadModel)$")
_TASK = re.compile(r"For(\w*Classification|QuestionAnswering|MultipleChoice|NextSentencePrediction)$")
_SNAPSHOT = re.compile(r"[\\/]snapshots[\\/]([0-9a-f]{40})[\\/]")
_LONGEST_REASON = 300


def checked_objective(name: str, *, local: bool, **extra: Any) -> Objective:
    """Read a checkpoint's config and say what the model was made for.

    Args:
        name: a directory or a hub id.
        local: whether it is a directory.
        extra: of ``from_pretrained``, such as the revision.

    Raises:
        ModelError: as `read_config` and `objective_of`.
    """
    return objective_of(read_config(name, local=local, **extra), name)


def commit_of(name: str, revision: str | None) -> str | None:
    """The commit that a name on the hub stands for now, or in the cache without a network; None where it is not told.

    Loading by it keeps config, weights and tokenizer of one state, and results say which. (transformers 5 no longer
    leaves the commit in the config.)

    Raises:
        ModelError: there is no such checkpoint.
    """
    from transformers.utils import cached_file

    try:
        found = _SNAPSHOT.search(str(cached_file(name, "config.json", revision=revision)))
    except LOADING_ERRORS as error:
        raise refusal(name, error, local=False) from error
    return found.group(1) if found else None


def read_config(name: str, *, local: bool, **extra: Any) -> Any:
    """The config of a checkpoint, by transformers' own class for it: code from the repository is never run.

    Raises:
        ModelError: there is none, or only code that came with the checkpoint knows what it means.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **extra)
    except LOADING_ERRORS as error:
        raise refusal(name, error, local=local) from error


def objective_of(config: Any, name: str) -> Objective:
    """What the model of a config was made for: "causal", next tokens; "masked", those that a mask hides.

    The class that the checkpoint names decides (``architectures``). Where it names none, the config's own class does: a
    causal model if captures can measure the causal class that it maps to, else a masked one if it maps to such a class.

    Args:
        config: of the checkpoint.
        name: what to call it in messages.

    Raises:
        ModelError: an encoder-decoder, a classifier, or an encoder without its masked-language head.

    Example:
        >>> from transformers import BertConfig, LlamaConfig
        >>> objective_of(BertConfig(architectures=["BertForMaskedLM"]), "a"), objective_of(LlamaConfig(), "b")
        ('masked', 'causal')
        >>> objective_of(BertConfig(architectures=["BertModel"]), "mine")
        Traceback (most recent call last):
        tl_aniso.errors.ModelError: mine names the class BertModel, an encoder without its masked-language head: ...
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    from tl_aniso.capturing.bind import SUPPORTED_CLASSES

    kind = str(getattr(config, "model_type", ""))
    causal, masked = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind), MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(kind)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({kind}), whose two residual streams no site is named for; measure a "
            "decoder, or an encoder with a masked-language head"
        )
    named = next(iter(getattr(config, "architectures", None) or ()), None)
    decodes = causal in SUPPORTED_CLASSES or bool(getattr(config, "is_decoder", False))
    if named is None:
        return "masked" if masked and not decodes else "causal"
    if _MASKED.search(named):
        return "masked"
    if _TASK.search(named):
        raise ModelError(
            f"{name} is a {named}, trained to label texts, and its checkpoint has no language head, so there is no "
            f"loss of tokens to measure; load the model it was tuned from{_with_its_head(masked, decodes)}"
        )
    if masked and not decodes and not _CAUSAL.search(named):
        raise ModelError(
            f"{name} names the class {named}, an encoder without its masked-language head: there is no loss to "
            "measure, and a new head would be drawn at random; load the checkpoint it came from"
            f"{_with_its_head(masked)}. "
            "Models for embedding sentences (sentence-transformers) are published without it"
        )
    return "causal"


def refusal(name: str, error: BaseException, *, local: bool) -> ModelError:
    """The error for a checkpoint that transformers does not load, in words that say what to do where that is known.

    Args:
        name: what was asked for.
        error: what transformers raised.
        local: whether it is a directory, and not a name on the hub.
    """
    absent = "" if local else f"there is no directory {name!r} here, and as a name on the hub it "
    failed = f"cannot load {name}" if local else "did not load"
    text = " ".join(str(error).split())
    if "trust_remote_code" in text or "custom code" in text:
        return ModelError(
            f"{name} comes with Python code of its own, and code from a repository is never run here: it could do "
            "anything, and what it computes is not what the sites are named for. Load a model that transformers has a "
            "class for (EuroBERT, whose repositories also hold code, is served by transformers' own class in version 5)"
            "; or load this one yourself with trust_remote_code=True, and see whether capture(model, ...) takes it"
        )
    if "model type" in text and "does not recognize" in text:
        return ModelError(
            f"{absent}{failed}: this transformers has no class for its model_type"
            f"{_quoted(text)}; pip install -U transformers, whose newer versions may have one"
        )
    short = (text[:_LONGEST_REASON] + " ...") if len(text) > _LONGEST_REASON else text or type(error).__name__
    return ModelError(f"{absent}{failed}: {short}")


def _with_its_head(masked: str | None, decodes: bool = False) -> str:
    return f" as {masked}" if masked and not decodes else ""


def _quoted(text: str) -> str:
    found = re.search(r"model type `([^`]+)`", text)
    return f" {found.group(1)!r}" if found else ""
