"""A topic whose record.format is kafka, end to end: it behaves like any other."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.segments.kafka_judges import JUDGES
from tests.support.segments.segment_layout import raw_batches
from tests.support.segments.segment_samples import random_records, rows_of
from txnlog import CompressionType
from txnlog.config import check_merged_topic_config, check_topic_config
from txnlog.errors import CorruptRecord, InvalidConfig
from txnlog.names import TopicPartition
from txnlog.segments.batch_header import CODEC_BITS, Compression
from txnlog.store import Store

KAFKA = {"record.format": "kafka"}
CODECS: list[CompressionType] = ["none", "gzip", "snappy", "lz4", "zstd"]
pytestmark = pytest.mark.store(on="disk", topics={})
assert set(CODECS) == {codec.kafka_name for codec in Compression}
T0 = TopicPartition("t", 0)


def segment_files(store: Store) -> list[Path]:
    return sorted(Path(store.url).glob("topics/*/data/*/*.log"))


@pytest.mark.parametrize("codec", CODECS)
def test_produce_scan_and_consume(store: Store, codec: str) -> None:
    """Every codec, through the producer and back by scan, consumer, offset and time."""
    store.topics.create("t", config={**KAFKA, "compression.type": codec})
    records = random_records(3_000, seed=11)
    with store.producer() as producer:
        producer.send_batch("t", records.slice(0, 2_000))
        producer.flush()
        producer.send_batch("t", records.slice(2_000))
        producer.send("t", b"last", key="k", timestamp_ms=5_000_000, headers=[("h", None)])
    table = store.scan("t").to_arrow()
    keys = [*records.column("key").to_pylist(), b"k"]
    assert table.column("key").to_pylist() == keys
    assert table.column("headers").to_pylist()[-1] == [{"key": "h", "value": None}]
    assert table.column("offset").to_pylist() == list(range(3_001))
    middle = store.scan("t", {0: 1_234}, {0: 2_345}, columns=["offset", "value"]).to_arrow()
    assert middle.column("offset").to_pylist() == list(range(1_234, 2_345))
    assert middle.column("value").to_pylist() == records.column("value").to_pylist()[1_234:2_345]
    with store.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2_500)
        assert [record.offset for record in consumer.poll(max_records=3)] == [2_500, 2_501, 2_502]
        (found,) = consumer.offsets_for_times({T0: 4_999_999}).values()
        assert found is not None
        assert (found.offset, found.timestamp) == (3_000, 5_000_000)


def test_many_batches_with_indexes(store: Store) -> None:
    """A segment of many batches has indexes, and a read from the middle fetches little."""
    store.topics.create("t", config={**KAFKA, "max.message.bytes": 4_000_000})
    value = Random(1).randbytes(1 << 20)
    with store.producer() as producer:
        for number in range(12):
            producer.send("t", value, key=str(number))
    (path,) = segment_files(store)
    assert len(raw_batches(path.read_bytes())) > 5
    assert path.with_suffix(".index").stat().st_size > 0
    table = store.scan("t", {0: 7}, columns=["key"]).to_arrow()
    assert table.column("key").to_pylist() == [b"7", b"8", b"9", b"10", b"11"]


def test_transactions(store: Store) -> None:
    """Isolation levels say the same of rows as of columns."""
    store.topics.create("t", config=KAFKA)
    store.topics.create("plain")
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"aborted")
    producer.flush()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"committed")
        producer.send("plain", b"committed")
    for topic in ("t", "plain"):
        assert store.scan(topic).to_arrow().column("value").to_pylist() == [b"committed"]
    everything = store.scan("t", isolation_level="read_uncommitted").to_arrow()
    assert everything.column("value").to_pylist() == [b"aborted", b"committed"]


@pytest.mark.parametrize("codec", CODECS)
def test_judges_read_the_files(store: Store, codec: str) -> None:
    """The stored files are in Kafka's format for other tools, with offsets from 0."""
    store.topics.create("t", config={**KAFKA, "compression.type": codec})
    records = random_records(500, seed=5)
    with store.producer() as producer:
        producer.send_batch("t", records)
    (path,) = segment_files(store)
    for judge in JUDGES:
        assert judge.read(path.read_bytes()) == (list(range(500)), rows_of(records))


def test_formats_change_with_the_setting(store: Store) -> None:
    """Altering the format changes what is written next; all of it is read."""
    store.topics.create("t")
    for config in ({}, KAFKA, {"compression.type": "gzip"}, {"compression.type": "zstd"}):
        store.topics.alter("t", config=config)
        with store.producer() as producer:
            producer.send("t", str(config) + " again" * 20)
    batches = [raw for path in segment_files(store) for raw in raw_batches(path.read_bytes())]
    assert sorted((raw.magic, raw.attributes & CODEC_BITS) for raw in batches) == [
        (2, 1),
        (2, 3),
        (2, 4),
        (102, 3),
    ]
    assert store.scan("t").record_count == len(store.scan("t").to_arrow()) == 4


