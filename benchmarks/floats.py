"""What it costs to look for NaN in floats before they are written: such chunks get no bounds."""

from __future__ import annotations

import statistics
import time
from unittest import mock

import numpy as np
import pyarrow as pa

from txnlog.segments.batch_header import Compression
from txnlog.segments.parquet import writer as parquet_writer
from txnlog.segments.writer import SegmentWriter

COLUMNS = 8
_BATCH_ROWS = 100_000


class _Nowhere:
    """Takes a file's bytes, and counts them."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)


def measure(count: int, turns: int) -> list[str]:
    """Lines of Markdown: ``count`` rows of floats, with the look for NaN and without it."""
    head = (
        f"{count:,} rows of {COLUMNS} columns of doubles, written to memory; medians of the CPU "
        f"time of {turns} turns, with the look for NaN and without it one after the other, and of "
        "their ratios."
    )
    lines = [
        head,
        "",
        "| values | codec | bytes a row | with, s | without, s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for kind, nan_part in (("random", 0.0), ("random, 1 % NaN", 0.01), ("all NaN", 1.0)):
        batches = _batches(count, nan_part)
        for codec in (Compression.LZ4, Compression.ZSTD):
            size_bytes = _write(batches, codec)  # which also warms up
            taken: list[tuple[float, float]] = []
            for _ in range(turns):
                looked_s = _cpu_s(batches, codec)
                with mock.patch.object(parquet_writer, "holds_nan", return_value=False):
                    taken.append((looked_s, _cpu_s(batches, codec)))
            looked_s, plain_s = (statistics.median(column) for column in zip(*taken, strict=True))
            ratio = statistics.median(one / other for one, other in taken)
            lines.append(
                f"| {kind} | {codec.kafka_name} | {size_bytes / count:.1f} | {looked_s:.3f} "
                f"| {plain_s:.3f} | {ratio:.2f} |"
            )
    return lines


def _batches(count: int, nan_part: float) -> list[pa.RecordBatch]:
    random = np.random.default_rng(5)
    found = []
    for start in range(0, count, _BATCH_ROWS):
        rows = min(_BATCH_ROWS, count - start)
        columns = {}
        for number in range(COLUMNS):
            values = random.random(rows)
            values[random.random(rows) < nan_part] = np.nan
            columns[f"x{number}"] = pa.array(values)
        columns["_timestamp"] = pa.array(np.arange(rows), pa.timestamp("ms", tz="UTC"))
        found.append(pa.record_batch(columns))
    return found


def _write(batches: list[pa.RecordBatch], codec: Compression) -> int:
    sink = _Nowhere()
    writer = SegmentWriter(sink, record_format="parquet", compression=codec)
    for batch in batches:
        writer.append(batch)
    writer.finish()
    return sink.size_bytes


def _cpu_s(batches: list[pa.RecordBatch], codec: Compression) -> float:
    started_s = time.process_time()
    _write(batches, codec)
    return time.process_time() - started_s
