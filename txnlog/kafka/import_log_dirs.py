"""Import: partition folders of a Kafka broker become part of a topic, all of them at once.

The bytes of every batch are checked and copied as they are; offsets, timestamps, headers and
producer ids stay. Records aborted in Kafka stay aborted, by its control batches, or its transaction
indexes if these are damaged. The topic's log names the copies in one entry: all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import crc32c

from txnlog import names
from txnlog.config import TopicConfig
from txnlog.errors import (
    CommitStateUnknown,
    CorruptRecord,
    InvalidRecord,
    ObjectNotFound,
    StorageError,
    TopicAlreadyExists,
    TxnlogError,
)
from txnlog.kafka.folders import PartitionFolder, Progress, find_folders, segment_paths
from txnlog.kafka.transaction_tracker import OpenTransaction, TransactionTracker
from txnlog.limits import MOST_OFFSETS
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.read.plan import SegmentRange
from txnlog.read.stored_reader import load_transaction_index
from txnlog.segments.batch_header import NO_CRC
from txnlog.segments.batches import MAX_HEADER_BYTES, DecodedBatch, decode_header
from txnlog.segments.indexes.sparse import MAX_SEGMENT_BYTES, IndexBuilder
from txnlog.segments.indexes.transactions import NO_MARKER, AbortedTransaction, TransactionIndex
from txnlog.segments.inspect.dump import DumpedBatch, dump_segment, indexed_offsets
from txnlog.segments.kafka_markers import MARKER_BYTES
from txnlog.segments.records import are_representable, timestamps_ms
from txnlog.segments.segment_file import SegmentFile
from txnlog.state.segment import KafkaFile, Segment, SegmentEntry, StoredSegment
from txnlog.state.topic import TopicState, last_appended
from txnlog.state.topic_entries import OffsetSpan
from txnlog.storage.base import Storage
from txnlog.write.record_checks import KeyCheck
from txnlog.write.segment_uploads import discard_files

_TOPIC_CONFIG = {"record.format": "kafka", "compression.type": "producer"}
_SHOWN_DAMAGES = 5


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """One partition: offsets [start_offset, end_offset) of it were imported.

    ``record_count`` includes all records in the files, aborted ones too. ``open_transactions`` had
    not ended when the folder was copied, or their end is damaged: they count as aborted.
    """

    partition: int
    start_offset: int
    end_offset: int
    record_count: int
    segment_count: int
    size_bytes: int
    aborted_count: int
    open_transactions: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """Bytes of a file that could not be imported, and why."""

    path: str
    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class KafkaImport:
    """An import's result. ``damages`` were left out, because of ``skip_corrupt``."""

    topic: str
    partitions: tuple[ImportedPartition, ...]
    damages: tuple[DamagedBytes, ...]

    @property
    def record_count(self) -> int:
        """How many records the imported files hold, aborted ones too."""
        return sum(partition.record_count for partition in self.partitions)


def import_log_dirs(
    logs: Logs,
    topic: str,
    log_dirs: Sequence[str],
    *,
    storage_options: Mapping[str, object] | None,
    skip_corrupt: bool,
    progress: Progress | None,
) -> KafkaImport:
    """See :meth:`txnlog.Store.kafka.import_topic`."""
    names.check_topic(topic)
    folders = find_folders(log_dirs, topic, storage_options)
    log = logs.topic(topic)
    log.refresh()
    spans = {f.partition: OffsetSpan(f.log_start_offset, f.end_offset_at_least) for f in folders}
    with log.lock:
        state = log.state
        known_ends = {n: part.end_offset for n, part in enumerate(state.partitions) if n in spans}
        config, topic_id = dict(state.config), state.topic_id
        if state.exists:
            # Before anything is copied: most errors can be found now.
            state.check_import(topic, spans)
        if any(_is_settled(state, partition) for partition in spans):
            state = log.whole_segments()
        ends = {partition: last_appended(state, partition) for partition in spans}
    begun_ms = logs.clock.now_ms()
    copier = _Copier(logs, topic, TopicConfig.of(config), skip_corrupt, progress)
    doomed = {
        partition: set() if last is None else _cut_off(logs.storage, topic, partition, last)
        for partition, last in ends.items()
    }
    try:
        copier.copy(folders, doomed)
        copier.refuse_damage()
        if topic_id is None:
            topic_id = _create(log, folders[-1].partition + 1)
    except BaseException:
        copier.discard()
        raise
    try:
        log.place_imported(
            topic_id, copier.offsets, copier.placements, begun_ms, known_ends=known_ends
        )
    except StorageError as error:
        raise CommitStateUnknown(
            f"the import into topic {topic!r} may or may not have happened: {error}. Nothing was "
            "deleted; look at the topic's offsets before you repeat it"
        ) from error
    except TxnlogError:
        copier.discard()
        raise  # after any other error, such as an interrupt, the files may be placed and must stay
    logs.tidy([log])
    return KafkaImport(topic, tuple(copier.partitions), tuple(copier.damages))


