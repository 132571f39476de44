"""Tiny masked-language encoders, ragged batches for them, and a directory as the hub lays it out."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

KINDS = ("EuroBert", "ModernBert", "Camembert", "XLMRoberta")  # that tl_aniso.adapters serves
ALL_KINDS = (*KINDS, "Bert", "Roberta")  # that captures measure; TransformerLens has adapters of these two itself
IMPLEMENTATIONS = ("eager", "sdpa")
SIDES = ("none", "right", "left")
VOCAB = 97
PAD, BOS, EOS, MASK = 0, 1, 2, 3
WINDOW = 8  # tokens on both sides together; the batches are longer
LENGTHS = (40, 23, 5)

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
_EXTRA: dict[str, dict[str, Any]] = {
    "EuroBert": {"num_key_value_heads": 2, "mask_token_id": MASK},
    # One global layer, then two local ones, which also differ in their rotary base.
    "ModernBert": {
        "local_attention": WINDOW,
        "global_attn_every_n_layers": 3,
        "cls_token_id": BOS,
        "sep_token_id": EOS,
    },
}
WORDS = ("the", "crow", "saw", "a", "river", "of", "glass", "and", "stone")


def tiny_encoder(kind: str, implementation: str = "eager", *, seed: int = 0, **changes: Any) -> Any:
    """A masked-language model in evaluation mode whose every parameter, gains and biases too, is drawn at random."""
    options = {**_COMMON, **_EXTRA.get(kind, {}), **changes}
    config = getattr(transformers, f"{kind}Config")(**options, attn_implementation=implementation)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            gain = name.endswith("weight") and "norm" in name.lower()
            parameter.copy_(1 + 0.3 * noise if gain else 0.2 * noise)
    config.architectures = [type(model).__name__]
    return model.eval()


def ragged(side: str, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of a batch without padding, or of `LENGTHS` padded on one side."""
    ids = torch.randint(MASK + 1, VOCAB, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row, length in enumerate(LENGTHS if side != "none" else ()):
        pads = slice(length, None) if side == "right" else slice(0, max(LENGTHS) - length)
        ids[row, pads], mask[row, pads] = PAD, 0
    return ids, mask


def save_as_on_hub(model: Any, directory: Path) -> None:
    """Weights, config and a small tokenizer of whole words, in the files that a hub repository has."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    specials = ["<pad>", "<s>", "</s>", "<mask>", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*specials, *WORDS])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    names = ("pad_token", "bos_token", "eos_token", "mask_token", "unk_token")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", **dict(zip(names, specials, strict=True))
    )
    model.save_pretrained(directory)
    fast.save_pretrained(directory)


def rename_class(directory: Path, name: str | None, **changes: Any) -> None:
    """Let the config name another class, or none, and hold further fields."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), "architectures": name and [name], **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def strip_head(directory: Path, model: Any) -> None:
    """Take out of a checkpoint what does not belong to the body."""
    from safetensors.torch import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    body = {name: value for name, value in weights.items() if name.startswith(f"{model.base_model_prefix}.")}
    save_file(body, directory / "model.safetensors", metadata={"format": "pt"})
