"""Writing in Spark: tasks upload segments, the driver places all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from txnlog.spark.batch import commit, provenance
from txnlog.spark.batch.commit import put_staged
from txnlog.spark.batch.provenance import CommitScope
from txnlog.spark.batch.task_uploads import Uploaded, check_segments, discard_unplaced, upload
from txnlog.spark.batch.write_plan import WritePlan, plan_write
from txnlog.spark.options.kafka_client_options import warn_passed_over
from txnlog.spark.options.write_options import WriteOptions, parse_write
from txnlog.state.transaction import TransactionRef

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def open_writer(options: Mapping[str, str], schema: StructType) -> TxnlogWriter:
    """Check a write before any task runs.

    Raises the errors of :func:`plan_write`; InvalidTxnState: the rows were read in a transaction
    that this write does not commit.
    """
    parsed = parse_write(options)
    warn_passed_over(parsed.passed_over)
    plan = plan_write(parsed, schema)
    continued = None
    if parsed.transactional_id is not None and parsed.staging is None:
        continued = commit.find_open_transaction(plan.store, parsed.transactional_id)
    scope = _scope_of(parsed, continued)
    tell = provenance.check_columns(plan.store, schema, scope)
    return TxnlogWriter(replace(plan, producer=continued or scope.block), continued, tell)


def _scope_of(
    options: WriteOptions, continued: TransactionRef | None, columns_tell: bool = False
) -> CommitScope:
    """The offsets that a batch write commits."""
    block = None if options.origin is None else provenance.parse_origin(options.origin)
    return CommitScope(
        options.transactional_id,
        continued,
        columns_tell=columns_tell,
        in_block=options.staging is not None,
        block=None if block is None else block.transaction,
        outside=options.outside_transaction,
    )


class TxnlogWriter(DataSourceArrowWriter):
    """One write, as Spark carries it to the tasks and to the commit.

    It commits the open transaction ``continued``, begun by a read, of which it has columns if
    ``columns_tell``.
    """

    def __init__(
        self,
        plan: WritePlan,
        continued: TransactionRef | None = None,
        columns_tell: bool = False,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._continued = continued
        self._columns_tell = columns_tell

    # -- in a task -------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """Upload a task's rows. On an error the uploads are deleted, best effort."""
        execution = provenance.require_execution()
        provenance.refuse_table()
        return Uploaded(upload(self._plan, iterator), execution)

    # -- on the driver's side --------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Place all segments in the messages at once.

        Raises InvalidTxnState: the rows were read in a transaction that this write does not commit;
        CommitStateUnknown: the storage failed, and nothing was deleted; other TxnlogErrors: nothing
        was committed.
        """
        store, options = self._plan.store, self._plan.options
        scope = _scope_of(options, self._continued, self._columns_tell)
        segments = check_segments(store, messages, scope)
        if options.staging is not None:
            put_staged(store.storage, options.staging, segments)
        elif options.transactional_id is not None:
            if segments or self._continued:
                commit.commit_transaction(
                    store,
                    options.transactional_id,
                    options.transaction_timeout_ms or commit.DEFAULT_TIMEOUT_MS,
                    segments,
                    self._continued,
                )
        elif len(segments) == 1:
            commit.append(store, segments)
        elif segments:
            # One append is atomic over one topic; several need a transaction, under any id.
            any_id = f"spark-{store.logs.clock.token()}"
            commit.commit_transaction(store, any_id, commit.DEFAULT_TIMEOUT_MS, segments)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard_unplaced(self._plan.store, messages)
