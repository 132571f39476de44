"""``tl-aniso demo --pair``: a decoder and an encoder that differ in objective and mask alone."""

import dataclasses
import time
from pathlib import Path

from tl_aniso.commands.output import fresh_directory, print_table, print_text
from tl_aniso.pair.page import write_pair_page
from tl_aniso.pair.reading import read_pair
from tl_aniso.pair.run import KINDS, Kind, OnPairStep, pair_text, run_pair, save_pair
from tl_aniso.pair.tables import c5_frame, learning_frame, progress_frame
from tl_aniso.progress import say
from tl_aniso.training import PairRecipe

__all__ = ["pair_command"]


def pair_command(*, seed: int, steps: int | None, out: Path) -> None:
    """Train and measure two pairs, print the comparison and its reading, write results.csv and report.html."""
    began = time.monotonic()
    recipe = PairRecipe() if steps is None else dataclasses.replace(PairRecipe(), n_steps=steps)
    seeds = (seed, seed + 1)
    with fresh_directory(out, "demo --pair") as directory:
        say("reading this machine's own documentation and training a tokenizer on it ...")
        text = pair_text(recipe)
        result = run_pair(seeds=seeds, recipe=recipe, text=text, on_step=_progress(seeds, recipe.n_steps))
        save_pair(result, directory)
        write_pair_page(directory / "report.html", result)
    print_table(learning_frame(result), "held-out loss and progress (1 - loss / unigram entropy) by step, by seed")
    print_table(c5_frame(result), "C5, readers: decoder, encoder, and difference of E or ratio of excess, by seed")
    if len(matches := progress_frame(result)):
        print_table(matches, "E of readers at equal progress, match by match")
    print_text(read_pair(result))
    print(f"\n{out / 'report.html'}: every site, control and checkpoint ({time.monotonic() - began:.0f} s)")


def _progress(seeds: tuple[int, ...], n_steps: int) -> OnPairStep:
    """A line now and then with an estimate of what is left: four trainings, one after the other."""
    began = time.monotonic()
    every = max(1, n_steps // 10)
    total = len(seeds) * len(KINDS) * n_steps

    def line(seed: int, kind: Kind, step: int, loss: float) -> None:
        if step % every:
            return
        done = (seeds.index(seed) * len(KINDS) + KINDS.index(kind)) * n_steps + step
        left = (time.monotonic() - began) / done * (total - done)
        say(f"seed {seed}, {kind}: step {step}/{n_steps}, loss {loss:.2f}, about {left / 60:.0f} min left in all")

    return line
