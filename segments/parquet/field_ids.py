"""Ids of columns in Parquet files, by which engines such as Iceberg's find them.

A typed topic's own columns have their own ids. The columns common to all records have these, far
above any topic's and below those that Iceberg reserves.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from txnlog.segments.schema_columns import FIELD_ID, id_of

_FIRST: Final = 2_000_000_000
_IDS: Final = {
    "_timestamp": _FIRST,
    "timestamp": _FIRST,
    "_headers": _FIRST + 1,
    "headers": _FIRST + 1,
    "_deleted": _FIRST + 5,
    "_offset": _FIRST + 6,
    "key": _FIRST + 7,
    "value": _FIRST + 8,
}
"""The ids of the headers' parts lie in between."""


def with_record_ids(schema: pa.Schema) -> pa.Schema:
    """The schema of a segment, with ids by name for columns without one."""
    return pa.schema([_with_id(field) for field in schema])


def _with_id(field: pa.Field) -> pa.Field:
    number = _IDS.get(field.name)
    if id_of(field) is not None or number is None:
        return field
    kind = field.type
    if pa.types.is_list(kind):
        pair = kind.value_field.type
        parts = [_numbered(pair.field(n), number + 2 + n) for n in range(pair.num_fields)]
        element = kind.value_field.with_name("element").with_type(pa.struct(parts))
        kind = pa.list_(_numbered(element, number + 1))
    return _numbered(field.with_type(kind), number)


def _numbered(field: pa.Field, number: int) -> Any:
    return field.with_metadata({FIELD_ID: b"%d" % number})
