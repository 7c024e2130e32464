"""Segments as they are, damage included: those placed in a store, and files outside one.

Modifies nothing; memory is that of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import crc32c

from txnlog.errors import CorruptRecord, ObjectNotFound
from txnlog.inspect.descriptions import SegmentDescription
from txnlog.names import OWN_FILE
from txnlog.segments.indexes.transactions import TransactionIndex
from txnlog.segments.inspect.dump import DumpedBatch, Verification, dump_segment, verify_batches
from txnlog.segments.segment_file import SegmentFile
from txnlog.storage.base import Storage


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The content of a segment's file. Counts are of sound batches, without Kafka's markers.

    ``damages`` says what is wrong, each with its file and position as far as they are known.
    ``position`` is where the segment begins in a file that it shares with others, else -1.
    """

    path: str
    size_bytes: int
    batch_count: int
    record_count: int
    damages: tuple[str, ...]
    position: int = OWN_FILE


def open_segment(storage: Storage, segment: SegmentDescription) -> SegmentFile:
    """The file of a placed segment, at its current length. Raises ObjectNotFound if it is gone."""
    ref, path = segment.ref, segment.paths.log
    size_bytes = storage.size(path)
    if ref.position != OWN_FILE:
        # Other segments follow it.
        size_bytes = max(min(size_bytes - ref.start, segment.size_bytes), 0)

    def read(start: int, stop: int) -> bytes:
        return storage.get_range(path, ref.start + start, ref.start + stop)

    return SegmentFile(
        read,
        size_bytes,
        ref.label,
        base_offset=segment.base_offset if segment.from_kafka else 0,
        identity=segment.identity,
        is_parquet=segment.paths.is_parquet,
    )


def dump_placed_segment(storage: Storage, segment: SegmentDescription) -> Iterator[DumpedBatch]:
    """Yield every byte that the segment should have, as batches and damaged stretches.

    Offsets and sequences are relative, as in the file; the segment's description has the bases. A
    file that is gone or shorter than its log entry says is damage too, reported at the end. Raises
    StorageError.
    """
    try:
        file = open_segment(storage, segment)
    except ObjectNotFound:
        yield DumpedBatch(0, segment.size_bytes, None, None, None, describe_loss(segment))
        return
    yield from dump_segment(file)
    missing = segment.size_bytes - file.size_bytes
    if missing > 0:
        reason = (
            f"{file.name} has {file.size_bytes} bytes, but entry {segment.entry} of its log "
            f"placed {segment.size_bytes}"
        )
        yield DumpedBatch(file.size_bytes, missing, None, None, None, reason)


def describe_loss(segment: SegmentDescription) -> str:
    """The message for a segment whose file is gone."""
    return f"segment {segment.paths.log} is gone; restore it from a backup"


def check_segment_file(file: SegmentFile) -> SegmentCheck:
    """Check a file by itself. Raises what reading it raises."""
    found = verify_batches(dump_segment(file))
    return replace(_make_check(file.name, found), size_bytes=file.size_bytes)


def check_placed_segment(storage: Storage, segment: SegmentDescription) -> SegmentCheck:
    """Check every batch of a placed segment, and its file against its log entry.

    Raises StorageError if the filesystem failed.
    """
    found = verify_batches(dump_placed_segment(storage, segment))
    more: list[str] = []
    if not found.damages:
        more += _find_contradictions(segment, found)
    if segment.aborted_count:
        more += _check_transaction_index(storage, segment)
    checked = _make_check(segment.paths.log, found, more)
    held = (
        f"; offsets {segment.base_offset} to {segment.end_offset - 1} of "
        f"{segment.topic}:{segment.partition} are in it"
    )
    damages = tuple(f"{damage}{held}" for damage in checked.damages)
    return replace(checked, damages=damages, position=segment.position)


def _make_check(path: str, found: Verification, more: Iterable[str] = ()) -> SegmentCheck:
    reasons = [damage.reason for damage in found.damages]
    return SegmentCheck(
        path, found.size_bytes, found.batch_count, found.record_count, (*reasons, *more)
    )


def _find_contradictions(segment: SegmentDescription, found: Verification) -> Iterator[str]:
    """How a sound file differs from the one that its entry has placed."""
    shift = 0 if segment.from_kafka else segment.base_offset
    last_offset = shift + found.next_offset - 1
    compared: list[tuple[str, int | None, int]] = [
        ("bytes", found.size_bytes, segment.size_bytes),
        ("records", found.record_count, segment.record_count),
    ]
    is_dense = segment.end_offset - segment.base_offset == segment.record_count
    if is_dense or last_offset >= segment.end_offset:  # otherwise it may end in gaps
        compared.append(("last offset", last_offset, segment.end_offset - 1))
    if not segment.from_kafka:  # old messages are counted differently on import
        compared += [
            ("batches", found.batch_count, segment.batch_count),
            ("least timestamp", found.min_timestamp_ms, segment.min_timestamp_ms),
            ("largest timestamp", found.max_timestamp_ms, segment.max_timestamp_ms),
        ]
    for what, is_there, placed in compared:
        if is_there != placed:
            yield (
                f"{segment.paths.log} is not what entry {segment.entry} of its log refers to: "
                f"{what}: {is_there}, the entry says {placed}"
            )


def _check_transaction_index(storage: Storage, segment: SegmentDescription) -> Iterator[str]:
    path = segment.paths.transaction_index
    try:
        data = storage.get(path)
        index = TransactionIndex.decode(data, name=path)
    except ObjectNotFound:
        yield f"{path} is gone, so aborted records can no longer be told apart; restore it"
        return
    except CorruptRecord as error:
        yield str(error)
        return
    if crc32c.crc32c(data) != segment.aborted_crc or len(index.aborted) != segment.aborted_count:
        yield f"{path} is not as it was written; restore it from a backup"
