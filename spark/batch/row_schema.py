"""The row of Spark's Kafka source, in Spark's types, and the columns that may be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txnlog.errors import InvalidOption, InvalidRecord

if TYPE_CHECKING:
    from txnlog.read.plan import ScanColumns

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}

_TEXT = "cast it to string or binary, or encode it, for example with to_json(struct(...))"
_WRITABLE: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": ((StringType, BinaryType), _TEXT),
    "value": ((StringType, BinaryType), _TEXT),
    "topic": ((StringType,), "cast it to string"),
    "partition": ((IntegerType, ShortType, ByteType), "cast it to int"),
    "timestamp": ((TimestampType,), "cast it to timestamp"),
}
_NOT_WRITTEN = ("offset", "timestampType")
"""A read has them and a write sets them itself, so they are allowed and ignored."""


def row_schema(columns: Sequence[str], metadata: Mapping[str, str] | None = None) -> StructType:
    """The Spark schema of these columns; everything is nullable, as in the Kafka source.

    ``metadata`` is that of each column: it names the rows' transaction.
    """
    return StructType([StructField(n, _TYPES[n], metadata=dict(metadata or {})) for n in columns])


def read_schema(columns: ScanColumns, metadata: Mapping[str, str] | None = None) -> StructType:
    """The Spark schema of a read: :func:`row_schema`, or of a typed topic its own columns.

    They are nullable as well: records may lack a column that was added later, and Spark's own file
    sources do the same.
    """
    if columns.topic_schema is None:
        return row_schema(columns.names, metadata)
    from txnlog.spark.batch.typed_rows import spark_type

    return StructType(
        [
            StructField(field.name, spark_type(field.type), metadata=dict(metadata or {}))
            for field in columns.schema
        ]
    )


def check_read_schema(schema: StructType, columns: ScanColumns) -> None:
    """Raise InvalidOption unless a schema, such as one that the user gave, is that of a read."""
    expected = read_schema(columns)
    if StructType([StructField(f.name, f.dataType, f.nullable) for f in schema]) != expected:
        instead = "parse the value column" if columns.topic_schema is None else "cast columns"
        raise InvalidOption(
            f"a read has the schema {expected.simpleString()}, and not {schema.simpleString()}: "
            "load the frame again if its topics were changed since; or leave out .schema(...), and "
            f"{instead} instead"
        )


def check_writable(
    schema: StructType, topic: str | None, include_headers: bool | None
) -> list[str]:
    """Check a write's columns; return the names of those that count.

    Raises InvalidRecord: one is missing, unknown or of a wrong type, and the message says what to
    do; InvalidOption: there is neither an option nor a column for the topic.
    """
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise InvalidRecord(f"there are two columns {name!r}; drop or rename one")
        if name not in _TYPES:
            raise InvalidRecord(
                f"column {name!r} is not part of a record, which has key, value, topic, partition, "
                "timestamp and headers; drop it, or put it into the value, for example with "
                "to_json(struct(...)). Only a topic that was created with a schema has "
                "columns of its own"
            )
    if "value" not in names:
        raise InvalidRecord(
            f"column 'value' is missing; there are {', '.join(names) or 'no columns'}. Select one, "
            "for example to_json(struct('*')).alias('value')"
        )
    if topic is None and "topic" not in names:
        raise InvalidOption(
            "no topic to write to. Give the option topic, or a string column 'topic' for several "
            "topics"
        )
    if include_headers and "headers" not in names:
        raise InvalidRecord("option includeHeaders is true, but there is no column 'headers'")
    ignored = {*_NOT_WRITTEN, *(() if topic is None else ("topic",))}
    ignored |= {"headers"} if include_headers is False else set()
    used = [name for name in names if name not in ignored]
    for name in used:
        _check_type(name, schema[name].dataType)
    return used


def _check_type(name: str, kind: DataType) -> None:
    if name == "headers":
        _check_headers(kind)
        return
    types, remedy = _WRITABLE[name]
    if not isinstance(kind, types):
        wanted = " or ".join(t().simpleString() for t in types)
        raise InvalidRecord(
            f"column {name!r} is {kind.simpleString()}; {wanted} is needed: {remedy}"
        )


def _check_headers(kind: DataType) -> None:
    item = kind.elementType if isinstance(kind, ArrayType) else None
    fits = (
        isinstance(item, StructType)
        and item.names == ["key", "value"]
        and isinstance(item["key"].dataType, StringType)
        and isinstance(item["value"].dataType, StringType | BinaryType)
    )
    if not fits:
        raise InvalidRecord(
            f"column 'headers' is {kind.simpleString()}; {_HEADERS.simpleString()} is needed"
        )
