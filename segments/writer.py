"""Writes one segment: gathers records into batches, encodes them, and builds the indexes.

Knows a sink with ``write`` and nothing of where it leads. Offsets are relative: those of new
records begin with 0, whatever offset the log gives them later, and have no gaps. A writer of other
segments' remaining records gives each record its offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import NO_TAG, Compression
from txnlog.segments.batches import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    BatchEncoder,
    SegmentEncoder,
    SupportsWrite,
)
from txnlog.segments.errors import RecordTooLarge, SegmentTooLarge
from txnlog.segments.indexes.sparse import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    MAX_SEGMENT_BYTES,
)
from txnlog.segments.parquet.writer import RowGroupEncoder
from txnlog.segments.records import (
    Int32Array,
    Int64Array,
    concat_batches,
    record_sizes,
    timestamps_ms,
)
from txnlog.segments.schema_columns import children

# Measured with 16-byte keys and 100-byte values, 2 cores:
# decoding 0.3 / 0.6 / 1.2 / 2.4 / 4.8 MiB batches of lz4 runs at 22 / 27 / 30 / 33 / 34 M rows/s.
# 2 MiB is at 97 % of the plateau; a point read, which decodes one batch, takes 0.5 ms of it.
DEFAULT_BATCH_BYTES: Final = 2 << 20

DEFAULT_ROW_GROUP_BYTES: Final = 32 << 20
"""The size of a row group before it is encoded. Larger ones compress no better, and are read whole.
"""

PARQUET_FROM_BYTES: Final = 1 << 20
"""From how many bytes of records on, before they are encoded, a segment is a Parquet file if it may
be one. No more than a batch: what is less is one batch.
"""

# A record must fit into a batch that every reader will decode.
DEFAULT_MAX_RECORD_BYTES: Final = DEFAULT_MAX_UNCOMPRESSED_BYTES // 2

NO_TIMESTAMP_MS: Final = -1

_REPEATED_BOOLEANS: Final = 32
"""Of lists with booleans row groups are smaller by this: Parquet's readers keep four bytes for each
of these bits, which counts against the most that they decode.
"""

# Validity bitmaps, and what a codec adds to bytes that it cannot compress: at most a part in 32.
_GROWTH = 32
# In a very small segment at least this part is for records, whatever the overhead of a batch.
_LEAST_PART = 4

# One-row batches cost 2 KiB each in Arrow; they are merged before they become many.
_MERGE_COUNT = 64
_PINNED_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """A written segment. Timestamps are -1 if there are no records; indexes may be empty.

    ``end_offset`` is the relative offset behind the last record; ``index`` and ``time_index`` are
    the bytes of the files beside the segment, which need not be stored when empty. ``tag`` is what
    the segment is recognised by.
    """

    record_count: int
    end_offset: int
    batch_count: int
    size_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    index: bytes
    time_index: bytes
    tag: int = NO_TAG


class SegmentWriter:
    """Appends normalised records to a segment; call ``finish`` at the end.

    Memory: at most ``batch_bytes`` (or one larger record) are buffered, besides the batch being
    encoded. If ``append`` raises RecordTooLarge nothing of its records was taken; after any other
    error the segment is to be thrown away. Every batch carries ``tag`` (see SegmentIdentity), if
    there is one. A Parquet file, whose batches are row groups, has a tag of its own instead, tells
    its ``origin``, and takes offsets with gaps only with ``stores_offsets``. What goes beyond
    ``segment_bytes`` is not refused: ``room`` tells the caller when to roll. ``producer`` is
    the id and the epoch that Kafka's format tells.

    With record_format "auto" a segment is a Parquet file, with its own codec, if there are
    ``parquet_from_bytes`` of records when its first bytes are written, and else batches in columns:
    until then up to a row group is buffered. ``is_parquet`` tells which.
    """

    def __init__(
        self,
        sink: SupportsWrite,
        *,
        record_format: str = "columns",
        compression: Compression = Compression.LZ4,
        level: int | None = None,
        batch_bytes: int | None = None,
        max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        tag: int = NO_TAG,
        segment_bytes: int = MAX_SEGMENT_BYTES,
        stores_offsets: bool = False,
        origin: Mapping[str, str] | None = None,
        producer: tuple[int, int] | None = None,
        parquet_compression: Compression = Compression.ZSTD,
        parquet_level: int | None = None,
        parquet_from_bytes: int | None = None,
    ) -> None:
        if (batch_bytes is not None and batch_bytes < 1) or max_record_bytes < 1:
            raise ValueError("batch_bytes and max_record_bytes must be positive")
        if parquet_from_bytes is None:
            parquet_from_bytes = PARQUET_FROM_BYTES
        self._parquet: RowGroupEncoder | None = None
        """What encodes the segment if it becomes a Parquet file; None once it is settled."""
        is_auto = record_format == "auto"
        # What never gathers as much need not wait for it.
        if record_format == "parquet" or (is_auto and segment_bytes > parquet_from_bytes):
            self._parquet = RowGroupEncoder(
                sink,
                compression=parquet_compression if is_auto else compression,
                level=parquet_level if is_auto else level,
                stores_offsets=stores_offsets,
                origin=origin or {},
            )
        self._encoder: SegmentEncoder
        if record_format == "parquet":
            assert self._parquet is not None
            self._encoder, self._parquet = self._parquet, None
        else:
            self._encoder = BatchEncoder(
                sink,
                record_format="columns" if is_auto else record_format,
                compression=compression,
                level=level,
                index_interval_bytes=index_interval_bytes,
                tag=tag,
                producer=producer,
            )
        self._is_parquet = record_format == "parquet"
        may_be_parquet = self._is_parquet or self._parquet is not None
        self._least_batch_bytes = batch_bytes or DEFAULT_BATCH_BYTES
        self._batch_bytes = batch_bytes or (
            DEFAULT_ROW_GROUP_BYTES if may_be_parquet else DEFAULT_BATCH_BYTES
        )
        self._parquet_from_bytes = parquet_from_bytes
        self._looks_at_schema = may_be_parquet
        self._max_record_bytes = max_record_bytes
        self._segment_bytes = segment_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_offsets: list[range | Int64Array] = []
        self._unmerged = 0  # how many at the end of _pending have not been merged yet
        self._pending_bytes = 0
        self._pending_rows = 0
        self._written_rows = 0
        self._next_offset = 0
        self._batch_count = 0
        self._size_bytes = 0
        self._min_timestamp_ms = NO_TIMESTAMP_MS
        self._max_timestamp_ms = NO_TIMESTAMP_MS
        self._summary: SegmentSummary | None = None

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file, or would be if it was finished now.

        It is settled when the first bytes are written.
        """
        if self._parquet is None:
            return self._is_parquet
        return self._pending_bytes >= self._parquet_from_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes written to the sink so far."""
        return self._size_bytes

    @property
    def buffered_bytes(self) -> int:
        """Uncompressed bytes of the records that wait for their batch to be full."""
        return self._pending_bytes

    @property
    def record_count(self) -> int:
        """Records appended so far, written or waiting."""
        return self._written_rows + self._pending_rows

    def room(self) -> tuple[int, int]:
        """How many bytes (as ``record_sizes`` counts them) and rows of records still fit.

        Then the file will not be larger than ``segment_bytes``, whatever the codec makes of them.
        What is written counts as it is, so that there can be more room after an append than before.
        Of an empty segment a quarter is always for records: with little more than 1 KiB that may
        make it a batch's schema larger.
        """
        overhead_bytes = self._encoder.overhead_bytes
        if self._parquet is not None:
            overhead_bytes = max(overhead_bytes, self._parquet.overhead_bytes)
        room = self._segment_bytes - self._size_bytes - overhead_bytes
        room = room * _GROWTH // (_GROWTH + 1)
        if self._size_bytes == 0:
            room = max(room, self._segment_bytes // _LEAST_PART)
        rows = MAX_SEGMENT_BYTES - self._next_offset
        return max(room - self._pending_bytes, 0), max(rows, 0)

    def check_sizes(self, sizes: Int64Array) -> None:
        """Raise RecordTooLarge if one of these records, by their sizes, is over the limit."""
        if len(sizes) == 0 or int(sizes.max()) <= self._max_record_bytes:
            return
        row = int(np.argmax(sizes > self._max_record_bytes))
        raise RecordTooLarge(
            f"record {row} of the batch takes {int(sizes[row])} bytes, but the limit "
            f"max.message.bytes is {self._max_record_bytes}"
        )

    def append(self, records: pa.RecordBatch, offsets: Int64Array | None = None) -> None:
        """Take records that ``normalize`` has made; encode every batch that gets full.

        ``offsets`` (int64) are the relative ones of the records, ascending from ``next_offset`` on;
        None: they follow each other. Raises RecordTooLarge, SegmentTooLarge,
        UnsupportedRecordFormat, and what the sink raises.
        """
        if self._summary is not None:
            raise ValueError("the segment is finished")
        if offsets is not None:
            self._check_offsets(offsets, records.num_rows)
        if self._looks_at_schema:
            self._looks_at_schema = False
            if any(_repeats_booleans(field.type) for field in records.schema):
                self._batch_bytes = max(self._batch_bytes // _REPEATED_BOOLEANS, 1)
            # A full row group is enough, whatever its size; some end when they are half full.
            self._parquet_from_bytes = min(self._parquet_from_bytes, self._batch_bytes // 2)
        total = records.nbytes
        whole = total <= min(self._batch_bytes, self._max_record_bytes)
        if whole and self.buffered_bytes + total > self._batch_bytes <= 2 * self.buffered_bytes:
            # Measuring records and cutting between them costs more than a batch that is not full.
            self.flush()
        if total <= min(self._batch_bytes - self._pending_bytes, self._max_record_bytes):
            # It fits whole, and no record in it can be too large: nothing has to be measured.
            if records.num_rows:
                self._add(records, total, offsets)
            return
        sizes = record_sizes(records)
        self.check_sizes(sizes)
        ends = np.cumsum(sizes)
        row = 0
        while row < records.num_rows:
            taken = int(ends[row - 1]) if row else 0
            room = self._batch_bytes - self._pending_bytes
            stop = int(np.searchsorted(ends, taken + room, side="right"))
            if stop == row:
                if self._pending:
                    self.flush()
                    continue
                stop = row + 1  # larger than a whole batch: it gets one of its own
            part = None if offsets is None else offsets[row:stop]
            self._add(records.slice(row, stop - row), int(ends[stop - 1]) - taken, part)
            row = stop

    def flush(self) -> None:
        """Write the records that wait as a batch, however small."""
        if not self._pending:
            return
        self._settle()
        base_offset, offset_deltas = _join_offsets(self._pending_offsets)
        size_bytes = self._encoder.write(self._pending, base_offset, offset_deltas)
        timestamps = [timestamps_ms(piece) for piece in self._pending]
        least_ms = min(int(times.min()) for times in timestamps)
        most_ms = max(int(times.max()) for times in timestamps)
        if self._batch_count == 0:
            self._min_timestamp_ms, self._max_timestamp_ms = least_ms, most_ms
        self._min_timestamp_ms = min(self._min_timestamp_ms, least_ms)
        self._max_timestamp_ms = max(self._max_timestamp_ms, most_ms)
        self._size_bytes += size_bytes
        self._written_rows += self._pending_rows
        self._batch_count += 1
        self._pending, self._pending_offsets, self._unmerged = [], [], 0
        self._pending_bytes = self._pending_rows = 0

    def _settle(self) -> None:
        """Choose what the segment is, by what waits for it."""
        if self._parquet is None:
            return
        self._is_parquet = self.is_parquet
        if self._is_parquet:
            self._encoder = self._parquet
        else:
            self._batch_bytes = self._least_batch_bytes
        self._parquet = None

    def finish(self) -> SegmentSummary:
        """Write what waits and say what the segment holds. The sink is the caller's to close."""
        if self._summary is None:
            self.flush()
            end = self._encoder.finish()
            self._size_bytes += end.size_bytes
            self._summary = SegmentSummary(
                record_count=self._written_rows,
                end_offset=self._next_offset,
                batch_count=self._batch_count,
                size_bytes=self._size_bytes,
                min_timestamp_ms=self._min_timestamp_ms,
                max_timestamp_ms=self._max_timestamp_ms,
                index=end.index,
                time_index=end.time_index,
                tag=end.tag,
            )
        return self._summary

    def _check_offsets(self, offsets: Int64Array, count: int) -> None:
        if len(offsets) != count:
            raise ValueError(f"{len(offsets)} offsets were given for {count} records")
        if count == 0:
            return
        if int(offsets[0]) < self._next_offset or not bool((offsets[1:] > offsets[:-1]).all()):
            raise ValueError(f"offsets must ascend from {self._next_offset} on")
        if int(offsets[-1]) > MAX_SEGMENT_BYTES:
            raise SegmentTooLarge(
                f"relative offset {int(offsets[-1])} is beyond a segment's limit "
                f"{MAX_SEGMENT_BYTES}: roll to a new segment earlier"
            )

    def _add(
        self, records: pa.RecordBatch, size_bytes: int, offsets: Int64Array | None = None
    ) -> None:
        self._pending.append(records)
        self._add_offsets(records.num_rows, offsets)
        self._pending_bytes += size_bytes
        self._pending_rows += records.num_rows
        self._unmerged += 1
        if self._pending_bytes >= self._batch_bytes:
            self.flush()
        elif records.get_total_buffer_size() > 4 * size_bytes + _PINNED_BYTES:
            # A slice keeps its whole input alive: what waits must not pin much more than it counts.
            self._pending[-1] = pa.concat_batches([records])  # which copies one batch too
        elif self._unmerged >= _MERGE_COUNT:
            self._pending[-self._unmerged :] = [concat_batches(self._pending[-self._unmerged :])]
            self._unmerged = 0

    def _add_offsets(self, count: int, offsets: Int64Array | None) -> None:
        first = self._next_offset if offsets is None else int(offsets[0])
        stop = first + count if offsets is None else int(offsets[-1]) + 1
        waiting = self._pending_offsets
        if offsets is not None and stop - first > count:
            waiting.append(offsets)
        elif waiting and isinstance(waiting[-1], range) and waiting[-1].stop == first:
            waiting[-1] = range(waiting[-1].start, stop)
        else:
            waiting.append(range(first, stop))
        self._next_offset = stop


def _repeats_booleans(kind: pa.DataType, *, is_repeated: bool = False) -> bool:
    """Whether there are booleans within lists or maps of a type."""
    if pa.types.is_boolean(kind):
        return is_repeated
    repeats = is_repeated or not pa.types.is_struct(kind)
    return any(_repeats_booleans(field.type, is_repeated=repeats) for field in children(kind))


def _join_offsets(parts: Sequence[range | Int64Array]) -> tuple[int, Int32Array | None]:
    """The first offset of a batch, and each offset less the first; None if there are no gaps."""
    first, last = int(parts[0][0]), int(parts[-1][-1])
    if last - first + 1 == sum(len(part) for part in parts):
        return first, None
    joined = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    return first, (joined - first).astype(np.int32)
