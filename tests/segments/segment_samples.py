"""Records and files for the tests of segments."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from functools import cache

import pyarrow as pa

from txnlog.segments.records import RECORD_SCHEMA, normalize
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
