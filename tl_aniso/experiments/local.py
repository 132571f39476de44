"""The controlled pair, trained here: a decoder and an encoder of several seeds that differ in objective and mask alone.

Published models differ in corpus, tokenizer, width and much else; these do not. Intervals are over trainings.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tl_aniso.demo import one_thread
from tl_aniso.errors import TlAnisoError
from tl_aniso.experiments.families import CONTROLS, SMOKE_SITES
from tl_aniso.pair.run import KINDS, PairText, pair_text
from tl_aniso.progress import say
from tl_aniso.staging import staging
from tl_aniso.study import Study
from tl_aniso.study.devices import check_device
from tl_aniso.training import BatchLoss, PairRecipe, build_pair, next_token_loss, train_model

__all__ = ["SMOKE_RECIPE", "local_config", "run_local", "train_pair"]

# Five layers: fewer have no interval for a correlation with depth.
SMOKE_RECIPE = PairRecipe(
    d_model=16,
    n_layers=5,
    n_heads=2,
    d_mlp=32,
    vocab_size=300,
    context=24,
    n_steps=40,
    warmup=5,
    measured=(0.0, 0.1, 0.3, 0.6, 1.0),
)
_TEXT, _MORE = "text.jsonl", "geometry.jsonl"
# Of eighty thousand held-out tokens. Local geometry takes about half a minute a checkpoint, so not all are asked.
_GEOMETRY = {"checkpoints": 4, "n_types": 20, "n_local": 40}
_SMOKE_GEOMETRY = {"checkpoints": 2, "n_min": 4, "n_types": 3, "n_local": 16}


def train_pair(
    place: Path, *, seeds: Sequence[int], recipe: PairRecipe, text: PairText, progress: bool = True
) -> dict[str, Path]:
    """Train what is not there yet; each training is a directory of ``step*/`` checkpoints, whole or not there at all.

    Args:
        place: holds one directory a training, ``decoder-0`` and so on.
        seeds: of initialisation, order of the text and masks; both models of a seed start from one state.
        recipe: sizes, schedule, and where checkpoints are kept.
        text: what is trained on, with its tokenizer.
        progress: say which training is at work.

    Returns:
        name -> directory.

    Raises:
        TlAnisoError: a place that cannot be written, or a directory of another recipe; training that diverges.
    """
    found = {}
    for seed in seeds:
        for kind in KINDS:
            name = f"{kind}-{seed}"
            target = found[name] = place / name
            made = json.dumps([repr(recipe), seed, kind, len(text.windows)])
            if (target / "recipe.json").is_file():
                if (target / "recipe.json").read_text(encoding="utf-8") != made:
                    raise TlAnisoError(f"{target} holds a training of another recipe or text; choose another directory")
                continue
            say(f"training {name}: {recipe.n_steps} steps", enabled=progress)
            model = getattr(build_pair(recipe, seed), kind)
            loss: BatchLoss = next_token_loss if kind == "decoder" else recipe.objective(seed)
            with staging(target) as staged:

                def keep(step: int, live: Any, _loss: float, staged: Path = staged) -> None:
                    live.save_pretrained(staged / f"step{step}")
                    text.tokenizer.save_pretrained(staged / f"step{step}")

                train_model(model, recipe, text.windows, loss, seed=seed, on_checkpoint=keep)
                (staged / "recipe.json").write_text(made, encoding="utf-8")
                staged.rename(target)
    return found


def local_config(
    models: dict[str, Path], text: Path, recipe: PairRecipe, *, device: str | None = None, geometry: Any = False
) -> dict[str, Any]:
    """The study of these trainings: seeds of one kind are trainings of one model; `geometry` as in a study's config."""
    per_step = recipe.batch_size * recipe.context
    kinds = {kind: [name for name in models if name.rpartition("-")[0] == kind] for kind in KINDS}
    return {
        "models": [
            {"name": name, "source": str(source), "tokens_per_step": per_step} for name, source in models.items()
        ],
        "trainings": kinds,
        "text": str(text),
        "seq_len": recipe.context,
        "controls": CONTROLS,
        "n_controls": 99,
        "device": device,
        "geometry": geometry,
    }


def run_local(
    out: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: PairRecipe | None = None,
    device: str | None = None,
    smoke: bool = False,
    progress: bool = True,
) -> Study:
    """Train the pair, measure every checkpoint, write the pages; again: goes on where it stopped.

    Frequency and local geometry (C6 to C8) are measured on all held-out text, at four checkpoints of each training.

    Args:
        out: directory; ``models/`` holds the trainings, ``study/`` the study.
        seeds: one decoder and one encoder each; at least two for intervals.
        recipe: sizes and schedule; by default those of ``tl-aniso demo --pair``.
        device: of the measurement; training is on the processor, on one thread.
        smoke: a recipe of seconds.
        progress: show how far it has come.

    Returns:
        The finished study; `claims` has the verdicts.

    Raises:
        TlAnisoError: as `train_pair` and `Study.run`.
    """
    check_device(device)
    chosen = recipe or (SMOKE_RECIPE if smoke else PairRecipe())
    with one_thread():
        # All held-out windows: frequency needs more text than gradients do.
        sizes: dict[str, Any] = {"per_half": 16, "packages": ()} if smoke else {"per_half": 32}
        text = pair_text(chosen, n_held=100 if smoke else 10_000, **sizes)
        models = train_pair(out / "models", seeds=seeds, recipe=chosen, text=text, progress=progress)
        measured = out / "models" / _TEXT
        measured.write_text("\n".join(json.dumps(ids.tolist()) for ids in text.documents), encoding="utf-8")
        more = out / "models" / _MORE
        more.write_text("\n".join(json.dumps(ids.tolist()) for ids in text.held), encoding="utf-8")
        geometry = {**(_SMOKE_GEOMETRY if smoke else _GEOMETRY), "text": str(more)}
        config = local_config(models, measured, chosen, device=device, geometry=geometry)
        if smoke:
            config.update(sites=SMOKE_SITES, rank=4, n_controls=19, n_shards=4)
        study = Study(config, out / "study", progress=progress)
        study.run()
        study.report()
    return study
