"""Uploading: records of one topic become segment files that no log entry names yet.

Done by the process that has the data: a producer, or a Spark task. Nothing uploaded here is visible
until it is placed; uploads that are never placed are orphans and do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog import names
from txnlog.clock import Clock
from txnlog.config import TopicConfig
from txnlog.errors import RecordTooLarge, StorageError
from txnlog.log.uploads import TopicSpec, UploadedSegment
from txnlog.names import parquet_name
from txnlog.segments.batch_header import tag_of
from txnlog.segments.batches import SupportsWrite
from txnlog.segments.records import (
    constant_timestamps,
    record_sizes,
    take_groups,
    timestamp_column,
)
from txnlog.segments.writer import SegmentSummary, SegmentWriter
from txnlog.state.producers import ProducerRef
from txnlog.state.transaction import TransactionRef
from txnlog.storage.base import PARALLEL_REQUESTS, Storage, Upload

_logger = logging.getLogger(__name__)

DEFAULT_MEMORY_BYTES = 64 << 20
SHARED_FILE_BYTES = 1 << 20
"""Segments that are smaller together share a file: it is put in one request, and synced once.
Larger segments get files of their own, which are read and deleted separately.
"""
_LEAST_FILE_BYTES = 1 << 17
"""Segments that are all smaller are finished when memory is short, to share files. Larger ones get
files of their own, which grow: so a segment is not cut short for each few bytes.
"""


def _default_open_segments() -> int:
    """Half of the files that this process may open, and no more than 512; 128 if that is unknown.

    Beyond it each new segment ends the fullest one early: files get many and small.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return 128
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if allowed == resource.RLIM_INFINITY else min(max(allowed // 2, 64), 512)


MAX_OPEN_SEGMENTS = _default_open_segments()
_FILES_AT_ONCE = 128
"""How many files that begin only at the end are finished together."""


class _Sink:
    """The destination of a segment's batches. They wait while they are few enough to share a file.

    ``begin`` begins one for the segment alone. ``may_wait``: whether it may share one at all.
    """

    def __init__(self, begin: Callable[[], Upload], may_wait: Callable[[], bool]) -> None:
        self._calls: tuple[Callable[[], Upload], Callable[[], bool]] | None = begin, may_wait
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.upload: Upload | None = None

    def write(self, data: bytes) -> int:
        if self.upload is None:
            assert self._calls is not None
            _, may_wait = self._calls
            if self.waiting_bytes + len(data) < SHARED_FILE_BYTES and may_wait():
                self._waiting.append(data)
                self.waiting_bytes += len(data)
                return len(data)
        return self.begin().write(data)

    def begin(self) -> Upload:
        """The segment's own file, with all that waited in it."""
        if self.upload is None:
            assert self._calls is not None
            begin, _ = self._calls
            self.share(begin())
        assert self.upload is not None
        return self.upload

    def share(self, upload: Upload) -> None:
        """Write what waits, and all that comes, into a file."""
        # Let go of first: they know the segment, whose Parquet writer knows this sink by objects
        # of Arrow's, and such a circle is never collected.
        self._calls, self.upload = None, upload
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        for data in waiting:
            upload.write(data)


@dataclass(slots=True, eq=False)
class _OpenSegment:
    """A growing segment. ``stem`` is its name if it shares no file and is not a Parquet file."""

    uploader: SegmentUploader
    partition: int
    stem: str
    sink: _Sink
    writer: SegmentWriter
    begun_ms: int
    position: int = names.OWN_FILE

    @property
    def size_bytes(self) -> int:
        return self.writer.size_bytes + self.writer.buffered_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the segment in memory: buffered records, and encoded batches that wait."""
        return self.sink.waiting_bytes + self.writer.buffered_bytes

    @property
    def may_share(self) -> bool:
        """Whether it could still be put into a file with others."""
        is_begun = self.sink.upload is not None or self.writer.is_parquet
        return not is_begun and self.size_bytes < SHARED_FILE_BYTES

    @property
    def name(self) -> str:
        """Its name: settled when its first bytes are written."""
        return names.parquet_name(self.stem) if self.writer.is_parquet else self.stem

    @property
    def ref(self) -> names.SegmentRef:
        return names.SegmentRef(self.uploader.topic, self.partition, self.name, self.position)


class UploadBudget:
    """The limit that several uploaders share: records in memory, and open files."""

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held_bytes = 0
        self._waiting_bytes = 0
        self._open: dict[_OpenSegment, None] = {}  # in the order of their beginning
        self._files: dict[_OpenSegment, None] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of records that wait for a full batch, and of batches that wait for a file."""
        return self._held_bytes

    def open(self, segment: _OpenSegment) -> None:
        """Add a new segment."""
        self._open[segment] = None

    def open_file(self, segment: _OpenSegment) -> None:
        """Called before a segment's file begins; finishes the fullest if there are too many."""
        if len(self._files) >= MAX_OPEN_SEGMENTS:
            fullest = max(self._files, key=lambda open_: open_.size_bytes)
            fullest.uploader.finish_early(fullest)
        if segment in self._open:
            self._files[segment] = None

    def close(self, segment: _OpenSegment) -> None:
        """Remove a finished segment. Removing it twice does no harm."""
        self._files.pop(segment, None)
        if segment in self._open:
            del self._open[segment]
            self._held_bytes -= segment.held_bytes
            self._waiting_bytes -= segment.sink.waiting_bytes

    def append(self, segment: _OpenSegment, records: pa.RecordBatch) -> None:
        """Add records to an open segment."""
        with self._counting(segment):
            segment.writer.append(records)

    @contextmanager
    def _counting(self, segment: _OpenSegment) -> Iterator[None]:
        held, waiting = segment.held_bytes, segment.sink.waiting_bytes
        try:
            yield
        finally:
            self._held_bytes += segment.held_bytes - held
            self._waiting_bytes += segment.sink.waiting_bytes - waiting

    def flush_excess(self) -> None:
        """Encode the fullest buffers, and write what waits, until the rest is within the budget.

        Where all are small a part is kept for what waits from the beginning: Arrow does not give
        back what records have taken.
        """
        for_waiting = self._memory_bytes * 3 // 8
        while self._held_bytes > self._memory_bytes - for_waiting:
            if self._waiting_bytes > for_waiting:
                self._write_waiting()
                continue
            fullest = max(self._open, key=lambda open_: open_.writer.buffered_bytes)
            is_small = fullest.writer.buffered_bytes < SHARED_FILE_BYTES
            kept = for_waiting if is_small else self._waiting_bytes
            if self._held_bytes - self._waiting_bytes <= self._memory_bytes - kept:
                return
            with self._counting(fullest):
                fullest.writer.flush()

    def _write_waiting(self) -> None:
        """Write the batches that wait: the most of a segment, or all if these are few."""
        fullest = max(self._open, key=lambda open_: open_.sink.waiting_bytes)
        if fullest.sink.waiting_bytes >= _LEAST_FILE_BYTES:
            with self._counting(fullest):
                fullest.sink.begin()
            return
        for uploader in {open_.uploader: None for open_ in self._open}:
            uploader.finish_small()


class SegmentUploader:
    """Writes records into one growing segment per partition, in bounded memory.

    A segment takes ``segment.bytes`` at most, or one record; further records begin the next one,
    even in the middle of a batch. Records of a partition keep their order. At the end small
    segments of several partitions are put one after another into a file that they share. A segment
    may be a Parquet file if the topic's ``record.format`` says so. Batches in
    Kafka's format tell ``producer``, if it is known; what places the segments decides. Use it
    once: :meth:`write` any number of times, then :meth:`finish` or :meth:`discard`.
    """

    def __init__(
        self,
        storage: Storage,
        spec: TopicSpec,
        clock: Clock,
        budget: UploadBudget | None = None,
        producer: ProducerRef | TransactionRef | None = None,
    ) -> None:
        self._storage = storage
        self._spec = spec
        self._clock = clock
        self._config = TopicConfig.of(spec.config)
        self._budget = budget or UploadBudget()
        self._producer = producer
        self._writer_token = clock.token()
        self._counter = 0
        self._open: dict[int, _OpenSegment] = {}
        self._full: list[_OpenSegment] = []
        self._finished: list[UploadedSegment] = []

    @property
    def topic(self) -> str:
        return self._spec.topic

    def write(self, records: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> None:
        """Add records, each to its partition, which must be in range.

        ``records``: of exactly RECORD_SCHEMA, or of a typed topic's record columns. Raises
        RecordTooLarge: a record exceeds the topic's ``max.message.bytes``. StorageError: the upload
        failed; only :meth:`discard` makes sense now.
        """
        if records.num_rows == 0:
            return
        if self._config.log_append_time:
            records = self._stamp(records)
        first = int(partitions[0])
        if (partitions == first).all():
            self._append(first, records)
        else:
            # A stable sort of 16-bit integers is a radix sort: linear, and several times faster.
            small = self._spec.partitions <= 1 << 16
            order = np.argsort(partitions.astype(np.uint16) if small else partitions, kind="stable")
            counts = np.bincount(partitions)
            chosen = np.flatnonzero(counts)
            groups = np.split(order.astype(np.int32), np.cumsum(counts[chosen])[:-1])
            # Copied: a slice of one sorted batch would keep all of it in memory while it waits.
            for partition, part in zip(chosen, take_groups(records, groups), strict=True):
                self._append(int(partition), part)
        self._finish_full()
        self._budget.flush_excess()

    def _stamp(self, records: pa.RecordBatch) -> pa.RecordBatch:
        column = records.schema.get_field_index(timestamp_column(records))
        stamps = constant_timestamps(self._clock.now_ms(), records.num_rows)
        return records.set_column(column, records.schema.field(column), stamps)

    def _append(self, partition: int, records: pa.RecordBatch) -> None:
        """Add records to a partition's segments: as many as they take, in slices."""
        segment = self._open.get(partition) or self._new_segment(partition)
        try:
            room_bytes, room_rows = segment.writer.room()
            if records.nbytes <= room_bytes and records.num_rows <= room_rows:
                self._budget.append(segment, records)
            else:
                self._roll(segment, records)
        except RecordTooLarge as error:
            raise RecordTooLarge(
                f"topic {self._spec.topic!r}, partition {partition}: {error}. Make the records "
                "smaller, or alter the topic's max.message.bytes"
            ) from None

    def _roll(self, segment: _OpenSegment, records: pa.RecordBatch) -> None:
        """Add records that do not fit into the segment, and begin new ones when it is full.

        A record that is larger than a whole segment gets its own.
        """
        sizes = record_sizes(records)
        segment.writer.check_sizes(sizes)
        ends = np.cumsum(sizes)
        row = 0
        while row < records.num_rows:
            taken = int(ends[row - 1]) if row else 0
            # Records that compress well leave room for more: the size is known only once written.
            room_bytes, room_rows = segment.writer.room()
            stop = int(np.searchsorted(ends, taken + room_bytes, side="right"))
            stop = min(stop, row + room_rows)
            if stop == row:
                if segment.writer.record_count:
                    self._set_aside(segment)
                    segment = self._new_segment(segment.partition)
                    continue
                stop = row + 1
            self._budget.append(segment, records.slice(row, stop - row))
            row = stop

    def _set_aside(self, segment: _OpenSegment) -> None:
        """Remove a full segment from the growing ones. Several are finished together."""
        self._budget.close(segment)
        del self._open[segment.partition]
        self._full.append(segment)
        if len(self._full) >= PARALLEL_REQUESTS:
            self._finish_full()

    def _finish_full(self) -> None:
        if self._full:
            self._finish([segment] for segment in self._full)
            self._full.clear()

    def _new_segment(self, partition: int) -> _OpenSegment:
        name = self._new_name()
        sink = _Sink(lambda: self._begin_file(segment), lambda: not segment.writer.is_parquet)
        writer = new_segment_writer(sink, self._spec, partition, name, producer=self._producer)
        segment = _OpenSegment(self, partition, name, sink, writer, self._clock.now_ms())
        self._open[partition] = segment
        self._budget.open(segment)
        return segment

    def _begin_file(self, segment: _OpenSegment) -> Upload:
        self._budget.open_file(segment)
        return self._storage.upload(segment.ref.paths.log)

    def _new_name(self) -> str:
        name = names.segment_name(
            self._writer_token,
            self._counter,
            schema_version=self._spec.schema_version,
        )
        self._counter += 1
        return name

    def finish_early(self, segment: _OpenSegment) -> None:
        """Finish one of the open segments to make room for others."""
        self._budget.close(segment)
        self._finish([[segment]])
        del self._open[segment.partition]

    def finish_small(self) -> None:
        """Finish the open segments that may share files, or of which batches wait: to make room."""
        small = [one for one in self._open.values() if one.may_share or one.sink.waiting_bytes]
        self._close(small)
        for segment in small:
            del self._open[segment.partition]

    def _close(self, segments: Sequence[_OpenSegment]) -> None:
        """Finish segments of different partitions."""
        for segment in segments:
            self._budget.close(segment)
        ordered = sorted(segments, key=lambda segment: segment.partition)
        self._finish(_group_by_file(ordered))

    def _finish(self, files: Iterable[Sequence[_OpenSegment]]) -> None:
        """Finish segments, given by the file that they go to."""
        left = iter(files)
        while some := [*islice(left, _FILES_AT_ONCE)]:
            self._storage.put_round(self._last_requests(some))

    def _last_requests(
        self, files: Iterable[Sequence[_OpenSegment]]
    ) -> Iterator[Callable[[], None]]:
        """The requests that finish segments; each is encoded while those before it are sent."""
        for segments in files:
            if len(segments) > 1:
                yield self._fill_shared(segments).close
                continue
            (segment,) = segments
            summary = self._end(segment)
            yield segment.sink.begin().close
            ref = segment.ref
            if ref.is_indexed(summary.batch_count, summary.size_bytes):
                # Accelerators: a reader that does not find them reads the segment itself.
                yield partial(self._storage.put, ref.paths.offset_index, summary.index)
                yield partial(self._storage.put, ref.paths.time_index, summary.time_index)

    def _fill_shared(self, segments: Sequence[_OpenSegment]) -> Upload:
        """Write small segments into one file, one after another."""
        name, position = self._new_name(), 0
        ref = names.SegmentRef(self._spec.topic, names.SHARED, name, position)
        upload = self._storage.upload(ref.paths.log)
        for segment in segments:
            segment.stem, segment.position = name, position
            segment.sink.share(upload)
            position += self._end(segment).size_bytes
        return upload

    def _end(self, segment: _OpenSegment) -> SegmentSummary:
        """Encode a segment's waiting records, and mark it finished."""
        summary = segment.writer.finish()
        self._finished.append(
            UploadedSegment.of(
                summary,
                self._spec,
                segment.partition,
                segment.name,
                segment.begun_ms,
                segment.position,
                history=self._storage.history(),
            )
        )
        return summary

    @property
    def record_count(self) -> int:
        """How many records were added."""
        growing = sum(open_.writer.record_count for open_ in [*self._open.values(), *self._full])
        return growing + sum(segment.stored.record_count for segment in self._finished)

    def finish(self) -> list[UploadedSegment]:
        """Upload the open segments and return all, those of a partition in order."""
        self._close([*self._open.values()])
        self._open.clear()
        return sorted(self._finished, key=lambda s: names.segment_order(s.partition, s.stored.name))

    def discard(self) -> None:
        """Drop everything, best effort: uploads are deleted or left as orphans."""
        for segment in (*self._full, *self._open.values()):
            self._budget.close(segment)
            if segment.sink.upload is not None:
                segment.sink.upload.discard()
        self._open.clear()
        self._full.clear()
        discard_segments(self._storage, self._finished)
        self._finished.clear()


def _group_by_file(segments: Iterable[_OpenSegment]) -> Iterator[list[_OpenSegment]]:
    """Which segments, each of another partition, go to one file when they are finished.

    Those that have no file yet, as many as fit into SHARED_FILE_BYTES together. Parquet segments
    never share files.
    """
    together: list[_OpenSegment] = []
    total_bytes = 0
    for segment in segments:
        if not segment.may_share:
            yield [segment]
            continue
        total_bytes += segment.size_bytes
        if total_bytes >= SHARED_FILE_BYTES:
            yield together
            together, total_bytes = [], segment.size_bytes
        together.append(segment)
    if together:
        yield together


def discard_segments(storage: Storage, segments: Iterable[UploadedSegment]) -> None:
    """Delete the files of segments that no log entry names, best effort; see discard_files."""
    files = dict.fromkeys(file for segment in segments for file in segment.files)
    discard_files(storage, [*files])


def discard_files(storage: Storage, files: Sequence[str]) -> None:
    """Delete files of segments that no log entry names (any more), best effort.

    Never after a commit whose outcome is unknown (hazard 2).
    """
    try:
        storage.delete(files)
    except StorageError as error:
        _logger.warning("%d orphan files were left: %s", len(files), error)


def new_segment_writer(
    sink: SupportsWrite,
    spec: TopicSpec,
    partition: int,
    name: str,
    *,
    stores_offsets: bool = False,
    max_record_bytes: int | None = None,
    producer: ProducerRef | TransactionRef | None = None,
) -> SegmentWriter:
    """The writer of a new segment; if it becomes a Parquet file ``names.parquet_name`` of ``name``.

    ``stores_offsets``: its records may have offsets with gaps. ``max_record_bytes``: instead of the
    topic's ``max.message.bytes``. ``producer``: whose records they are; None: not known, or those
    of several.
    """
    config = TopicConfig.of(spec.config)
    return SegmentWriter(
        sink,
        record_format=config.record_format,
        compression=config.compression,
        level=config.compression_level,
        max_record_bytes=max_record_bytes or config.max_message_bytes,
        index_interval_bytes=config.index_interval_bytes,
        tag=tag_of(name),
        segment_bytes=config.segment_bytes,
        stores_offsets=stores_offsets,
        parquet_compression=config.parquet_compression,
        parquet_level=config.parquet_compression_level,
        producer=None if producer is None else (producer.producer_id, producer.producer_epoch),
        origin={
            "txnlog.topic": spec.topic,
            "txnlog.topic_id": spec.topic_id,
            "txnlog.partition": str(partition),
            "txnlog.segment": parquet_name(name),
        },
    )
