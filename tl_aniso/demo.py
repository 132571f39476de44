"""The embedded default: train a small decoder on text already on the machine, and measure it while it learns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from transformers import GPTNeoXForCausalLM, PreTrainedTokenizerFast

from tl_aniso.probe import EARLY_FRACTION, Probe
from tl_aniso.questions.by_step import energy_by_step
from tl_aniso.subspace import TangentProxies
from tl_aniso.text import local_corpus, split_documents
from tl_aniso.training import DecoderRecipe, measured_documents, pack_windows, train_decoder, train_tokenizer

__all__ = ["DemoResult", "DemoText", "demo_text", "one_thread", "run_demo", "save_demo"]


@dataclass(frozen=True)
class DemoText:
    """What a run trains on and what it is measured on; the two share no document.

    Attributes:
        windows: training windows, ids of shape (window, context).
        documents: measured documents, ids of one length, as many in half A as in half B.
        tokenizer: trained on the training text.
    """

    windows: Any
    documents: list[Int64[np.ndarray, " length"]]
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class DemoResult:
    """A finished run.

    Attributes:
        frame: every row of `tangent_energy` and `ablation_isotropy` at every checkpoint.
        proxies: frozen planes of the early checkpoints.
        losses: (step, loss) of every update, in nats a token.
        model: the decoder after the last step.
        tokenizer: its tokenizer.
        notes: what a reader of the numbers must know.
    """

    frame: pd.DataFrame
    proxies: TangentProxies
    losses: tuple[tuple[int, float], ...]
    model: GPTNeoXForCausalLM
    tokenizer: PreTrainedTokenizerFast
    notes: tuple[str, ...] = ()

    def by_step(self, gradient: str = "weight", group: str = "readers") -> pd.DataFrame:
        """R true beside R of every control, by step; see `energy_by_step`."""
        return energy_by_step(self.frame, gradient=gradient, group=group)

    def by_layer(self, step: int, gradient: str = "weight", group: str = "readers") -> pd.DataFrame:
        """The same by layer, at one step."""
        return energy_by_step(self.frame[self.frame["step"] == step], gradient=gradient, group=group, by="layer")

    @property
    def peak(self) -> int:
        """The step at which R of the block readers is largest."""
        table = self.by_step()
        return int(table.loc[table["R"].idxmax(), "step"])


def demo_text(recipe: DecoderRecipe, *, per_half: int = 32, packages: Sequence[str] = ("numpy",)) -> DemoText:
    """The machine's own documentation as training windows and measured documents.

    Args:
        recipe: sizes of vocabulary and context.
        per_half: measured documents in each half.
        packages: installed packages whose docstrings are added to the standard library's.
    """
    train, held_out = split_documents(local_corpus(packages))
    tokenizer = train_tokenizer(train, recipe.vocab_size)
    documents = measured_documents(held_out, tokenizer, length=recipe.context, per_half=per_half)
    return DemoText(pack_windows(train, tokenizer, recipe.context), documents, tokenizer)


def run_demo(
    *,
    seed: int = 0,
    recipe: DecoderRecipe | None = None,
    text: DemoText | None = None,
    on_step: Callable[[int, float], object] | None = None,
) -> DemoResult:
    """Train a decoder, capture it at about 20 checkpoints as it trains, and measure all of them.

    Planes are fitted on half A of the held-out documents at the checkpoints of the first 30% of the steps, frozen,
    and everything is measured on half B.

    Args:
        seed: of initialisation, order of the text, permuted labels.
        recipe: sizes and schedule; a GPT-NeoX of 4 layers and width 128, 500 steps, by default.
        text: what to train and measure on; the machine's own documentation by default.
        on_step: called with (step, loss) after every update.

    Raises:
        TlAnisoError: too little text for the recipe, or training that diverges.

    Example:
        >>> import numpy as np, torch
        >>> from tl_aniso.training import train_tokenizer
        >>> recipe = DecoderRecipe(d_model=16, n_layers=1, n_heads=2, d_mlp=32, vocab_size=300, context=16, n_steps=4)
        >>> rng = np.random.default_rng(0)
        >>> documents = [rng.integers(1, 300, 16) for _ in range(24)]
        >>> text = DemoText(torch.from_numpy(rng.integers(1, 300, (40, 16))), documents,
        ...                 train_tokenizer(["a rose " * 9], 257))
        >>> run_demo(recipe=recipe, text=text).by_step()["step"].tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    recipe = recipe or DecoderRecipe()
    text = text or demo_text(recipe)
    probe = Probe(
        text.documents,
        early_until=EARLY_FRACTION * recipe.n_steps,
        batch_size=recipe.batch_size,
        tokens_a_step=recipe.batch_size * recipe.context,
        name="demo decoder",
        seed=seed,
    )
    losses: list[tuple[int, float]] = []

    def stepped(step: int, loss: float) -> None:
        losses.append((step, loss))
        if on_step is not None:
            on_step(step, loss)

    with one_thread():
        run = train_decoder(
            recipe,
            text.windows,
            seed=seed,
            on_checkpoint=lambda step, model, loss: probe.checkpoint(step, model),
            on_step=stepped,
        )
        proxies = probe.freeze()
    return DemoResult(probe.frame(), proxies, tuple(losses), run.model, text.tokenizer, tuple(probe.notes))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for tensors this small: more gain little on idle cores and cost many times over on busy ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_demo(result: DemoResult, directory: Path) -> None:
    """Write the table, the frozen planes and the model, so that other commands can go on from them."""
    directory.mkdir(parents=True, exist_ok=True)
    result.frame.to_csv(directory / "results.csv", index=False)
    result.proxies.save(directory / "proxies")
    result.model.save_pretrained(directory / "model")
    result.tokenizer.save_pretrained(directory / "model")
