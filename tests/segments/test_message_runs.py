"""Old messages that are not compressed are read many at a time: the same records, much faster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.segments.segment_samples import file_of, numbered
from txnlog.segments.batch_header import Compression
from txnlog.segments.batches import encode_batch
from txnlog.segments.errors import CorruptRecord
from txnlog.segments.formats.message_sets import encode_message_set
from txnlog.segments.inspect.dump import dump_segment
from txnlog.segments.reader import SegmentBatch, read_segment

COUNT = 100


def messages(magic: int, count: int = COUNT, base_offset: int = 0) -> bytes:
    return encode_message_set(numbered(count), magic, base_offset=base_offset)


def read(data: bytes, start: int = 0, stop: int | None = None, **how: Any) -> list[SegmentBatch]:
    return list(read_segment(file_of(data, "old.log"), start_offset=start, stop_offset=stop, **how))


def offsets(batches: list[SegmentBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets().tolist()]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_come_together(magic: int) -> None:
    """As many as a chunk holds are one batch; cut anywhere, nothing is lost or doubled."""
    data = messages(magic)
    (whole,) = read(data)
    assert whole.record_count == COUNT
    assert offsets(read(data, 17, 60)) == list(range(17, 60))
    for chunk_bytes in (1, 100, 333, 1000):
        parts = read(data, chunk_bytes=chunk_bytes)
        assert offsets(parts) == list(range(COUNT))
        values = [value for part in parts for value in part.records.column("value").to_pylist()]
        assert values == whole.records.column("value").to_pylist()
    assert len(read(data, chunk_bytes=1000)) > 1


@pytest.mark.condition(43, 44)
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_ends_a_run(magic: int) -> None:
    """Messages before a damaged one are read, and its own position is named."""
    size = len(messages(magic, 1))
    good = messages(magic)
    for victim in (0, 1, 50, COUNT - 1):
        start = len(messages(magic, victim)) if victim else 0
        for at in range(start + 8, start + size):  # no checksum covers the offset
            data = bytearray(good)
            data[at] ^= 0x04
            seen: list[int] = []
            with pytest.raises(CorruptRecord, match=rf"old\.log at byte {start}\b"):
                _read_into(seen, bytes(data))
            assert seen == list(range(victim))


def _read_into(seen: list[int], data: bytes) -> None:
    for batch in read_segment(file_of(data, "old.log")):
        seen += batch.offsets().tolist()


def test_runs_end_where_the_kind_changes() -> None:
    """Magic 0, 1, compressed ones and batches of magic 2 may follow each other."""
    parts = [
        messages(0, 5),
        messages(1, 5, 5),
        encode_message_set(numbered(5), 1, compression=Compression.GZIP, base_offset=10),
        messages(1, 5, 15),
        encode_batch(numbered(5), record_format="kafka", base_offset=20),
        messages(1, 5, 30),
    ]
    found = read(b"".join(parts))
    assert [batch.record_count for batch in found] == [5] * 6
    assert offsets(found) == [*range(25), *range(30, 35)]
    assert [batch.header.magic for batch in found] == [0, 1, 1, 1, 2, 1]


def test_each_message_keeps_its_own_time() -> None:
    """With log append time too, which in a wrapper is the wrapper's."""
    records = numbered(COUNT)
    data = bytearray(encode_message_set(records, 1))
    (batch,) = read(bytes(data))
    times = batch.records.column("timestamp").cast("int64").to_pylist()
    assert times == records.column("timestamp").cast("int64").to_pylist()
    assert batch.header.max_timestamp_ms == max(times)


def test_a_dump_shows_messages_one_by_one_or_joined() -> None:
    """The sizes add up to the file both ways; joined, damage is one message still."""
    data = bytearray(messages(1))
    data[-1] ^= 1
    for joins, count in ((False, COUNT), (True, 2)):
        found = list(dump_segment(file_of(bytes(data), "old.log"), joins_messages=joins))
        assert len(found) == count
        assert sum(batch.size_bytes for batch in found) == len(data)
        assert [batch.damage is None for batch in found] == [True] * (count - 1) + [False]
        assert b"".join(bytes(batch.data) for batch in found) == bytes(data)
