"""The rows that everything is measured with: 16-byte keys, 100-byte values, from a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY_BYTES = 16
VALUE_BYTES = 100
ROW_BYTES = KEY_BYTES + VALUE_BYTES
_TEMPLATE = b'{"order":"' + b"." * 40 + b'","state":"shipped","currency":"EUR","n":1}'
_RANDOM_START, _RANDOM_BYTES = 10, 40
_CHUNK_ROWS = 100_000
_KEYS = 200_000


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """``count`` rows (key binary, value binary), the same ones at every call."""
    template = np.frombuffer(_TEMPLATE.ljust(VALUE_BYTES)[:VALUE_BYTES], dtype=np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    random = np.random.default_rng(7)
    for start in range(0, count, _CHUNK_ROWS):
        rows = min(_CHUNK_ROWS, count - start)
        values = np.tile(template, (rows, 1))
        values[:, _RANDOM_START : _RANDOM_START + _RANDOM_BYTES] = digits[
            random.integers(0, 16, (rows, _RANDOM_BYTES), dtype=np.uint8)
        ]
        numbers = random.integers(0, _KEYS, rows)
        keys = np.char.zfill(numbers.astype("S16"), KEY_BYTES)
        yield pa.record_batch(
            [_fixed(keys.view(np.uint8), KEY_BYTES, rows), _fixed(values, VALUE_BYTES, rows)],
            names=["key", "value"],
        )


def write_parquet(folder: Path, count: int, files: int) -> None:
    """The rows as Parquet files for Spark, zstd, one row group per 100,000 rows."""
    folder.mkdir()
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    writers = [
        pq.ParquetWriter(folder / f"{n}.parquet", schema, compression="zstd") for n in range(files)
    ]
    for number, batch in enumerate(batches(count)):
        writers[number % files].write_batch(batch)
    for writer in writers:
        writer.close()


def _fixed(data: np.ndarray, width: int, rows: int) -> pa.Array:
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
