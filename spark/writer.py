"""Writing in Spark: tasks upload segments, the driver places all of them at once.

Every attempt of a task writes under names of its own, and only what the messages of the successful
attempts name is placed: retries and stragglers leave orphan files, never records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from txnlog.errors import TxnlogError
from txnlog.log.topic_log import TopicSpec, UploadedSegment
from txnlog.spark import provenance, publishing
from txnlog.spark.options import WriteOptions
from txnlog.spark.provenance import Writing
from txnlog.state.transaction import TransactionRef
from txnlog.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.spark.records import TopicRecords
    from txnlog.write.uploads import SegmentUploader

TIMEOUT_MS = 60_000
"""From placing to deciding. The job's tasks have ended by then, so Kafka's default is plenty."""


@dataclass
class Uploaded(WriterCommitMessage):
    """What one task attempt has uploaded, and which execution of Spark's it worked for."""

    segments: tuple[UploadedSegment, ...]
    execution: str


class TxnlogWriter(DataSourceArrowWriter):
    """One write, as Spark carries it to the tasks and to the commit.

    Args:
        store: where.
        options: as parsed.
        names: all columns of the data, by position.
        used: the columns that count.
        spec: of the topic, if the options name it.
        continued: the open transaction that the write is to commit, begun by a read.
    """

    def __init__(
        self,
        store: Store,
        options: WriteOptions,
        names: tuple[str, ...],
        used: tuple[str, ...],
        spec: TopicSpec | None,
        continued: TransactionRef | None,
    ) -> None:
        super().__init__()
        self._store = store
        self._options = options
        self._names = names
        self._used = used
        self._spec = spec
        self._continued = continued

    # -- in a task -------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """Upload a task's rows. On an error what was uploaded is deleted, best effort."""
        execution = provenance.writing_execution()
        options, names = self._options, self._names
        segments = upload(self._store, options, names, self._used, self._spec, iterator)
        return Uploaded(segments, execution)

    # -- on the driver's side --------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Place everything that the messages name, all at once.

        Raises:
            InvalidTxnState: the rows were read in a transaction that this write does not commit.
            CommitStateUnknown: the storage failed; nothing was deleted.
            TxnlogError: nothing was committed.
        """
        options = self._options
        segments = checked_segments(self._store, messages, writing_of(options, self._continued))
        if options.staging is not None:
            from txnlog.spark.staging import stage

            stage(self._store.storage, options.staging, segments)
        elif options.transactional_id is not None:
            if segments or self._continued:
                publishing.commit_transaction(
                    self._store,
                    options.transactional_id,
                    options.transaction_timeout_ms or TIMEOUT_MS,
                    segments,
                    self._continued,
                )
        elif len(segments) == 1:
            publishing.append(self._store, segments)
        elif segments:
            # One append is atomic over one topic; several need a transaction, under any id.
            any_id = f"spark-{self._store.logs.clock.token()}"
            publishing.commit_transaction(self._store, any_id, TIMEOUT_MS, segments)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard_unplaced(self._store, messages)


def upload(
    store: Store,
    options: WriteOptions,
    names: Sequence[str],
    used: Sequence[str],
    spec: TopicSpec | None,
    batches: Iterable[pa.RecordBatch],
) -> tuple[UploadedSegment, ...]:
    """Upload the rows of a task. On an error what was uploaded is deleted, best effort."""
    from txnlog.spark.records import coalesced, split_by_topic, used_columns, work_bytes

    sink = _Sink(store, spec, options)
    try:
        at_once_bytes = work_bytes(spec.partitions if spec else 0)
        for batch in coalesced(batches, at_once_bytes):
            rows = used_columns(batch, names, used)
            for topic, part in split_by_topic(rows, options.topic):
                sink.write(topic, part)
        return sink.finish()
    except BaseException:
        sink.discard()
        raise


def discard_unplaced(store: Store, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete what the tasks uploaded, if it is certain that it was not placed.

    A missing message proves it: then the commit never began. With all of them there, the commit
    itself has failed. It has deleted the files if it knew its outcome; if it did not, they may be
    placed and must stay.
    """
    if any(message is None for message in messages):
        publishing.discard(store, segments_of(messages))


def segments_of(
    messages: Iterable[WriterCommitMessage | None],
) -> dict[str, list[UploadedSegment]]:
    """What the messages name, by topic, in the order of the tasks."""
    uploaded = (message for message in messages if isinstance(message, Uploaded))
    return publishing.by_topic(segment for message in uploaded for segment in message.segments)


def writing_of(options: WriteOptions, continued: TransactionRef | None) -> Writing:
    """A batch write, as the rules of provenance see it."""
    in_block = options.staging is not None
    return Writing(options.transactional_id, continued, in_block, options.outside_transaction)


def checked_segments(
    store: Store, messages: Sequence[WriterCommitMessage | None], writing: Writing
) -> dict[str, list[UploadedSegment]]:
    """What the messages name, unless its rows must not be written; then it is deleted.

    Raises InvalidTxnState, StorageError.
    """
    segments = segments_of(messages)
    try:
        executions = {m.execution for m in messages if isinstance(m, Uploaded)}
        provenance.check_rows(store, executions, writing)
    except TxnlogError:
        publishing.discard(store, segments)
        raise
    return segments


class _Sink:
    """The uploaders of one task, one for each topic, within one budget of memory and files."""

    def __init__(self, store: Store, spec: TopicSpec | None, options: WriteOptions) -> None:
        from txnlog.write.uploads import UploadBudget

        self._store = store
        self._options = options
        self._budget = UploadBudget()
        self._specs = {spec.topic: spec} if spec else {}
        self._topics: dict[str, tuple[TopicRecords, SegmentUploader]] = {}

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        records, uploader = self._topics.get(topic) or self._open(topic)
        uploader.write(*records(rows))

    def _open(self, topic: str) -> tuple[TopicRecords, SegmentUploader]:
        from txnlog.spark.records import TopicRecords
        from txnlog.write.uploads import SegmentUploader

        spec = self._specs.get(topic) or self._store.topic_spec(topic)
        clock = self._store.logs.clock
        opened = (
            TopicRecords(spec, clock, self._options.partitioner),
            SegmentUploader(
                self._store.storage, spec.written_with(self._options.codec), clock, self._budget
            ),
        )
        self._topics[topic] = opened
        return opened

    def finish(self) -> tuple[UploadedSegment, ...]:
        return tuple(s for _, uploader in self._topics.values() for s in uploader.finish())

    def discard(self) -> None:
        for _, uploader in self._topics.values():
            uploader.discard()
