"""Reads records of one segment: ranges of offsets, in bounded chunks, verified.

Offsets are those in the file: in segments that txnlog writes they are relative, and the log's base
is for the caller to add; in Kafka's they are absolute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import MAGIC_TYPED_COLUMNS, BatchHeader
from txnlog.segments.batches import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    MAX_HEADER_BYTES,
    DecodedBatch,
    decode_batch,
    decode_header,
    verify_checksum,
)
from txnlog.segments.errors import CorruptRecord, TxnlogError
from txnlog.segments.formats.message_sets import message_run
from txnlog.segments.indexes.sparse import (
    SEGMENT_START,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from txnlog.segments.parquet.chosen_rows import RowChoice, chosen_calls
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.open_segment import first_chunk as parquet_first_chunk
from txnlog.segments.parquet.reader import RowGroupRecords, WantedRows, row_group_calls
from txnlog.segments.records import (
    TIMESTAMP_COLUMNS,
    Int32Array,
    Int64Array,
    MakeColumns,
    timestamps_ms,
)
from txnlog.segments.schema_columns import Columns
from txnlog.segments.segment_file import (
    DEFAULT_CHUNK_BYTES,
    SegmentFile,
    SizedCall,
    Window,
    work_on,
)

# A scan of headers fetches this much, and skips payloads that are worth a request of their own;
# smaller ones are read, because a request costs as much as some hundred KiB.
_PEEK_BYTES = 4096
_SKIP_BYTES = 256 << 10

# Whether a batch's records are not wanted, such as those of an aborted transaction.
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

    def slice(self, start: int, count: int) -> SegmentBatch:
        """``count`` of the records, at least one, from the one with this index on."""
        deltas = self.offset_deltas
        first = self.first_offset + start
        if deltas is not None:
            deltas = deltas[start : start + count]
            first = self.header.base_offset + int(deltas[0])
        records = self.records
        return replace(
            self,
            records=records.slice(start, count) if records.num_columns else records,
            record_count=count,
            first_offset=first,
            offset_deltas=deltas,
        )


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int


def read_segment(
    file: SegmentFile,
    *,
    start_offset: int = 0,
    stop_offset: int | None = None,
    index: OffsetIndex | None = None,
    columns: Columns = None,
    skip: SkipBatch | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    aligned: bool = False,
    choice: RowChoice | None = None,
    start_position: int | None = None,
    by_page: bool = False,
) -> Iterator[SegmentBatch]:
    """Yield the records with offsets in [start_offset, stop_offset), batch by batch.

    ``columns`` are those to return, in that order; others are not decompressed. Batches for which
    ``skip`` is true are skipped. Held in memory: one chunk and one batch. Nothing is requested
    after the batch that contains ``stop_offset``, except the rest of a chunk; with an ``index`` not
    even that. With ``aligned`` the requests are those of ``aligned_chunks``, for reading the whole
    file. From a Parquet file only the rows that a ``choice`` selects are yielded. Nothing is read
    before ``start_position``, where a batch begins at or before ``start_offset``. With ``by_page``
    as little of a Parquet file is decoded at once as its pages allow, each when it is asked for.
    Raises CorruptRecord at damage, after everything before it was yielded.
    """
    if stop_offset is not None and stop_offset <= start_offset:
        return
    if file.is_parquet:
        calls = row_group_batches(
            file,
            start_offset=start_offset,
            stop_offset=stop_offset,
            columns=columns,
            skip=skip,
            max_uncompressed_bytes=max_uncompressed_bytes,
            choice=choice,
            by_page=by_page,
        )
        if by_page:
            file = replace(file, work_ahead=None)
        with closing(work_on(file, calls)) as groups:
            for batches in groups:
                yield from batches
        return
    window = Window(file, chunk_bytes if aligned else None)
    stop_hint = _stop_hint(file, stop_offset, index)
    position = start_position
    if position is None:
        position = _start_position(window, start_offset, index, chunk_bytes, stop_hint)
    last_offset = -1
    while position < file.size_bytes:
        ahead_stop = min(position + chunk_bytes, stop_hint)
        header = read_header(window, position, ahead_stop, last_offset)
        is_beyond = stop_offset is not None and _least_offset(header, last_offset) >= stop_offset
        is_wanted = header.last_offset >= start_offset and not is_beyond
        if is_wanted and not header.is_control and not (skip is not None and skip(header)):
            header, data = read_batch(window, position, header, ahead_stop)
            decoded = decode_batch(
                data,
                name=file.name,
                position=position,
                header=header,
                columns=columns,
                max_uncompressed_bytes=max_uncompressed_bytes,
            )
            check_order(decoded.header, last_offset, file.name, position)
            batch = _cut_to_range(decoded, position, start_offset, stop_offset)
            if batch is not None:
                yield from _made(batch, decoded.make, file.name)
            last_offset = decoded.header.last_offset
        else:
            _verify_unless_checked(window, position, header, ahead_stop)
            last_offset = header.last_offset
        if is_beyond:
            return
        position += header.size_bytes
        if stop_offset is not None and last_offset >= stop_offset - 1:
            return


def _made(batch: SegmentBatch, make: MakeColumns | None, name: str) -> Iterator[SegmentBatch]:
    """A batch with the columns that were asked for, of the stored ones that it has."""
    if make is None:
        yield batch
        return
    try:
        for rows, records in make(batch.records, batch.record_count):
            yield replace(batch.slice(rows.start, len(rows)), records=records)
    except (TxnlogError, MemoryError):
        raise
    except Exception as error:  # Arrow raises a dozen classes for values that do not fit
        offset = batch.header.base_offset
        raise CorruptRecord.at(name, batch.position, str(error), offset) from error


def first_chunk(
    file: SegmentFile,
    *,
    start_offset: int = 0,
    stop_offset: int | None = None,
    index: OffsetIndex | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> range | None:
    """The bytes that ``read_segment`` requests first; None if not known in advance."""
    if stop_offset is not None and stop_offset <= start_offset:
        return None
    if file.is_parquet:
        return parquet_first_chunk(file.size_bytes)
    stop_hint = _stop_hint(file, stop_offset, index)
    entry = SEGMENT_START if index is None else index.lookup(start_offset - file.base_offset)
    if entry != SEGMENT_START and entry.position < file.size_bytes:
        position = entry.position
    elif start_offset == file.base_offset or file.size_bytes <= chunk_bytes:
        position = 0
    else:
        return None
    least_stop = min(position + MAX_HEADER_BYTES, file.size_bytes)
    return range(position, max(least_stop, min(position + chunk_bytes, stop_hint)))


def row_group_batches(
    file: SegmentFile,
    *,
    start_offset: int = 0,
    stop_offset: int | None = None,
    columns: Columns = None,
    skip: SkipBatch | None = None,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    choice: RowChoice | None = None,
    by_page: bool = False,
) -> Generator[SizedCall[Iterable[SegmentBatch]]]:
    """The calls of ``read_segment`` for each row group of a Parquet file.

    Each call comes with its approximate size. They may run in several threads: the file is read
    when the calls are iterated, not in them.
    """
    segment = ParquetSegment(file)
    groups = [
        group
        for group in segment.groups(start_offset, stop_offset)
        if skip is None or not skip(group.header)
    ]
    rows = WantedRows(start_offset, stop_offset, skip, by_page)
    calls = (
        row_group_calls(segment, groups, columns, max_uncompressed_bytes, rows)
        if choice is None
        else chosen_calls(segment, groups, columns, max_uncompressed_bytes, choice)
    )

    def cut_one(found: RowGroupRecords) -> SegmentBatch | None:
        decoded = DecodedBatch(found.group.header, found.records, found.offset_deltas)
        return _cut_to_range(decoded, found.group.position, start_offset, stop_offset, found.rows)

    def cut(call: Callable[[], Iterable[RowGroupRecords]]) -> Iterable[SegmentBatch]:
        found = call()
        batches = (batch for batch in map(cut_one, found) if batch is not None)
        return [*batches] if isinstance(found, list) else batches

    with closing(calls):
        for size_bytes, call in calls:
            yield size_bytes, partial(cut, call)


def _stop_hint(file: SegmentFile, stop_offset: int | None, index: OffsetIndex | None) -> int:
    """A position after which nothing is needed."""
    hint = None
    if index is not None and stop_offset is not None:
        hint = index.stop_position(stop_offset - file.base_offset)
    return file.size_bytes if hint is None else min(hint, file.size_bytes)


def scan_headers(
    file: SegmentFile, *, start_position: int = 0, chunk_bytes: int = DEFAULT_CHUNK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every batch, skipping over large payloads of columns.

    A header without a check of its own (Kafka's formats) can be trusted only with its batch, which
    is read for its checksum; payloads of columns are not verified (see ``verify``). Raises
    CorruptRecord at the first header that cannot be right or whose batch does not fit.
    """
    window = Window(file)
    position, last_offset, ahead = start_position, -1, _PEEK_BYTES
    while position < file.size_bytes:
        header = read_header(window, position, position + ahead, last_offset)
        _verify_unless_checked(window, position, header, position + chunk_bytes)
        yield position, header
        last_offset = header.last_offset
        position += header.size_bytes
        skips = header.is_self_checked and header.size_bytes > _SKIP_BYTES
        ahead = _PEEK_BYTES if skips else chunk_bytes


