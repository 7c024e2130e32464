"""The uploads of a write's tasks, and their handling on the driver's side.

Every attempt of a task writes under its own names, and only segments named in the messages of
successful attempts are placed: retries and stragglers leave orphan files, never records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from txnlog.errors import InvalidRecord
from txnlog.log.uploads import UploadedSegment
from txnlog.spark.batch import commit, provenance
from txnlog.spark.batch.provenance import CommitScope
from txnlog.spark.batch.worker_objects import spare_modules
from txnlog.spark.batch.write_plan import WritePlan
from txnlog.store import Store
from txnlog.write.segment_uploads import SegmentUploader, UploadBudget

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.spark.batch.rows_to_records import TopicRecords


@dataclass
class Uploaded(WriterCommitMessage):
    """One task attempt's uploads, and the execution of Spark's that it worked for."""

    segments: tuple[UploadedSegment, ...]
    execution: str


def upload(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> tuple[UploadedSegment, ...]:
    """Upload the rows of a task. On an error the uploads are deleted, best effort."""
    from txnlog.spark.batch.rows_to_records import (
        coalesce,
        select_used,
        split_by_topic,
        without_fillers,
        work_bytes,
    )

    uploaders = _TopicUploaders(plan)
    try:
        at_once_bytes = work_bytes(plan.spec.partitions if plan.spec else 0)
        for batch in coalesce(without_fillers(batches, plan.options.filler), at_once_bytes):
            rows = select_used(batch, plan.columns, plan.used)
            for topic, part in split_by_topic(rows, plan.options.topic):
                uploaders.write(topic, part)
        return uploaders.finish()
    except BaseException:
        uploaders.discard()
        raise
    finally:
        spare_modules()


def discard_unplaced(store: Store, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the tasks' uploads, if it is certain that they were not placed.

    A missing message proves it: then the commit never began. With all of them there, the commit
    itself has failed. It has deleted the files if it knew its outcome; if it did not, they may be
    placed and must stay.
    """
    if any(message is None for message in messages):
        commit.discard(store, segments_of(messages))


def segments_of(
    messages: Iterable[WriterCommitMessage | None],
) -> dict[str, list[UploadedSegment]]:
    """The segments in the messages, by topic, in the order of the tasks."""
    uploaded = (message for message in messages if isinstance(message, Uploaded))
    return commit.group_by_topic(segment for message in uploaded for segment in message.segments)


def check_segments(
    store: Store, messages: Sequence[WriterCommitMessage | None], scope: CommitScope
) -> dict[str, list[UploadedSegment]]:
    """The segments in the messages, unless their rows must not be written; then they are deleted.

    Raises InvalidTxnState, StorageError.
    """
    segments = segments_of(messages)
    with commit.discard_on_error(store, segments):
        executions = {m.execution for m in messages if isinstance(m, Uploaded)}
        provenance.check_rows(store, executions, scope, has_rows=bool(segments))
    return segments


class _TopicUploaders:
    """The uploaders of one task, one for each topic, within one budget of memory and files."""

    def __init__(self, plan: WritePlan) -> None:
        self._store = plan.store
        self._options = plan.options
        self._seed = plan.seed
        self._producer = plan.producer
        self._budget = UploadBudget()
        self._specs = {plan.spec.topic: plan.spec} if plan.spec else {}
        self._topics: dict[str, tuple[TopicRecords, SegmentUploader]] = {}

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        records, uploader = self._topics.get(topic) or self._open(topic)
        uploader.write(*records(rows))

    def _open(self, topic: str) -> tuple[TopicRecords, SegmentUploader]:
        from txnlog.spark.batch.rows_to_records import TopicRecords

        spec = self._specs.get(topic) or self._store.logs.topic_spec(topic)
        if spec.schema is not None and topic not in self._specs:
            raise InvalidRecord(
                f"topic {topic!r} has a schema: rows with its columns are written to it alone, "
                "with the option topic, not by a column 'topic'"
            )
        clock = self._store.logs.clock
        opened = (
            TopicRecords(spec, clock, self._options.partitioner, self._seed),
            SegmentUploader(
                self._store.storage,
                spec.with_codec(self._options.codec),
                clock,
                self._budget,
                self._producer,
            ),
        )
        self._topics[topic] = opened
        return opened

    def finish(self) -> tuple[UploadedSegment, ...]:
        return tuple(s for _, uploader in self._topics.values() for s in uploader.finish())

    def discard(self) -> None:
        for _, uploader in self._topics.values():
            uploader.discard()
