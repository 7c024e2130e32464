"""A producer outlives its topic: what it sends once nothing waits goes to the one made anew."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.support.steps import another, begin, upload, values
from txnlog import Producer, Store
from txnlog.config import AcksValue
from txnlog.errors import InvalidRecord, RecordTooLarge, UnknownTopicOrPartition
from txnlog.testing import FaultyStorage, VirtualClock
from txnlog.write.deliveries import FutureRecordMetadata
from txnlog.write.topic_buffer import METADATA_MAX_AGE_S

pytestmark = pytest.mark.store(topics={}, on="heap")

OLD, NEW = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])


def make(store: Store, *, typed: bool, partitions: int, schema: pa.Schema) -> None:
    store.topics.create("t", partitions=partitions, schema=schema if typed else None)


def write(producer: Producer, value: object, partition: int | None, *, transactional: bool) -> None:
    if transactional:
        producer.begin_transaction()
    producer.send("t", value, partition=partition)
    producer.commit_transaction() if transactional else producer.flush()


def wait_for_background(producer: Producer) -> None:
    if (background := producer._background) is not None:
        for future in background._waiting:
            future.result()


@pytest.mark.parametrize("partition", [None, 4])
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("transactional", "acks"), [(False, "all"), (True, "all"), (False, 0)])
def test_an_idle_producer_takes_the_topic_as_it_is(
    store: Store,
    clock: VirtualClock,
    partition: int | None,
    typed: bool,
    transactional: bool,
    acks: AcksValue,
) -> None:
    """Nothing is lost, nor refused for ever: by its first look at the topic's metadata."""
    make(store, typed=typed, partitions=2, schema=OLD)
    producer = store.producer(transactional_id="x" if transactional else None, acks=acks)
    if transactional:
        producer.init_transactions()
    write(producer, {"a": 1} if typed else b"old", None, transactional=transactional)
    wait_for_background(producer)
    store.topics.delete("t")
    make(store, typed=typed, partitions=5, schema=NEW)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    for _ in range(2):
        write(producer, {"b": "new"} if typed else b"new", partition, transactional=transactional)
    producer.close()
    column = "b" if typed else "value"
    found = another(store).scan("t", columns=[column]).to_arrow().column(0).to_pylist()
    assert found == ["new" if typed else b"new"] * 2


def test_what_waits_for_the_old_topic_is_refused(store: Store, clock: VirtualClock) -> None:
    """It is no record of the new one; the next is."""
    store.topics.create("t", partitions=2)
    producer = store.producer()
    old = producer.send("t", b"old")
    store.topics.delete("t")
    store.topics.create("t", partitions=5)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    producer.send("t", b"old too")
    with pytest.raises(UnknownTopicOrPartition):
        producer.flush()
    assert isinstance(old.exception(timeout=0), UnknownTopicOrPartition)
    write(producer, b"new", 4, transactional=False)
    assert another(store).scan("t").to_arrow().column("value").to_pylist() == [b"new"]


@pytest.mark.parametrize("way", ["send", "send_batch"])
@pytest.mark.parametrize("acks", ["all", 0])
def test_who_is_told_of_a_refusal_may_send_more(store: Store, acks: AcksValue, way: str) -> None:
    """One flush is refused when a topic is made anew: what is sent from then on is not."""
    store.topics.create("t")
    producer = store.producer(acks=acks)
    write(producer, b"old", None, transactional=False)
    wait_for_background(producer)
    recreate(store)
    looks: list[bool] = []

    def note(told: FutureRecordMetadata) -> None:
        assert isinstance(told.exception(), UnknownTopicOrPartition)
        buffer = producer._records.by_topic.get("t")
        looks.append(buffer is None or buffer.outdated)

    producer.send("t", b"old").add_done_callback(note)
    with suppress(UnknownTopicOrPartition):
        producer.flush()
    wait_for_background(producer)
    assert looks == [True]
    if way == "send":
        producer.send("t", b"new")
    else:
        producer.send_batch("t", [{"value": b"new"}])
    producer.close()
    assert values(another(store)) == [b"new"]


def test_without_acks_what_follows_refused_records_is_written(store: Store) -> None:
    """The next ones look at the topic again, however new its metadata is."""
    store.topics.create("t", partitions=2)
    producer = store.producer(acks=0)
    write(producer, b"old", None, transactional=False)
    wait_for_background(producer)
    store.topics.delete("t")
    store.topics.create("t", partitions=5)
    for turn in range(4):
        write(producer, b"%d" % turn, None, transactional=False)
        wait_for_background(producer)
    producer.close()
    found = another(store).scan("t").to_arrow().column("value").to_pylist()
    assert found == [b"1", b"2", b"3"]


def test_it_is_looked_at_with_the_next_record(store: Store) -> None:
    """Though others wait for their flush."""
    store.topics.create("t")
    producer = store.producer()
    producer.send("t", b"x")
    producer._records.look_again("t")
    assert producer._records.by_topic["t"].outdated
    producer.send("t", b"x")
    assert producer._records.by_topic["t"].fresh_until_s > 0
    producer.close()


