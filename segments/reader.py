"""Reads records of one segment: ranges of offsets, in bounded chunks, verified.

Knows a function that reads bytes and nothing of where they lie. Offsets are those in the file: in
segments that txnlog writes they are relative and the log's base is for the caller to add; in
Kafka's they are absolute, and ``base_offset`` is what its indexes count from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from txnlog.segments.batches import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    MAX_HEADER_BYTES,
    DecodedBatch,
    decode_batch,
    decode_header,
    verify_checksum,
)
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.formats.messages import message_run
from txnlog.segments.header import BatchHeader
from txnlog.segments.identity import SegmentIdentity
from txnlog.segments.indexes.sparse import (
    SEGMENT_START,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from txnlog.segments.records import Int32Array, Int64Array, timestamps_ms
from txnlog.segments.window import DEFAULT_CHUNK_BYTES, ReadRange, Window

# A scan of headers fetches this much, and skips payloads that are worth a request of their own;
# smaller batches are read through, because a request costs as much as some hundred KiB.
_PEEK_BYTES = 4096
_SKIP_BYTES = 256 << 10

# Batches whose records are not wanted, such as those of an aborted transaction.
SkipBatch: TypeAlias = Callable[[BatchHeader], bool]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentBatch:
    """Records of one batch, cut to the range asked for; never empty.

    ``position`` is the batch's first byte in the file. ``first_offset`` and ``record_count`` are
    those of ``records``, the header's are those of the whole batch. ``records`` may have no
    columns if none were asked for; then ``record_count`` still counts.
    """

    header: BatchHeader
    position: int
    records: pa.RecordBatch
    record_count: int
    first_offset: int
    offset_deltas: Int32Array | None

    def offsets(self) -> Int64Array:
        """The records' relative offsets: int64, ascending, one for each."""
        if self.offset_deltas is None:
            return np.arange(
                self.first_offset, self.first_offset + self.record_count, dtype=np.int64
            )
        return self.offset_deltas.astype(np.int64) + self.header.base_offset

    @property
    def last_offset(self) -> int:
        """Relative offset of the last of ``records``."""
        if self.offset_deltas is None:
            return self.first_offset + self.record_count - 1
        return self.header.base_offset + int(self.offset_deltas[-1])


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int


