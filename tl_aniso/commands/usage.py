"""What a command was asked for, checked before anything runs."""

from itertools import islice
from pathlib import Path
from typing import Any

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.masked_lm import MaskedLM
from tl_aniso.capturing.objectives import CAUSAL, check_objective
from tl_aniso.capturing.plan import available_sites
from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.pca import check_rank
from tl_aniso.sites import select_sites
from tl_aniso.text import Document, iter_documents

__all__ = ["UsageError", "check_against_model", "objective_of", "read_documents"]


class UsageError(TlAnisoError):
    """An argument of the command line that cannot be used: exit code 2."""


def read_documents(path: Path, most: int | None = None) -> list[Document]:
    """The first `most` documents of a file, all by default.

    Raises:
        UsageError: no such file, one that cannot be read, or one without documents.
    """
    try:
        return list(islice(iter_documents(path), most))
    except TextError as error:
        empty = path.is_file() and not path.read_bytes().strip()
        raise UsageError(f"{path} is empty; give a file that holds documents" if empty else str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def objective_of(objective: str | None, mask_rate: float | None, mask_with: str | None) -> str | MaskedLM | None:
    """The objective that options of the command line ask for; None is what the model was made for.

    Raises:
        UsageError: options of masks beside the causal loss.

    Example:
        >>> objective_of(None, None, None), str(objective_of(None, 0.15, None))
        (None, 'masked(rate=0.15, replacement=bert)')
    """
    asked = {"rate": mask_rate, "replacement": mask_with}
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return objective
    if objective == CAUSAL:
        option = "--mask-rate" if mask_rate is not None else "--mask-with"
        raise UsageError(f"{option} is of masked tokens, and --objective causal masks none; leave one of them out")
    return MaskedLM(**given)  # type: ignore[arg-type]


def check_against_model(
    model: Any,
    *,
    rank: int | None,
    seq_len: int | None,
    sites: list[str] | None,
    objective: str | MaskedLM | None = None,
) -> None:
    """Refuse values of options that only the model can rule out, before anything runs on it.

    Raises:
        UsageError: a rank above d/2, sequences beyond the context, a name that matches no site, next-token loss of an
            encoder, or masked tokens of a decoder.
        ModelError: a model of no known kind.
    """
    layout = bind(model)
    if seq_len is not None and seq_len > layout.context:
        raise UsageError(f"seq_len {seq_len} is beyond the model's context of {layout.context} tokens")
    if isinstance(objective, MaskedLM) and layout.attends != "both":
        raise UsageError(
            f"--mask-rate and --mask-with are of encoders, and {layout.class_name} is a decoder, which predicts the "
            "next token; leave them out"
        )
    try:
        check_objective(objective, layout)
        if rank is not None:
            check_rank(rank, layout.d_model)
        select_sites(sites, available_sites(layout, heads=False))
    except TlAnisoError as error:
        raise UsageError(str(error)) from error