@dataclass(frozen=True)
class Kind:
    """A topic, and a record that topics of some other kinds refuse; as a row of a batch, too."""

    config: dict[str, str]
    record: dict[str, Any]
    schema: pa.Schema | None = None
    partitions: int = 1

    def make(self, store: Store) -> None:
        store.topics.create("t", config=self.config, schema=self.schema, partitions=self.partitions)

    def send(self, producer: Producer, way: str) -> None:
        if way == "send":
            producer.send("t", **self.record)
            return
        row = {name.removesuffix("_ms"): value for name, value in self.record.items()}
        producer.send_batch("t", [row if self.schema is None else row["value"]])


KINDS = {
    "plain": Kind({}, {"value": b"x"}),
    "compacted": Kind({"cleanup.policy": "compact"}, {"value": b"x", "key": b"k"}),
    "wide": Kind({}, {"value": b"x", "partition": 4}, partitions=5),
    "small": Kind({"max.message.bytes": "100"}, {"value": b"x"}),
    "large": Kind({}, {"value": b"x" * 1000}),
    "punctual": Kind({"message.timestamp.before.max.ms": "1"}, {"value": b"x"}),
    "late": Kind({}, {"value": b"x", "timestamp_ms": 1}),
    "typed": Kind({}, {"value": {"a": -1}}, OLD),
    "checked": Kind({"constraint.positive": "a > 0"}, {"value": {"a": 1}}, OLD),
    "typed otherwise": Kind({}, {"value": {"b": "x"}}, NEW),
}


def in_both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """With each way to send. A batch is measured when it is uploaded, and not sent again."""
    return [
        (old, new, way)
        for (old, new), way in itertools.product(pairs, ("send", "send_batch"))
        if (old, new, way) != ("small", "large", "send_batch")
    ]


@pytest.mark.few(106)
@pytest.mark.parametrize(("old", "new", "way"), in_both_ways(itertools.product(KINDS, KINDS)))
def test_no_record_is_refused_for_what_its_topic_was(
    store: Store, old: str, new: str, way: str
) -> None:
    """At once, of whatever kind it was; only what was taken for the old one is lost by a flush."""
    KINDS[old].make(store)
    producer = store.producer()
    KINDS[old].send(producer, way)
    producer.flush()
    store.topics.delete("t")
    KINDS[new].make(store)
    KINDS[new].send(producer, way)
    try:
        producer.flush()
    except UnknownTopicOrPartition:
        KINDS[new].send(producer, way)
        producer.flush()
    assert another(store).scan("t").record_count == 1


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "way"),
    in_both_ways(
        [
            ("plain", "wide"),
            ("compacted", "plain"),
            ("small", "large"),
            ("large", "small"),
            ("punctual", "late"),
            ("checked", "typed"),
        ]
    ),
)
def test_no_record_is_refused_for_what_was_altered(
    store: Store, old: str, new: str, waits: bool, way: str
) -> None:
    """At once, too; what waits for the same topic is written with it."""
    KINDS[old].make(store)
    producer = store.producer()
    KINDS[old].send(producer, way)
    if not waits:
        producer.flush()
    partitions = KINDS[new].partitions
    config = dict.fromkeys(KINDS[old].config) | KINDS[new].config
    store.topics.alter("t", config=config, partitions=partitions if partitions > 1 else None)
    KINDS[new].send(producer, way)
    producer.flush()
    assert another(store).scan("t").record_count == 2


REFUSALS: dict[str, tuple[str, list[Any], str]] = {
    "kind": ("plain", [1], "must be bytes, a string or None"),
    "size": ("small", [b"x" * 1000], "larger than the 100"),
    "time": ("punctual", [b"x", None, None, 1], "allows a difference of 1 ms"),
    "partition": ("plain", [b"x", None, 4], "no partition 4"),
    "key": ("compacted", [b"x"], "has no key"),
    "column": ("typed", [{"b": "x"}], "not in its schema"),
    "constraint": ("checked", [{"a": -1}], "positive"),
}
"""A kind of topic, what it refuses, and what it says then."""


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(("kind", "wrong", "says"), REFUSALS.values(), ids=REFUSALS)
def test_records_that_are_wrong_are_refused_as_before(
    store: Store, clock: VirtualClock, kind: str, wrong: list[Any], says: str, flushes: bool
) -> None:
    """By an error that says what is wrong, after one look at the topic in a second."""
    KINDS[kind].make(store)
    counting = FaultyStorage(store.storage)
    producer = another(store, counting).producer()
    looks = []
    for second in range(3):
        clock.time_ms = 1_700_000_000_000 + 1000 * second
        KINDS[kind].send(producer, "send")
        if flushes:
            producer.flush()
        counting.requests.clear()
        for _ in range(20):
            with pytest.raises((InvalidRecord, RecordTooLarge), match=says):
                producer.send("t", *wrong)
        looks.append([*counting.requests])
    assert looks == [["list topics/t/log"]] * 3
    producer.flush()
    assert another(store).scan("t").record_count == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_topic_that_refuses_is_looked_at_again(
    store: Store, clock: VirtualClock, waits: bool
) -> None:
    """A second after a look that found it as it was; at once if it was another one already."""
    store.topics.create("t")
    producer = store.producer(transactional_id="x", transaction_timeout_ms=900_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"old")
    if waits:
        recreate(store)
    with pytest.raises(InvalidRecord, match="no partition 4"):
        producer.send("t", b"new", partition=4)
    producer.abort_transaction()
    if not waits:
        recreate(store)
        clock.time_ms += 1000
    write(producer, b"new", 4, transactional=True)
    assert values(another(store)) == [b"new"]