def read_segment(
    read: ReadRange,
    size_bytes: int,
    *,
    name: str,
    start_offset: int = 0,
    stop_offset: int | None = None,
    base_offset: int = 0,
    index: OffsetIndex | None = None,
    columns: Sequence[str] | None = None,
    skip: SkipBatch | None = None,
    identity: SegmentIdentity | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> Iterator[SegmentBatch]:
    """Yield the records with offsets in [start_offset, stop_offset), batch by batch.

    ``columns`` are those to return, in that order; others are not decompressed. Batches that
    ``skip`` is true of are passed by. Held in memory:
    one chunk and one batch. Nothing is requested behind the batch that ``stop_offset`` ends in,
    but for the rest of a chunk; with an ``index`` not even that. With an ``identity`` every batch
    that is come across must be one of that segment.
    Raises CorruptRecord where the file is damaged, after what comes before has been yielded.
    """
    if stop_offset is not None and stop_offset <= start_offset:
        return
    window = Window(read, size_bytes, name)
    hint = None
    if index is not None and stop_offset is not None:
        hint = index.stop_position(stop_offset - base_offset)
    stop_hint = size_bytes if hint is None else min(hint, size_bytes)
    position = _start_position(
        window, start_offset, base_offset, index, identity, chunk_bytes, stop_hint
    )
    last_offset = -1
    while position < size_bytes:
        ahead_stop = min(position + chunk_bytes, stop_hint)
        header = read_header(window, position, ahead_stop, last_offset, identity)
        is_beyond = stop_offset is not None and _least_offset(header, last_offset) >= stop_offset
        is_wanted = header.last_offset >= start_offset and not is_beyond
        if is_wanted and not header.is_control and not (skip is not None and skip(header)):
            header, data = read_batch(window, position, header, ahead_stop)
            decoded = decode_batch(
                data,
                name=name,
                position=position,
                header=header,
                columns=columns,
                max_uncompressed_bytes=max_uncompressed_bytes,
            )
            check_order(decoded.header, last_offset, name, position)
            batch = _cut(decoded, position, start_offset, stop_offset)
            if batch is not None:
                yield batch
            last_offset = decoded.header.last_offset
        else:
            _verify_unless_checked(window, position, header, ahead_stop)
            last_offset = header.last_offset
        if is_beyond:
            return
        position += header.size_bytes
        if stop_offset is not None and last_offset >= stop_offset - 1:
            return


def scan_headers(
    read: ReadRange,
    size_bytes: int,
    *,
    name: str,
    start_position: int = 0,
    identity: SegmentIdentity | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every batch, skipping over large payloads of columns.

    A header without a check of its own (Kafka's formats) can be trusted only with its batch, which
    is read for its checksum; payloads of columns are not verified (see ``verify``). Raises
    CorruptRecord at the first header that cannot be right or whose batch does not fit.
    """
    window = Window(read, size_bytes, name)
    position, last_offset, ahead = start_position, -1, _PEEK_BYTES
    while position < size_bytes:
        header = read_header(window, position, position + ahead, last_offset, identity)
        _verify_unless_checked(window, position, header, position + chunk_bytes)
        yield position, header
        last_offset = header.last_offset
        position += header.size_bytes
        skips = header.is_self_checked and header.size_bytes > _SKIP_BYTES
        ahead = _PEEK_BYTES if skips else chunk_bytes


def find_timestamp(
    read: ReadRange,
    size_bytes: int,
    timestamp_ms: int,
    *,
    name: str,
    start_offset: int = 0,
    stop_offset: int | None = None,
    base_offset: int = 0,
    time_index: TimeIndex | None = None,
    index: OffsetIndex | None = None,
    skip: SkipBatch | None = None,
    identity: SegmentIdentity | None = None,
) -> TimestampOffset | None:
    """The first record of [start_offset, stop_offset) at or after the time; None if there is none.

    Records of batches that ``skip`` is true of do not count. An index that contradicts the segment
    is not used. Raises CorruptRecord as read_segment does.
    """
    entry = None if time_index is None else time_index.lookup(timestamp_ms)
    landing = SEGMENT_START
    if entry is not None and index is not None:
        landing = index.lookup(entry.offset)
        if not _confirmed(read, size_bytes, name, base_offset, landing, entry, identity):
            landing = SEGMENT_START
    last_offset = -1
    for position, header in scan_headers(
        read, size_bytes, name=name, start_position=landing.position, identity=identity
    ):
        if stop_offset is not None and _least_offset(header, last_offset) >= stop_offset:
            return None
        last_offset = header.last_offset
        # What wraps old messages may say a lower time than they: then they are looked at.
        is_older = header.max_timestamp_ms < timestamp_ms and not header.is_message_set
        if header.last_offset < start_offset or is_older:
            continue
        if header.is_control or (skip is not None and skip(header)):
            continue
        data = read(position, position + header.size_bytes)
        decoded = decode_batch(data, name=name, position=position, columns=["timestamp"])
        batch = _cut(decoded, position, start_offset, stop_offset)
        if batch is None:
            continue
        timestamps = timestamps_ms(batch.records)
        rows = np.flatnonzero(timestamps >= timestamp_ms)
        if len(rows):
            row = int(rows[0])
            return TimestampOffset(int(batch.offsets()[row]), int(timestamps[row]))
    return None


def read_header(
    window: Window,
    position: int,
    ahead_stop: int,
    last_offset: int,
    identity: SegmentIdentity | None = None,
) -> BatchHeader:
    """The header at ``position``, of a batch that lies in the file and begins after last_offset.

    Raises CorruptRecord, also if it cannot be one of the segment with that identity.
    """
    stop = min(position + MAX_HEADER_BYTES, window.size_bytes)
    header = decode_header(
        window.get(position, stop, ahead_stop), name=window.name, position=position
    )
    if identity is not None:
        identity.check(header, window.name, position)
    check_order(header, last_offset, window.name, position)
    left = window.size_bytes - position
    if header.size_bytes > left:
        reason = f"{header.size_bytes} bytes are claimed, {left} are left"
        raise CorruptRecord.at(window.name, position, reason, header.base_offset)
    return header


def read_batch(
    window: Window, position: int, header: BatchHeader, ahead_stop: int
) -> tuple[BatchHeader, memoryview]:
    """The bytes of the batch that begins with ``header``, and the header that is true of them.

    Old messages are taken together, as many as there are up to ``ahead_stop``.
    """
    if not header.is_message:
        return header, window.get(position, position + header.size_bytes, ahead_stop)
    stop = max(position + header.size_bytes, min(ahead_stop, window.size_bytes))
    data = window.get(position, stop, ahead_stop)
    header = message_run(header, data)
    return header, data[: header.size_bytes]


def check_order(header: BatchHeader, last_offset: int, name: str, position: int) -> None:
    """Raise CorruptRecord unless the batch begins after ``last_offset``."""
    if header.base_offset <= last_offset:
        raise CorruptRecord.at(
            name, position, f"base offset {header.base_offset} comes after {last_offset}"
        )


def _verify_unless_checked(
    window: Window, position: int, header: BatchHeader, ahead_stop: int
) -> None:
    """Before a batch is passed by: make sure that its header, which says so, can be trusted."""
    if not header.is_self_checked:
        data = window.get(position, position + header.size_bytes, ahead_stop)
        verify_checksum(header, data, name=window.name, position=position)


def _least_offset(header: BatchHeader, last_offset: int) -> int:
    """What no record of the batch is below, as far as it is known before it is decoded."""
    return last_offset + 1 if header.is_message_set else header.base_offset


def _start_position(
    window: Window,
    start_offset: int,
    base_offset: int,
    index: OffsetIndex | None,
    identity: SegmentIdentity | None,
    chunk_bytes: int,
    stop_hint: int,
) -> int:
    """Where to start reading for ``start_offset``: the index's word if the file confirms it."""
    entry = SEGMENT_START if index is None else index.lookup(start_offset - base_offset)
    if entry != SEGMENT_START and entry.position < window.size_bytes:
        ahead_stop = min(entry.position + chunk_bytes, stop_hint)
        try:
            header = read_header(window, entry.position, ahead_stop, -1, identity)
            if header.last_offset == base_offset + entry.offset:
                return entry.position
        except CorruptRecord:
            pass  # the index or the file is wrong; reading from the start will tell
    if start_offset == base_offset or window.size_bytes <= chunk_bytes:
        return 0
    # Without an index: jump from header to header instead of fetching what is not wanted.
    for position, header in scan_headers(
        window.read,
        window.size_bytes,
        name=window.name,
        identity=identity,
        chunk_bytes=chunk_bytes,
    ):
        if header.last_offset >= start_offset:
            return position
    return window.size_bytes


def _confirmed(
    read: ReadRange,
    size_bytes: int,
    name: str,
    base_offset: int,
    landing: OffsetEntry,
    entry: TimeEntry,
    identity: SegmentIdentity | None,
) -> bool:
    """Whether both index entries describe batches that are there, and nothing newer precedes."""
    try:
        for position, header in scan_headers(
            read, size_bytes, name=name, start_position=landing.position, identity=identity
        ):
            is_landing = position == landing.position and landing != SEGMENT_START
            last_offset = header.last_offset - base_offset
            if is_landing and last_offset != landing.offset:
                return False
            if last_offset >= entry.offset:
                return (last_offset, header.max_timestamp_ms) == (entry.offset, entry.timestamp_ms)
            if header.max_timestamp_ms >= entry.timestamp_ms:
                return False
    except CorruptRecord:
        return False
    return False


def _cut(
    decoded: DecodedBatch, position: int, start_offset: int, stop_offset: int | None
) -> SegmentBatch | None:
    """The part of a batch inside [start_offset, stop_offset); None if there is nothing."""
    header, deltas = decoded.header, decoded.offset_deltas
    start = max(start_offset - header.base_offset, 0)
    stop = header.last_offset_delta + 1
    if stop_offset is not None:
        stop = min(stop, stop_offset - header.base_offset)
    if deltas is not None:
        start, stop = (int(row) for row in np.searchsorted(deltas, (start, stop)))
        deltas = deltas[start:stop]
    count = stop - start
    if count <= 0:
        return None
    whole = count == header.record_count
    return SegmentBatch(
        header=header,
        position=position,
        records=decoded.records if whole else decoded.records.slice(start, count),
        record_count=count,
        first_offset=header.base_offset + (start if deltas is None else int(deltas[0])),
        offset_deltas=deltas,
    )
