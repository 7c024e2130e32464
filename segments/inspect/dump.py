"""Shows a segment as it is, damage included: decodes what can be decoded, drops nothing.

:func:`verify_batches` counts what is sound, and what is not.

Read-only. Unlike the reader it goes on after damage, so its output must not be taken for the log's
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from txnlog.segments.batch_header import (
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    MAGIC_PACKED,
    MAGIC_POSITION,
    MAGIC_TYPED_COLUMNS,
    MAGIC_V0,
    MAGIC_V1,
    NO_TAG,
    BatchHeader,
    BytesLike,
)
from txnlog.segments.batches import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    MAX_HEADER_BYTES,
    DecodedBatch,
    decode_batch,
    decode_header,
    has_right_checksum,
)
from txnlog.segments.errors import CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat
from txnlog.segments.parquet.footer import CHECKSUMS_KEY, read_tail
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.reader import read_row_groups
from txnlog.segments.reader import check_order, read_batch, read_header
from txnlog.segments.records import TIMESTAMP_COLUMNS, time_column, timestamps_ms
from txnlog.segments.segment_file import DEFAULT_CHUNK_BYTES, SegmentFile, Window

_SEARCH_BYTES = 1 << 20
_SEARCH_TIMES = 100
"""A search checksums at most this many times the file: bytes may be made to look like batches."""
_IS_MAGIC = np.isin(
    np.arange(256),
    [MAGIC_V0, MAGIC_V1, MAGIC_KAFKA, MAGIC_COLUMNS, MAGIC_PACKED, MAGIC_TYPED_COLUMNS],
)
_LEAST_BATCH_BYTES = 26  # a message of magic 0 without key and value
_LARGEST_OFFSET = 1 << 48  # more than any topic will have; other bytes mostly make larger ones


@dataclass(frozen=True, slots=True, eq=False)
class DumpedBatch:
    """Bytes [position, position + size_bytes) of a segment: a batch, or the rest of one.

    ``damage`` says what is wrong, None if nothing is. Without ``header`` the bytes are not known to
    be a batch at all; without ``decoded`` its records cannot be read. ``crc_ok`` is None without a
    header and its checksum. ``data`` are the bytes of a batch, as they are.
    """

    position: int
    size_bytes: int
    header: BatchHeader | None
    crc_ok: bool | None
    decoded: DecodedBatch | None
    damage: str | None
    data: BytesLike = b""


def dump_segment(
    file: SegmentFile,
    *,
    joins_messages: bool = False,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Iterator[DumpedBatch]:
    """Yield every byte of the file once, in order, as batches and damaged stretches.

    With ``joins_messages`` old messages that are not compressed come many at a time. Batches that
    cannot be of the segment that the file should be are damage; if that is not known, several
    segments may share the file, one after another. After a damaged header the next batch is
    searched for: its checksum, and for columns its header check, prove that it is one. Held in
    memory: one chunk and two batches. Raises only what reading raises, and CorruptRecord if the
    file is shorter than it was said to be.
    """
    if file.is_parquet:
        yield from _dump_row_groups(file)
        return
    window, name = Window(file), file.name
    position, last_offset, tag = 0, -1, NO_TAG
    # The newest batch waits for the next one, which may show that its offset cannot be right: no
    # checksum of Kafka's covers it.
    held: DumpedBatch | None = None
    before = -1
    while position < file.size_bytes:
        ahead_stop = position + chunk_bytes
        try:
            header = read_header(window, position, ahead_stop, -1, check_identity=False)
            if file.identity is None and _begins_segment(header, tag):
                last_offset, tag = -1, header.tag
            check_order(header, last_offset, name, position)
        except CorruptRecord as error:
            if held is not None and _is_out_of_place(held, window, position, before):
                yield _mark_out_of_place(held, name)
                held, last_offset = None, before
                continue
            if held is not None:
                yield held
                held = None
            found = _find_next_batch(window, position + 1, last_offset, tag)
            yield DumpedBatch(position, found - position, None, None, None, str(error))
            position = found
            continue
        first = header
        if joins_messages:
            header, data = read_batch(window, position, header, ahead_stop)
        else:
            data = window.get(position, position + header.size_bytes, ahead_stop)
        crc_ok = has_right_checksum(header, data)
        decoded, damage = None, None
        try:
            if file.identity is not None:
                file.identity.check(first, name, position)
            decoded = decode_batch(data, name=name, position=position, header=header)
            check_order(decoded.header, last_offset, name, position)
        except (CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat) as error:
            decoded, damage = None, str(error)
        shown = header if decoded is None else decoded.header
        if held is not None:
            yield held
        before = last_offset
        held = DumpedBatch(position, header.size_bytes, shown, crc_ok, decoded, damage, data)
        if damage is None or header.is_self_checked:
            last_offset = shown.last_offset
        position += header.size_bytes
    if held is not None:
        yield held


def _dump_row_groups(file: SegmentFile) -> Iterator[DumpedBatch]:
    """Row groups as batches; the first begins with the file, the last ends with it.

    Without its footer nothing of a Parquet file can be read. A damaged page index is a separate
    item, at the end, with the footer.
    """
    try:
        tail = read_tail(file)
        if is_foreign(file, tail):
            raise UnsupportedRecordFormat(
                f"{file.name} is a Parquet file of another program, and no segment"
            )
        segment = ParquetSegment(file)
    except CorruptRecord as error:
        yield DumpedBatch(0, file.size_bytes, None, None, None, str(error))
        return
    footer = segment.footer
    index_damage = None
    try:
        index = footer.page_index
        footer.check_page_index(bytes(file.read(index.start, index.stop)), file.name)
    except CorruptRecord as error:
        index_damage = str(error)
    position = 0
    last = footer.groups[-1] if footer.groups and index_damage is None else None
    for group in footer.groups:
        stop = file.size_bytes if group is last else group.position + group.size_bytes
        data = bytes(file.read(group.position, group.position + group.size_bytes))
        crc_ok = None if group.crc is None else crc32c.crc32c(data) == group.crc
        decoded, damage = None, None
        try:
            (found,) = read_row_groups(segment, [group], None, DEFAULT_MAX_UNCOMPRESSED_BYTES)
            decoded = DecodedBatch(group.header, found.records, found.offset_deltas)
        except (CorruptRecord, UnsupportedRecordFormat) as error:
            damage = str(error)
        yield DumpedBatch(position, stop - position, group.header, crc_ok, decoded, damage, data)
        position = stop
    if index_damage is not None:
        rest = file.size_bytes - position
        yield DumpedBatch(position, rest, None, None, None, index_damage)


def is_foreign(file: SegmentFile, tail: bytes) -> bool:
    """Whether a Parquet file is not known to be a segment: neither a log nor its footer says so."""
    return file.identity is None and CHECKSUMS_KEY not in tail


def is_shared(file: SegmentFile) -> bool:
    """Whether several segments share the file: each has its own tag, and all are small."""
    if file.is_parquet:
        return False
    window = Window(file)
    position, tag = 0, None
    while position < min(file.size_bytes, DEFAULT_CHUNK_BYTES):
        try:
            header = read_header(window, position, DEFAULT_CHUNK_BYTES, -1)
        except CorruptRecord:
            return False
        if tag is not None and _begins_segment(header, tag):
            return True
        position, tag = position + header.size_bytes, header.tag
    return False


def _begins_segment(header: BatchHeader, tag: int) -> bool:
    """Whether a batch is the first of another segment than the one with a tag."""
    return header.base_offset == 0 and header.tag not in (NO_TAG, tag)


def _is_out_of_place(held: DumpedBatch, window: Window, position: int, before: int) -> bool:
    """Whether a sound batch at ``position`` continues what precedes ``held``, but not ``held``."""
    if held.damage is not None or held.header is None or held.header.is_self_checked:
        return False
    stop = min(position + MAX_HEADER_BYTES, window.file.size_bytes)
    return _is_batch(window, position, bytes(window.get(position, stop, stop)), before, NO_TAG)


def _mark_out_of_place(held: DumpedBatch, name: str) -> DumpedBatch:
    assert held.header is not None
    reason = f"offset {held.header.base_offset} cannot be right: the next batch has a lower one"
    damage = str(CorruptRecord.at(name, held.position, reason, held.header.base_offset))
    return replace(held, decoded=None, damage=damage)


def indexed_offsets(decoded: DecodedBatch) -> tuple[int, int]:
    """The offsets of a batch in an offset index and a time index: both its last offset.

    Joined messages are found one by one: it is the first one's offset, and that of the first one
    with the largest timestamp.
    """
    header, deltas = decoded.header, decoded.offset_deltas
    if not header.is_message:
        return header.last_offset, header.last_offset
    row = int(np.argmax(timestamps_ms(decoded.records)))
    return header.base_offset, header.base_offset + (row if deltas is None else int(deltas[row]))


def _find_next_batch(window: Window, start: int, last_offset: int, tag: int) -> int:
    """Position of the next whole batch at or after ``start``; else the file's end."""
    left = _SEARCH_TIMES * window.file.size_bytes
    while start + _LEAST_BATCH_BYTES <= window.file.size_bytes and left > 0:
        stop = min(start + _SEARCH_BYTES, window.file.size_bytes)
        block = bytes(window.get(start, stop, stop))
        for candidate in _find_candidates(block, last_offset, window.file.size_bytes - start):
            head = block[candidate : candidate + MAX_HEADER_BYTES]
            left -= int.from_bytes(head[8:12], "big")
            if left < 0:
                break
            if _is_batch(window, start + candidate, head, last_offset, tag):
                return start + candidate
        if stop == window.file.size_bytes:
            break
        start += len(block) - MAX_HEADER_BYTES + 1
    return window.file.size_bytes


