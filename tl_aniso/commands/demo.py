"""``tl-aniso demo``: the embedded default."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tl_aniso.commands.output import fresh_directory, print_table, print_text, short_names
from tl_aniso.demo import DemoResult, demo_text, run_demo, save_demo
from tl_aniso.progress import say
from tl_aniso.results import AblationIsotropy
from tl_aniso.training import DecoderRecipe
from tl_aniso.viz.reading import read_frame
from tl_aniso.viz.report import write_report

__all__ = ["demo_command"]


def demo_command(*, seed: int, steps: int, out: Path) -> None:
    """Train, measure, print the table and the reading, write results.csv and report.html."""
    began = time.monotonic()
    recipe = DecoderRecipe(n_steps=steps)
    with fresh_directory(out, "demo") as directory:
        say("reading this machine's own documentation and training a tokenizer on it ...")
        text = demo_text(recipe)
        result = _with_progress(seed, recipe, text)
        save_demo(result, directory)
        write_report(
            directory / "report.html",
            result.frame,
            title="A small decoder while it learns",
            provenance=_provenance(result, recipe, seed),
            loss=result.losses,
            notes=result.notes,
        )
    _print(result, seed)
    print(f"\n{out / 'report.html'}: every layer, site and control ({time.monotonic() - began:.0f} s)")


def _print(result: DemoResult, seed: int) -> None:
    print_table(short_names(result.by_step(), "R"), f"R by step: weight gradients of the block readers, seed {seed}")
    print_table(
        short_names(result.by_step(), "excess"), "excess by step: odds of E over the odds each control alone gives"
    )
    print_table(short_names(result.by_layer(result.peak), "R"), f"R by layer at the peak, step {result.peak}")
    star = result.frame[(result.frame["measure"] == "isoscore_star") & result.frame["site"].notna()]
    for step in dict.fromkeys((0, result.peak, int(star["step"].max()))):
        print_table(AblationIsotropy(star[star["step"] == step]).table(), f"IsoScore* at step {step}: means over sites")
    print_text(read_frame(result.frame))


def _with_progress(seed: int, recipe: DecoderRecipe, text: object) -> DemoResult:
    console = Console(stderr=True)
    if not console.is_terminal:
        began = time.monotonic()

        def line(step: int, loss: float) -> None:
            if step % max(1, recipe.n_steps // 10) == 0:
                left = (time.monotonic() - began) / step * (recipe.n_steps - step)
                say(f"step {step}/{recipe.n_steps}: loss {loss:.2f}, about {left:.0f} s left")

        return run_demo(seed=seed, recipe=recipe, text=text, on_step=line)  # type: ignore[arg-type]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=recipe.n_steps)

        def advance(step: int, loss: float) -> None:
            bar.update(task, completed=step, description=f"training and measuring, step {step}, loss {loss:.2f}")

        return run_demo(seed=seed, recipe=recipe, text=text, on_step=advance)  # type: ignore[arg-type]


def _provenance(result: DemoResult, recipe: DecoderRecipe, seed: int) -> dict[str, object]:
    from tl_aniso import __version__

    n_parameters = sum(parameter.numel() for parameter in result.model.parameters())
    return {
        "model": f"GPT-NeoX decoder trained here, {recipe.n_layers} layers, d_model {recipe.d_model}, "
        f"{n_parameters:,} parameters",
        "training": f"{recipe.n_steps} steps of {recipe.batch_size} x {recipe.context} tokens, AdamW, peak rate "
        f"{recipe.learning_rate}, seed {seed}",
        "text": "Python help topics and docstrings of the standard library and numpy, on this machine",
        "tangent proxies": "PCA of half A of the held-out documents, pooled over the checkpoints of the first 30% of "
        "the steps, frozen",
        "measured on": "half B of the held-out documents",
        "library": f"tl_aniso {__version__}",
    }
