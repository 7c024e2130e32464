"""A producer at work while its topic is altered: what it has accepted is written."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.steps import another, values
from txnlog import Producer, Store
from txnlog.config import CompressionType
from txnlog.errors import InvalidRecord
from txnlog.inspect.segments import open_segment
from txnlog.segments.batch_header import Compression
from txnlog.segments.inspect.dump import dump_segment
from txnlog.testing import VirtualClock
from txnlog.write.topic_buffer import METADATA_MAX_AGE_S

pytestmark = pytest.mark.store(topics={}, on="heap")

KAFKA: dict[str, object] = {"record.format": "kafka"}
ALTERATIONS: dict[str, tuple[dict[str, object], dict[str, Any], dict[str, Any]]] = {
    "codec": (KAFKA, {"config": {"record.format": None}}, {}),
    "format": ({}, {"config": {"record.format": "kafka"}}, {}),
    "own codec": ({}, {"config": {"compression.type": "none"}}, {}),
    "size": ({}, {"config": {"max.message.bytes": 400}}, {"value": b"x" * 1000}),
    "time": ({}, {"config": {"message.timestamp.before.max.ms": 1}}, {"timestamp_ms": 1}),
    "stamps": ({}, {"config": {"message.timestamp.type": "LogAppendTime"}}, {}),
    "keys": ({}, {"config": {"cleanup.policy": "compact"}}, {"key": None}),
    "partitions": ({}, {"partitions": 5}, {}),
}
"""Settings that a topic is made with, how it is altered, and what may be sent to it before."""
PRODUCERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "transactional": {"transactional_id": "i", "transaction_timeout_ms": 900_000},
    "without acks": {"acks": 0},
}


def send(producer: Producer, way: str, topic: str, **record: Any) -> None:
    record = {"value": b"v", "key": b"k", **record}
    if way == "send":
        producer.send(topic, **record)
    else:
        row = {name.removesuffix("_ms"): value for name, value in record.items()}
        producer.send_batch(topic, [row])


def look(store: Store, producer: Producer, clock: VirtualClock, reason: str) -> None:
    """Make the producer look at the topic."""
    if reason == "refusal":
        with pytest.raises(InvalidRecord):
            producer.send("t", b"v", key=b"k", partition=9)
    elif reason == "age":
        clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    else:
        producer.flush()
        if (background := producer._background) is not None:
            for future in background._waiting:
                future.result()


@pytest.mark.few(8)
@pytest.mark.parametrize("way", ["send", "send_batch"])
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param(settings, reason, id=f"{kind}-{reason}")
        for kind, settings in PRODUCERS.items()
        for reason in ("age", "refusal", "flush")
        if (kind, reason) != ("transactional", "refusal")  # which ends the transaction
    ],
)
@pytest.mark.parametrize(("config", "change", "before"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_what_was_accepted_is_written(
    store: Store,
    clock: VirtualClock,
    config: dict[str, object],
    change: dict[str, Any],
    before: dict[str, Any],
    settings: dict[str, Any],
    reason: str,
    way: str,
) -> None:
    """To this topic and to others, in each way to send and to look at the topic."""
    for topic in ("t", "other"):
        store.topics.create(topic, config=config)
    codec: CompressionType = "gzip" if config is KAFKA else "zstd"
    producer = another(store).producer(compression_type=codec, **settings)
    is_transactional = "transactional_id" in settings
    if is_transactional:
        producer.init_transactions()
        producer.begin_transaction()
    send(producer, way, "other")
    send(producer, way, "t", **before)
    store.topics.alter("t", **change)
    look(store, producer, clock, reason)
    for _ in range(2):
        send(producer, way, "t")
        look(store, producer, clock, "flush")
    if is_transactional:
        producer.commit_transaction()
    producer.close()
    assert len(values(another(store))) == 3
    assert len(values(another(store), "other")) == 1


def codecs(store: Store, topic: str) -> list[Compression]:
    """Of the topic's batches, in their order."""
    return [
        batch.header.codec
        for segment in store.topics.segments(topic)
        for batch in dump_segment(open_segment(store.storage, segment))
        if batch.header is not None
    ]


def test_a_codec_that_fits_no_more_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Once; the other topics are written with it as before."""
    for topic in ("t", "u"):
        store.topics.create(topic, config=KAFKA)
    producer = another(store).producer(compression_type="gzip")
    with caplog.at_level(logging.WARNING):
        for turn in range(3):
            for topic in ("t", "u"):
                producer.send(topic, b"x" * 1000)
            producer.flush()
            if turn == 0:
                store.topics.alter("t", config={"record.format": "columns"})
    (told,) = [record.getMessage() for record in caplog.records]
    assert "topic 't' is its own from now on: topic config compression.type: gzip needs" in told
    producer.close()
    gzip, lz4 = Compression.GZIP, Compression.LZ4
    assert codecs(store, "t") == [gzip, gzip, lz4]
    assert codecs(store, "u") == [gzip] * 3
