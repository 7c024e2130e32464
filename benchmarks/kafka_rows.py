"""Kafka's record format: how fast whole batches are encoded and decoded, beside two libraries.

All three get the same records and, decoding, the very same bytes. What comes out differs: Arrow
columns here, one Python object for each record there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from rows import KEY_BYTES, VALUE_BYTES, batches

from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import decode_batch, encode_batch
from txnlog.segments.records import RECORD_SCHEMA, normalize

# What SegmentWriter puts into a batch of its default size.
BATCH_ROWS = 17_000
_START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """Million records per second of one core: medians."""

    records: str
    codec: str
    library: str
    encode: float
    decode: float


@dataclass(frozen=True, slots=True)
class _Library:
    name: str
    encode: Callable[[pa.RecordBatch, list[Any], int], bytes]
    decode: Callable[[bytes], int]
    rows: int  # the slow ones get fewer


def speeds(repetitions: int = 9) -> Iterator[Speed]:
    """Measure every library on every kind of records and codec."""
    for kind, records in (
        ("values of 100 bytes", _even()),
        ("values of 50 to 150 bytes", _mixed()),
    ):
        for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
            for library in _libraries():
                part = records.slice(0, library.rows)
                rows = _as_rows(part)
                data = encode_batch(part, record_format="kafka", compression=codec)
                encode = _median(lambda: library.encode(part, rows, int(codec)), repetitions)  # noqa: B023
                decode = _median(lambda: library.decode(data), repetitions)  # noqa: B023
                millions = part.num_rows / 1e6
                yield Speed(
                    kind, codec.kafka_name, library.name, millions / encode, millions / decode
                )


def measure(repetitions: int = 9) -> list[str]:
    """Lines of Markdown: a table of records per second."""
    head = f"{BATCH_ROWS:,} records a batch, keys of {KEY_BYTES} bytes; M records/s of one core."
    return [
        head,
        "",
        "| records | codec | library | encode | decode |",
        "|---|---|---|---|---|",
        *(
            f"| {row.records} | {row.codec} | {row.library} | {row.encode:.2f} | {row.decode:.2f} |"
            for row in speeds(repetitions)
        ),
    ]


def _libraries() -> list[_Library]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.record.default_records as kafka_python
    import aiokafka.record.default_records as aiokafka

    def theirs(module: ModuleType) -> tuple[Callable[..., bytes], Callable[[bytes], int]]:
        def encode(_: pa.RecordBatch, rows: list[Any], codec: int) -> bytes:
            builder = module.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
            for offset, (key, value, timestamp) in enumerate(rows):
                builder.append(offset, timestamp, key, value, [])
            return bytes(builder.build())

        def decode(data: bytes) -> int:
            batch = module.DefaultRecordBatch(data)
            assert batch.validate_crc()
            return sum(len(record.value) for record in batch)

        return encode, decode

    return [
        _Library("txnlog", _encode, _decode, BATCH_ROWS),
        _Library("aiokafka", *theirs(aiokafka), BATCH_ROWS),
        _Library("kafka-python", *theirs(kafka_python), BATCH_ROWS // 10),
    ]


def _encode(records: pa.RecordBatch, _: list[Any], codec: int) -> bytes:
    return encode_batch(records, record_format="kafka", compression=Compression(codec))


def _decode(data: bytes) -> int:
    return int(decode_batch(data).records.num_rows)


def _even() -> pa.RecordBatch:
    records = normalize(next(batches(BATCH_ROWS)), now_ms=0)
    steps = np.random.default_rng(1).integers(0, 20, BATCH_ROWS)
    times = pa.array(_START_MS + np.cumsum(steps)).cast(RECORD_SCHEMA.field("timestamp").type)
    return records.set_column(2, RECORD_SCHEMA.field("timestamp"), times)


def _mixed() -> pa.RecordBatch:
    records = _even()
    sizes = np.random.default_rng(2).integers(VALUE_BYTES // 2, VALUE_BYTES * 3 // 2, BATCH_ROWS)
    values = records.column("value").to_pylist()
    cut = [(value * 2)[:size] for value, size in zip(values, sizes.tolist(), strict=True)]
    return records.set_column(1, RECORD_SCHEMA.field("value"), pa.array(cut, pa.binary()))


def _as_rows(records: pa.RecordBatch) -> list[Any]:
    times = records.column("timestamp").cast(pa.int64()).to_pylist()
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    return list(zip(keys, values, times, strict=True))


def _median(run: Callable[[], object], repetitions: int) -> float:
    run()
    seconds = []
    for _ in range(repetitions):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return sorted(seconds)[repetitions // 2]


if __name__ == "__main__":
    print("\n".join(measure()))
