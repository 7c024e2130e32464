"""The rows of typed topics: their columns in Spark's types, and checks of writes."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txnlog.columns.constraints import constraints_of
from txnlog.errors import InvalidRecord
from txnlog.log.uploads import TopicSpec
from txnlog.schema import HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC
from txnlog.spark.options.columns import meant_names
from txnlog.write.record_checks import explicit_partitions
from txnlog.write.typed_records import TypedRecords

_KAFKA_ROW = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType"}
_NOT_WRITTEN = (TOPIC, OFFSET)
"""A read has them and a write sets them itself, so they are allowed and ignored."""

_PLAIN: tuple[tuple[type[DataType], pa.DataType], ...] = (
    (BooleanType, pa.bool_()),
    (ByteType, pa.int8()),
    (ShortType, pa.int16()),
    (IntegerType, pa.int32()),
    (LongType, pa.int64()),
    (FloatType, pa.float32()),
    (DoubleType, pa.float64()),
    (StringType, pa.string()),
    (BinaryType, pa.binary()),
    (DateType, pa.date32()),
    (TimestampType, pa.timestamp("us", "UTC")),
    (TimestampNTZType, pa.timestamp("us")),
    (NullType, pa.null()),
)


def spark_type(kind: pa.DataType) -> DataType:
    """Spark's type for a type of a topic's schema; nested fields are nullable."""
    if types.is_timestamp(kind):
        return TimestampNTZType() if kind.tz is None else TimestampType()
    if types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if types.is_struct(kind):
        children = [kind.field(number) for number in range(kind.num_fields)]
        return StructType([StructField(c.name, spark_type(c.type)) for c in children])
    if types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    return next(of() for of, arrow in _PLAIN if arrow == kind)


def arrow_type(kind: DataType) -> pa.DataType | None:
    """A type's form in Arrow batches from and to Spark; None: no topic has it."""
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, StructType):
        children = [(child.name, arrow_type(child.dataType)) for child in kind]
        if any(child is None for _, child in children):
            return None
        return pa.struct([pa.field(name, child) for name, child in children])
    if isinstance(kind, MapType):
        key, value = arrow_type(kind.keyType), arrow_type(kind.valueType)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(kind, ArrayType):
        element = arrow_type(kind.elementType)
        return None if element is None else pa.list_(pa.field("element", element))
    return next((arrow for of, arrow in _PLAIN if isinstance(kind, of)), None)


def task_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema that Spark expects of a task, for columns of a typed topic."""
    return pa.schema([pa.field(f.name, arrow_type(spark_type(f.type))) for f in schema])


def fit(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that casts batches to ``schema`` by column, without copying those that fit."""

    def cast(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(schema):
            return batch
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return cast


def named_as_in_topic(schema: StructType, columns: pa.Schema) -> StructType:
    """The columns of a write under the names that they have in the topic: see ``meant_names``."""
    names = meant_names(schema.names, columns.names)
    return StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(names, schema, strict=True)
        ]
    )


def check_typed(schema: StructType, spec: TopicSpec, include_headers: bool | None) -> list[str]:
    """Check a write to a typed topic; return the names of the columns that count.

    Raises InvalidRecord: a column is missing, unknown or of a wrong type.
    """
    assert spec.schema is not None
    ignored = {*_NOT_WRITTEN, *([HEADERS] if include_headers is False else [])}
    used = [name for name in schema.names if name not in ignored]
    columns = spec.schema.columns.names
    if include_headers and HEADERS not in schema.names:
        raise InvalidRecord(f"option includeHeaders is true, but there is no column {HEADERS!r}")
    if {*used} <= {*_KAFKA_ROW, "headers"} and not {*used} <= {*columns}:
        raise InvalidRecord(
            f"topic {spec.topic!r} has a schema, so its rows are not keys and values: they have "
            f"the columns {', '.join(columns)}. Parse the value, for example with from_json(...)"
        )
    fields = [_arrow_field(schema, name, spec.topic) for name in used]
    none = pa.RecordBatch.from_arrays(
        [pa.nulls(0, f.type) for f in fields], schema=pa.schema(fields)
    )
    explicit_partitions(none, None, spec, PARTITION)
    TypedRows(spec)(none, 0)
    return used


def _arrow_field(schema: StructType, name: str, topic: str) -> pa.Field:
    if schema.names.count(name) > 1:
        raise InvalidRecord(f"there are two columns {name!r}; drop or rename one")
    found = schema[name].dataType
    kind = arrow_type(found)
    if kind is None:
        raise InvalidRecord(
            f"topic {topic!r}: column {name!r} is {found.simpleString()}, which no topic can hold; "
            "cast it"
        )
    if name == TIMESTAMP and isinstance(found, TimestampNTZType):
        # Arrow's would be taken for UTC; to Spark it is a time in the session's zone.
        raise InvalidRecord(
            f"topic {topic!r}: column {name!r} is {found.simpleString()}, a time without a zone; "
            "cast it to timestamp"
        )
    return pa.field(name, kind)


class TypedRows:
    """Converts Spark's rows to records of one typed topic, and their keys."""

    def __init__(self, spec: TopicSpec) -> None:
        assert spec.schema is not None
        constraints = constraints_of(spec.config, spec.schema)
        self._records = TypedRecords(spec.topic, spec.schema, constraints)

    def __call__(self, rows: pa.RecordBatch, now_ms: int) -> tuple[pa.RecordBatch, pa.Array]:
        """Records as they are stored, and their keys (binary). Raises InvalidRecord."""
        if PARTITION in rows.schema.names:
            rows = rows.drop_columns([PARTITION])
        records = self._records.normalize(rows, now_ms)
        return records, self._records.keys(records)

    def keys(self, rows: pa.RecordBatch) -> pa.Array:
        """The keys of rows that are not checked yet, binary. Raises InvalidRecord."""
        return self._records.keys_alone(rows)
