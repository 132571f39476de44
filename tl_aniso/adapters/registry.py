"""Make the adapters known to TransformerLens, in every list that it asks."""

from importlib import import_module
from typing import Any

from tl_aniso.adapters.versions import moved

__all__ = ["ARCHITECTURES", "boot", "register"]

# class of transformers -> module and class of its adapter; the entry points in pyproject.toml say the same
ARCHITECTURES = {
    "EuroBertForMaskedLM": "tl_aniso.adapters.eurobert:EuroBertAdapter",
    "ModernBertForMaskedLM": "tl_aniso.adapters.modernbert:ModernBertAdapter",
    "CamembertForMaskedLM": "tl_aniso.adapters.roberta:CamembertAdapter",
    "XLMRobertaForMaskedLM": "tl_aniso.adapters.roberta:XLMRobertaAdapter",
}


def register() -> tuple[str, ...]:
    """Make the encoders of `ARCHITECTURES` known to TransformerLens in this process.

    ``TransformerBridge.boot_transformers`` then takes them, and ``build_bridge_from_module``. Calling it again changes
    nothing. An architecture that TransformerLens has an adapter of its own for keeps that one.

    Returns:
        The classes that the adapters of this package now serve.

    Raises:
        ModelError: a TransformerLens that the adapters are not written for, or whose private lists moved.

    Example:
        >>> register()
        ('EuroBertForMaskedLM', 'ModernBertForMaskedLM', 'CamembertForMaskedLM', 'XLMRobertaForMaskedLM')
    """
    from tl_aniso.adapters import parts

    # Three lists, asked in this order: which architecture is it, which class loads it, which adapter serves it.
    supported = _list(parts.factory, "SUPPORTED_ARCHITECTURES", dict)
    masked = _list(parts.architectures, "MASKED_LM_ARCHITECTURES", set)
    adapters: Any = getattr(parts.factory, "ArchitectureAdapterFactory", None)
    for method in ("discover_entry_points", "register_adapter"):
        if not callable(getattr(adapters, method, None)):
            raise moved(f"ArchitectureAdapterFactory.{method}")
    ours = {name: _load(target) for name, target in ARCHITECTURES.items()}
    served = tuple(name for name, adapter in ours.items() if supported.get(name, adapter) is adapter)
    # Entry points first: they warn of every name that is already taken.
    adapters.discover_entry_points()
    for name in served:
        adapters.register_adapter(name, ours[name])
        supported[name] = ours[name]
        masked.add(name)
    return served


def boot(name: str, **options: Any) -> Any:
    """A TransformerBridge of a model by directory or hub name, encoders of `ARCHITECTURES` among them.

    ``boot_transformers`` itself takes an encoder without its head for one with a head, which it draws at random; here
    such a checkpoint is refused, as `tl_aniso.models.load_model` refuses it.

    Args:
        name: a directory or a hub id.
        options: of ``TransformerBridge.boot_transformers``. With ``hf_model``, ``model_class``,
            ``trust_remote_code`` or ``load_weights=False`` the checkpoint is the caller's affair and not looked at.

    Raises:
        ModelError: as `register`; an encoder-decoder, a classifier, or an encoder whose checkpoint lacks its head or
            other weights.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import CamembertConfig, CamembertForMaskedLM, PreTrainedTokenizerFast
        >>> config = CamembertConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                          num_attention_heads=2)
        >>> words = Tokenizer(models.WordLevel({"<unk>": 0, "crow": 5}, unk_token="<unk>"))
        >>> with TemporaryDirectory() as directory:
        ...     CamembertForMaskedLM(config).save_pretrained(directory)
        ...     bridge = boot(directory, device="cpu", tokenizer=PreTrainedTokenizerFast(tokenizer_object=words))
        >>> bridge.cfg.architecture
        'CamembertForMaskedLM'
    """
    register()
    from tl_aniso.adapters.parts import TransformerBridge

    own = any(options.get(option) for option in ("hf_model", "model_class", "trust_remote_code"))
    if not own and options.get("load_weights", True):
        options |= _checked(name, options.get("revision"))
    return TransformerBridge.boot_transformers(name, **options)


def _checked(name: str, revision: str | None) -> dict[str, Any]:
    """Refuse a checkpoint by its config; the option that makes TransformerLens refuse one that lacks weights."""
    from pathlib import Path

    from tl_aniso.models.complete import CheckedMaskedLM
    from tl_aniso.models.kind import checked_objective

    extra = {} if revision is None else {"revision": revision}
    objective = checked_objective(name, local=Path(name).exists(), **extra)
    return {"model_class": CheckedMaskedLM} if objective == "masked" else {}


def _list(module: Any, name: str, kind: type) -> Any:
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise moved(f"{module.__name__}.{name}")
    return found


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
