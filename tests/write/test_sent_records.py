"""Records that are sent one by one become columns: each keeps what it was sent with."""

from __future__ import annotations

import random

import pytest

import txnlog.producer
from tests.support.runtime.call_counts import calls_of
from txnlog.names import TopicPartition
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write import topic_buffer
from txnlog.write.record_checks import Headers


class Text(bytes):
    """A kind of bytes: taken like any."""


@pytest.mark.parametrize("seed", range(12))
def test_each_record_keeps_what_it_was_sent_with(
    seed: int, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times, headers, partitions, nulls and text of some records are those of no other."""
    for module in (txnlog.producer, topic_buffer):
        monkeypatch.setattr(module, "ROWS_PER_BATCH", 30)
    rng = random.Random(seed)
    store = attach(HeapStorage(), create=True, clock=clock)
    store.topics.create("t", partitions=2)
    often = [rng.choice((0, 0, 0.2, 1)) for _ in range(6)]
    expected: dict[int, list[tuple[object, ...]]] = {0: [], 1: []}
    with store.producer() as producer:
        for number in range(100):
            nulls, timed, headed, placed, typed, plain = (rng.random() < share for share in often)
            text = f"välue {number}"
            kind = Text if typed else bytes
            value = None if nulls else kind(text.encode()) if typed or plain else text
            time_ms = rng.randrange(2**40) if timed else None
            headers: Headers | None = rng.choice((None, ()))
            headers = [("h", b"%d" % number), ("n", None)] if headed else headers
            partition = rng.randrange(2) if placed else number % 2
            producer.send("t", value, b"%d" % number, partition, time_ms, headers)
            expected[partition].append(
                (
                    *(b"%d" % number, None if nulls else text.encode()),
                    *(clock.now_ms() if time_ms is None else time_ms, tuple(headers or ())),
                )
            )
    consumer = store.consumer(auto_offset_reset="earliest", stop_at_end=True)
    for partition, sent in expected.items():
        consumer.assign([TopicPartition("t", partition)])
        found = [(r.key, r.value, r.timestamp, r.headers) for r in consumer]
        assert found == sent


def test_a_record_of_bytes_takes_one_call() -> None:
    """Not more, or most of the time of a loop of sends goes into calls. Batches come besides."""
    store = attach(HeapStorage(), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"the topic is looked up")

        def send() -> None:
            for number in range(1000):
                producer.send("t", b"%d" % number, b"key")

        assert calls_of(send) == 1 + 1000
