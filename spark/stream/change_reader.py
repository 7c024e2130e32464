"""A feed of changes as a stream: each micro-batch has the changes between its offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from txnlog.read.changed_rows import ChangeColumns
from txnlog.spark.batch.change_read import ChangeTaskReader, feed_tasks
from txnlog.spark.options.stream_options import StreamOptions
from txnlog.spark.stream.offsets import StreamOffset
from txnlog.spark.stream.reader import TxnlogStreamReader


class ChangeStreamReader(TxnlogStreamReader):
    """Reads a topic's changes as a stream, with the offsets and checkpoints of a stream of records.

    The rows before a batch are those that the log holds before the batch's first offsets.
    """

    def __init__(self, options: StreamOptions, columns: ChangeColumns) -> None:
        super().__init__(options, columns.rows)
        self._feed = columns

    def __reduce__(self) -> tuple[type[ChangeTaskReader], tuple[object, ...]]:  # type: ignore[override]
        return ChangeTaskReader, (self._storage(), self._feed)

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Sequence[InputPartition]:
        """The tasks of one batch, the same however often it is run."""
        found = self._planner.changes(StreamOffset.parse(start), StreamOffset.parse(end))
        return [] if found is None else feed_tasks(found, self._options.read.task_sizes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return ChangeTaskReader(self._storage(), self._feed).read(partition)
