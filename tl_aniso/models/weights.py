"""Which files of a repository a measurement needs: config, tokenizer, and weights in one format."""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

__all__ = ["needed_files", "weight_files"]

_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "*.tiktoken",
    "tekken.json",
)
# As transformers looks for them: safetensors first, one file before shards.
_SINGLE = (("model", ".safetensors"), ("pytorch_model", ".bin"))
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5,6})-of-(?P<total>[0-9]{5,6})(?P<ending>\.safetensors|\.bin)", re.ASCII
)


def needed_files(names: Collection[str]) -> tuple[tuple[str, ...], str | None]:
    """The files to download of all that a repository holds, and what is wrong with its weights.

    Args:
        names: paths in the repository; folders within it hold nothing that is needed.

    Returns:
        Names in order, and None; or what is needed apart from weights, and what is missing.

    Example:
        >>> needed_files(["config.json", "model.safetensors", "pytorch_model.bin", "optimizer.pt"])
        (('config.json', 'model.safetensors'), None)
        >>> needed_files(["README.md", "config.json"])
        (('config.json',), 'no weights')
        >>> needed_files(["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"])[1]
        'shards are missing: 1 of 2 are there'
    """
    beside = sorted(
        name for name in names if any(fnmatchcase(name, pattern) for pattern in _BESIDE) and "/" not in name
    )
    weights, wrong = weight_files(names)
    if wrong is None and "config.json" not in names:
        wrong = "no config.json"
    return tuple(beside if wrong else sorted((*beside, *weights))), wrong


def weight_files(names: Collection[str]) -> tuple[tuple[str, ...], str | None]:
    """The files of the weights, index included, in the one format that would be loaded; or none, and what is missing.

    Example:
        >>> weight_files({"pytorch_model.bin", "config.json"})
        (('pytorch_model.bin',), None)
    """
    wrong = None
    for stem, ending in _SINGLE:
        single = stem + ending
        if single in names:
            return (single,), None
        shards = [
            match
            for match in map(_SHARD.fullmatch, names)
            if match and match["stem"] == stem and match["ending"] == ending
        ]
        if not shards and single + ".index.json" not in names:
            continue
        total = max((int(match["total"]) for match in shards), default=0)
        if len(shards) != total or not shards:
            wrong = wrong or f"shards are missing: {len(shards)} of {total or 'an index'} are there"
        elif single + ".index.json" not in names:
            wrong = wrong or f"no {single}.index.json, which says what each shard holds"
        else:
            return tuple(sorted((single + ".index.json", *(match[0] for match in shards)))), None
    return (), wrong or "no weights"