@pytest.mark.condition(44)
def test_damage_is_reported(store: Store) -> None:
    """A flipped bit in a segment of rows names the file, the position and the offset."""
    store.topics.create("t", config=KAFKA)
    with store.producer() as producer:
        producer.send("t", b"x" * 100)
    (path,) = segment_files(store)
    data = bytearray(path.read_bytes())
    for at in (7, 26, 40, len(data) - 5):
        broken = bytearray(data)
        broken[at] ^= 16
        path.write_bytes(broken)
        with pytest.raises(CorruptRecord, match=rf"{path.name} at byte 0"):
            store.scan("t").to_arrow()


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_codecs_that_only_rows_have(store: Store, codec: str) -> None:
    """Gzip and snappy without record.format=kafka are refused with the way out."""
    for config in (
        {"compression.type": codec},
        {"compression.type": codec, "record.format": "columns"},
    ):
        with pytest.raises(InvalidConfig, match=rf"{codec} needs record\.format=kafka"):
            store.topics.create("t", config=config)
    with pytest.raises(InvalidConfig, match=rf"{codec} needs record\.format=kafka"):
        check_merged_topic_config({"compression.type": codec})
    assert store.topics.list() == []


def test_levels_of_codecs() -> None:
    """Gzip's levels are 1 to 9; a level of another codec is allowed and waits its turn."""
    assert check_topic_config({**KAFKA, "compression.gzip.level": 9})
    for level in (0, 10):
        with pytest.raises(InvalidConfig, match=r"compression\.gzip\.level"):
            check_topic_config({**KAFKA, "compression.gzip.level": level})


def _codecs(store: Store) -> list[tuple[str, int]]:
    """The codec of each segment's first batch, and the segment's size, in the order of offsets."""
    found = []
    for segment in store.topics.segments("t"):
        data = Path(store.url, f"topics/t/data/0/{segment.name}.log").read_bytes()
        found.append((Compression(data[22] & 7).kafka_name, len(data)))
    return found


@pytest.mark.parametrize("config", [KAFKA, {**KAFKA, "compression.type": "producer"}])
def test_a_producer_chooses_its_codec(store: Store, config: dict[str, str]) -> None:
    """Per-write override; lz4 if neither the topic nor the writer chooses."""
    store.topics.create("t", config=config)
    records = random_records(2_000, seed=3)
    choices: list[tuple[CompressionType | None, int | None]] = [
        (None, None),
        *((name, None) for name in CODECS),
        ("zstd", 19),
    ]
    for codec, level in choices:
        with store.producer(compression_type=codec, compression_level=level) as producer:
            producer.send_batch("t", records)
    found = _codecs(store)
    assert [name for name, _ in found] == ["lz4", *CODECS, "zstd"]
    assert found[-1][1] < found[-2][1]  # the higher level
    values = records.column("value").to_pylist() * len(found)
    assert store.scan("t", columns=["value"]).to_arrow().column("value").to_pylist() == values


@pytest.mark.parametrize("topic_codec", CODECS)
def test_the_topic_s_codec_decides(store: Store, topic_codec: str) -> None:
    """As in Kafka: whatever a writer chooses, even what the topic's own codec has no levels for."""
    store.topics.create("t", config={**KAFKA, "compression.type": topic_codec})
    for codec in CODECS:
        with store.producer(compression_type=codec) as producer:
            producer.send("t", b"1")
    with store.producer(compression_type="zstd", compression_level=19) as producer:
        producer.send("t", b"1")
    assert {name for name, _ in _codecs(store)} == {topic_codec}


def test_a_producer_cannot_choose_what_cannot_be(store: Store) -> None:
    """Unknown codecs, levels without meaning, and codecs that a topic's format lacks."""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"compression_type": "lzo"}, "'lzo' is not one of"),
        ({"compression_type": "producer"}, "'producer' is not one of"),
        ({"compression_type": "zstd", "compression_level": 99}, "99 is not between"),
        ({"compression_type": "snappy", "compression_level": 1}, "snappy has no levels"),
        ({"compression_level": 1}, "no effect without compression.type"),
    ]
    for given, said in refused:
        with pytest.raises(InvalidConfig, match=said):
            store.producer(**given)
    store.topics.create("t", config={"record.format": "columns"})
    with (
        store.producer(compression_type="gzip") as producer,
        pytest.raises(InvalidConfig, match=r"gzip needs record\.format=kafka"),
    ):
        producer.send("t", b"1")
    assert store.scan("t").record_count == 0