def _create(log: TopicLog, partitions: int) -> str:
    try:
        log.create(partitions, _TOPIC_CONFIG)
    except TopicAlreadyExists:
        log.refresh()  # another process was first; placing will check it
    return log.spec().topic_id


def _is_settled(state: TopicState, partition: int) -> bool:
    """Whether a partition's last segment may be in manifests."""
    return state.settled is not None and any(
        not part.segments and part.log_start_offset < part.end_offset
        for part in state.partitions[partition : partition + 1]
    )


def _cut_off(storage: Storage, topic: str, partition: int, last: Segment) -> set[int]:
    """The producers whose transactions an earlier import has truncated at the partition's end.

    Vacuum keeps the file that records them, whichever segment holds the records by now.
    """
    part = SegmentRange(topic, partition, last, last.base_offset, last.end_offset)
    index = load_transaction_index(storage, part)
    end = last.end_offset - 1
    return {
        item.producer_id
        for item in index.aborted
        if item.last_stable_offset == NO_MARKER and item.last_offset == end
    }


@dataclass(slots=True)
class _Copied:
    """A segment that is uploaded and waits for the partition's transactions to be known."""

    name: str
    base_offset: int
    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    min_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    first_crc: int = NO_CRC


@dataclass(frozen=True, slots=True)
class _Source:
    """One segment of a folder. ``is_indexed``: its aborted records are known without markers."""

    folder: PartitionFolder
    base_offset: int
    next_base_offset: int | None
    size_bytes: int
    is_indexed: bool


