"""Records and files for the tests of segments."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import Compression, SegmentIdentity
from txnlog.segments.batches import encode_batch
from txnlog.segments.indexes.sparse import OffsetIndex, TimeIndex
from txnlog.segments.records import RECORD_SCHEMA, normalize
from txnlog.segments.segment_file import SegmentFile
from txnlog.segments.writer import SegmentSummary, SegmentWriter

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of (key, value, timestamp ms, headers) as a batch of RECORD_SCHEMA."""
    columns = [
        pa.array([row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
        pa.array(
            [[{"key": key, "value": value} for key, value in row[3]] for row in rows],
            RECORD_SCHEMA.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The opposite of ``batch_of``."""
    return [
        (
            row["key"],
            row["value"],
            row["timestamp"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in batch.set_column(
            2, "timestamp", batch.column("timestamp").cast(pa.int64())
        ).to_pylist()
    ]


def numbered(count: int, *, start: int = 0, value_bytes: int = 20) -> pa.RecordBatch:
    """Records whose key is their offset and whose timestamp grows by 10 ms for each."""
    offsets = range(start, start + count)
    return normalize(
        pa.record_batch(
            {
                "key": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
                "value": pa.array(
                    [(b"%d," % offset * value_bytes)[:value_bytes] for offset in offsets],
                    pa.binary(),
                ),
                "timestamp": pa.array([1000 + 10 * offset for offset in offsets], pa.int64()),
            }
        ),
        now_ms=0,
    )


@cache
def random_records(count: int, seed: int) -> pa.RecordBatch:
    """Records with every oddity: nulls, empty values, headers, timestamps out of order."""
    chance = random.Random(seed)

    def some_bytes() -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(int(40 * chance.random()))

    return batch_of(
        [
            (
                some_bytes(),
                some_bytes(),
                int(1_000_001 * chance.random()) - 1,
                [(f"h{n}", some_bytes()) for n in range(int(3 * chance.random()))],
            )
            for _ in range(count)
        ]
    )


def segment(*batches: pa.RecordBatch, **options: object) -> tuple[bytes, SegmentSummary]:
    """A segment with one file batch for each of ``batches`` (or more, if ``batch_bytes`` says)."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, **options)  # type: ignore[arg-type]
    for batch in batches:
        writer.append(batch)
        writer.flush()
    return sink.getvalue(), writer.finish()


def dense_segment(**options: object) -> tuple[bytes, OffsetIndex, TimeIndex]:
    """20 batches of 50 records, about 1 KiB each, with an entry for every batch."""
    options.setdefault("compression", Compression.NONE)
    data, summary = segment(
        *[numbered(50, start=start) for start in range(0, 1000, 50)],
        index_interval_bytes=0,
        **options,
    )
    return data, OffsetIndex.decode(summary.index), TimeIndex.decode(summary.time_index)


GAPS = [[0, 1, 2, 3], [7], [8, 10, 13], [40, 41]]
"""The offsets of a gapped segment, by batch."""


def gapped_segment(record_format: str = "columns") -> bytes:
    """Four batches with holes inside and between them; the key of a record is its offset.

    Those of rows are guarded, as a writer's are.
    """
    data = b""
    for offsets in GAPS:
        rows: list[Row] = [(b"%d" % offset, b"v", offset * 10, []) for offset in offsets]
        dense = offsets[-1] - offsets[0] == len(offsets) - 1
        deltas = np.array(offsets, dtype=np.int32) - np.int32(offsets[0])
        data += encode_batch(
            batch_of(rows),
            record_format=record_format,
            base_offset=offsets[0],
            guarded=record_format == "kafka",
            offset_deltas=None if dense else deltas.astype(np.int32),
        )
    return data


class RecordingFile:
    """A file in memory that notes which ranges were asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(self.data)
        self.requests.append((start, stop))
        return self.data[start:stop]

    @property
    def bytes_read(self) -> int:
        return sum(stop - start for start, stop in self.requests)

    def opened(
        self,
        name: str = "x.log",
        *,
        base_offset: int = 0,
        identity: SegmentIdentity | None = None,
    ) -> SegmentFile:
        """The file as those who read segments take it."""
        return SegmentFile(self, len(self.data), name, base_offset, identity)


def file_of(
    data: bytes,
    name: str = "x.log",
    *,
    base_offset: int = 0,
    identity: SegmentIdentity | None = None,
) -> SegmentFile:
    """A segment's file in memory; only ranges inside it may be asked for."""
    return RecordingFile(data).opened(name, base_offset=base_offset, identity=identity)
