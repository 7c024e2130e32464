"""The streaming sink: tasks upload, and each micro-batch is one transaction, committed once.

Spark makes a writer for each batch, and another one for its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from txnlog.errors import IllegalState
from txnlog.spark.batch.commit import DEFAULT_TIMEOUT_MS
from txnlog.spark.batch.provenance import (
    QUERY_ID,
    CommitScope,
    check_columns,
    require_execution,
)
from txnlog.spark.batch.task_uploads import (
    Uploaded,
    check_segments,
    discard_unplaced,
    segments_of,
    upload,
)
from txnlog.spark.batch.worker_objects import spare_modules
from txnlog.spark.batch.write_plan import WritePlan, plan_write
from txnlog.spark.options.kafka_client_options import warn_passed_over
from txnlog.spark.options.write_options import parse_write
from txnlog.spark.stream.commit_once import (
    commit_version,
    default_transactional_id,
    query_batch,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCOPE = CommitScope(in_block=True)
"""A batch is a transaction of its own, which moves no offsets of what it was joined with."""


@dataclass
class UploadedForQuery(Uploaded):
    """One task attempt's uploads for a micro-batch of a query."""

    query_id: str


def open_stream_writer(options: Mapping[str, str], schema: StructType) -> TxnlogStreamWriter:
    """Check one batch of a streaming write. Raises InvalidOption, InvalidRecord, TxnlogError."""
    plan = plan_write(parse_write(options, streaming=True), schema)
    check_columns(plan.store, schema, SCOPE)
    spare_modules()
    return TxnlogStreamWriter(plan)


class TxnlogStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, as Spark carries it to the tasks, or as it is committed."""

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> UploadedForQuery:
        """Upload a task's rows."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        if not query_id:
            raise IllegalState(f"Spark does not tell the id of the query ({QUERY_ID})")
        execution = require_execution()
        return UploadedForQuery(upload(self._plan, iterator), execution, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the batch, unless it was committed before. An empty one leaves no trace.

        Raises InvalidTxnState: the transactional id belongs to another query, or the checkpoint was
        set back; or rows were joined with such that have a transactional.id of their own;
        CommitStateUnknown: the storage failed, nothing was deleted, and the batch's next run
        settles it; other TxnlogErrors: nothing was committed.
        """
        if batchId == 0:  # a writer is made for each batch: the query is to say it once
            warn_passed_over(self._plan.options.passed_over)
        if not segments_of(messages):
            return
        segments = check_segments(self._plan.store, messages, SCOPE)
        [query_id] = {m.query_id for m in messages if isinstance(m, UploadedForQuery)}
        options = self._plan.options
        commit_version(
            self._plan.store,
            options.transactional_id or default_transactional_id(query_id),
            options.transaction_timeout_ms or DEFAULT_TIMEOUT_MS,
            segments,
            query_batch(query_id, batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        discard_unplaced(self._plan.store, messages)