class _Copier:
    """Copies folders into the store's data, batch by batch, in bounded memory."""

    def __init__(
        self,
        logs: Logs,
        topic: str,
        config: TopicConfig,
        skip_corrupt: bool,
        progress: Progress | None,
    ) -> None:
        self.placements: list[SegmentEntry] = []
        self.offsets: dict[int, OffsetSpan] = {}
        self.partitions: list[ImportedPartition] = []
        self.damages: list[DamagedBytes] = []
        self._target = logs.storage
        self._topic = topic
        self._keys = KeyCheck(topic, config)
        self._interval_bytes = config.index_interval_bytes
        self._skip_corrupt = skip_corrupt
        self._progress = progress
        self._token = logs.clock.token()
        self._counter = 0
        self._uploaded: dict[str, list[str]] = {}
        self._done_bytes = self._total_bytes = 0

    def copy(self, folders: Sequence[PartitionFolder], doomed: Mapping[int, set[int]]) -> None:
        """Copy everything; damage is collected, and copying ends with the first of it."""
        sizes = [
            {base: folder.storage.size(segment_paths(base).log) for base in folder.base_offsets}
            for folder in folders
        ]
        self._total_bytes = sum(size for by_base in sizes for size in by_base.values())
        for folder, by_base in zip(folders, sizes, strict=True):
            self._copy_folder(folder, by_base, doomed[folder.partition])

    def refuse_damage(self) -> None:
        """Raise CorruptRecord if there is damage that may not be left out."""
        if not self._is_refused:
            return
        shown = "; ".join(damage.reason for damage in self.damages[:_SHOWN_DAMAGES])
        more = len(self.damages) - _SHOWN_DAMAGES
        raise CorruptRecord(
            f"nothing was imported, because of damage: {shown}"
            f"{f'; and {more} more' if more > 0 else ''}. "
            "To import all the rest, skip what is corrupt (skip_corrupt=True, --skip-corrupt)"
        )

    def discard(self) -> None:
        """Delete the uploads, best effort. Only if certainly no entry names them."""
        discard_files(self._target, [file for files in self._uploaded.values() for file in files])

    @property
    def _is_refused(self) -> bool:
        return bool(self.damages) and not self._skip_corrupt

    def _copy_folder(
        self, folder: PartitionFolder, sizes: Mapping[int, int], doomed: set[int]
    ) -> None:
        indexes = _transaction_indexes(folder)
        tracker = TransactionTracker(
            (item for index in indexes.values() for item in index.aborted), doomed
        )
        copied = []
        end_offset = folder.log_start_offset
        for base in folder.base_offsets:
            next_base = folder.next_base_offset(base)
            if next_base is not None and next_base <= folder.log_start_offset:
                self._advance(sizes[base])
                continue  # all of it was deleted
            # One that is not there among others that are has nothing to say.
            is_indexed = base in indexes or (bool(indexes) and not _has_index(folder, base))
            source = _Source(folder, base, next_base, sizes[base], is_indexed)
            segment, last_offset = self._copy_segment(source, tracker)
            end_offset = max(end_offset, base, last_offset + 1)
            if segment is not None:
                copied.append(segment)
        carried = tracker.still_doomed(end_offset)
        undecided = tracker.abort_open(end_offset)
        aborted = tracker.aborted()
        for segment in copied:
            following = folder.next_base_offset(segment.base_offset)
            if following is None or segment is copied[-1]:
                following = end_offset
            self._place(folder.partition, segment, following, [*aborted, *carried])
        self.offsets[folder.partition] = OffsetSpan(folder.log_start_offset, end_offset)
        self.partitions.append(
            ImportedPartition(
                partition=folder.partition,
                start_offset=folder.log_start_offset,
                end_offset=end_offset,
                record_count=sum(segment.record_count for segment in copied),
                segment_count=len(copied),
                size_bytes=sum(segment.size_bytes for segment in copied),
                aborted_count=len(aborted),
                open_transactions=tuple(undecided),
            )
        )

    def _copy_segment(
        self, source: _Source, tracker: TransactionTracker
    ) -> tuple[_Copied | None, int]:
        """Upload the good batches of one file; returns the last offset in it too, or base - 1."""
        name = names.segment_name(self._token, self._counter)
        self._counter += 1
        base = source.base_offset
        segment = _Copied(name, base)
        indexes = IndexBuilder(self._interval_bytes)
        last_offset = base - 1
        ref = names.SegmentRef(self._topic, source.folder.partition, name)
        upload = self._target.upload(ref.paths.log)
        try:
            for batch in self._good_batches(source, tracker):
                decoded = batch.decoded
                assert decoded is not None
                header = decoded.header
                self._check_keys(decoded, f"{source.folder.storage.url}/{segment_paths(base).log}")
                tracker.add(header, decoded.markers)
                last_offset = header.last_offset
                if self._is_refused:
                    continue  # only to find the rest of the damage
                first, newest = indexed_offsets(decoded)
                indexes.add(
                    position=segment.size_bytes,
                    size_bytes=batch.size_bytes,
                    last_offset=first - base,
                    max_timestamp_ms=header.max_timestamp_ms,
                    newest_offset=newest - base,
                )
                upload.write(bytes(batch.data))
                _count(segment, batch)
            if segment.batch_count == 0 or self._is_refused:
                upload.discard()
                return None, last_offset
            upload.close()
        except BaseException:
            upload.discard()
            raise
        self._uploaded[name] = ref.files(segment.batch_count, segment.size_bytes)
        if ref.is_indexed(segment.batch_count, segment.size_bytes):
            index, times = indexes.finish()
            self._target.put(ref.paths.offset_index, index.encode())
            self._target.put(ref.paths.time_index, times.encode())
        return segment, last_offset

    def _check_keys(self, decoded: DecodedBatch, path: str) -> None:
        try:
            self._keys.check(decoded.records.column("key"))
        except InvalidRecord as error:
            where = f"{path}, the batch at offset {decoded.header.base_offset}"
            raise InvalidRecord(f"nothing was imported: {where}: {error}") from None

    def _good_batches(self, source: _Source, tracker: TransactionTracker) -> Iterator[DumpedBatch]:
        """The sound batches of one file; reports to the tracker where markers may be lost."""
        storage, name = source.folder.storage, segment_paths(source.base_offset).log
        path = f"{storage.url}/{name}"
        file = SegmentFile(partial(storage.get_range, name), source.size_bytes, path)
        following = source.base_offset  # the offset after the last good batch
        is_lost = False
        for batch in dump_segment(file, joins_messages=True):
            self._advance(batch.size_bytes)
            damage = batch.damage or _find_misplacement(batch, source, path)
            if damage is not None:
                self.damages.append(DamagedBytes(path, batch.position, batch.size_bytes, damage))
                is_lost = is_lost or _may_hold_marker(batch)
                continue
            assert batch.header is not None
            if is_lost:
                lost = range(following, batch.header.base_offset)
                tracker.lose(lost, is_indexed=source.is_indexed)
                is_lost = False
            following = batch.header.last_offset + 1
            yield batch
        if is_lost:
            lost = range(following, source.next_base_offset or MOST_OFFSETS)
            tracker.lose(lost, is_indexed=source.is_indexed)

    def _place(
        self,
        partition: int,
        segment: _Copied,
        end_offset: int,
        aborted: Sequence[AbortedTransaction],
    ) -> None:
        inside = [
            item
            for item in aborted
            if item.first_offset < end_offset and item.last_offset >= segment.base_offset
        ]
        data = TransactionIndex(inside).encode()
        if inside:
            ref = names.SegmentRef(self._topic, partition, segment.name)
            files = ref.files(segment.batch_count, segment.size_bytes, has_aborted=True)
            self._uploaded[segment.name] = files
            self._target.put(ref.paths.transaction_index, data)
        self.placements.append(
            SegmentEntry(
                partition,
                segment.base_offset,
                StoredSegment(
                    segment.name,
                    segment.record_count,
                    segment.size_bytes,
                    segment.min_timestamp_ms,
                    segment.max_timestamp_ms,
                    segment.batch_count,
                    kafka=KafkaFile(
                        end_offset - segment.base_offset,
                        len(inside),
                        crc32c.crc32c(data),
                        segment.first_crc,
                    ),
                ),
            )
        )

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def _transaction_indexes(folder: PartitionFolder) -> dict[int, TransactionIndex]:
    """The folder's transaction indexes by segment; damaged ones are ignored."""
    found = {}
    for base in folder.base_offsets:
        if _has_index(folder, base):
            file = segment_paths(base).transaction_index
            try:
                found[base] = TransactionIndex.decode(folder.storage.get(file), name=file)
            except (ObjectNotFound, CorruptRecord):
                continue
    return found


