"""The columns of a topic's Iceberg table, and the bounds of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from txnlog.errors import InvalidSchema
from txnlog.schema import DELETED
from txnlog.segments.schema_columns import default_of, id_of
from txnlog.tables.statistics import ColumnStatistics

TOMBSTONE = "_tombstone"
"""The name of ``_deleted`` here: Iceberg reserves that one."""


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Raises InvalidSchema: a column's name is not allowed here."""
    alike = [name for name in columns.names if name.casefold() == TOMBSTONE]  # to most engines
    if alike:
        raise InvalidSchema(
            f"the topic has a column {alike[0]!r}, and every Iceberg table that is made of a topic "
            f"with a key has {TOMBSTONE!r}: rename the topic's column"
        )
    named: list[Any] = [field.with_name(table_name(field.name)) for field in columns]
    try:
        return Schema(*map(_nested_field, named))
    except ValueError as error:
        raise InvalidSchema(
            "Iceberg goes by paths, and cannot tell a column from a field of another that is "
            f"called like it: {error}; rename one of them"
        ) from error


# pyiceberg does this too, by a module that loads all of Arrow's datasets: 50 MB of a server.
_PLAIN: dict[Any, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


def _nested_field(field: pa.Field) -> NestedField:
    kind = _iceberg_type(field.type)
    return NestedField(_id_of(field), field.name, kind, required=not field.nullable)


def _iceberg_type(kind: Any) -> IcebergType:  # noqa: ANN401 - pyarrow has no types
    if types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if types.is_struct(kind):
        return StructType(*(_nested_field(kind.field(n)) for n in range(kind.num_fields)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return MapType(
            _id_of(key),
            _iceberg_type(key.type),
            _id_of(item),
            _iceberg_type(item.type),
            value_required=not item.nullable,
        )
    if types.is_list(kind):
        element = kind.value_field
        return ListType(
            _id_of(element), _iceberg_type(element.type), element_required=not element.nullable
        )
    return _PLAIN[kind]


def _id_of(field: pa.Field) -> int:
    number = id_of(field)
    assert number is not None
    return number


def table_name(column: str) -> str:
    """The name in the table of a column of the topic."""
    return TOMBSTONE if column == DELETED else column


def default_as_json(column: pa.Field) -> object:
    """A column's default as Iceberg's metadata has it; None if it has none.

    Raises InvalidSchema: a float that JSON cannot say.
    """
    found = default_of(column)
    value = None if found is None else found.as_py()
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidSchema(
            f"the default of column {column.name!r} is {value}, which Iceberg's metadata cannot "
            "say: give it another one"
        )
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, date) else value


@dataclass(slots=True)
class FileBounds:
    """What is known of a file's columns, by their ids, as Iceberg's manifests have it."""

    null_counts: dict[int, int] = field(default_factory=dict)
    nan_counts: dict[int, int] = field(default_factory=dict)
    least: dict[int, bytes] = field(default_factory=dict)
    largest: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema, statistics: Mapping[str, ColumnStatistics]) -> FileBounds:
        """From statistics by the names of the topic's columns."""
        found = cls()
        for name, known in statistics.items():
            column = schema.find_field(table_name(name))
            kind = column.field_type
            assert isinstance(kind, PrimitiveType)
            number = column.field_id
            if known.null_count is not None:
                found.null_counts[number] = known.null_count
            if known.nan_count is not None:
                found.nan_counts[number] = known.nan_count
            if known.least is not None:
                found.least[number] = to_bytes(kind, known.least)
            if known.largest is not None:
                found.largest[number] = to_bytes(kind, known.largest)
        return found
