"""Looks a whole segment over: what is good, what is damaged, and its indexes built anew.

Modifies nothing. Knows a function that reads bytes, like the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.segments.batches import DEFAULT_MAX_UNCOMPRESSED_BYTES, decode_batch
from txnlog.segments.errors import CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.identity import SegmentIdentity
from txnlog.segments.indexes.sparse import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    IndexBuilder,
    OffsetIndex,
    TimeIndex,
)
from txnlog.segments.inspect.indexes import indexed_batches
from txnlog.segments.reader import read_header
from txnlog.segments.window import DEFAULT_CHUNK_BYTES, ReadRange, Window


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, position + size_bytes) that cannot be read, and why."""

    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a segment holds.

    Counts are those of good batches, and of records without Kafka's markers; ``valid_bytes`` is
    how much of the file precedes the first damage; ``next_offset`` is the relative offset after
    the last good batch. Damages are in the order of their positions.
    """

    batch_count: int
    record_count: int
    valid_bytes: int
    next_offset: int
    damages: tuple[Damage, ...]


def verify(
    read: ReadRange,
    size_bytes: int,
    *,
    name: str,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> Verification:
    """Decode every batch. A batch whose payload alone is damaged does not hide those behind it.

    Where a header is damaged nothing says where the next batch starts: the rest is one damage.
    Raises only what ``read`` raises.
    """
    window = Window(read, size_bytes, name)
    damages: list[Damage] = []
    batch_count = record_count = next_offset = position = 0
    while position < size_bytes:
        ahead_stop = position + chunk_bytes
        try:
            header = read_header(window, position, ahead_stop, next_offset - 1)
            data = window.get(position, position + header.size_bytes, ahead_stop)
        except CorruptRecord as error:
            damages.append(Damage(position, size_bytes - position, str(error)))
            break
        try:
            decoded = decode_batch(
                data, name=name, position=position, max_uncompressed_bytes=max_uncompressed_bytes
            )
        except (CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat) as error:
            damages.append(Damage(position, header.size_bytes, str(error)))
        else:
            batch_count += 1
            record_count += decoded.records.num_rows
            next_offset = decoded.header.last_offset + 1
        position += header.size_bytes
    return Verification(
        batch_count=batch_count,
        record_count=record_count,
        valid_bytes=damages[0].position if damages else size_bytes,
        next_offset=next_offset,
        damages=tuple(damages),
    )


def rebuild_indexes(
    read: ReadRange,
    size_bytes: int,
    *,
    name: str,
    interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    base_offset: int = 0,
    always_time: bool = False,
    identity: SegmentIdentity | None = None,
) -> tuple[OffsetIndex, TimeIndex]:
    """The indexes that a writer with that interval made; of columns it reads headers only.

    Offsets in them are counted from ``base_offset``; ``always_time`` is as in Kafka's, see
    IndexBuilder. Damage ends the scan: what precedes it is indexed, and a reader that comes to it
    reports it.
    """
    builder = IndexBuilder(interval_bytes)
    try:
        for batch in indexed_batches(read, size_bytes, name=name, identity=identity):
            builder.add(
                position=batch.position,
                size_bytes=batch.size_bytes,
                last_offset=batch.last_offset - base_offset,
                max_timestamp_ms=batch.max_timestamp_ms,
            )
    except CorruptRecord:
        pass
    return builder.finish(always_time=always_time)
