"""Sequence numbers after 2^31 - 1, through the real append path: they go on at 0, as in Kafka.

Two thousand million records are one segment that was never uploaded: placing it is real, and it is
never read.
"""

from __future__ import annotations

import pytest

from tests.support.steps import begin
from txnlog.errors import CommitStateUnknown, OutOfOrderSequence, StorageError
from txnlog.log.uploads import IdempotentWriter, UploadedSegment
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.state.segment import StoredSegment
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

LAST = 2**31 - 1
T0 = TopicPartition("t", 0)


def huge(store: Store, record_count: int) -> UploadedSegment:
    spec = store.logs.topic_spec("t")
    return UploadedSegment("t", spec.topic_id, 0, StoredSegment("huge-0", record_count, 1, 1, 1))


def plain_before_the_wrap(store: Store, next_sequence: int) -> Producer:
    """A producer whose next record to the topic has this sequence."""
    producer = store.producer(delivery_timeout_ms=0)
    producer.send("t", b"first")
    producer.flush()
    writer = producer._plain._writer("t")
    store.logs.topic("t").place([huge(store, next_sequence - 1)], writer=writer)
    return producer


def send(producer: Producer, *values: str) -> None:
    for value in values:
        producer.send("t", value)


def tail(store: Store, start: int) -> list[str]:
    table = store.scan("t", {0: start}).to_arrow()
    return [value.decode() for value in table.column("value").to_pylist()]


def sequences(store: Store) -> list[int]:
    return [segment.base_sequence for segment in store.topics.segments("t")]


@pytest.mark.parametrize("before", [1, 3, 5])
def test_a_batch_wraps(store: Store, clock: VirtualClock, before: int) -> None:
    """Five records of which so many still fit: the next batch begins where the wrap has led."""
    start = LAST + 1 - before
    producer = plain_before_the_wrap(store, start)
    send(producer, *"abcde")
    assert producer.flush() == {T0: [range(start, start + 5)]}
    if before == 3:
        store.logs.topic("t").checkpoint()
    send(producer, "f")
    assert producer.flush() == {T0: [range(start + 5, start + 6)]}
    assert sequences(store) == [0, 1, start, 5 - before]
    (known,) = attach(store.storage, clock=clock).transactions.producers("t")
    assert known.last_sequence == 5 - before
    assert tail(attach(store.storage, clock=clock), start) == list("abcdef")


def test_a_repeat_over_the_wrap_is_recognised(store: Store, clock: VirtualClock) -> None:
    """Condition 4 there: the original offsets, no second copy; a gap is a gap."""
    start = LAST - 1
    producer = plain_before_the_wrap(store, start)
    send(producer, *"abcd")
    producer.flush()
    writer = producer._plain._writer("t")
    assert writer.sequences == {0: 2}
    log = attach(store.storage, clock=clock).logs.topic("t")
    log.refresh()
    again = IdempotentWriter(writer.producer, {0: start})
    spec, name = store.logs.topic_spec("t"), store.topics.segments("t")[-1].name
    repeat = UploadedSegment("t", spec.topic_id, 0, StoredSegment(name, 4, 1, 1, 1))
    repeated = log.place([repeat], writer=again)
    assert (repeated.entry, repeated.offsets) == (None, {T0: range(start, start + 4)})
    assert again.sequences == {0: 2}
    for sequence in (3, LAST, 0):
        with pytest.raises(OutOfOrderSequence, match="where 2 is next"):
            log.place([repeat], writer=IdempotentWriter(writer.producer, {0: sequence}))
    assert tail(store, start) == list("abcd")


def test_a_flush_in_doubt_over_the_wrap(store: Store, clock: VirtualClock) -> None:
    """Flushing again after an unknown outcome places it once."""
    start = LAST
    producer = plain_before_the_wrap(store, start)
    log = producer._logs.topic("t").log
    real = log.create

    def losing(
        number: int, data: bytes, newest_file: int | None = None, *, decided: bool = False
    ) -> bool:
        real(number, data, newest_file, decided=decided)
        raise StorageError("the connection was reset")

    log.create = losing  # type: ignore[method-assign]
    send(producer, *"abc")
    with pytest.raises(CommitStateUnknown):
        producer.flush()
    log.create = real  # type: ignore[method-assign]
    assert producer.flush() == {T0: [range(start, start + 3)]}
    send(producer, "d")
    producer.flush()
    assert sequences(store) == [0, 1, start, 2]
    assert tail(attach(store.storage, clock=clock), start) == list("abcd")


def test_a_transactional_producer_wraps(store: Store, clock: VirtualClock) -> None:
    """Its sequences go on over transactions, and over the wrap."""
    producer = begin(store, "p")
    assert producer._coordinator is not None
    producer._coordinator.place({"t": [huge(store, LAST)]})
    send(producer, *"abc")
    producer.flush()
    producer.commit_transaction()
    with producer.transaction():
        send(producer, "d")
    assert sequences(store) == [0, LAST, 2]
    assert tail(attach(store.storage, clock=clock), LAST) == list("abcd")


def test_segments_of_one_append_wrap(store: Store) -> None:
    """Several segments of a partition in one entry: each has the sequence it begins with."""
    spec = store.logs.topic_spec("t")
    parts = [
        UploadedSegment("t", spec.topic_id, 0, StoredSegment(f"part-{number}", count, 1, 1, 1))
        for number, count in enumerate((LAST - 1, 4, 5))
    ]
    store.logs.topic("t").place(parts, writer=IdempotentWriter.new("ab" * 16))
    assert sequences(store) == [0, LAST - 1, 2]
    (known,) = store.transactions.producers("t")
    assert known.last_sequence == 6
