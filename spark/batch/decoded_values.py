"""Reads whose values are decoded: the columns of a schema instead of bytes, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from txnlog.errors import InvalidOption
from txnlog.spark.batch.typed_rows import arrow_type, spark_type
from txnlog.values import ValueReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txnlog.store import Store

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
        """What the arguments of a read say.

        Raises InvalidOption: they do not go together. And what :class:`ValueReader` does.
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
        names = columns
        if isinstance(columns, str):
            names = [name.strip() for name in columns.split(",") if name.strip()]
        made = cls(values, None if names is None else tuple(names), include_headers)
        known = made._all_columns().names
        for name in made.names or ():
            if name not in known:
                raise InvalidOption(f"columns: there is no {name!r}; known: {', '.join(known)}")
        return made

    @property
    def to_read(self) -> list[str]:
        """The columns of records that are read."""
        chosen = [*_RECORD, *([_HEADERS] if self.include_headers else [])]
        if self.names is None:
            return chosen
        return [name for name in chosen if name == "value" or f"_{name}" in self.names]

    def frame(self, records: DataFrame) -> DataFrame:
        """The records of :attr:`to_read` with the columns of their values. Runs nothing."""
        found = self._all_columns() if self.names is None else self._columns_read()
        chosen = found.names if self.names is None else self.names
        # What a write looks for in columns of a read is in those that are made of them, too.
        metadata = dict(records.schema.fields[0].metadata or {})
        schema = StructType(
            [
                StructField(name, _spark_type(name, found.field(name).type), metadata=metadata)
                for name in chosen
            ]
        )
        return records.mapInArrow(_decoder(self.reader, schema), schema)

    def _all_columns(self) -> pa.Schema:
        return self._beside([*_RECORD, _HEADERS] if self.include_headers else _RECORD)

    def _columns_read(self) -> pa.Schema:
        return self._beside(self.to_read)

    def _beside(self, names: Iterable[str]) -> pa.Schema:
        return self.reader.batch_schema(pa.schema([(name, pa.null()) for name in names]))


def _decoder(
    reader: ValueReader, schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs in Spark's workers."""
    fields = [(field.name, arrow_type(field.dataType)) for field in schema]

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = reader.read_batch(batch)
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
