"""What the headers of batches in Kafka's format tell of their producer, and who decides."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.support.steps import another, begin
from txnlog.names import SegmentRef
from txnlog.producer import Producer
from txnlog.segments.batch_header import BatchHeader
from txnlog.segments.batches import decode_header
from txnlog.store import Store
from txnlog.testing import VirtualClock

with warnings.catch_warnings():  # kafka-python loads its messages in a way that 3.11 warns of
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords

ROWS = {"record.format": "kafka"}
pytestmark = pytest.mark.store(on="heap", topics={"t": 2}, topic_config=ROWS)
WEEK_MS = 7 * 86_400_000


def bytes_of(store: Store) -> list[bytes]:
    """Each placed segment, by partition and offset."""
    found = []
    for segment in another(store).topics.segments("t"):
        ref = SegmentRef("t", segment.partition, segment.name, segment.position)
        start = max(segment.position, 0)
        found.append(store.storage.get_range(ref.paths.log, start, start + segment.size_bytes))
    return found


def headers(store: Store) -> list[BatchHeader]:
    return [decode_header(data) for data in bytes_of(store)]


def send_twice(producer: Producer) -> None:
    for _ in range(2):
        for partition in (0, 1):
            producer.send("t", b"1", partition=partition)
            producer.send("t", b"2", partition=partition)
        producer.flush()


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("own_files", [True, False])
def test_kafkas_own_tools_find_the_producer(
    store: Store, monkeypatch: pytest.MonkeyPatch, transactional: bool, own_files: bool
) -> None:
    """In each batch, of files of its own and shared ones; sequences are the segment's own."""
    if own_files:
        monkeypatch.setattr("txnlog.write.segment_uploads.SHARED_FILE_BYTES", 0)
    if transactional:
        begin(store, "p").abort_transaction()  # this one's epoch is not the first
        producer = begin(store, "p")
        send_twice(producer)
        producer.commit_transaction()
    else:
        with store.producer() as producer:
            send_twice(producer)
    placed = another(store).topics.segments("t")
    assert {segment.position >= 0 for segment in placed} == {not own_files}
    assert [segment.base_sequence for segment in placed] == [0, 2, 0, 2]
    for data, segment in zip(bytes_of(store), placed, strict=True):
        batch = MemoryRecords(data).next_batch()
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch) == (
            segment.producer_id,
            segment.producer_epoch,
        )
        assert batch.producer_id >= 0
        assert batch.base_sequence == batch.base_offset == 0
        assert [record.value for record in batch] == [b"1", b"2"]
    assert {segment.producer_epoch for segment in placed} == {int(transactional)}


def test_who_was_forgotten_after_the_upload_is_in_the_header_and_not_in_the_log(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    """The entry decides, in exports too: the header tells what was known when it was written."""
    producer = store.producer()
    producer.send("t", b"before", partition=0)
    producer.flush()
    producer.send("t", b"uploaded", partition=0)
    producer._records.by_topic["t"].upload()
    for _ in range(9):  # others pass the topic's time on
        clock.time_ms += WEEK_MS
        with another(store).producer() as other:
            other.send("t", b"other", partition=1)
    producer.flush()
    first, second = (s for s in another(store).topics.segments("t", partition=0))
    of_first, of_second = headers(store)[:2]
    assert (of_first.producer_id, first.base_sequence) == (first.producer_id, 0)
    assert of_second.producer_id == first.producer_id != second.producer_id
    assert second.base_sequence == 0
    store.kafka.export_topic("t", str(tmp_path))
    records = MemoryRecords((tmp_path / "t-0" / f"{0:020d}.log").read_bytes())
    for segment in (first, second):
        batch = records.next_batch()
        assert (batch.producer_id, batch.base_sequence) == (segment.producer_id, 0)


def test_merged_segments_have_no_producer(store: Store) -> None:
    """They hold the records of several."""
    for _ in range(4):
        with store.producer() as producer:
            producer.send("t", b"v", partition=0)
    assert store.maintenance.merge("t")
    (header,) = headers(store)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (-1, -1, 4)
