"""``tl-aniso measure``: one model, one checkpoint."""

import argparse
import time

import pandas as pd

from tl_aniso.commands.output import fresh_directory, print_table, print_text, short_names
from tl_aniso.commands.usage import UsageError, check_against_model, objective_of, read_documents
from tl_aniso.errors import TextError
from tl_aniso.models import LoadedModel, load_model
from tl_aniso.progress import say_loading
from tl_aniso.questions.single import Single, measure_once
from tl_aniso.viz.reading import read_frame
from tl_aniso.viz.report import write_report

__all__ = ["measure_command"]


def measure_command(options: argparse.Namespace) -> None:
    """Load, measure, print the tables and the reading, write results.csv, proxies and report.html."""
    began = time.monotonic()
    objective = objective_of(options.objective, options.mask_rate, options.mask_with)
    documents = read_documents(options.text, options.max_documents)
    with fresh_directory(options.out, "measure", (options.model, options.text)) as directory:
        say_loading(options.model)
        loaded = load_model(options.model, revision=options.revision)
        check_against_model(
            loaded.model, rank=options.rank, seq_len=options.seq_len, sites=options.sites, objective=objective
        )
        try:
            found = measure_once(
                loaded.model,
                documents,
                objective=objective,
                rank=options.rank,
                controls=options.controls,
                shuffled_labels=options.shuffled_labels,
                seed=options.seed,
                sites=options.sites,
                seq_len=options.seq_len,
                batch_size=options.batch_size,
                tokenizer=loaded.tokenizer,
            )
        except TextError as error:
            raise UsageError(f"{options.text}: {error}") from error
        frame = pd.concat([found.energy.frame, found.isotropy.frame], ignore_index=True)
        frame["model"], frame["revision"] = loaded.name, loaded.revision
        frame.to_csv(directory / "results.csv", index=False)
        found.measured.proxies.save(directory / "proxies")
        notes = tuple(dict.fromkeys((*found.energy.notes, *found.isotropy.notes)))
        provenance = _provenance(loaded, options, found)
        write_report(
            directory / "report.html", frame, title=f"Measured: {loaded.name}", provenance=provenance, notes=notes
        )
    _print_tables(found)
    print_text("\n".join((str(read_frame(frame)), *(f"note: {note}" for note in notes))))
    print(f"\n{options.out / 'report.html'}: every layer, site and control ({time.monotonic() - began:.0f} s)")


def _print_tables(found: Single) -> None:
    energy, rank = _without_rank(found.energy.table())
    print_table(short_names(energy, "R"), f"R of gradients, means over sites{rank}")
    controls = [name for name in energy.columns if name.startswith("excess ")]
    excess = short_names(energy.dropna(subset=controls, how="all"), "excess") if controls else energy.iloc[:0]
    if len(excess):
        print_table(excess, "excess: odds of E over the odds that each control alone gives")
    isotropy, rank = _without_rank(found.isotropy.table())
    print_table(isotropy, f"IsoScore* before and after removal, means over sites{rank}")


def _without_rank(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The table without its column of ranks where they agree, and the rank for its title."""
    ranks = table["rank"].unique()
    return (table.drop(columns="rank"), f", rank {ranks[0]}") if len(ranks) == 1 else (table, "")


def _provenance(loaded: LoadedModel, options: argparse.Namespace, found: Single) -> dict[str, object]:
    metadata = found.measured.capture.metadata
    model, text = metadata["model"], metadata["text"]
    return {
        "model": f"{loaded.name} ({model['class']}, {model['n_layers']} layers, d_model {model['d_model']})",
        "revision": loaded.revision,
        "text": f"{options.text.name}: {len(text['documents'])} documents measured, {text['n_tokens']} tokens",
        "loss": f"{found.measured.capture.loss:.4g} nats per predicted token, mean over the documents measured",
        "sequences": f"up to {metadata['options']['seq_len']} tokens; dropped: {_dropped(text['dropped'])}",
        "documents with a BOS": f"{text['n_with_bos']} of those measured and fitted on",
        "tangent proxies": "PCA of the half of the documents that is not measured"
        if found.measured.held_out
        else "in-sample: PCA of the very documents that are measured",
        "library": f"tl_aniso {metadata['library_version']}",
    }


def _dropped(counts: dict[str, int]) -> str:
    """What was left out, for people: "2 duplicate documents, 1 short tail"."""
    named = (f"{n} {reason.replace('_', ' ')}{'' if n == 1 else 's'}" for reason, n in counts.items() if n)
    return ", ".join(named) or "nothing"
