"""A directory of step*/ checkpoints of a tiny model, and a study of it."""

import json
from pathlib import Path
from typing import Any

from tests.models import tiny_model
from tl_aniso.training import train_tokenizer

STEPS = (0, 100, 300, 1000)
TEXTS = [
    f"the {a} {b} sat on the {c} and looked at the {b} of the {a} again, then at the {c} once more"
    for a, b, c in [
        (a, b, c) for a in ("old", "red", "wet") for b in ("cat", "dog", "cow") for c in ("mat", "hat", "bed")
    ]
]


def save_checkpoints(directory: Path, steps: tuple[int, ...] = STEPS, *, kind: str = "llama", seed: int = 0) -> Path:
    """One model a step, every one with weights of its own, each saved with its tokenizer."""
    tokenizer = train_tokenizer(TEXTS, 300)
    for number, step in enumerate(steps):
        model = tiny_model(kind, vocab_size=300, bos_token_id=0, eos_token_id=0, seed=seed + number)
        model.save_pretrained(directory / f"step{step}")
        tokenizer.save_pretrained(directory / f"step{step}")
    return directory


def save_texts(path: Path) -> Path:
    """One document a line, of two sources and languages."""
    rows = [
        {"text": t, "source": ("farm", "shop")[i % 2], "language": ("en", "fr")[i % 2]} for i, t in enumerate(TEXTS)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def small_config(models: Path, text: Path, **changes: Any) -> dict[str, Any]:
    """A study that takes a second or two."""
    sites = ["blocks.*.attn.W_V", "blocks.*.mlp.W_out", "blocks.*.hook_resid_pre"]
    return {
        "models": [{"name": "tiny", "source": str(models), "tokens_per_step": 512}],
        "text": str(text),
        "seq_len": 24,
        "sites": sites,
        "rank": 4,
        "n_controls": 19,
        **changes,
    }


def run_study(models: Path, text: Path, out: Path) -> None:
    """In a process of its own."""
    import torch

    from tl_aniso import Study

    torch.set_num_threads(1)
    Study(small_config(models, text), out, progress=False).run()
