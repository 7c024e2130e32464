"""The ceilings: a Python data source that only passes Arrow batches on, both ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from rows import batches

from txnlog.read.plan import ScanColumns
from txnlog.spark.batch.row_schema import row_schema
from txnlog.spark.options.columns import COLUMNS

_COLUMNS = [name for name in COLUMNS if name != "headers"]


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task was given."""

    rows: int


class NoopSource(DataSource):
    """Options: rows, batch_rows, tasks."""

    @classmethod
    def name(cls) -> str:
        return "noop_arrow"

    def schema(self) -> StructType:
        return row_schema(_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        number = {name: int(self.options[name]) for name in ("rows", "batch_rows", "tasks")}
        return NoopReader(number["rows"], number["batch_rows"], number["tasks"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return NoopWriter()


class NoopReader(DataSourceReader):
    """Yields one prebuilt batch over and over, with the schema of our rows."""

    def __init__(self, rows: int, batch_rows: int, tasks: int) -> None:
        self._rows, self._batch_rows, self._tasks = rows, batch_rows, tasks

    def partitions(self) -> list[InputPartition]:
        ends = [self._rows * n // self._tasks for n in range(self._tasks + 1)]
        return [InputPartition(stop - start) for start, stop in itertools.pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prebuilt(self._batch_rows)
        left = partition.value
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


class NoopWriter(DataSourceArrowWriter):
    """Takes all rows and counts them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


@lru_cache
def prebuilt(count: int) -> pa.RecordBatch:
    """One batch of rows as a read of ours would yield it; made once in a worker process."""
    first = next(batches(count))
    columns = {
        "key": first.column("key"),
        "value": first.column("value"),
        "topic": pa.repeat("rows", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", tz="UTC")), count),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in _COLUMNS], schema=ScanColumns(tuple(_COLUMNS)).schema
    )
