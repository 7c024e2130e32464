"""Export: a topic becomes partition folders that Kafka's own tools and brokers read.

docs/FORMAT.md ("Kafka's partition folders") says how markers move offsets. Segments from Kafka
contain their markers and are copied, byte for byte if no marker was put before them. Those
rewritten here, as by a purge, have none: what they leave open is ended.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from txnlog import names
from txnlog.config import TopicConfig
from txnlog.errors import CorruptRecord, InvalidOption, StorageError
from txnlog.kafka.folder_writer import FolderSettings, FolderWriter
from txnlog.kafka.folders import Progress, partition_folder
from txnlog.kafka.transaction_tracker import TransactionTracker
from txnlog.log.open_logs import Logs
from txnlog.read.json_records import as_keys_and_values, json_pieces
from txnlog.read.pin import pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.read.stored_reader import load_transaction_index, read_batches
from txnlog.read.topic_view import TopicView
from txnlog.segments.batch_header import (
    MAGIC_KAFKA,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
)
from txnlog.segments.batches import DecodedBatch, encode_batch, encode_marker
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.indexes.sparse import MAX_SEGMENT_BYTES
from txnlog.segments.indexes.transactions import NO_MARKER, AbortedTransaction, TransactionIndex
from txnlog.segments.inspect.dump import dump_segment, indexed_offsets
from txnlog.segments.kafka_markers import ABORT, COMMIT, ControlMarker
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import Int32Array, record_sizes, timestamps_ms
from txnlog.state.producers import advance_sequence
from txnlog.state.segment import Segment
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.registry import check_whole

_logger = logging.getLogger(__name__)

_BATCH_BYTES = 1_000_000
"""A little less than brokers' default limit (max.message.bytes)."""
_TEMPORARY = f"{names.TEMPORARY}/none"
"""A name in the folder that local storages write to first."""
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """An exported partition's folder; offsets are those in it.

    ``marker_count`` is the number of markers that the export added.
    """

    partition: int
    folder: str
    start_offset: int
    end_offset: int
    record_count: int
    marker_count: int
    segment_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KafkaExport:
    """What an export has written. ``url`` is the folder that the partitions' folders are in."""

    topic: str
    url: str
    partitions: tuple[ExportedPartition, ...]

    @property
    def record_count(self) -> int:
        """How many records were written, to all partitions together."""
        return sum(partition.record_count for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class _Format:
    """How records are written. ``keeps_offsets``: no markers are added."""

    magic: int
    keeps_offsets: bool
    compression: Compression
    level: int | None
    log_append_time: bool


def export_log_dirs(
    logs: Logs,
    topic: str,
    directory: str,
    *,
    magic: int,
    keep_offsets: bool,
    compression_type: str | None,
    storage_options: Mapping[str, object] | None,
    progress: Progress | None,
) -> KafkaExport:
    """See :meth:`txnlog.Store.kafka.export_topic`."""
    view = pin_topics(logs, [topic]).views[topic]
    config = TopicConfig.of(view.config)
    written = _format(config, magic, keep_offsets, compression_type)
    target = open_storage(directory, storage_options)
    for url in logs.storage.urls():
        if f"{target.url}/".startswith(f"{url.rstrip('/')}/"):
            raise InvalidOption(
                f"{target.url} lies in the store {url}: export into a folder beside it"
            )
    check_whole(target)
    settings = FolderSettings(config.segment_bytes, config.index_interval_bytes)
    writers = [
        FolderWriter(target, partition_folder(topic, number), settings)
        for number in range(len(view.partitions))
    ]
    for writer in writers:
        if target.list_names(writer.folder):
            raise InvalidOption(
                f"{target.url}/{writer.folder} is not empty; export into a folder that does not "
                f"hold partitions of {topic!r} yet"
            )
    counted = _Counted(sum(p.stored.size_bytes for p in _segments_of(view)), progress)
    try:
        exported = [
            _PartitionExporter(logs.storage, view, number, writer, written, counted).run()
            for number, writer in enumerate(writers)
        ]
    except BaseException:
        for writer in writers:
            _discard(writer)
        raise
    finally:
        # Deleting prunes empty folders, and a broker refuses one that is not a partition's.
        with suppress(StorageError):
            target.delete([_TEMPORARY])
    return KafkaExport(topic, target.url, tuple(exported))


def _format(
    config: TopicConfig, magic: int, keep_offsets: bool, compression_type: str | None
) -> _Format:
    if isinstance(magic, bool) or magic not in (0, 1, MAGIC_KAFKA):
        raise InvalidOption(f"magic {magic!r} is not one of 0, 1 and {MAGIC_KAFKA}")
    compression, level = config.compression, config.compression_level
    if compression_type is not None:
        compression, level = Compression.parse(compression_type), None
    is_old = magic < MAGIC_KAFKA
    if is_old and compression is Compression.ZSTD:
        if compression_type is not None:
            raise InvalidOption(f"zstd is younger than magic {magic}; use gzip, snappy or lz4")
        compression, level = Compression.GZIP, None
    # The old formats have no transactions: they can only hold committed records.
    return _Format(magic, keep_offsets or is_old, compression, level, config.log_append_time)


def _segments_of(view: TopicView) -> Iterator[Segment]:
    spans = {
        number: (part.log_start_offset, part.end_offset)
        for number, part in enumerate(view.partitions)
    }
    for segments in view.placed(spans).segments.values():
        yield from segments


def _discard(writer: FolderWriter) -> None:
    try:
        writer.discard()
    except StorageError as error:
        # The original error matters more.
        _logger.warning("files of a failed export were left in %s: %s", writer.folder, error)


@dataclass(slots=True)
class _Counted:
    """Reports the export's progress."""

    total_bytes: int
    progress: Progress | None
    done_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        if self.progress is not None:
            self.progress(self.done_bytes, self.total_bytes)


class _PartitionExporter:
    """Writes one partition.

    ``_shift`` is how many markers were added so far; ``_unended`` are the producers whose records
    from an offset on become plain ones in the run of segments that is being copied.
    """

    def __init__(
        self,
        storage: Storage,
        view: TopicView,
        partition: int,
        writer: FolderWriter,
        written: _Format,
        counted: _Counted,
    ) -> None:
        self._storage = storage
        self._view = view
        self._partition = partition
        self._writer = writer
        self._format = written
        self._counted = counted
        pinned = view.partitions[partition]
        self._start_offset = pinned.log_start_offset
        self._end_offset = pinned.end_offset
        placed = view.placed({partition: (self._start_offset, self._end_offset)})
        self._segments = placed.segments[partition]
        self._hidden_entries = placed.hidden_entries
        self._unended: dict[int, int] = {}
        self._shift = 0
        self._leader_epoch = 0
        self._record_count = 0
        self._latest_ms = 0

    def run(self) -> ExportedPartition:
        """Write everything from the log's start to where the view ends."""
        last = {(s.producer_id, s.transaction): s for s in self._segments}
        begins_file = True
        for run in self._runs():
            segment = run[0]
            is_hidden = segment.entry in self._hidden_entries
            if self._is_copied(segment):
                self._copy_run(run)
                begins_file = True
                continue
            if not (is_hidden and self._format.keeps_offsets):
                if begins_file:
                    self._begin(segment)
                self._encode(segment)
                begins_file = False
            self._counted.add(segment.stored.size_bytes)
            ends = last[segment.producer_id, segment.transaction] is segment
            if segment.transaction >= 0 and ends and not self._format.keeps_offsets:
                self._mark(segment.producer_id, segment.producer_epoch, commit=not is_hidden)
        end_offset = self._end_offset + self._shift
        if not self._writer.base_offsets:
            self._writer.begin(self._start_offset)
        if self._writer.end_offset < end_offset:
            self._writer.begin(end_offset)  # an empty segment shows the next record's offset
        self._writer.finish()
        return ExportedPartition(
            partition=self._partition,
            folder=self._writer.folder,
            start_offset=self._start_offset,
            end_offset=end_offset,
            record_count=self._record_count,
            marker_count=self._shift,
            segment_count=len(self._writer.base_offsets),
            size_bytes=self._writer.size_bytes,
        )

    def _is_copied(self, segment: Segment) -> bool:
        return segment.stored.kafka is not None and self._format.magic == MAGIC_KAFKA

    def _runs(self) -> Iterator[list[Segment]]:
        """The segments to export, one by one; adjacent segments of one import come together."""
        run: list[Segment] = []
        for segment in self._segments:
            follows = run and segment.base_offset == run[-1].end_offset
            if not (follows and self._is_copied(segment) and segment.entry == run[-1].entry):
                if run:
                    yield run
                run = []
            run.append(segment)
        if run:
            yield run

    def _begin(self, segment: Segment) -> None:
        """Begin a file. The first one is named for the log's start, whatever it begins with.

        It stays empty if a segment that begins later reaches further than a file's offsets do.
        """
        base_offset, is_near = segment.base_offset + self._shift, False
        if not self._writer.base_offsets:
            self._writer.begin(self._start_offset)
            reach = segment.end_offset + self._shift - self._start_offset
            is_near = base_offset <= self._start_offset or reach <= MAX_SEGMENT_BYTES
        if not is_near:
            self._writer.begin(base_offset)

    def _range(self, segment: Segment) -> SegmentRange:
        return SegmentRange(
            self._view.topic,
            self._partition,
            segment,
            max(segment.base_offset, self._start_offset),
            min(segment.end_offset, self._end_offset),
            topic_id=self._view.topic_id,
            hides_aborted=segment.stored.has_aborted,
        )

    # -- records that are encoded again ----------------------------------------------------------

    def _encode(self, segment: Segment) -> None:
        for batch in self._read(segment):
            offsets = batch.offsets() + segment.offset_shift
            one_time = self._format.log_append_time and self._format.magic == MAGIC_KAFKA
            for start, stop in self._pieces(batch.records, one_time=one_time):
                first, last = int(offsets[start]), int(offsets[stop - 1])
                records = batch.records.slice(start, stop - start)
                deltas = (offsets[start:stop] - first).astype(np.int32)
                if self._format.magic == MAGIC_KAFKA:
                    data = self._rows(segment, records, first, deltas)
                else:
                    data = encode_message_set(
                        records,
                        self._format.magic,
                        compression=self._format.compression,
                        level=self._format.level,
                        base_offset=first,
                        offset_deltas=deltas,
                    )
                if not self._writer.has_room(last + self._shift):
                    self._writer.begin(first + self._shift)
                times = timestamps_ms(records)
                newest = int(np.argmax(times))
                indexed = (first, first + int(deltas[newest])) if self._joins else None
                self._write(data, first, last, int(times[newest]), indexed)
                self._record_count += len(deltas)

    def _read(self, segment: Segment) -> Iterator[SegmentBatch]:
        """The records of a segment, those of a typed topic as its consumers get them."""
        schema = self._view.schema
        part = self._range(segment)
        if schema is None:
            yield from read_batches(self._storage, part, None)
            return
        for batch in json_pieces(read_batches(self._storage, part, schema.record_columns)):
            yield replace(batch, records=as_keys_and_values(batch.records, schema))

    def _rows(
        self, segment: Segment, records: pa.RecordBatch, first: int, deltas: Int32Array
    ) -> bytes:
        in_transaction = segment.transaction >= 0
        transactional = in_transaction and not self._format.keeps_offsets
        known = segment.producer_id >= 0 and in_transaction == transactional
        sequence = advance_sequence(segment.base_sequence, first - segment.base_offset)
        if transactional:
            self._writer.tracker.begin(
                segment.producer_id, segment.producer_epoch, first + self._shift
            )
        return encode_batch(
            records,
            record_format="kafka",
            compression=self._format.compression,
            level=self._format.level,
            base_offset=first + self._shift,
            offset_deltas=None if int(deltas[-1]) == len(deltas) - 1 else deltas,
            producer_id=segment.producer_id if known else NO_PRODUCER_ID,
            producer_epoch=segment.producer_epoch if known else NO_PRODUCER_EPOCH,
            base_sequence=sequence if known else NO_SEQUENCE,
            leader_epoch=self._leader_epoch,
            transactional=transactional,
            log_append_time=self._format.log_append_time,
        )

    @staticmethod
    def _pieces(records: pa.RecordBatch, *, one_time: bool) -> Iterator[tuple[int, int]]:
        """Where to split records, so that each piece is a batch that a broker accepts.

        ``one_time``: with log append time a batch has one time for all of its records.
        """
        ends, times = np.cumsum(record_sizes(records)), timestamps_ms(records)
        start = 0
        while start < records.num_rows:
            taken = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, taken + _BATCH_BYTES, side="right"))
            stop = max(stop, start + 1)
            if one_time:
                others = np.flatnonzero(times[start:stop] != times[start])
                stop = start + int(others[0]) if len(others) else stop
            yield start, stop
            start = stop

    # -- segments that came from Kafka -----------------------------------------------------------

    def _copy_run(self, run: Sequence[Segment]) -> None:
        """Copy segments, and end the transactions whose markers are not in them.

        Nobody else will: an import may have ended inside of a transaction, and what rewrites a
        segment, such as a purge, leaves the markers in it out. Without end they would hold readers
        up for ever, or end with the producer's next one. With ``keep_offsets`` there is no offset
        for a marker: such records become plain ones.
        """
        tracker, end_offset = self._writer.tracker, run[-1].end_offset
        others = {item.producer_id for item in tracker.open}
        self._unended = self._find_unended(run) if self._format.keeps_offsets else {}
        for segment in run:
            index = load_transaction_index(self._storage, self._range(segment))
            self._copy(segment, index, end_offset)
            self._counted.add(segment.stored.size_bytes)
        if self._format.keeps_offsets:
            return
        aborted = {item.producer_id for item in index.aborted if item.last_offset >= end_offset}
        for item in tracker.open:
            if item.producer_id not in others:
                self._mark(*item[:2], commit=item.producer_id not in aborted)

    def _find_unended(self, run: Sequence[Segment]) -> dict[int, int]:
        """The producers with undecided records at the run's end, and where these begin."""
        end = run[-1].end_offset
        at = bisect_left(self._segments, end, key=lambda segment: segment.base_offset)
        following = self._segments[at : at + 1]
        begins = following[0].base_offset if following else self._end_offset
        if begins == end and not (following and following[0].stored.rewritten):
            return {}  # the import ends here: what it has left undecided is aborted
        tracker = TransactionTracker()
        for segment in run:
            for batch in dump_segment(
                self._range(segment).open(self._storage), joins_messages=True
            ):
                if batch.decoded is not None:
                    tracker.add(batch.decoded.header, batch.decoded.markers)
        return {item.producer_id: item.first_offset for item in tracker.open}

    def _copy(self, segment: Segment, index: TransactionIndex, end_offset: int) -> None:
        """Copy the batches of a segment in a run that ends at ``end_offset``."""
        part = self._range(segment)
        ends = {(item.producer_id, item.last_offset) for item in index.aborted}
        unmarked = [item for item in index.aborted if item.last_stable_offset == NO_MARKER]
        left_out = TransactionIndex(
            [*unmarked, *(item for item in index.aborted if item.last_offset >= end_offset)]
            if self._format.keeps_offsets
            else ()
        )
        hanging = deque(unmarked)
        begun = False
        for batch in dump_segment(part.open(self._storage), joins_messages=True):
            decoded = batch.decoded
            if batch.damage is not None or decoded is None:
                raise CorruptRecord(f"nothing was exported: {batch.damage or part.paths.log}")
            header = decoded.header
            if header.last_offset < self._start_offset or left_out.hides(header):
                continue  # deleted, or aborted without a marker
            self._end_hanging(hanging, header.base_offset)
            if not begun:
                self._begin(segment)
                begun = True
            self._leader_epoch = max(self._leader_epoch, header.leader_epoch)
            if any(
                m.type == COMMIT and (header.producer_id, m.offset) in ends for m in decoded.markers
            ):
                # The rest of a truncated transaction: its beginning is aborted, so it is, too.
                self._mark_at(header)
                continue
            is_whole = header.base_offset >= self._start_offset and not self._is_unended(header)
            if is_whole and (not self._shift or header.magic == MAGIC_KAFKA):
                self._copy_batch(decoded, bytes(batch.data))
            else:
                self._copy_records(decoded)
        self._end_hanging(hanging, segment.end_offset)

    def _is_unended(self, header: BatchHeader) -> bool:
        first = self._unended.get(header.producer_id)
        is_transactional = header.is_transactional and not header.is_control
        return is_transactional and first is not None and header.base_offset >= first

    def _copy_batch(self, decoded: DecodedBatch, data: bytes) -> None:
        header = decoded.header
        if self._shift:  # no checksum covers the offset
            data = _OFFSET.pack(header.base_offset + self._shift) + data[_OFFSET.size :]
        self._writer.tracker.add(
            replace(header, base_offset=header.base_offset + self._shift),
            [replace(m, offset=m.offset + self._shift) for m in decoded.markers],
        )
        self._record_count += decoded.records.num_rows
        times = header.max_timestamp_ms
        self._write(data, header.base_offset, header.last_offset, times, indexed_offsets(decoded))

    def _copy_records(self, decoded: DecodedBatch) -> None:
        """Encode a batch again: without deleted records, after markers, or as plain records."""
        header, deltas = decoded.header, decoded.offset_deltas
        if self._is_unended(header):
            header = replace(
                header,
                attributes=header.attributes & ~TRANSACTIONAL,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
                base_sequence=NO_SEQUENCE,
            )
        if deltas is None:
            deltas = np.arange(decoded.records.num_rows, dtype=np.int32)
        first = int(np.searchsorted(deltas, self._start_offset - header.base_offset))
        kept = decoded.records.slice(first)
        for start, stop in self._pieces(kept, one_time=header.is_log_append_time):
            inside = deltas[first + start : first + stop]
            base, records = int(inside[0]), kept.slice(start, stop - start)
            has_sequence = header.base_sequence != NO_SEQUENCE
            data = encode_batch(
                records,
                record_format="kafka",
                compression=header.codec,
                base_offset=header.base_offset + base + self._shift,
                offset_deltas=inside - inside[0],
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=(
                    advance_sequence(header.base_sequence, base) if has_sequence else NO_SEQUENCE
                ),
                leader_epoch=header.leader_epoch,
                transactional=header.is_transactional,
                log_append_time=header.is_log_append_time,
            )
            if header.is_transactional:
                offset = header.base_offset + base + self._shift
                self._writer.tracker.begin(header.producer_id, header.producer_epoch, offset)
            last = header.base_offset + int(inside[-1])
            self._record_count += len(inside)
            self._write(data, header.base_offset + base, last, int(timestamps_ms(records).max()))

    def _mark_at(self, header: BatchHeader) -> None:
        """Put an abort marker in place of the batch, which is a commit marker."""
        offset, time = header.base_offset + self._shift, header.max_timestamp_ms
        self._writer.tracker.end(header.producer_id, ControlMarker(offset, time, ABORT, 0))
        data = encode_marker(
            commit=False,
            offset=offset,
            timestamp_ms=time,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            coordinator_epoch=0,
            leader_epoch=header.leader_epoch,
        )
        self._write(data, header.base_offset, header.last_offset, time)

    def _end_hanging(self, hanging: deque[AbortedTransaction], offset: int) -> None:
        """Put abort markers for transactions that end before ``offset``: theirs are lost."""
        while hanging and hanging[0].last_offset < offset:
            producer_id = hanging.popleft().producer_id
            for item in self._writer.tracker.open:
                if item.producer_id == producer_id:
                    self._mark(producer_id, item.producer_epoch, commit=False)

    # -- both ------------------------------------------------------------------------------------

    def _mark(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Put a marker directly after the last write."""
        offset = self._writer.end_offset
        data = encode_marker(
            commit=commit,
            offset=offset,
            timestamp_ms=self._latest_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=0,
            leader_epoch=self._leader_epoch,
        )
        kind = COMMIT if commit else ABORT
        self._writer.tracker.end(producer_id, ControlMarker(offset, self._latest_ms, kind, 0))
        self._write(data, offset - self._shift, offset - self._shift, self._latest_ms)
        self._shift += 1

    @property
    def _joins(self) -> bool:
        """Whether the format has single messages instead of batches."""
        return self._format.magic < MAGIC_KAFKA and self._format.compression is Compression.NONE

    def _write(
        self,
        data: bytes,
        first: int,
        last: int,
        max_timestamp_ms: int,
        indexed: tuple[int, int] | None = None,
    ) -> None:
        """Write a batch with the offsets ``first`` to ``last``, which are the topic's own."""
        self._latest_ms = max(self._latest_ms, max_timestamp_ms)
        at, newest = indexed or (last, last)
        self._writer.write(
            data,
            base_offset=first + self._shift,
            last_offset=last + self._shift,
            indexed_offsets=(at + self._shift, newest + self._shift),
            max_timestamp_ms=max_timestamp_ms,
            leader_epoch=self._leader_epoch,
        )
