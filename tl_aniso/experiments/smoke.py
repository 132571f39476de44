"""Tiny models of a family's architecture in a hub cache, several revisions each, trained here for a second.

What a script runs on with ``--smoke``: everything but the size is as with published models.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tl_aniso.models import REGISTRY, Entry
from tl_aniso.models.cache_writing import hub_cache, write_hub_cache
from tl_aniso.models.rules import from_naming_rules
from tl_aniso.models.shapes import config_by_shape
from tl_aniso.training import MaskedTokens, Recipe, pack_windows, train_model, train_tokenizer

__all__ = ["SMOKE_STEPS", "smoke_hub", "tiny_revisions"]

VOCABULARY, CONTEXT = 300, 32
# Of the tiny training; published names stand for them in order.
SMOKE_STEPS = (0, 5, 10, 30, 60)
_SIZES = {"num_hidden_layers": 5, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
_RECIPE = Recipe(
    d_model=16, n_layers=5, n_heads=2, d_mlp=32, vocab_size=VOCABULARY, context=CONTEXT, n_steps=60, warmup=5
)


def _texts() -> list[str]:
    places = [
        f"the {a} {b} sat on the {c} and looked at the {b} of the {d} again, then at the {c} once more"
        for a in ("old", "red", "wet")
        for b in ("cat", "dog", "cow")
        for c in ("mat", "hat", "bed")
        for d in ("king", "farm")
    ]
    return [text if i % 2 else text.replace("the", "le").replace("and", "et") for i, text in enumerate(places)]


def tiny_revisions(entry: Entry, names: Sequence[str], tokenizer: Any, seed: int = 0) -> dict[str, Any]:
    """States of a tiny model of an entry's architecture as it learns, under the names of revisions."""
    windows = pack_windows(_texts(), tokenizer, CONTEXT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _tiny(entry)
    states: list[Any] = []
    objective = _masked(tokenizer, seed) if entry.objective == "masked" else _next_token
    train_model(
        model,
        _RECIPE,
        windows,
        objective,
        seed=seed,
        checkpoints=SMOKE_STEPS[: len(names)],
        on_checkpoint=lambda _step, live, _loss: states.append(copy.deepcopy(live)),
    )
    return dict(zip(names, states, strict=True))


@contextmanager
def smoke_hub(models: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """A hub cache of tiny models under the ids of the registry's, used offline while the block runs.

    Revisions are named as the family publishes them; of families of which no names are known, ``step1000`` and so on
    stand for what discovery would find.

    Yields:
        A text to measure on, and the repositories.
    """
    from transformers.utils import logging

    with TemporaryDirectory(prefix="tl-aniso-smoke-") as place:
        logging.disable_progress_bar()  # for each of many tiny files
        cache, text = Path(place) / "hub", Path(place) / "text.jsonl"
        rows = [{"text": one, "source": "smoke", "language": "en" if i % 2 else "fr"} for i, one in enumerate(_texts())]
        text.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        tokenizer = train_tokenizer(_texts(), VOCABULARY, mask=True)
        repos = []
        for number, name in enumerate(models):
            entry = REGISTRY[name]
            revisions = tiny_revisions(entry, _names(entry), tokenizer, seed=number)
            write_hub_cache(cache, entry.hub_id, revisions, tokenizer)
            repos.append(entry.hub_id)
        logging.enable_progress_bar()
        with hub_cache(cache):
            yield text, repos


def _names(entry: Entry) -> list[str]:
    """Five published names, from the first to the last."""
    published = [one.name for one in from_naming_rules(entry) if one.step is not None]
    if len(published) < len(SMOKE_STEPS):
        return [f"step{1000 * step}" for step in SMOKE_STEPS]
    # Two thirds of the tiny training are late, as its steps are.
    last = len(published) - 1
    return [published[round(last * share)] for share in (0, 0.08, 0.17, 0.5, 1)]


def _tiny(entry: Entry) -> Any:
    import transformers

    shape = config_by_shape(entry)
    facts: dict[str, Any] = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 2 * CONTEXT}
    facts.update({f"{kind}_token_id": 0 for kind in ("bos", "eos", "cls", "sep")}, pad_token_id=None)
    if entry.objective == "masked":
        facts["mask_token_id"] = 1
    if entry.class_name == "ModernBertForMaskedLM":
        facts.update(pad_token_id=0, global_attn_every_n_layers=2, local_attention=16)
    facts["tie_word_embeddings"] = bool(shape.tie_word_embeddings)
    facts["initializer_range"] = 0.06
    if entry.class_name != "GPTNeoXForCausalLM" and hasattr(shape, "num_key_value_heads"):
        facts["num_key_value_heads"] = 2
    config = type(shape)(**facts)
    return getattr(transformers, str(entry.class_name))(config).eval()


def _next_token(model: Any, batch: torch.Tensor, step: int) -> torch.Tensor:
    logits = model(input_ids=batch).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())


def _masked(tokenizer: Any, seed: int) -> Any:
    hidden = MaskedTokens(mask_id=int(tokenizer.mask_token_id), vocab_size=VOCABULARY, seed=seed)

    def loss(model: Any, batch: torch.Tensor, step: int) -> torch.Tensor:
        fed, chosen = hidden.hide(batch, step)
        # Through the whole head, which a BERT's output embedding alone is not.
        return torch.nn.functional.cross_entropy(model(input_ids=fed).logits[chosen], batch[chosen])

    return loss
