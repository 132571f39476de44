"""Whether a checkpoint filled the model: what it lacks was drawn at random."""

import re
import warnings
from typing import Any

from tl_aniso.errors import ModelError, TlAnisoWarning

__all__ = ["CheckedMaskedLM", "check_complete", "check_mask_token"]

# What pre-training leaves in a checkpoint beside the language model.
_LEFT_OVER = re.compile(r"(^|\.)(pooler\.|cls\.seq_relationship\.)|\.position_ids$")
_SHOWN = 3


def check_complete(name: str, model: Any, report: dict[str, Any]) -> None:
    """Weights that a checkpoint lacks were drawn at random; measuring those would look like a result.

    A decoder matrix that is tied to the embedding is not lacking: transformers leaves it out of the report.

    Args:
        name: what was loaded.
        model: what came of it.
        report: what ``from_pretrained(..., output_loading_info=True)`` gave beside it.

    Raises:
        ModelError: weights are missing; those of the head alone are named as such.

    Warns:
        TlAnisoWarning: the checkpoint holds weights that the model has no place for.
    """
    missing = sorted(_names(report.get("missing_keys")) | _names(report.get("mismatched_keys")))
    body = f"{getattr(model, 'base_model_prefix', '')}."
    if missing and hasattr(model, "get_output_embeddings") and not any(key.startswith(body) for key in missing):
        raise ModelError(
            f"the checkpoint of {name} is headless: it has the body of {type(model).__name__} and lacks "
            f"{_listed(missing)} of its language head, which would be random; load the checkpoint that the body came "
            "from, with its head (models for embedding sentences are published without it)"
        )
    if missing:
        raise ModelError(
            f"the checkpoint of {name} lacks {len(missing)} weights that the model has "
            f"({', '.join(missing[:_SHOWN])}); they would be random: is the download or the config incomplete?"
        )
    extra = sorted(key for key in _names(report.get("unexpected_keys")) if not _LEFT_OVER.search(key))
    if extra:
        warnings.warn(
            f"the checkpoint of {name} holds {len(extra)} weights that the model does not use "
            f"({', '.join(extra[:_SHOWN])}); does the config belong to it?",
            TlAnisoWarning,
            stacklevel=3,
        )


def check_mask_token(name: str, tokenizer: Any, config: Any) -> None:
    """A masked-language model needs a token to mask with, of its tokenizer or named by its config.

    Raises:
        ModelError: neither has one that the model knows.
    """
    size = int(getattr(config, "vocab_size", 0))
    for found in (getattr(tokenizer, "mask_token_id", None), getattr(config, "mask_token_id", None)):
        if isinstance(found, int) and 0 <= found < size:
            return
    raise ModelError(
        f"the tokenizer of {name} has no mask token, and without one no token can be hidden from the model; load the "
        "tokenizer it was published with, or name the token (tokenizer.mask_token = '<mask>', then save_pretrained)"
    )


class CheckedMaskedLM:
    """In the place of ``AutoModelForMaskedLM`` where something else loads the model: what it loads is complete.

    Example:
        >>> CheckedMaskedLM.from_pretrained.__name__
        'from_pretrained'
    """

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> Any:
        """The model, unless the checkpoint lacks some of its weights.

        Raises:
            ModelError: as `check_complete`.
        """
        from transformers import AutoModelForMaskedLM

        model, report = AutoModelForMaskedLM.from_pretrained(name, output_loading_info=True, **options)
        check_complete(name, model, report)
        return model


def _names(keys: Any) -> set[str]:
    """Keys of a report; a mismatched one comes with its two shapes."""
    return {str(key[0]) if isinstance(key, tuple) else str(key) for key in keys or ()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
