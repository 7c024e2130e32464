"""Partition folders made by hand: batches, markers and old messages at any offsets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa

from txnlog import IsolationLevel, Store
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.records import RECORD_SCHEMA


def records(
    values: Sequence[bytes], times_ms: Sequence[int] | None = None, key: bytes | None = None
) -> pa.RecordBatch:
    """Records of one key; the times are 1000, 1001 and so on if none are given."""
    times = list(times_ms or range(1000, 1000 + len(values)))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key] * len(values), pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(times, pa.int64()).view(RECORD_SCHEMA.field("timestamp").type),
            pa.array([[] for _ in values], RECORD_SCHEMA.field("headers").type),
        ],
        schema=RECORD_SCHEMA,
    )


def batch(
    offset: int,
    *values: bytes,
    producer: int = -1,
    times_ms: Sequence[int] | None = None,
    codec: Compression = Compression.NONE,
    key: bytes | None = None,
) -> bytes:
    """A batch of magic 2; with a producer it is part of its transaction."""
    more: dict[str, Any] = {}
    if producer >= 0:
        more = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": offset,
            "transactional": True,
        }
    data = records(values, times_ms, key)
    return encode_batch(
        data, record_format="kafka", compression=codec, base_offset=offset, leader_epoch=0, **more
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return encode_marker(
        commit=commit,
        offset=offset,
        timestamp_ms=2000,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        leader_epoch=0,
    )


def wrapper(
    offset: int,
    *values: bytes,
    time_ms: int | None = None,
    log_append_time: bool = False,
    key: bytes | None = None,
    magic: int = 1,
    said_offset: int | None = None,
) -> bytes:
    """A compressed set; ``time_ms`` and ``said_offset`` are what the message around it says."""
    message_set = records(values, key=key)
    data = bytearray(
        encode_message_set(message_set, magic, compression=Compression.GZIP, base_offset=offset)
    )
    data[17] |= 8 if log_append_time else 0
    if time_ms is not None:
        data[18:26] = time_ms.to_bytes(8, "big", signed=True)
    if said_offset is not None:
        data[:8] = said_offset.to_bytes(8, "big")
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


def folder(
    path: Path, logs: Mapping[int, bytes], indexes: Mapping[int, bytes] | None = None
) -> str:
    """``path/t-0`` with these segments and transaction indexes, by base offset."""
    where = path / "t-0"
    where.mkdir(parents=True)
    for base, data in logs.items():
        (where / f"{base:020}.log").write_bytes(data)
    for base, data in (indexes or {}).items():
        (where / f"{base:020}.txnindex").write_bytes(data)
    return str(where)


def reseal(data: bytes) -> bytes:
    """A batch of magic 2 that was changed, with its checksum made right again."""
    return data[:17] + crc32c.crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    """The bytes with one bit changed."""
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def offsets_and_values(
    store: Store, topic: str = "t", level: IsolationLevel = "read_committed"
) -> list[tuple[int, bytes]]:
    """Offsets and values of a topic."""
    table = store.scan(topic, isolation_level=level).to_arrow()
    columns = (table.column(name).to_pylist() for name in ("offset", "value"))
    return list(zip(*columns, strict=True))
