"""The columns of a scan: the row of Spark's Kafka source, as an Arrow schema."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txnlog.errors import InvalidOption
from txnlog.segments.records import HEADERS_TYPE

SCAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What a scan can return: the row of Spark's Kafka source. timestampType: 0 create, 1 append."""


def scan_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns of a scan."""
    return pa.schema([SCAN_SCHEMA.field(name) for name in columns])


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to read, all of them if None. Raises InvalidOption."""
    if columns is None:
        return tuple(SCAN_SCHEMA.names)
    if isinstance(columns, str):
        raise InvalidOption(f"columns must be a list of names, not the string {columns!r}")
    chosen = tuple(columns)
    for name in chosen:
        if name not in SCAN_SCHEMA.names:
            raise InvalidOption(
                f"unknown column {name!r}; a scan has {', '.join(SCAN_SCHEMA.names)}"
            )
    if not chosen or len(set(chosen)) != len(chosen):
        raise InvalidOption("columns must name at least one column, and none twice")
    return chosen
