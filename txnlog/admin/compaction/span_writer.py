"""Writes the surviving records of some segments into new ones, which keep their offsets.

New segments cover the offsets of the old ones, without a gap between them: each covers those from
its base offset to that of the next one, whether there are records or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from txnlog import names
from txnlog.admin.compaction.record_keys import RecordKeys
from txnlog.admin.compaction.tombstones import NO_TOMBSTONES
from txnlog.admin.rewrite import Replacement
from txnlog.clock import Clock
from txnlog.columns.keys import home_of
from txnlog.config import TopicConfig
from txnlog.log.uploads import TopicSpec, UploadedSegment
from txnlog.segments.indexes.sparse import MAX_SEGMENT_BYTES
from txnlog.segments.records import Int64Array, record_sizes
from txnlog.segments.writer import SegmentWriter
from txnlog.storage.base import Storage, Upload
from txnlog.write.segment_uploads import discard_segments, new_segment_writer


@dataclass(slots=True, eq=False)
class _Open:
    """A segment that is being written."""

    start: int
    name: str
    upload: Upload
    writer: SegmentWriter
    begun_ms: int
    has_tombstones: bool = False
    is_at_home: bool = True


class SpanWriter:
    """Writes the records of the offsets [start, end) of a partition, in their order.

    A segment takes ``segment.bytes`` at most, or one record. Use it once: :meth:`append` any number
    of times, then :meth:`finish` or :meth:`discard`.
    """

    def __init__(
        self,
        storage: Storage,
        spec: TopicSpec,
        partition: int,
        clock: Clock,
        *,
        start: int,
        delete_horizon_ms: int,
    ) -> None:
        self._storage = storage
        self._spec = spec
        self._partition = partition
        self._clock = clock
        self._start = start  # of the span that is being written, or comes next
        self._horizon_ms = delete_horizon_ms
        self._is_parquet = not TopicConfig.of(spec.config).has_batches
        self._keys = RecordKeys(spec.schema)
        self._token = clock.token()
        self._counter = 0
        self._open: _Open | None = None
        self._spans: list[Replacement] = []

    def append(self, records: pa.RecordBatch, offsets: Int64Array) -> None:
        """Add records, all columns of them, with the partition's own offsets (int64, ascending)."""
        row = 0
        ends: Int64Array | None = None
        while row < records.num_rows:
            segment = self._open or self._begin(int(offsets[row]))
            room_bytes, _ = segment.writer.room()
            # Offsets in a segment end at 2^31, wherever its records are.
            stop = int(np.searchsorted(offsets, segment.start + MAX_SEGMENT_BYTES, side="right"))
            if ends is not None or records.nbytes > room_bytes:
                if ends is None:
                    ends = np.cumsum(record_sizes(records))
                taken = int(ends[row - 1]) if row else 0
                stop = min(stop, int(np.searchsorted(ends, taken + room_bytes, side="right")))
            if stop <= row:
                if segment.writer.record_count:
                    self._end(int(offsets[row]))
                    continue
                stop = row + 1  # larger than a whole segment
            part = records.slice(row, stop - row)
            segment.writer.append(part, offsets[row:stop] - segment.start)
            segment.has_tombstones |= bool(self._keys.deleting(part).any())
            segment.is_at_home = segment.is_at_home and self._is_at_home(part)
            row = stop

    def finish(self, end: int) -> list[Replacement]:
        """Upload the open segment; returns what is adjacent, up to the offset ``end``."""
        if self._open is not None:
            self._end(end)
        elif self._start < end:
            self._spans.append(Replacement(self._start, end, None))
        return self._spans

    def discard(self) -> None:
        """Delete the uploads, best effort."""
        if self._open is not None:
            self._open.upload.discard()
            self._open = None
        discard_segments(
            self._storage, [span.uploaded for span in self._spans if span.uploaded is not None]
        )
        self._spans = []

    def _is_at_home(self, records: pa.RecordBatch) -> bool:
        """Whether each key is where murmur2 puts it."""
        if self._spec.partitions == 1:
            return True
        homes = home_of(self._keys.keys(records), self._spec.partitions)
        return bool((homes == self._partition).all())

    def _begin(self, first_offset: int) -> _Open:
        if first_offset - self._start > MAX_SEGMENT_BYTES:
            # Too far away for the relative offsets of a segment from here.
            self._spans.append(Replacement(self._start, first_offset, None))
            self._start = first_offset
        name = names.segment_name(
            self._token,
            self._counter,
            schema_version=self._spec.schema_version,
        )
        self._counter += 1
        stem = names.parquet_name(name) if self._is_parquet else name
        ref = names.SegmentRef(self._spec.topic, self._partition, stem)
        upload = self._storage.upload(ref.paths.log)
        writer = new_segment_writer(
            upload,
            self._spec,
            self._partition,
            name,
            stores_offsets=True,
            max_record_bytes=_ANY_RECORD,
        )
        self._open = _Open(self._start, stem, upload, writer, self._clock.now_ms())
        return self._open

    def _end(self, end: int) -> None:
        """Finish the open segment, which covers the offsets before ``end``."""
        segment = self._open
        assert segment is not None
        uploaded = self._finish(segment)
        horizon_ms = self._horizon_ms if segment.has_tombstones else NO_TOMBSTONES
        homes = self._spec.partitions if segment.is_at_home else 0
        self._spans.append(
            Replacement(
                segment.start,
                end,
                uploaded,
                delete_horizon_ms=horizon_ms,
                home_partitions=homes,
            )
        )
        self._open = None
        self._start = end

    def _finish(self, segment: _Open) -> UploadedSegment:
        summary = segment.writer.finish()
        uploaded = UploadedSegment.of(
            summary,
            self._spec,
            self._partition,
            segment.name,
            segment.begun_ms,
            history=self._storage.history(),
        )

        def requests() -> Iterator[Callable[[], None]]:
            yield segment.upload.close
            ref = names.SegmentRef(self._spec.topic, self._partition, segment.name)
            if ref.is_indexed(summary.batch_count, summary.size_bytes):
                yield partial(self._storage.put, ref.paths.offset_index, summary.index)
                yield partial(self._storage.put, ref.paths.time_index, summary.time_index)

        self._storage.gather(requests())
        return uploaded


_ANY_RECORD: Final = MAX_SEGMENT_BYTES
"""Old records may be larger than the current max.message.bytes."""
