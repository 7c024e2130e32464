"""Records that are sent one by one become columns: each keeps what it was sent with."""

from __future__ import annotations

import random

import pytest

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
    monkeypatch.setattr(topic_buffer, "_ROWS_PER_BATCH", 30)
    rng = random.Random(seed)
    store = attach(HeapStorage(), create=True, clock=clock)
    store.create_topic("t", partitions=2)
    often = [rng.choice((0, 0, 0.2, 1)) for _ in range(5)]
    expected: dict[int, list[tuple[object, ...]]] = {0: [], 1: []}
    with store.producer() as producer:
        for number in range(100):
            nulls, timed, headed, placed, typed = (rng.random() < share for share in often)
            text = f"välue {number}"
            value = None if nulls else Text(text.encode()) if typed else text
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