def find_timestamp(
    file: SegmentFile,
    timestamp_ms: int,
    *,
    start_offset: int = 0,
    stop_offset: int | None = None,
    time_index: TimeIndex | None = None,
    index: OffsetIndex | None = None,
    skip: SkipBatch | None = None,
) -> TimestampOffset | None:
    """The first record of [start_offset, stop_offset) at or after the time; None if there is none.

    Records of batches for which ``skip`` is true do not count. An index that contradicts the
    segment is not used. Raises CorruptRecord as read_segment does.
    """
    if file.is_parquet:
        return _find_in_row_groups(file, timestamp_ms, start_offset, stop_offset)
    entry = None if time_index is None else time_index.lookup(timestamp_ms)
    landing = SEGMENT_START
    if entry is not None and index is not None:
        landing = index.lookup(entry.offset)
        if not _is_confirmed(file, landing, entry):
            landing = SEGMENT_START
    last_offset = -1
    for position, header in scan_headers(file, start_position=landing.position):
        if stop_offset is not None and _least_offset(header, last_offset) >= stop_offset:
            return None
        last_offset = header.last_offset
        # The wrapper of old messages may have an earlier time than theirs, so these are looked at.
        is_older = header.max_timestamp_ms < timestamp_ms and not header.is_message_set
        if header.last_offset < start_offset or is_older:
            continue
        if header.is_control or (skip is not None and skip(header)):
            continue
        data = file.read(position, position + header.size_bytes)
        typed, plain = TIMESTAMP_COLUMNS
        times = typed if header.magic == MAGIC_TYPED_COLUMNS else plain
        decoded = decode_batch(data, name=file.name, position=position, columns=[times])
        batch = _cut_to_range(decoded, position, start_offset, stop_offset)
        found = None if batch is None else _first_since(batch, timestamp_ms)
        if found is not None:
            return found
    return None


