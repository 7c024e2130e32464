"""Checks a placed segment: every batch of its file, and the file against what its entry says.

Modifies nothing; memory is that of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import crc32c

from txnlog import names
from txnlog.errors import CorruptRecord, ObjectNotFound
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.inspect.segment_dump import dump_placed_segment, segment_path
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.segments.inspect.dump import DumpedBatch
from txnlog.segments.records import timestamps_ms
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """What a segment's file holds. Counts are of sound batches, without Kafka's markers' records.

    ``damages`` says what is wrong, each with its file and position as far as they are known.
    """

    path: str
    size_bytes: int
    batch_count: int
    record_count: int
    damages: tuple[str, ...]


@dataclass(slots=True)
class _Sum:
    """What the sound batches of a file add up to."""

    size_bytes: int = 0
    batch_count: int = 0
    record_count: int = 0
    last_offset: int = -1
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None

    def add(self, batch: DumpedBatch) -> None:
        self.size_bytes += batch.size_bytes
        if batch.damage is not None or batch.decoded is None:
            return
        self.batch_count += 1
        self.last_offset = batch.decoded.header.last_offset
        self.record_count += batch.decoded.records.num_rows
        if batch.decoded.records.num_rows:
            times = timestamps_ms(batch.decoded.records)
            least, most = int(times.min()), int(times.max())
            if self.min_timestamp_ms is None or least < self.min_timestamp_ms:
                self.min_timestamp_ms = least
            if self.max_timestamp_ms is None or most > self.max_timestamp_ms:
                self.max_timestamp_ms = most


def check_batches(path: str, batches: Iterable[DumpedBatch]) -> SegmentCheck:
    """Check a file for itself. Raises what reading it raises."""
    total = _Sum()
    damages = tuple(_damages(batches, total))
    return SegmentCheck(path, total.size_bytes, total.batch_count, total.record_count, damages)


def check_segment(storage: Storage, segment: SegmentDescription) -> SegmentCheck:
    """Check a placed segment. Raises StorageError if the filesystem failed."""
    path = segment_path(segment)
    total = _Sum()
    damages = [*_damages(dump_placed_segment(storage, segment), total)]
    if not damages:
        damages += _contradictions(path, segment, total)
    if segment.aborted_count:
        damages += _transaction_index_damage(storage, segment)
    return SegmentCheck(
        path, total.size_bytes, total.batch_count, total.record_count, tuple(damages)
    )


def _damages(batches: Iterable[DumpedBatch], total: _Sum) -> Iterator[str]:
    for batch in batches:
        total.add(batch)
        if batch.damage is not None:
            yield batch.damage


def _contradictions(path: str, segment: SegmentDescription, total: _Sum) -> Iterator[str]:
    """Where a file that is sound for itself is not the one that its entry has placed."""
    shift = 0 if segment.from_kafka else segment.base_offset
    found: list[tuple[str, int | None, int]] = [
        ("bytes", total.size_bytes, segment.size_bytes),
        ("records", total.record_count, segment.record_count),
    ]
    if segment.from_kafka:
        # It may end in gaps, and its old messages are counted otherwise when they are imported.
        if shift + total.last_offset >= segment.end_offset:
            found.append(("last offset", total.last_offset, segment.end_offset - 1))
    else:
        found += [
            ("batches", total.batch_count, segment.batch_count),
            ("last offset", shift + total.last_offset, segment.end_offset - 1),
            ("least timestamp", total.min_timestamp_ms, segment.min_timestamp_ms),
            ("largest timestamp", total.max_timestamp_ms, segment.max_timestamp_ms),
        ]
    for what, is_there, placed in found:
        if is_there != placed:
            yield (
                f"{path} is not what entry {segment.entry} of its log has placed: {what}: "
                f"{is_there}, the entry says {placed}"
            )


def _transaction_index_damage(storage: Storage, segment: SegmentDescription) -> Iterator[str]:
    path = names.transaction_index_file(segment.topic, segment.partition, segment.name)
    try:
        data = storage.get(path)
        index = TransactionIndex.decode(data, name=path)
    except ObjectNotFound:
        yield f"{path} is gone, and aborted records cannot be told any more; restore it"
        return
    except CorruptRecord as error:
        yield str(error)
        return
    if crc32c.crc32c(data) != segment.aborted_crc or len(index.aborted) != segment.aborted_count:
        yield f"{path} is not as it was written; restore it from a backup"
