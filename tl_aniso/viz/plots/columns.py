"""Refuse what is no table, and tables that lack a column."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from tl_aniso.errors import TlAnisoError

__all__ = ["need_columns"]


def need_columns(frame: Any, names: Iterable[str], source: str = "") -> None:
    """Refuse a frame without these columns.

    Raises:
        TlAnisoError: no pandas frame, or columns are missing; names them.

    Example:
        >>> need_columns(pd.DataFrame({"a": [1]}), ["a", "b"])
        Traceback (most recent call last):
        tl_aniso.errors.TlAnisoError: the frame lacks the columns b
    """
    if not isinstance(frame, pd.DataFrame):
        raise TlAnisoError(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise TlAnisoError(f"the frame lacks the columns {', '.join(missing)}{source and f'; pass {source}'}")