def _find_in_row_groups(
    file: SegmentFile, timestamp_ms: int, start_offset: int, stop_offset: int | None
) -> TimestampOffset | None:
    def is_older(header: BatchHeader) -> bool:
        return header.max_timestamp_ms < timestamp_ms

    columns = [ParquetSegment(file).timestamp_column]
    for batch in read_segment(
        file,
        start_offset=start_offset,
        stop_offset=stop_offset,
        columns=columns,
        skip=is_older,
        by_page=True,
    ):
        found = _first_since(batch, timestamp_ms)
        if found is not None:
            return found
    return None


def _first_since(batch: SegmentBatch, timestamp_ms: int) -> TimestampOffset | None:
    timestamps = timestamps_ms(batch.records)
    rows = np.flatnonzero(timestamps >= timestamp_ms)
    if not len(rows):
        return None
    row = int(rows[0])
    return TimestampOffset(int(batch.offsets()[row]), int(timestamps[row]))


def read_header(
    window: Window,
    position: int,
    ahead_stop: int,
    last_offset: int,
    *,
    check_identity: bool = True,
) -> BatchHeader:
    """The header at ``position``, of a batch that lies in the file and begins after last_offset.

    Raises CorruptRecord, also if the batch cannot be one of the segment that the file should be.
    """
    file = window.file
    stop = min(position + MAX_HEADER_BYTES, file.size_bytes)
    header = decode_header(
        window.get(position, stop, ahead_stop), name=file.name, position=position
    )
    left = file.size_bytes - position
    if header.size_bytes > left:
        reason = f"{header.size_bytes} bytes are claimed, {left} are left"
        raise CorruptRecord.at(file.name, position, reason, header.base_offset)
    if header.is_message_set and header.base_offset == 0:
        # Its offset says nothing: those of the messages inside are known only when it is decoded.
        data = window.get(position, position + header.size_bytes, ahead_stop)
        decoded = decode_batch(
            data, name=file.name, position=position, columns=TIMESTAMP_COLUMNS[1:]
        )
        header = decoded.header
    if check_identity and file.identity is not None:
        file.identity.check(header, file.name, position)
    check_order(header, last_offset, file.name, position)
    return header


