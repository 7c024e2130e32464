"""The records of the golden files, and how the files were made.

Every file under golden/ holds the same ROWS, but for those of typed topics (TYPED). They were
written once, by kafka-python 3.0.12, aiokafka 0.14.0 and txnlog's first version with this format,
and are never written again: a change that cannot read them breaks somebody's log. To add files for
a new format, add them to ``files`` and run ``python -m tests.segments.golden_files``; what is there
already is left alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.segments.segment_samples import Row, batch_of

GOLDEN = Path(__file__).parent / "golden"

ROWS: list[Row] = [
    (b"key", b"value", 1_700_000_000_000, [("h", b"x"), ("h", None), ("", b"")]),
    (None, None, 0, []),
    (b"", b"", -1, [("\u00e9\u4e2d", b"\0\xff")]),
    (b"k" * 63, b"v" * 64, 1_700_000_000_001, []),
    (b"k" * 64, b"ab" * 300, 1, [("n" * 70, b"v" * 70)]),
    *[(b"%d" % n, b"order %d, shipped" % n, 1_700_000_000_000 + 37 * n, []) for n in range(20)],
]
MARKER_OFFSET = len(ROWS)
GOLDEN_TAG = 0x5EA1ED
TYPED: list[dict[str, Any]] = [
    {"k": "a", "n": None, "in": {"x": [1, None]}, "_timestamp": 5, "_deleted": False},
    {"k": "", "n": 1 << 40, "in": None, "_timestamp": -1, "_deleted": False},
    {"k": "a", "n": None, "in": None, "_timestamp": 1_700_000_000_000, "_deleted": True},
]
TYPED_OFFSETS = [0, 3, 4]


def typed_records() -> pa.RecordBatch:
    """TYPED as a topic with a schema has it, with the ids of its columns."""
    ids = [{"PARQUET:field_id": f"{number}"} for number in range(1, 6)]
    inner = pa.field("x", pa.list_(pa.field("element", pa.int8(), metadata=ids[4])))
    fields = [
        pa.field("k", pa.string(), nullable=False, metadata=ids[0]),
        pa.field("n", pa.int64(), metadata=ids[1]),
        pa.field("in", pa.struct([inner.with_metadata(ids[3])]), metadata=ids[2]),
        pa.field("_timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("_headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("_deleted", pa.bool_(), nullable=False),
    ]
    rows = [{"_headers": [{"key": "h", "value": None}], **row} for row in TYPED]
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


def files() -> Iterator[tuple[str, bytes]]:
    """The names and bytes of all golden files, by today's code."""
    from tests.support.segments.kafka_judges import JUDGES
    from txnlog.segments.batch_header import Compression
    from txnlog.segments.batches import encode_batch, encode_marker
    from txnlog.segments.formats.message_sets import encode_message_set
    from txnlog.segments.writer import SegmentWriter

    records = batch_of(ROWS)
    for codec in Compression:
        for judge in JUDGES:
            for magic in (0, 1, 2):
                if judge.can(magic, codec):
                    name = f"{judge.name}-v{magic}-{codec.kafka_name}.log"
                    yield name, judge.write(ROWS, magic, codec)
        for magic in (0, 1):
            if codec is not Compression.ZSTD:
                name = f"txnlog-v{magic}-{codec.kafka_name}.log"
                yield name, encode_message_set(records, magic, compression=codec)
        yield (
            f"txnlog-v2-{codec.kafka_name}.log",
            encode_batch(
                records,
                record_format="kafka",
                compression=codec,
                guarded=True,
                producer_id=4_000_000_000,
                producer_epoch=3,
            ),
        )
        if codec not in {Compression.GZIP, Compression.SNAPPY}:
            name = f"txnlog-columns-{codec.kafka_name}.log"
            yield name, encode_batch(records, compression=codec, base_sequence=0)
            name = f"txnlog-packed-{codec.kafka_name}.log"
            yield name, encode_batch(records, compression=codec, base_sequence=0, packs_few=True)
    for record_format, name in (("kafka", "v2"), ("columns", "columns")):
        sink = io.BytesIO()
        writer = SegmentWriter(sink, record_format=record_format, tag=GOLDEN_TAG)
        writer.append(records)
        writer.finish()
        yield f"txnlog-{name}-tagged.log", sink.getvalue()
    sink = io.BytesIO()
    writer = SegmentWriter(sink, tag=GOLDEN_TAG)
    writer.append(records)
    writer.finish()
    yield "txnlog-packed-tagged.log", sink.getvalue()
    for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
        deltas = np.array(TYPED_OFFSETS, dtype=np.int32)
        name = f"txnlog-typed-{codec.kafka_name}.log"
        yield name, encode_batch(typed_records(), compression=codec, offset_deltas=deltas)
    producer: dict[str, Any] = {"producer_id": 4_000_000_000, "producer_epoch": 3}
    data = encode_batch(
        records,
        record_format="kafka",
        compression=Compression.NONE,
        base_sequence=2**31 - 10,
        leader_epoch=8,
        transactional=True,
        **producer,
    )
    marker = encode_marker(
        commit=True,
        offset=MARKER_OFFSET,
        timestamp_ms=5,
        coordinator_epoch=6,
        leader_epoch=8,
        **producer,
    )
    yield "txnlog-v2-transaction.log", data + marker


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file_name, content in files():
        path = GOLDEN / file_name
        if not path.exists():
            path.write_bytes(content)
