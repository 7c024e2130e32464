"""Import: partition folders of a Kafka broker become a part of a topic, all of them at once.

The bytes of every batch are checked and copied as they are; offsets, timestamps, headers and
producer ids stay. What Kafka aborted stays aborted: its control batches say so, and its transaction
indexes where these are damaged. The topic's log names the copies in one entry: all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnlog import names
from txnlog.config import TopicConfig
from txnlog.errors import (
    CommitStateUnknown,
    CorruptRecord,
    ObjectNotFound,
    StorageError,
    TopicAlreadyExists,
)
from txnlog.kafka.folders import PartitionFolder, find_folders, segment_file
from txnlog.kafka.progress import Progress
from txnlog.kafka.transactions import OpenTransaction, TransactionTracker
from txnlog.segments.dump import DumpedBatch, dump_segment, indexed_offsets
from txnlog.segments.header import MAGIC_COLUMNS
from txnlog.segments.index import IndexBuilder
from txnlog.segments.records import timestamps_ms
from txnlog.segments.transaction_index import AbortedTransaction, TransactionIndex
from txnlog.state.topic import KafkaFile, OffsetSpan, Placement
from txnlog.store import Store
from txnlog.uploads import SegmentFiles, discard_segments

_TOPIC_CONFIG = {"record.format": "kafka", "compression.type": "producer"}
_SHOWN_DAMAGES = 5


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """One partition: offsets [start_offset, end_offset) of it were imported.

    ``record_count`` is of all records in the files, aborted ones too. ``open_transactions`` had not
    ended when the folder was copied: nobody can end them any more, so they count as aborted.
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
class Imported:
    """What an import has done. ``damages`` were left out, because that was asked for."""

    topic: str
    partitions: tuple[ImportedPartition, ...]
    damages: tuple[DamagedBytes, ...]

    @property
    def record_count(self) -> int:
        return sum(partition.record_count for partition in self.partitions)


def import_log_dirs(
    store: Store,
    topic: str,
    log_dirs: Sequence[str],
    *,
    storage_options: Mapping[str, object] | None,
    skip_corrupt: bool,
    progress: Progress | None,
) -> Imported:
    """See :meth:`txnlog.Store.import_kafka`."""
    names.check_topic(topic)
    folders = find_folders(log_dirs, topic, storage_options)
    log = store.logs.topic(topic)
    log.refresh()
    config, topic_id = log.state.config, log.state.topic_id
    if log.state.exists:
        # Before anything is copied: most of what can be wrong is known now.
        log.state.check_import(
            topic,
            {f.partition: OffsetSpan(f.log_start_offset, f.end_offset_at_least) for f in folders},
        )
    copier = _Copier(store, topic, TopicConfig.of(config), skip_corrupt, progress)
    try:
        copier.copy(folders)
        copier.refuse_damage()
        if topic_id is None:
            topic_id = _create(store, topic, folders[-1].partition + 1)
    except BaseException:
        copier.discard()
        raise
    try:
        log.place_imported(topic_id, copier.offsets, copier.placements)
    except StorageError as error:
        raise CommitStateUnknown(
            f"the import into topic {topic!r} may or may not have happened: {error}. Nothing was "
            "deleted; look at the topic's offsets before you repeat it"
        ) from error
    except BaseException:
        copier.discard()
        raise
    log.checkpoint_if_due()
    return Imported(topic, tuple(copier.partitions), tuple(copier.damages))


def _create(store: Store, topic: str, partitions: int) -> str:
    try:
        return store.create_topic(topic, partitions=partitions, config=_TOPIC_CONFIG).topic_id
    except TopicAlreadyExists:
        return store.topic_spec(topic).topic_id  # somebody else was first; placing will check it


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