def _find_candidates(block: bytes, last_offset: int, left: int) -> list[int]:
    """The positions in the block where a batch could start, by magic, length and offset alone."""
    count = len(block) - MAGIC_POSITION

    def field(dtype: str, at: int) -> npt.NDArray[Any]:
        """The value that a header at each position would have in one of its fields; not a copy."""
        return np.ndarray(count, dtype, block, at, strides=(1,))

    lengths = field(">i4", 8)
    fits = lengths >= _LEAST_BATCH_BYTES - 12  # in zeros, say, none does
    at = np.flatnonzero(fits & _IS_MAGIC[field("u1", MAGIC_POSITION)])
    offsets, sizes_bytes = field(">i8", 0)[at], lengths[at].astype(np.int64) + 12
    plausible = ((offsets > last_offset) | (offsets == 0)) & (offsets <= _LARGEST_OFFSET)
    places: list[int] = at[plausible & (sizes_bytes <= left - at)].tolist()
    return places


def _is_batch(window: Window, position: int, head: bytes, last_offset: int, tag: int) -> bool:
    try:
        header = decode_header(head, name=window.file.name, position=position)
    except CorruptRecord:
        return False
    stop = position + header.size_bytes
    hides_offset = header.is_message_set and header.base_offset == 0
    follows = header.base_offset > last_offset or (
        window.file.identity is None and _begins_segment(header, tag)
    )
    if not (follows or hides_offset) or stop > window.file.size_bytes:
        return False
    data = window.file.read(position, stop)
    if not has_right_checksum(header, data):
        return False
    return not hides_offset or _offset_inside(data) > last_offset


