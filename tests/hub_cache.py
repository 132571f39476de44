"""A hub on disk: several revisions of tiny models in the layout of the Hugging Face cache, and the way to use it.

commits = write_hub_cache(cache, "EleutherAI/pythia-160m", {"step0": model0, "step1000": model1}, tokenizer)
with hub_cache(cache):                      # in this process, offline
    load_model("EleutherAI/pythia-160m", revision="step1000")
subprocess.run(..., env=hub_environment(cache))   # in another one
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tl_aniso.models import cache_writing
from tl_aniso.models.cache_writing import add_revision, hub_cache, move_branch

__all__ = ["add_revision", "hub_cache", "hub_environment", "move_branch", "tiny_tokenizer", "write_hub_cache"]

_TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {b} of the {a} again, then at the {c} once more"
    for a in ("old", "red", "wet")
    for b in ("cat", "dog")
    for c in ("mat", "hat", "bed")
]


def tiny_tokenizer(vocab_size: int = 300, *, mask: bool = False) -> Any:
    """A byte-level BPE; with `mask`, also the special tokens that an encoder's has."""
    from tl_aniso.training import train_tokenizer

    tokenizer = train_tokenizer(_TEXTS, vocab_size)
    if mask:
        # Words that the text does not need: no id is added, so the model's vocabulary is not outgrown.
        tokenizer.add_special_tokens({"pad_token": "Q", "cls_token": "X", "sep_token": "Z", "mask_token": "J"})
    return tokenizer


def write_hub_cache(
    cache: Path, repo: str, revisions: Mapping[str, Any], tokenizer: Any = None, *, refs: bool = True, **save: Any
) -> dict[str, str]:
    """As `tl_aniso.models.cache_writing.write_hub_cache`, by default with `tiny_tokenizer()`."""
    return cache_writing.write_hub_cache(cache, repo, revisions, tokenizer or tiny_tokenizer(), refs=refs, **save)


def hub_environment(cache: Path) -> dict[str, str]:
    """The environment of another process that uses a cache, offline."""
    return {
        **os.environ,
        "HF_HUB_CACHE": str(cache),
        "HF_ASSETS_CACHE": str(cache.with_name(cache.name + "-assets")),
        "HF_HUB_OFFLINE": "1",
    }