class _Copier:
    """Copies folders into the store's data, batch by batch, in bounded memory."""

    def __init__(
        self,
        store: Store,
        topic: str,
        config: TopicConfig,
        skip_corrupt: bool,
        progress: Progress | None,
    ) -> None:
        self.placements: list[Placement] = []
        self.offsets: dict[int, OffsetSpan] = {}
        self.partitions: list[ImportedPartition] = []
        self.damages: list[DamagedBytes] = []
        self._target = store.storage
        self._topic = topic
        self._interval_bytes = config.index_interval_bytes
        self._skip_corrupt = skip_corrupt
        self._progress = progress
        self._token = store.logs.clock.token()
        self._counter = 0
        self._uploaded: dict[str, SegmentFiles] = {}
        self._done_bytes = self._total_bytes = 0

    def copy(self, folders: Sequence[PartitionFolder]) -> None:
        """Copy everything; damage is collected, and copying ends with the first of it."""
        sizes = [
            {base: folder.storage.size(segment_file(base)) for base in folder.base_offsets}
            for folder in folders
        ]
        self._total_bytes = sum(size for by_base in sizes for size in by_base.values())
        for folder, by_base in zip(folders, sizes, strict=True):
            self._copy_folder(folder, by_base)

    def refuse_damage(self) -> None:
        """Raise CorruptRecord if there is damage and it is not to be left out."""
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
        """Delete what was uploaded, best effort. Only if certainly no entry names it."""
        discard_segments(self._target, list(self._uploaded.values()))

    @property
    def _is_refused(self) -> bool:
        return bool(self.damages) and not self._skip_corrupt

    def _copy_folder(self, folder: PartitionFolder, sizes: Mapping[int, int]) -> None:
        tracker = TransactionTracker(_indexed(folder))
        copied = []
        end_offset = folder.log_start_offset
        for base in folder.base_offsets:
            next_base = folder.next_base_offset(base)
            if next_base is not None and next_base <= folder.log_start_offset:
                self._advance(sizes[base])
                continue  # all of it was deleted
            segment, last_offset = self._copy_segment(folder, base, next_base, sizes[base], tracker)
            end_offset = max(end_offset, base, last_offset + 1)
            if segment is not None:
                copied.append(segment)
        undecided = tracker.abort_open(end_offset)
        aborted = tracker.aborted()
        for segment in copied:
            following = folder.next_base_offset(segment.base_offset) or end_offset
            self._place(folder.partition, segment, following, aborted)
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
        self,
        folder: PartitionFolder,
        base: int,
        next_base: int | None,
        size_bytes: int,
        tracker: TransactionTracker,
    ) -> tuple[_Copied | None, int]:
        """Upload the good batches of one file; returns the last offset in it too, or base - 1."""
        name = names.segment_name(self._token, self._counter)
        self._counter += 1
        segment = _Copied(name, base)
        indexes = IndexBuilder(self._interval_bytes)
        last_offset = base - 1
        upload = self._target.upload(names.segment_file(self._topic, folder.partition, name))
        try:
            for batch in self._good_batches(folder, base, next_base, size_bytes):
                decoded = batch.decoded
                assert decoded is not None
                header = decoded.header
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
        where = (self._topic, folder.partition, name)
        self._uploaded[name] = SegmentFiles(*where, segment.batch_count)
        if segment.batch_count > 1:
            index, times = indexes.finish()
            self._target.put(names.offset_index_file(*where), index.encode())
            self._target.put(names.time_index_file(*where), times.encode())
        return segment, last_offset

    def _good_batches(
        self, folder: PartitionFolder, base: int, next_base: int | None, size_bytes: int
    ) -> Iterator[DumpedBatch]:
        storage, file = folder.storage, segment_file(base)
        path = f"{storage.url}/{file}"
        for batch in dump_segment(
            partial(storage.get_range, file), size_bytes, name=path, joins_messages=True
        ):
            self._advance(batch.size_bytes)
            damage = batch.damage or _misplaced(batch, base, next_base, path)
            if damage is None:
                yield batch
            else:
                found = DamagedBytes(path, batch.position, batch.size_bytes, damage)
                self.damages.append(found)

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
        if inside:
            where = (self._topic, partition, segment.name)
            self._uploaded[segment.name] = SegmentFiles(*where, segment.batch_count, True)
            path = names.transaction_index_file(*where)
            self._target.put(path, TransactionIndex(inside).encode())
        self.placements.append(
            Placement(
                partition=partition,
                name=segment.name,
                base_offset=segment.base_offset,
                record_count=segment.record_count,
                size_bytes=segment.size_bytes,
                min_timestamp_ms=segment.min_timestamp_ms,
                max_timestamp_ms=segment.max_timestamp_ms,
                batch_count=segment.batch_count,
                kafka=KafkaFile(end_offset - segment.base_offset, len(inside)),
            )
        )

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def _indexed(folder: PartitionFolder) -> list[AbortedTransaction]:
    """What the folder's transaction indexes say; one that is damaged is done without."""
    found: list[AbortedTransaction] = []
    for base in folder.base_offsets:
        file = segment_file(base, "txnindex")
        try:
            found += TransactionIndex.decode(folder.storage.get(file), name=file).aborted
        except (ObjectNotFound, CorruptRecord):
            continue
    return found


def _misplaced(batch: DumpedBatch, base: int, next_base: int | None, path: str) -> str | None:
    """What is wrong with a sound batch in this file, if anything is."""
    header = batch.header
    assert header is not None
    if header.magic == MAGIC_COLUMNS:
        return f"{path} at byte {batch.position}: this is a batch of txnlog's own, not of Kafka's"
    if header.base_offset < base or (next_base is not None and header.last_offset >= next_base):
        return (
            f"{path} at byte {batch.position}: offsets {header.base_offset} to "
            f"{header.last_offset} do not belong into a segment of {base} to "
            f"{'the end' if next_base is None else next_base - 1}"
        )
    return None


def _count(segment: _Copied, batch: DumpedBatch) -> None:
    assert batch.decoded is not None
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
