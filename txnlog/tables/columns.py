"""The columns of a table: those in a topic's files, with their ids."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from txnlog.columns.layouts import file_layout
from txnlog.config import TopicConfig
from txnlog.read.topic_view import TopicView
from txnlog.schema import TIMESTAMP, TopicSchema
from txnlog.segments.parquet.field_ids import with_record_ids
from txnlog.segments.records import RECORD_SCHEMA
from txnlog.segments.schema_columns import default_of, id_of


def table_columns(view: TopicView) -> pa.Schema:
    """All columns in the files, none of them required; times in microseconds.

    With log append time, times are not in the files, nor in the table.
    """
    stored = RECORD_SCHEMA if view.schema is None else view.schema.record_columns
    if TopicConfig.of(view.config).log_append_time:
        stored = stored.remove(stored.get_field_index(_time_column(view.schema)))
    return pa.schema([_as_in_tables(field) for field in with_record_ids(stored)])


def time_column(columns: pa.Schema, schema: TopicSchema | None) -> str | None:
    """The column of times among those of a topic's table, if it has one."""
    name = _time_column(schema)
    return name if name in columns.names else None


def _time_column(schema: TopicSchema | None) -> str:
    return "timestamp" if schema is None else TIMESTAMP


def _as_in_tables(field: pa.Field) -> pa.Field:
    kind: Any = field.type
    if types.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    elif types.is_struct(kind):
        kind = pa.struct([_as_in_tables(kind.field(n)) for n in range(kind.num_fields)])
    elif types.is_map(kind):
        key = _as_in_tables(kind.key_field).with_nullable(False)
        kind = pa.map_(key, _as_in_tables(kind.item_field))
    elif types.is_list(kind):
        kind = pa.list_(_as_in_tables(kind.value_field.with_name("element")))
    return field.with_type(kind).with_nullable(True)


@lru_cache(maxsize=256)
def shows_as_it_is(schema: TopicSchema | None, version: int, *, by_name: bool) -> bool:
    """Whether engines see the topic's records in files of the schema with this number.

    Not if a missing column has a default, which engines do not know; nor, for engines that go by
    names, if they would find another column, or none.
    """
    if schema is None:
        return True
    layout = file_layout(schema, version)
    if layout is None or (by_name and not layout.is_plain):
        return False
    return not defaults_lacked(schema, version)


@lru_cache(maxsize=256)
def defaults_lacked(schema: TopicSchema, version: int) -> frozenset[str]:
    """The columns with a default that files of the schema with this number do not have."""
    layout = file_layout(schema, version)
    there = [None] * len(schema.columns) if layout is None else layout.columns
    pairs = zip(schema.columns, there, strict=True)
    return frozenset(
        field.name for field, one in pairs if one is None and default_of(field) is not None
    )


def names_in_file(file: pa.Schema, columns: pa.Schema) -> dict[str, str]:
    """The names of a table's columns in a file, found by id, if present."""
    by_id = {id_of(field): field.name for field in file}
    return {field.name: by_id[number] for field in columns if (number := id_of(field)) in by_id}


def found_by_name(file: pa.Schema, columns: pa.Schema) -> bool:
    """Whether looking up the columns by name finds the right ones, and all of them."""
    return _found_by_name([*file], [*columns])


def _found_by_name(there: list[pa.Field], wanted: list[pa.Field]) -> bool:
    names = {field.name: field for field in there}
    ids = {id_of(field): field.name for field in there}
    for field in wanted:
        found = names.get(field.name)
        number = id_of(field)
        if found is None and number not in ids:
            continue  # a column that is younger than the file
        if found is None or id_of(found) not in (None, number):
            return False
        if not _found_by_name(_children(found.type), _children(field.type)):
            return False
    return True


def found_by_id(file: pa.Schema) -> bool:
    """Whether each column of a file has an id, nested ones too."""
    return _have_ids([*file])


def _have_ids(fields: list[pa.Field]) -> bool:
    return all(id_of(f) is not None and _have_ids(_children(f.type)) for f in fields)


def _children(kind: Any) -> list[pa.Field]:  # noqa: ANN401 - pyarrow has no types
    if types.is_struct(kind):
        return [kind.field(n) for n in range(kind.num_fields)]
    if types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return [kind.value_field.with_name("element")] if types.is_list(kind) else []
