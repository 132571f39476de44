"""Train the pair, capture both models as they learn, and set them side by side."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tl_aniso.capturing.masked_lm import MaskedLM
from tl_aniso.checks import MOST_SEED, as_integer, as_list
from tl_aniso.demo import one_thread
from tl_aniso.errors import TlAnisoError
from tl_aniso.pair.compare import compare, few_shards_notes, windows_of
from tl_aniso.pair.progress import HeldOut, Match, match_progress, match_steps, progress_of, unigram_losses
from tl_aniso.probe import EARLY_FRACTION, Probe
from tl_aniso.subspace import TangentProxies
from tl_aniso.text import local_corpus, split_documents
from tl_aniso.training import (
    BatchLoss,
    PairRecipe,
    build_pair,
    measured_documents,
    next_token_loss,
    pack_windows,
    train_model,
    train_tokenizer,
)

__all__ = [
    "CONTROLS",
    "KINDS",
    "Kind",
    "OnPairStep",
    "PairResult",
    "PairText",
    "Run",
    "pair_text",
    "run_pair",
    "save_pair",
]

Kind = Literal["decoder", "encoder"]
KINDS: tuple[Kind, ...] = ("decoder", "encoder")
# The closed forms, and the second backward pass that both objectives have.
CONTROLS = ("input_energy", "sign_flip", "shuffled_g", "shuffled_labels")

# (seed, kind, step, loss)
OnPairStep = Callable[[int, Kind, int, float], object]


@dataclass(frozen=True)
class PairText:
    """What a pair trains on and what it is measured on; they share no document.

    Attributes:
        windows: training windows, ids of shape (window, context).
        held: windows of held-out documents, for the loss.
        documents: measured documents, starts of held-out ones, ids of one length, as many in half A as in half B.
        tokenizer: trained on the training text, with a mask token.
    """

    windows: Int64[torch.Tensor, "window position"]
    held: Int64[torch.Tensor, "held position"]
    documents: list[Int64[np.ndarray, " length"]]
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class Run:
    """One model of a pair, trained and measured.

    Attributes:
        kind: "decoder" or "encoder".
        seed: of its training.
        losses: (step, loss) of every update, in nats a predicted token.
        held: held-out loss by measured step, in nats a predicted token.
        unigram: cross-entropy of the held-out targets of its objective under the training text's unigram distribution.
        frame: every row of `tangent_energy` and `ablation_isotropy` at every checkpoint.
        proxies: frozen planes of its own early steps.
        model: after the last step.
        cpu_seconds: processor time of training alone, captures and held-out losses left out.
    """

    kind: Kind
    seed: int
    losses: tuple[tuple[int, float], ...]
    held: dict[int, float]
    unigram: float
    frame: pd.DataFrame
    proxies: TangentProxies
    model: PreTrainedModel
    cpu_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def progress(self) -> dict[int, float]:
        """`progress_of` the held-out loss, by measured step."""
        return {step: progress_of(loss, self.unigram) for step, loss in self.held.items()}


@dataclass(frozen=True)
class PairResult:
    """Pairs of several seeds.

    Attributes:
        recipe: of both.
        runs: two for each seed, the decoder first.
        matches: by seed and by "equal tokens" or "equal progress", the checkpoints that are compared.
        differences: decoder less encoder, as `tl_aniso.pair.compare.compare` has it, of all seeds.
        tokenizer: of both.
        notes: what a reader of the numbers must know.
    """

    recipe: PairRecipe
    runs: tuple[Run, ...]
    matches: dict[tuple[int, str], tuple[Match, ...]]
    differences: pd.DataFrame
    tokenizer: PreTrainedTokenizerFast
    notes: tuple[str, ...] = field(default=())

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the pairs, in order."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def frame(self) -> pd.DataFrame:
        """Every row of every run, with ``architecture``, ``seed``, ``held_out_loss`` and ``progress`` beside it."""
        parts = []
        for run in self.runs:
            steps = run.frame["step"].astype(int)
            parts.append(
                run.frame.assign(
                    architecture=run.kind,
                    seed=run.seed,
                    held_out_loss=steps.map(run.held),
                    progress=steps.map(run.progress),
                )
            )
        return pd.concat(parts, ignore_index=True)

    def run(self, seed: int, kind: Kind) -> Run:
        """One of the runs."""
        return next(run for run in self.runs if (run.seed, run.kind) == (seed, kind))


def pair_text(
    recipe: PairRecipe, *, per_half: int = 32, n_held: int = 256, packages: Sequence[str] = ("numpy",)
) -> PairText:
    """The machine's own documentation as training windows, held-out windows and measured documents.

    Args:
        recipe: sizes of vocabulary and context.
        per_half: measured documents in each half.
        n_held: held-out windows at most, spread over all of the held-out text.
        packages: installed packages whose docstrings are added to the standard library's.
    """
    train, held_out = split_documents(local_corpus(packages))
    tokenizer = train_tokenizer(train, recipe.vocab_size, mask=True)
    held = pack_windows(held_out, tokenizer, recipe.context)
    return PairText(
        windows=pack_windows(train, tokenizer, recipe.context),
        held=held[:: max(1, len(held) // n_held)][:n_held],
        documents=measured_documents(held_out, tokenizer, length=recipe.context, per_half=per_half),
        tokenizer=tokenizer,
    )


def run_pair(
    *,
    seeds: Sequence[int] = (0, 1),
    recipe: PairRecipe | None = None,
    text: PairText | None = None,
    on_step: OnPairStep | None = None,
) -> PairResult:
    """Train a decoder and an encoder that differ in objective and attention mask alone, measure both, compare them.

    One corpus, tokenizer, width, depth, schedule, initial state and order of windows; each model's planes are those of
    its own first 30% of steps, frozen; everything is measured on the same held-out documents. See ``docs/method.md``,
    "Decoders and encoders".

    Args:
        seeds: of initialisation, order of the windows, masks, permuted labels; one pair each.
        recipe: sizes and schedule.
        text: what to train and measure on; the machine's own documentation by default.
        on_step: called with (seed, kind, step, loss) after every update.

    Returns:
        All runs and their paired differences, at equal tokens and at equal progress.

    Raises:
        TlAnisoError: no seed, one that comes twice, too little text for the recipe, or training that diverges.
    """
    recipe = recipe or PairRecipe()
    chosen = _seeds(seeds)
    text = text or pair_text(recipe)
    runs: list[Run] = []
    matches: dict[tuple[int, str], tuple[Match, ...]] = {}
    tables, notes = [], {}
    early_until = EARLY_FRACTION * recipe.n_steps
    with one_thread():
        for seed in chosen:
            pair = build_pair(recipe, seed)
            both = {kind: _run(kind, getattr(pair, kind), recipe, text, seed, on_step) for kind in KINDS}
            runs += [run for run, _ in both.values()]
            progress = [both[kind][0].progress for kind in KINDS]
            tokens, equal = match_steps(*progress), match_progress(*progress)
            matches[seed, "equal tokens"], matches[seed, "equal progress"] = tokens, equal
            windows = windows_of(tokens, equal, early_until)
            (_, one), (_, other) = (both[kind] for kind in KINDS)
            tables.append(compare(one, other, windows, seed=seed, controls=CONTROLS))
            for run, _ in both.values():
                notes.update(dict.fromkeys(f"seed {seed}, {run.kind}: {note}" for note in run.notes))
    differences = pd.concat(tables, ignore_index=True)
    notes.update(dict.fromkeys(few_shards_notes(differences)))
    return PairResult(recipe, tuple(runs), matches, differences, text.tokenizer, tuple(notes))


def save_pair(result: PairResult, directory: Path) -> None:
    """Write the tables, the frozen planes and the models, so that other commands can go on from them."""
    directory.mkdir(parents=True, exist_ok=True)
    result.frame.to_csv(directory / "results.csv", index=False)
    result.differences.to_csv(directory / "differences.csv", index=False)
    for run in result.runs:
        place = directory / f"{run.kind}-seed-{run.seed}"
        run.proxies.save(place / "proxies")
        run.model.save_pretrained(place / "model")
        result.tokenizer.save_pretrained(place / "model")


def _run(
    kind: Kind, model: Any, recipe: PairRecipe, text: PairText, seed: int, on_step: OnPairStep | None
) -> tuple[Run, dict[int, Any]]:
    logs = unigram_losses(text.windows, recipe.vocab_size)
    # The held-out masks are those of seed 0 whatever the training's: pairs of all seeds answer the same questions.
    held_out = (
        HeldOut.causal(text.held, logs) if kind == "decoder" else HeldOut.masked(text.held, logs, recipe.objective())
    )
    loss_of: BatchLoss = next_token_loss if kind == "decoder" else recipe.objective(seed)
    measured, fitted = recipe.default_checkpoints(), recipe.plane_steps()
    probe = Probe(
        text.documents,
        early_until=EARLY_FRACTION * recipe.n_steps,
        batch_size=recipe.batch_size,
        tokens_a_step=recipe.batch_size * recipe.context,
        name=f"pair {kind}",
        seed=seed,
        options={"tokenizer": text.tokenizer, "objective": _measured_objective(kind, recipe)},
        fits_at=frozenset(fitted),
        measures_at=frozenset(measured),
    )
    losses: list[tuple[int, float]] = []
    held: dict[int, float] = {}
    elsewhere = 0.0

    def checkpoint(step: int, live: PreTrainedModel, loss: float) -> None:
        nonlocal elsewhere
        began = time.process_time()
        if step in measured:
            held[step] = held_out.loss(live)
        probe.checkpoint(step, live)
        elsewhere += time.process_time() - began

    def stepped(step: int, loss: float) -> None:
        losses.append((step, loss))
        if on_step is not None:
            on_step(seed, kind, step, loss)

    began = time.process_time()
    trained = train_model(
        model,
        recipe,
        text.windows,
        loss_of,
        seed=seed,
        checkpoints={*measured, *fitted},
        on_checkpoint=checkpoint,
        on_step=stepped,
    )
    spent = time.process_time() - began - elsewhere
    proxies = probe.freeze()
    run = Run(
        kind=kind,
        seed=seed,
        losses=tuple(losses),
        held=held,
        unigram=held_out.unigram,
        frame=probe.frame(),
        proxies=proxies,
        model=trained.model,
        cpu_seconds=spent,
        notes=tuple(probe.notes),
    )
    return run, probe.energies


def _measured_objective(kind: Kind, recipe: PairRecipe) -> Any:
    return "causal" if kind == "decoder" else MaskedLM(rate=recipe.mask_rate, replacement=recipe.replacement)


def _seeds(seeds: Any) -> tuple[int, ...]:
    given = as_list(seeds)
    chosen = tuple(as_integer("seeds", seed, least=0, most=MOST_SEED) for seed in ([] if given is None else given))
    if not chosen or len(set(chosen)) < len(chosen):
        raise TlAnisoError(f"seeds must name at least one seed and none twice, got {seeds!r}")
    return chosen
