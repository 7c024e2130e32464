"""Decodes only the wanted columns, of formats whose columns are those of RECORD_SCHEMA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from txnlog.segments.errors import UnsupportedRecordFormat
from txnlog.segments.records import RECORD_SCHEMA


def choose_columns(columns: Sequence[str] | None) -> list[str]:
    """The names of the columns to decode; None means all. Raises UnsupportedRecordFormat."""
    wanted = RECORD_SCHEMA.names if columns is None else list(columns)
    for name in wanted:
        if name not in RECORD_SCHEMA.names:
            raise UnsupportedRecordFormat(
                f"there is no column {name!r}; the batch has {RECORD_SCHEMA.names}"
            )
    return wanted


def schema_of(wanted: Sequence[str]) -> pa.Schema:
    """The part of RECORD_SCHEMA with these columns, in this order."""
    return pa.schema([RECORD_SCHEMA.field(name) for name in wanted])


def decode_wanted(
    wanted: Sequence[str], decoders: Mapping[str, Callable[[], pa.Array]]
) -> pa.RecordBatch:
    """The wanted columns; ``decoders`` has a function for each column of RECORD_SCHEMA."""
    arrays = [decoders[name]() for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(wanted))