def name_a_new_partition(store: Store, producer: Producer, clock: VirtualClock) -> None:
    recreate(store)
    producer.send("t", b"new", partition=4)


def name_one_in_a_column(store: Store, producer: Producer, clock: VirtualClock) -> None:
    recreate(store)
    producer.send_batch("t", [{"value": b"new", "partition": 4}])


def send_a_row(store: Store, producer: Producer, clock: VirtualClock) -> None:
    store.topics.delete("t")
    store.topics.create("t", partitions=5, schema=pa.schema([("value", pa.binary())]))
    producer.send("t", {"value": b"new"})


def wait_until_metadata_is_old(store: Store, producer: Producer, clock: VirtualClock) -> None:
    recreate(store)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    producer.send("t", b"new")


def flush_to_an_altered_topic(store: Store, producer: Producer, clock: VirtualClock) -> None:
    """It goes on with the altered one then."""
    store.topics.alter("t", partitions=3)
    producer.send("t", b"old too")
    producer.flush()
    recreate(store)
    producer.send("t", b"new")


def flush_to_many_topics(store: Store, producer: Producer, clock: VirtualClock) -> None:
    """Old metadata of those with nothing to write is forgotten then."""
    recreate(store)
    clock.time_ms += int(METADATA_MAX_AGE_S * 1000) + 1
    producer._records._forget_idle()
    assert "t" not in producer._records.by_topic
    producer.send("t", b"new")


def recreate(store: Store) -> None:
    store.topics.delete("t")
    store.topics.create("t", partitions=5)


@pytest.mark.store(topics={"t": 2, "other": 1}, on="heap")
@pytest.mark.parametrize(
    "go_on",
    [
        name_a_new_partition,
        name_one_in_a_column,
        send_a_row,
        wait_until_metadata_is_old,
        flush_to_an_altered_topic,
        flush_to_many_topics,
    ],
)
def test_a_transaction_does_not_go_on_in_the_new_topic(
    store: Store, clock: VirtualClock, go_on: Callable[[Store, Producer, VirtualClock], None]
) -> None:
    """What it had written to the old one is gone: it is aborted as a whole; the next is not."""
    producer = begin(store, timeout_ms=900_000)
    for topic in ("t", "other"):
        producer.send(topic, b"old")
    producer.flush()
    go_on(store, producer, clock)
    with pytest.raises(UnknownTopicOrPartition, match="'t' was deleted and recreated since"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert [values(another(store), topic) for topic in ("t", "other")] == [[], []]
    new = {"value": b"new"} if go_on is send_a_row else b"new"
    write(producer, new, 4, transactional=True)
    assert values(another(store)) == [b"new"]


@pytest.mark.store(topics={"t": 2}, on="heap")
@pytest.mark.parametrize("newest_first", [False, True])
def test_uploads_for_two_topics_of_a_name_are_not_placed_together(
    store: Store, newest_first: bool
) -> None:
    """A job's tasks may have looked at the topic at different times."""
    uploaded = upload(store, b"old")
    recreate(store)
    uploaded += upload(store, b"new")
    with pytest.raises(UnknownTopicOrPartition, match="'t' was deleted and recreated since"):
        store.logs.topic("t").place(uploaded[::-1] if newest_first else uploaded)
    assert values(another(store)) == []


@pytest.mark.parametrize("way", ["send", "send_batch"])
def test_without_acks_what_is_sent_after_a_refusal_is_written(store: Store, way: str) -> None:
    """Also if something was waiting for the old topic already."""
    store.topics.create("t", partitions=2)
    producer = store.producer(acks=0)
    write(producer, b"old", None, transactional=False)
    wait_for_background(producer)
    store.topics.delete("t")
    store.topics.create("t", partitions=5)
    release = threading.Event()
    background = producer._background
    assert background is not None
    assert background._pool is not None
    background._pool.submit(release.wait)
    write(producer, b"refused", None, transactional=False)
    waiting = producer.send("t", b"waiting")
    release.set()
    wait_for_background(producer)
    sent = [b"%d" % number for number in range(3)]
    for value in sent:
        if way == "send":
            producer.send("t", value, partition=4)
        else:
            producer.send_batch("t", [{"value": value}], partition=4)
    producer.close()
    assert isinstance(waiting.exception(timeout=0), UnknownTopicOrPartition)
    assert values(another(store)) == sent