def _has_index(folder: PartitionFolder, base: int) -> bool:
    return segment_paths(base).transaction_index in folder.files


def _may_hold_marker(damaged: DumpedBatch) -> bool:
    """Whether bytes that cannot be read may have been a control batch, or hold one."""
    if damaged.header is None:
        return damaged.size_bytes >= MARKER_BYTES
    return damaged.size_bytes == MARKER_BYTES or damaged.header.is_control


def _find_misplacement(batch: DumpedBatch, source: _Source, path: str) -> str | None:
    """The error of a sound batch that does not belong here, if there is one."""
    assert batch.decoded is not None
    header = batch.decoded.header
    where = f"{path} at byte {batch.position}"
    if header.is_self_checked:
        return f"{where}: this is a batch of txnlog's own, not of Kafka's"
    stop = source.base_offset + MAX_SEGMENT_BYTES + 1
    if source.next_base_offset is not None:
        stop = min(stop, source.next_base_offset)
    if header.base_offset < source.base_offset or header.last_offset >= min(stop, MOST_OFFSETS):
        return (
            f"{where}: offsets {header.base_offset} to {header.last_offset} do not belong in a "
            f"segment of {source.base_offset} to {stop - 1}"
        )
    if not are_representable(timestamps_ms(batch.decoded.records)):
        return f"{where}: a timestamp is {header.max_timestamp_ms} ms, which no calendar has"
    return None


def _count(segment: _Copied, batch: DumpedBatch) -> None:
    assert batch.decoded is not None
    if segment.batch_count == 0:
        # For old messages, which come many at a time, it is the first one's.
        segment.first_crc = decode_header(memoryview(batch.data)[:MAX_HEADER_BYTES]).crc
    segment.size_bytes += batch.size_bytes
    segment.batch_count += 1
    records = batch.decoded.records
    if records.num_rows == 0:
        return
    times = timestamps_ms(records)
    least, most = int(times.min()), int(times.max())
    if segment.record_count == 0:
        segment.min_timestamp_ms, segment.max_timestamp_ms = least, most
    segment.min_timestamp_ms = min(segment.min_timestamp_ms, least)
    segment.max_timestamp_ms = max(segment.max_timestamp_ms, most)
    segment.record_count += records.num_rows