def read_batch(
    window: Window, position: int, header: BatchHeader, ahead_stop: int
) -> tuple[BatchHeader, memoryview]:
    """The bytes of the batch that begins with ``header``, and the header that is true of them.

    Old messages are taken together, as many as there are up to ``ahead_stop``.
    """
    if not header.is_message:
        return header, window.get(position, position + header.size_bytes, ahead_stop)
    stop = max(position + header.size_bytes, min(ahead_stop, window.file.size_bytes))
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
    """Before a batch is skipped: check that its header, which is the reason, can be trusted."""
    if not header.is_self_checked:
        data = window.get(position, position + header.size_bytes, ahead_stop)
        verify_checksum(header, data, name=window.file.name, position=position)


def _least_offset(header: BatchHeader, last_offset: int) -> int:
    """A bound below all records of the batch, as far as it is known before it is decoded."""
    return last_offset + 1 if header.is_message_set else header.base_offset


def _start_position(
    window: Window,
    start_offset: int,
    index: OffsetIndex | None,
    chunk_bytes: int,
    stop_hint: int,
) -> int:
    """The position to start reading for ``start_offset``: the index's, if the file confirms it."""
    file = window.file
    entry = SEGMENT_START if index is None else index.lookup(start_offset - file.base_offset)
    if entry != SEGMENT_START and entry.position < file.size_bytes:
        ahead_stop = min(entry.position + chunk_bytes, stop_hint)
        try:
            header = read_header(window, entry.position, ahead_stop, -1)
            if header.last_offset == file.base_offset + entry.offset:
                return entry.position
        except CorruptRecord:
            pass  # the index or the file is wrong; reading from the start will show which
    if start_offset == file.base_offset or file.size_bytes <= chunk_bytes:
        return 0
    # Without an index: jump from header to header instead of fetching what is not wanted.
    for position, header in scan_headers(file, chunk_bytes=chunk_bytes):
        if header.last_offset >= start_offset:
            return position
    return file.size_bytes


def _is_confirmed(file: SegmentFile, landing: OffsetEntry, entry: TimeEntry) -> bool:
    """Whether both index entries describe existing batches, and nothing newer precedes."""
    try:
        for position, header in scan_headers(file, start_position=landing.position):
            is_landing = position == landing.position and landing != SEGMENT_START
            last_offset = header.last_offset - file.base_offset
            if is_landing and last_offset != landing.offset:
                return False
            if last_offset >= entry.offset:
                return (last_offset, header.max_timestamp_ms) == (entry.offset, entry.timestamp_ms)
            if header.max_timestamp_ms >= entry.timestamp_ms:
                return False
    except CorruptRecord:
        return False
    return False


def _cut_to_range(
    decoded: DecodedBatch,
    position: int,
    start_offset: int,
    stop_offset: int | None,
    rows: range | None = None,
) -> SegmentBatch | None:
    """The part of a batch inside [start_offset, stop_offset); None if there is nothing.

    ``decoded`` has these rows of the batch; None: all.
    """
    header, deltas = decoded.header, decoded.offset_deltas
    start = max(start_offset - header.base_offset, 0)
    stop = header.last_offset_delta + 1
    if stop_offset is not None:
        stop = min(stop, stop_offset - header.base_offset)
    if deltas is not None:
        start, stop = (int(row) for row in np.searchsorted(deltas, (start, stop)))
        deltas = deltas[start:stop]
    elif rows is not None:
        start, stop = max(start, rows.start), min(stop, rows.stop)
    count = stop - start
    if count <= 0:
        return None
    whole = count == (header.record_count if rows is None else len(rows))
    first = start - rows.start if rows is not None and deltas is None else start
    return SegmentBatch(
        header=header,
        position=position,
        records=decoded.records if whole else decoded.records.slice(first, count),
        record_count=count,
        first_offset=header.base_offset + (start if deltas is None else int(deltas[0])),
        offset_deltas=deltas,
    )
