"""Reads whose values are decoded: the columns of a schema instead of bytes, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyarrow import types
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from txnlog.errors import InvalidOption
from txnlog.spark.batch.determinism import BY_CHANCE
from txnlog.spark.batch.typed_rows import arrow_type, spark_type
from txnlog.spark.options.columns import format_columns, meant_names, parse_columns
from txnlog.store import Store
from txnlog.values import ValueReader

_RECORD: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_HEADERS: Final = "headers"


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """How values are decoded, and which columns are wanted; None: all."""

    reader: ValueReader
    names: tuple[str, ...] | None
    include_headers: bool

    @classmethod
    def of(
        cls,
        values: ValueReader | str,
        store: Store,
        topics: Sequence[str],
        columns: str | Sequence[str] | None,
        *,
        include_headers: bool,
    ) -> ValueColumns:
        """Check a read's arguments, and find the columns that its values become.

        Raises InvalidOption: arguments contradict each other, or a topic is typed; and what
        :class:`ValueReader` raises.
        """
        for topic in topics:
            if store.logs.topic_spec(topic).schema is not None:
                raise InvalidOption(f"values={values!r}: the records of {topic} have columns")
        if isinstance(values, str):
            if len(topics) != 1:
                raise InvalidOption(
                    f"values={values!r} is for one topic, whose subject is TOPIC-value; of several "
                    "give a txnlog.values.ValueReader"
                )
            values = ValueReader(store.schemas, values, subject=f"{topics[0]}-value")
        made = cls(values, _names_of(columns), include_headers)
        if made.names is None:
            return made
        _, names = _choose(made.names, made.reader, made._every_column())
        return replace(made, names=names)

    @property
    def to_read(self) -> list[str]:
        """The columns of records that are read."""
        chosen = self._every_column()
        if self.names is None:
            return chosen
        return [name for name in chosen if name == "value" or f"_{name}" in self.names]

    def frame(self, records: DataFrame) -> DataFrame:
        """The records of :attr:`to_read` with the columns of their values. Runs nothing."""
        return decode_values(records, self.reader, columns=self.names)

    def _every_column(self) -> list[str]:
        return [*_RECORD, *([_HEADERS] if self.include_headers else [])]


def decode_values(
    records: DataFrame, reader: ValueReader, *, columns: str | Sequence[str] | None = None
) -> DataFrame:
    """The columns of values that carry the id of their schema, in the place of the values.

        reader = ValueReader(store.schemas, "avro", subject="orders-value")
        orders = decode_values(spark.readStream.format("txnlog")....load(), reader)

    For streams, and for any rows that are as those of Spark's Kafka source; ``read`` and
    ``txn.read`` take ``values`` instead.

    A batch is pinned: what is a dead letter, because its schema is not known, is one each time the
    frame is computed, also when the schema is registered in between. A stream is not, nor is what a
    registry by HTTP decodes: two writes of a block that share such rows are refused, since rows
    could be in neither. In ``foreach_batch`` decode the batch, once, instead of the stream.

    Args:
        records: a batch or a stream with the column ``value``. Of ``key``, ``topic``,
            ``partition``, ``offset``, ``timestamp`` and ``headers`` what is there is kept, with
            names that begin with ``_``. Other columns are left out.
        reader: which columns the values have. They are those of one schema, that of when the
            reader was made; values of later ones, which are found by their ids, are read as it.
        columns: only these: names, or a string as for the option ``columns``.

    Returns:
        The columns of the values; the record's own; for what cannot be decoded ``_error``, the
        reason, and ``_value``, the bytes.

    Raises:
        InvalidOption: there is no column ``value`` of bytes, or none of a name in ``columns``.
        StorageError: the schemas cannot be read.
    """
    names = _names_of(columns)
    there = {field.name: field for field in records.schema.fields}
    if "value" not in there or not isinstance(there["value"].dataType, BinaryType):
        raise InvalidOption(
            f"values are decoded from a column `value` of bytes; there is {', '.join(there)}"
        )
    of_records = [name for name in (*_RECORD, _HEADERS) if name in there]
    found, chosen = _choose(names, reader, of_records)
    needed = [name for name in of_records if name == "value" or f"_{name}" in chosen]
    if needed != records.columns:
        records = records.select(*needed)
    # What a write looks for in columns of a read is in those that are made of them, too.
    metadata = dict(there[needed[0]].metadata or {})
    pinned = None if records.isStreaming else reader.pinned()
    if pinned is None:
        of = "of a stream" if records.isStreaming else f"with {type(reader.schemas).__name__}"
        metadata[BY_CHANCE] = f"decode_values() {of}"
    schema = StructType(
        [
            StructField(name, _spark_type(name, found.field(name).type), metadata=metadata)
            for name in chosen
        ]
    )
    return records.mapInArrow(_decoder(pinned or reader, schema), schema)


def _names_of(columns: str | Sequence[str] | None) -> tuple[str, ...] | None:
    text = columns if columns is None or isinstance(columns, str) else format_columns(columns)
    return parse_columns(text, include_headers=False).names


def _choose(
    names: Sequence[str] | None, reader: ValueReader, of_records: Sequence[str]
) -> tuple[pa.Schema, tuple[str, ...]]:
    """All columns that there are, and the wanted names among them; None: all.

    Raises InvalidOption: one of the names is not there.
    """
    found = reader.batch_schema(pa.schema([(name, pa.null()) for name in of_records]))
    chosen = tuple(found.names) if names is None else meant_names(names, found.names)
    for name in chosen:
        if name not in found.names:
            raise InvalidOption(f"columns: there is no {name!r}; known: {', '.join(found.names)}")
    return found, chosen


def _decoder(
    reader: ValueReader, schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that decodes batches in Spark's workers."""
    fields = [(field.name, arrow_type(field.dataType)) for field in schema]

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in reader.read(batches):
            columns = [_cast(found.column(name), kind) for name, kind in fields]
            yield pa.RecordBatch.from_arrays(columns, names=[name for name, _ in fields])

    return decode


def _spark_type(name: str, kind: pa.DataType) -> DataType:
    if types.is_time(kind):
        return LongType()
    if types.is_null(kind):
        return StringType()
    try:
        return spark_type(kind)
    except StopIteration:
        raise InvalidOption(
            f"column {name!r} is {kind}, for which Spark has no type; leave it out with columns"
        ) from None


def _cast(column: pa.Array, kind: pa.DataType | None) -> pa.Array:
    if types.is_time(column.type):
        return column.cast(pa.time64("us")).cast(pa.int64())
    return column if column.type == kind else column.cast(kind)
