"""One page of a pair: reading, C5, losses against unigram entropy, E and excess by step and by progress."""

from pathlib import Path
from typing import Any

from tl_aniso.pair.figures import losses_against_unigram, pair_by
from tl_aniso.pair.reading import read_pair
from tl_aniso.pair.run import CONTROLS, PairResult
from tl_aniso.pair.tables import c5_table, isotropy_of_both, matches_table, progress_table
from tl_aniso.viz.report import render_page, write_page

__all__ = ["write_pair_page"]


def write_pair_page(path: str | Path, result: PairResult) -> Path:
    """Write a pair as one self-contained HTML page that fetches nothing.

    Raises:
        TlAnisoError: `path` is a directory.
        OSError: the file cannot be written.
    """
    page = render_page(
        title="A decoder and an encoder that differ in objective and mask alone",
        reading=read_pair(result),
        notes=result.notes,
        tables=[c5_table(result), progress_table(result), c5_table(result, "writers")],
        isotropy=isotropy_of_both(result),
        whole=matches_table(result),
        figures=[
            ("loss", "Losses against unigram entropy", losses_against_unigram(result)),
            ("tokens", "E and excess at equal tokens", pair_by(result, "step")),
            ("progress", "E and excess at equal progress", pair_by(result, "progress")),
        ],
        provenance=_provenance(result),
        frame=result.frame,
        controls=CONTROLS,
    )
    return write_page(path, page)


def _provenance(result: PairResult) -> dict[str, Any]:
    from tl_aniso import __version__

    recipe = result.recipe
    n_parameters = sum(parameter.numel() for parameter in result.runs[0].model.parameters())
    hidden = "80% hidden, 10% replaced, 10% kept" if recipe.replacement == "bert" else "all hidden"
    return {
        "models": f"LlamaForCausalLM and EuroBertForMaskedLM trained here from one initial state, {recipe.n_layers} "
        f"layers, d_model {recipe.d_model}, {n_parameters:,} parameters each",
        "objectives": f"next-token prediction; masked language modelling of {recipe.mask_rate:.0%} of the tokens "
        f"({hidden}), masks drawn anew for every step from the seed",
        "training": f"{recipe.n_steps} steps of {recipe.batch_size} x {recipe.context} tokens, the same windows in the "
        f"same order, AdamW, peak rate {recipe.learning_rate}, warmup {recipe.warmup}, seeds "
        f"{', '.join(map(str, result.seeds))}",
        "processor time of training": {
            f"{run.kind}, seed {run.seed}": f"{run.cpu_seconds:.0f} s, one thread" for run in result.runs
        },
        "text": "Python help topics and docstrings of the standard library and numpy, on this machine; one tokenizer, "
        f"byte-level BPE of {recipe.vocab_size} ids",
        "unigram entropy": "cross-entropy of the held-out targets of each objective under the id frequencies of the "
        "training text, one added to each count, in nats a target",
        "tangent proxies": "PCA of half A of the held-out documents, each model's own, pooled over every twentieth of "
        "the steps up to 30%, frozen",
        "measured on": "half B of the held-out documents, the same for both",
        "equal progress": "each of the encoder's checkpoints with the decoder's nearest in 1 - loss / unigram entropy, "
        "not further than 0.01, each used once",
        "library": f"tl_aniso {__version__}",
    }
