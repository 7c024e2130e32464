"""The streaming sink: tasks upload, and each micro-batch is one transaction, committed once.

Spark makes a writer for each batch, and another one for its commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from txnlog.errors import IllegalState
from txnlog.log.topic_log import TopicSpec
from txnlog.spark.batch_versions import commit_version, default_transactional_id, query_batch
from txnlog.spark.options import WriteOptions
from txnlog.spark.provenance import Writing, writing_execution
from txnlog.spark.writer import (
    TIMEOUT_MS,
    Uploaded,
    checked_segments,
    discard_unplaced,
    segments_of,
    upload,
)
from txnlog.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID = "sql.streaming.queryId"
"""Where Spark tells a task which query it works for; a restart keeps the id."""

WRITING = Writing(in_block=True)
"""A batch is a transaction of its own, which moves no offsets of what it was joined with."""


@dataclass
class UploadedForQuery(Uploaded):
    """What one task attempt has uploaded for a micro-batch of a query."""

    query_id: str


class TxnlogStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, as Spark carries it to the tasks, or as it is committed.

    Args: as those of :class:`txnlog.spark.writer.TxnlogWriter`.
    """

    def __init__(
        self,
        store: Store,
        options: WriteOptions,
        names: tuple[str, ...],
        used: tuple[str, ...],
        spec: TopicSpec | None,
    ) -> None:
        super().__init__()
        self._store = store
        self._options = options
        self._names = names
        self._used = used
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> UploadedForQuery:
        """Upload a task's rows."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context else None
        if not query_id:
            raise IllegalState(f"Spark does not tell the id of the query ({_QUERY_ID})")
        execution = writing_execution()
        options, names = self._options, self._names
        segments = upload(self._store, options, names, self._used, self._spec, iterator)
        return UploadedForQuery(segments, execution, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the batch, unless it was committed before. An empty one leaves no trace.

        Raises:
            InvalidTxnState: the transactional id belongs to another query, or the checkpoint was
                set back; or rows were joined with such that have a transactional.id of their own.
            CommitStateUnknown: the storage failed; nothing was deleted, and the batch's next run
                settles it.
            TxnlogError: nothing was committed.
        """
        if not segments_of(messages):
            return
        segments = checked_segments(self._store, messages, WRITING)
        [query_id] = {m.query_id for m in messages if isinstance(m, UploadedForQuery)}
        options = self._options
        commit_version(
            self._store,
            options.transactional_id or default_transactional_id(query_id),
            options.transaction_timeout_ms or TIMEOUT_MS,
            segments,
            query_batch(query_id, batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        discard_unplaced(self._store, messages)
