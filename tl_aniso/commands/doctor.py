"""``tl-aniso doctor``: the library's promises, checked on the user's own model."""

import argparse
import time

from rich.console import Console

from tl_aniso.commands.output import fresh_directory
from tl_aniso.commands.usage import UsageError, read_documents
from tl_aniso.doctor.check import Diagnosis
from tl_aniso.doctor.run import diagnose, failed_to_load
from tl_aniso.errors import ModelError, TextError
from tl_aniso.models import load_model
from tl_aniso.progress import say_loading

__all__ = ["doctor_command"]


def doctor_command(options: argparse.Namespace) -> int:
    """Load, check, print the list, write doctor.html.

    Returns:
        0 if every check passed, warnings allowed; 1 if one failed.

    Raises:
        UsageError: the text or the output directory is of no use.
    """
    began = time.monotonic()
    if options.text is not None:
        read_documents(options.text, 1)
    with fresh_directory(options.out, "doctor", (options.model, options.text)) as directory:
        found = _diagnosis(options)
        # Lone surrogates, which a token's text may hold, have no bytes in UTF-8.
        (directory / "doctor.html").write_text(found.to_html(), encoding="utf-8", errors="backslashreplace")
    print(found.summary(min(Console().width, 110)))
    print(f"\n{options.out / 'doctor.html'}: every check in full ({time.monotonic() - began:.0f} s)")
    return 0 if found.passed else 1


def _diagnosis(options: argparse.Namespace) -> Diagnosis:
    say_loading(options.model)
    try:
        loaded = load_model(options.model, revision=options.revision)
    except ModelError as error:
        return failed_to_load(options.model, error)
    try:
        return diagnose(loaded.model, loaded.tokenizer, options.text, name=loaded.name)
    except TextError as error:  # what a model does wrong is a failed check; this is of the text that was given
        raise UsageError(str(error)) from error