def _offset_inside(data: BytesLike) -> int:
    """The offset of an old wrapper, which its messages have; -1: it cannot be decoded."""
    try:
        return decode_batch(data, columns=TIMESTAMP_COLUMNS[1:]).header.base_offset
    except (CorruptRecord, UnsupportedCompression, UnsupportedRecordFormat):
        return -1


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, position + size_bytes) that cannot be read, and why."""

    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The content of a segment.

    Counts, timestamps (None if there are no records) and ``next_offset``, the offset after the last
    one, are those of sound batches; Kafka's markers are not records. Damages are in the order
    of their positions.
    """

    size_bytes: int
    batch_count: int
    record_count: int
    next_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    damages: tuple[Damage, ...]


def verify_batches(batches: Iterable[DumpedBatch]) -> Verification:
    """The summary of a segment's batches and damaged stretches, in order."""
    size_bytes = batch_count = record_count = next_offset = 0
    min_ms: int | None = None
    max_ms: int | None = None
    damages: list[Damage] = []
    for batch in batches:
        size_bytes += batch.size_bytes
        if batch.decoded is None:
            damages.append(Damage(batch.position, batch.size_bytes, str(batch.damage)))
            continue
        batch_count += 1
        next_offset = batch.decoded.header.last_offset + 1
        records = batch.decoded.records
        record_count += records.num_rows
        has_times = time_column(records.schema.names) is not None
        if records.num_rows and has_times:
            times = timestamps_ms(records)
            first_ms, last_ms = int(times.min()), int(times.max())
            min_ms = first_ms if min_ms is None else min(min_ms, first_ms)
            max_ms = last_ms if max_ms is None else max(max_ms, last_ms)
    return Verification(
        size_bytes=size_bytes,
        batch_count=batch_count,
        record_count=record_count,
        next_offset=next_offset,
        min_timestamp_ms=min_ms,
        max_timestamp_ms=max_ms,
        damages=tuple(damages),
    )
