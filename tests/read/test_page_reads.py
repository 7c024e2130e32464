"""Consumers decode the pages of Parquet files that they return records of, and no others."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from tests.support.segments.decoded_rows import count_decoded
from txnlog import ConsumerConfig
from txnlog.names import TopicPartition
from txnlog.segments.parquet import open_segment, writer
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

COUNT = 1000


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call has decoded, of small pages."""
    monkeypatch.setattr(writer, "_RECORD_PAGE_BYTES", 4 << 10)
    monkeypatch.setattr(open_segment, "_SMALL_BYTES", 0)
    return count_decoded(monkeypatch)


@pytest.fixture
def store(decoded: list[int]) -> Store:
    """A topic with one row group of records of 100 bytes, each a millisecond after the last."""
    del decoded
    store = attach(HeapStorage(), create=True, clock=VirtualClock())
    store.topics.create("t", config={"record.format": "parquet"})
    rows = pa.table({
        "value": pa.array([b"%0100d" % number for number in range(COUNT)], pa.binary()),
        "timestamp": pa.array(range(COUNT), pa.timestamp("ms", "UTC")),
    })  # fmt: skip
    with store.producer() as producer:
        producer.send_batch("t", rows.combine_chunks().to_batches()[0])
    return store


def test_a_poll_decodes_what_it_returns(store: Store, decoded: list[int]) -> None:
    """The first one a page; the next ones go on where it has ended, from what is decoded first."""
    with closing(store.consumer("t", auto_offset_reset="earliest")) as consumer:
        assert [record.offset for record in consumer.poll(max_records=5)] == [*range(5)]
        assert len(decoded) == 1
        page_rows = decoded[0]
        assert page_rows < 50
        seen = 5
        while seen < COUNT:
            found = consumer.poll(max_records=7)
            assert [record.offset for record in found] == [*range(seen, seen + len(found))]
            assert [int(record.value or b"") for record in found] == [r.offset for r in found]
            seen += len(found)
            assert sum(decoded) - seen < 2 * page_rows
    assert sum(decoded) == COUNT


def test_batches_of_a_poll_are_pages(store: Store, decoded: list[int]) -> None:
    """As many as the bytes of a partition allow."""
    with closing(
        store.consumer(
            "t",
            auto_offset_reset="earliest",
            config=ConsumerConfig(max_partition_fetch_bytes=10_000),
        )
    ) as consumer:
        found = consumer.poll_batches()[TopicPartition("t", 0)]
    assert sum(batch.num_rows for batch in found) < 150
    assert sum(decoded) < 200


def test_positions_and_times_in_a_row_group_read_a_page(store: Store, decoded: list[int]) -> None:
    """Seeking, reading from an offset on, and finding a time."""
    where = TopicPartition("t", 0)
    with closing(store.consumer(auto_offset_reset="earliest")) as consumer:
        consumer.assign([where])
        consumer.seek(where, 900)
        assert consumer.poll(max_records=1)[0].offset == 900
        assert sum(decoded) < 50
        decoded.clear()
        found = consumer.offsets_for_times({where: 700})[where]
        assert found is not None
        assert found.offset == 700
        assert sum(decoded) < 100
