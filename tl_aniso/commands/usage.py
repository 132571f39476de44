"""What a command was asked for, checked before anything runs."""

from itertools import islice
from pathlib import Path
from typing import Any

from tl_aniso.capturing.bind import bind
from tl_aniso.capturing.plan import available_sites
from tl_aniso.errors import TextError, TlAnisoError
from tl_aniso.pca import check_rank
from tl_aniso.sites import select_sites
from tl_aniso.text import Document, iter_documents

__all__ = ["UsageError", "check_against_model", "read_documents"]


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


def check_against_model(model: Any, *, rank: int | None, seq_len: int | None, sites: list[str] | None) -> None:
    """Refuse values of options that only the model can rule out, before anything runs on it.

    Raises:
        UsageError: a rank above d/2, sequences beyond the context, or a name that matches no site.
        ModelError: a model of no known kind.
    """
    layout = bind(model)
    if seq_len is not None and seq_len > layout.context:
        raise UsageError(f"seq_len {seq_len} is beyond the model's context of {layout.context} tokens")
    try:
        if rank is not None:
            check_rank(rank, layout.d_model)
        select_sites(sites, available_sites(layout, heads=False))
    except TlAnisoError as error:
        raise UsageError(str(error)) from error
