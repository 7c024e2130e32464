"""Records of a typed topic, sent as mappings of columns to Python's values, or as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import contains

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.python_values import Values, infer, make_array, values_by_name
from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, TIMESTAMP
from txnlog.segments.records import HEADERS_TYPE
from txnlog.segments.schema_columns import default_of
from txnlog.write.row_values import metadata_column
from txnlog.write.typed_records import TypedRecords


def make_record(
    records: TypedRecords,
    row: object,
    timestamp_ms: int | None,
    headers: Sequence[tuple[str, bytes | None]],
    now_ms: int,
) -> pa.RecordBatch:
    """A batch of one record, checked like any batch. Raises InvalidRecord.

    In the row structs are mappings too, and maps are mappings or lists of pairs. A true
    ``_deleted`` makes it a deletion.
    """
    if not isinstance(row, Mapping):
        raise InvalidRecord(
            f"topic {records.topic!r} has a schema, so a record is a mapping of its columns to "
            f"values, not {type(row).__name__}; for many records use send_batch"
        )
    given: dict[str, pa.Array] = {
        TIMESTAMP: pa.array([timestamp_ms], pa.int64()),
        HEADERS: pa.array([[{"key": k, "value": v} for k, v in headers]], HEADERS_TYPE),
    }
    for name, value in row.items():
        if name in given or not isinstance(name, str):
            raise records.refusal(
                f"{name!r} is not a column; times and headers are arguments of send"
            )
        given[name] = make_column(records, [value], name)
    return records.normalize(pa.RecordBatch.from_pydict(given), now_ms)


def make_columns(records: TypedRecords, rows: Values) -> dict[str, pa.Array]:
    """The columns of some mappings, or of some dataclasses of one kind, to be normalised.

    Raises InvalidRecord; which record it is, the caller finds out.
    """
    columns = values_by_name(rows)
    records.check_names([*columns])
    made = {}
    for name, values in columns.items():
        array = metadata_column(name, values)
        if array is None:
            array = make_column(records, values, name)
            default = default_of(records.columns.field(name))
            if default is not None and isinstance(rows[0], Mapping):
                given = np.fromiter(map(contains, rows, repeat(name)), bool, len(rows))
                array = pc.if_else(pa.array(given), array, default)
        made[name] = array
    return made


def make_column(records: TypedRecords, values: Values, name: str) -> pa.Array:
    """At least one value as a column. Raises InvalidRecord."""
    columns = records.record_columns
    if name in columns.names and name != DELETED:
        return make_array(values, columns.field(name), name, records.refusal)
    return infer(values, name, records.refusal)
