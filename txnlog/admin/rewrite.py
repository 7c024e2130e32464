"""Rewriting: new segments replace old ones, in one entry, for the same offsets.

The common part of merging and compaction. The new segments are uploaded; an entry says that they
hold the records from then on; a note tells vacuum since when only pinned readers need the old ones.
A crash before the entry leaves orphans, a crash after it old segments without a note, which vacuum
finds by their age.

What reads and uploads are tasks: plain data, so Spark can run them on many machines. They put
nothing into a log; the planner does so with their results, in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec

from txnlog.admin.live_segments import files_let_go
from txnlog.clock import Clock
from txnlog.config import PARQUET, TopicConfig
from txnlog.errors import OffsetOutOfRange, SnapshotExpired, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.log.rewriting import ReadRun, TombstoneStay, rewrite
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import UploadedSegment, put_notes
from txnlog.names import FileKey
from txnlog.state.segment import RewrittenFile, Segment, SegmentEntry, StoredSegment
from txnlog.storage.base import Storage
from txnlog.write.segment_uploads import discard_segments

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RewriteTask(Protocol[T_co]):
    """One task, for one partition."""

    @property
    def made_type(self) -> type[T_co]:
        """The type of its results: plain data, which can be encoded and decoded again."""
        ...

    def run(self, storage: Storage, clock: Clock) -> Iterator[T_co]:
        """Run it; yields its results one by one, to be put into the log in this order."""
        ...


class TaskRunner(Protocol):
    """Runs tasks somewhere, and yields the results of each, in the order of the tasks."""

    def __call__(self, tasks: Sequence[RewriteTask[T]]) -> Iterator[Iterator[T]]: ...


def run_here(storage: Storage, clock: Clock) -> TaskRunner:
    """Runs each task in this process, when its turn comes."""

    def run(tasks: Sequence[RewriteTask[T]]) -> Iterator[Iterator[T]]:
        return (task.run(storage, clock) for task in tasks)

    return run


OVERTAKEN: Final = OffsetOutOfRange, SnapshotExpired
"""What a read raises of whose segments the files are gone, since others have rewritten or trimmed
them since it was planned: as a lost race for the entry, it is no failure.
"""

_logger = logging.getLogger(__name__)


def rewriting_config(config: Mapping[str, str]) -> dict[str, str]:
    """A topic's settings for segments that are written again: what may be Parquet files is."""
    if TopicConfig.of(config).has_parquet:
        return {**config, "record.format": PARQUET}
    return {**config}


@dataclass(frozen=True, slots=True)
class Replacement:
    """The new segment for the offsets [start, end) of a partition; None: no record of them is left.

    The rest is as in :class:`RewrittenFile`.
    """

    start: int
    end: int
    uploaded: UploadedSegment | None
    is_compacted: bool = False
    delete_horizon_ms: int = -1
    judged_end: int = 0
    home_partitions: int = 0
    purged_from: int = -1


class Rewriting:
    """Uploaded rewrites of one topic, to be put into its log together."""

    def __init__(self, logs: Logs, log: TopicLog, topic_id: str) -> None:
        self._logs = logs
        self._log = log
        self._topic_id = topic_id
        self._new: list[SegmentEntry] = []
        self._uploaded: list[UploadedSegment] = []
        self._read: list[ReadRun] = []
        self._old: list[tuple[int, Segment]] = []
        self.input_bytes = 0

    def add(
        self, partition: int, old: Sequence[Segment], replacements: Sequence[Replacement]
    ) -> None:
        """Have adjacent segments of a partition replaced with the next entry.

        The replacements are adjacent too, and hold the same offsets.
        """
        self._new += [_place(partition, replacement) for replacement in replacements]
        self._uploaded += [r.uploaded for r in replacements if r.uploaded is not None]
        self._old += [(partition, segment) for segment in old]
        names = tuple(segment.stored.name for segment in old)
        self._read.append(ReadRun(partition, replacements[0].start, replacements[-1].end, names))
        self.input_bytes += sum(segment.stored.size_bytes for segment in old)

    def put(self, stay: TombstoneStay | None = None, *, purges: bool = False) -> bool:
        """Put the entry; False if another process has rewritten some of the segments.

        ``stay`` is how long tombstones stay from then on; None: as the replacements say.
        ``purges``: see :class:`txnlog.state.segment.Rewritten`. Raises
        UnknownTopicOrPartition: the topic was deleted meanwhile; UploadExpired, StorageError: see
        :func:`rewrite`.
        """
        new, uploaded, read, old = self._new, self._uploaded, self._read, self._old
        self._new, self._uploaded, self._read, self._old = [], [], [], []
        self.input_bytes = 0
        if not new:
            return True
        begun = [segment.begun_ms for segment in uploaded if segment.begun_ms is not None]
        first_ms = min(begun, default=None)
        number = rewrite(self._log, self._topic_id, new, read, first_ms, stay, purges=purges)
        if number is None:
            discard_segments(self._logs.storage, uploaded)
            return False
        logs = self._logs
        try:
            released = self._find_released(old)
            # After the entry: the storage's time of the note must not be older than the entry.
            put_notes(
                logs.storage, logs.clock, self._log.name, self._topic_id, released, "released"
            )
        except TxnlogError as error:
            # Vacuum finds them by their age.
            what = "topic %r: what was rewritten was not recorded: %s"
            _logger.warning(what, self._log.name, error)
        logs.tidy([self._log])
        return True

    def _find_released(self, old: Sequence[tuple[int, Segment]]) -> list[FileKey]:
        """The files that are no longer needed, now that these segments are replaced."""
        with self._log.lock:
            state = self._log.state
            if state.topic_id != self._topic_id:
                return []  # deleted since
            starts = [partition.log_start_offset for partition in state.partitions]
            return files_let_go(self._log, state, old, starts)

    def discard(self) -> None:
        """Delete the uploads of the added rewrites, best effort."""
        discard_segments(self._logs.storage, self._uploaded)
        self._new, self._uploaded, self._read, self._old = [], [], [], []


def _place(partition: int, replacement: Replacement) -> SegmentEntry:
    uploaded, start = replacement.uploaded, replacement.start
    special = RewrittenFile(
        replacement.end - start,
        replacement.is_compacted,
        replacement.delete_horizon_ms,
        replacement.judged_end,
        replacement.home_partitions,
        replacement.purged_from,
    )
    if uploaded is None:
        return SegmentEntry(partition, start, StoredSegment.emptied(special))
    stored = msgspec.structs.replace(uploaded.stored, rewritten=special)
    return SegmentEntry(partition, start, stored)
