"""Result frames as Parquet, of the same bytes for the same rows."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tl_aniso.errors import TlAnisoError
from tl_aniso.questions.frame import COLUMNS

__all__ = ["GEOMETRY_COLUMNS", "as_bytes", "geometry_bytes", "notes_of", "read_table"]

# The columns of the second table, about frequency and local geometry; see docs/design.md.
GEOMETRY_COLUMNS = (
    *("model", "family", "objective", "revision", "step", "tokens_seen", "phase", "layer", "site", "gradient", "scope"),
    *("measure", "variant", "group", "value", "ci_low", "ci_high", "p_value", "control", "control_value"),
    *("control_low", "control_high", "difference", "difference_low", "difference_high", "n_types", "n_rows"),
    *("n_documents", "rank", "radius", "seed", "notes"),
)

_TEXT = (
    *("model", "family", "objective", "revision", "phase", "site", "gradient", "unit", "basis", "proxy_id", "measure"),
    *("control", "exclude", "duplicate_of", "mixed_with", "scope", "variant", "group", "notes"),
)
_FLAGS = ("centred", "held_out")
_INTEGERS = ("rank", "n_rows", "n_sequences", "n_documents", "seq_len", "seed", "n_types")
# Beyond `COLUMNS`, where a frame has them.
_ADDED = ("loss", "progress", "duplicate_of", "mixed_with")
_FACTS = b"tl_aniso"


def as_bytes(frame: pd.DataFrame, facts: dict[str, Any]) -> bytes:
    """A Parquet file of the frame.

    Columns, types and metadata are fixed and hold no time, so that equal rows are equal bytes (with one version of
    pyarrow).

    Args:
        frame: with all of `COLUMNS`, and ``loss``, ``progress``, ``duplicate_of`` and ``mixed_with`` where it has them.
        facts: plain JSON values that belong to the table, such as notes for its reader.
    """
    return _written(frame, (*COLUMNS, *(name for name in _ADDED if name in frame)), facts)


def geometry_bytes(frame: pd.DataFrame, facts: dict[str, Any]) -> bytes:
    """The same of a frame with `GEOMETRY_COLUMNS`; one that it does not have is missing throughout."""
    return _written(frame.reindex(columns=list(GEOMETRY_COLUMNS)), GEOMETRY_COLUMNS, facts)


def _written(frame: pd.DataFrame, names: Sequence[str], facts: dict[str, Any]) -> bytes:
    fields = [pa.field(name, _kind(name)) for name in names]
    columns = [pa.array(_plain(frame[field.name]), type=field.type, from_pandas=True) for field in fields]
    metadata = {_FACTS: json.dumps(facts, sort_keys=True).encode()}
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd", version="2.6", store_schema=True)
    return stream.getvalue()


def read_table(path: Path) -> pd.DataFrame:
    """The frame that `as_bytes` made a file of.

    Raises:
        TlAnisoError: no such file, or one that is no Parquet.
    """
    return _read(path).to_pandas()


def notes_of(path: Path) -> dict[str, Any]:
    """The facts that were written with a table."""
    found = (_read(path).schema.metadata or {}).get(_FACTS, b"{}")
    return dict(json.loads(found))


def _read(path: Path) -> Any:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TlAnisoError(f"cannot read the table {path}: {error}") from error


def _kind(name: str) -> Any:
    if name in _TEXT:
        return pa.string()
    if name in _FLAGS:
        return pa.bool_()
    return pa.int64() if name in _INTEGERS else pa.float64()


def _plain(values: Any) -> list[Any]:
    return [None if value is None or value != value else value for value in values.tolist()]
