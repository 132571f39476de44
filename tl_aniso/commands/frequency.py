"""``tl-aniso frequency``: do frequent token types vary less, within one checkpoint?"""

import argparse
import time

from tl_aniso.commands.output import fresh_directory, print_table, print_text
from tl_aniso.commands.usage import UsageError, check_against_model, read_documents
from tl_aniso.errors import SiteError, TextError
from tl_aniso.frequency import frequency_variance
from tl_aniso.models import load_model
from tl_aniso.progress import say_loading

__all__ = ["frequency_command"]


def frequency_command(options: argparse.Namespace) -> None:
    """Load, measure, print the table, write results.csv and types.csv."""
    began = time.monotonic()
    documents = read_documents(options.text, options.max_documents)
    with fresh_directory(options.out, "frequency", (options.model, options.text)) as directory:
        say_loading(options.model)
        loaded = load_model(options.model, revision=options.revision)
        check_against_model(loaded.model, rank=None, seq_len=options.seq_len, sites=options.sites)
        try:
            found = frequency_variance(
                loaded.model,
                documents,
                n_min=options.n_min,
                sites=options.sites,
                seq_len=options.seq_len,
                seed=options.seed,
                tokenizer=loaded.tokenizer,
            )
        except TextError as error:
            raise UsageError(f"{options.text}: {error}") from error
        except SiteError as error:
            raise UsageError(str(error)) from error
        frame = found.frame
        frame["model"], frame["revision"] = loaded.name, loaded.revision
        frame.to_csv(directory / "results.csv", index=False)
        found.types.to_csv(directory / "types.csv", index=False)
    print_table(found.table(), "log frequency against distance to the type's mean, over types")
    print_text("\n".join(f"note: {note}" for note in found.notes))
    print(f"\n{options.out / 'types.csv'}: every type ({time.monotonic() - began:.0f} s)")
