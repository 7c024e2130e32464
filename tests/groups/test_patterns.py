"""Subscriptions by pattern: topics that are made, go and come again while consumers read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from tests.support.groups.consumer_options import consumer_options
from tests.support.groups.group_in_steps import Group, Told, take_part
from txnlog import ConsumerConfig
from txnlog.clock import Signal
from txnlog.consumer import Consumer
from txnlog.errors import InvalidOption, StorageError, UnknownTopicOrPartition
from txnlog.names import TopicPartition
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import Fault, FaultyStorage

MAX_AGE_MS = 300_000


class EntriesRefused(FaultyStorage):
    """Puts nothing into the group's log while it is told not to."""

    refuses = False

    def _fault(self, text: str) -> Fault | None:
        is_entry = text.startswith("put") and "groups/g/0" in text
        return Fault.FAIL if self.refuses and is_entry else None


def add(group: Group, topic: str, partitions: int = 2, values: str = "x") -> None:
    group.store.topics.create(topic, partitions=partitions)
    send(group, topic, values)


def send(group: Group, topic: str, values: str) -> None:
    with group.store.producer() as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=0)


def begin(group: Group, pattern: str = "logs-.*", name: str = "", **options: object) -> Consumer:
    consumer = group.process(options.pop("storage", None)).consumer(
        group_id=options.pop("group_id", "g"),  # type: ignore[arg-type]
        auto_offset_reset="earliest",
        **consumer_options(options),
    )
    consumer.subscribe(pattern=pattern, listener=Told(group, name, consumer))
    return consumer


def read(*consumers: Consumer) -> list[tuple[str, bytes | None]]:
    return sorted((r.topic, r.value) for c in consumers for r in c.poll(max_records=100))


def topics(*consumers: Consumer) -> list[str]:
    return sorted({where.topic for consumer in consumers for where in consumer.assignment()})


def entries(group: Group, kind: str) -> list[object]:
    return [e for e in group.store.groups.history("g") if e.kind == kind]


@pytest.mark.parametrize("group_id", ["g", None])
def test_topics_that_are_made_are_read_when_the_metadata_are_old(
    group: Group, group_id: str | None
) -> None:
    add(group, "logs-a", values="a")
    consumer = begin(group, group_id=group_id)
    assert read(consumer) == [("logs-a", b"a")]
    add(group, "logs-b", values="b")
    group.clock.time_ms += MAX_AGE_MS - 1
    assert read(consumer) == []
    group.clock.time_ms += 1
    assert read(consumer) == [("logs-b", b"b")]
    assert topics(consumer) == ["logs-a", "logs-b"]


@pytest.mark.parametrize("group_id", ["g", None])
def test_there_may_be_no_topic_yet_and_none_may_be_left(group: Group, group_id: str | None) -> None:
    consumer = begin(group, group_id=group_id, metadata_max_age_ms=1_000)
    assert read(consumer) == []
    assert consumer.assignment() == []
    for _ in range(2):
        add(group, "logs-a", values="a")
        group.clock.time_ms += 1_000
        assert read(consumer) == [("logs-a", b"a")]
        group.store.topics.delete("logs-a")
        assert read(consumer) == []
        group.clock.time_ms += 1_000
        assert read(consumer) == []
        assert consumer.assignment() == []


def test_a_poll_that_waits_finds_a_new_topic(group: Group) -> None:
    consumer = begin(group, metadata_max_age_ms=5_000)
    take_part(consumer)
    add(group, "logs-a", values="a")
    before = group.clock.time_ms
    (found,) = consumer.poll(timeout_ms=60_000)
    assert (found.topic, group.clock.time_ms - before <= 5_500) == ("logs-a", True)


def test_who_has_much_to_read_looks_all_the_same(group: Group) -> None:
    """Records fetched ahead are dropped once in that time, and fetched again."""
    add(group, "logs-a", 1, "abcd")
    consumer = begin(group)
    assert [r.value for r in consumer.poll(max_records=2)] == [b"a", b"b"]
    add(group, "logs-b", 1, "x")
    group.clock.time_ms += MAX_AGE_MS
    assert read(consumer) == [("logs-a", b"c"), ("logs-a", b"d"), ("logs-b", b"x")]


def test_members_learn_of_new_topics_from_each_other(group: Group) -> None:
    """The first one finds it; the others subscribe to what they read in the group's log."""
    add(group, "logs-a")
    one = begin(group, name="one", metadata_max_age_ms=1_000)
    two, other = begin(group, name="two"), begin(group, "other-.*|logs-a", name="other")
    group.rounds(one, two, other)
    add(group, "logs-b", 4)
    group.rounds(one, two, other, records=1)
    assert {where.topic for where in other.assignment()} <= {"logs-a"}
    assert topics(two) == topics(one, two) == ["logs-a", "logs-b"] or topics(two) == ["logs-b"]
    held = [where for c in (one, two, other) for where in c.assignment()]
    assert sorted(held) == sorted(
        [TopicPartition("logs-a", n) for n in range(2)]
        + [TopicPartition("logs-b", n) for n in range(4)]
    )


def test_a_topic_that_goes_costs_one_rebalance(group: Group) -> None:
    """A member that sees it gone triggers a rebalance; subscriptions follow with the next one."""
    add(group, "logs-a")
    add(group, "logs-b")
    members = [begin(group, metadata_max_age_ms=10_000) for _ in range(3)]
    group.rounds(*members, records=10)
    joined, assigned = (
        len(entries(group, kind)) for kind in ("members-joined", "partitions-assigned")
    )
    group.store.topics.delete("logs-b")
    group.rounds(*members, records=10, count=12)
    assert topics(*members) == ["logs-a"]
    assert len(entries(group, "members-joined")) == joined
    assert len(entries(group, "partitions-assigned")) <= assigned + 2
    add(group, "logs-c")
    group.rounds(*members, records=10, count=12)
    assert topics(*members) == ["logs-a", "logs-c"]
    read_by = group.store.groups.describe("g").members
    assert {tuple(member.topics) for member in read_by} == {("logs-a", "logs-c")}


def test_a_topic_that_is_made_anew_is_shared_again(group: Group) -> None:
    """Also where some have forgotten it, and one has not; and then the group is at rest."""
    add(group, "logs-a")
    add(group, "logs-b", values="old")
    members = [begin(group, metadata_max_age_ms=age) for age in (1_000, 10_000, 300_000)]
    group.rounds(*members, records=10, count=8)
    group.store.topics.delete("logs-b")
    group.rounds(*members, records=10, count=8)
    add(group, "logs-b", 4, values="n")
    found = []
    for _ in range(12):
        found += read(*members)
        group.clock.time_ms += 3_000
    assert found == [("logs-b", b"n")]
    assert topics(*members) == ["logs-a", "logs-b"]
    before = len([*group.store.groups.history("g")])
    group.rounds(*members, records=10, count=30)
    assert len([*group.store.groups.history("g")]) == before


def test_who_has_forgotten_a_topic_reads_it_when_the_group_gives_it_away(group: Group) -> None:
    """And as long as it is given nothing of it, it does not ask for what others have found."""
    add(group, "logs-a", values="")
    add(group, "logs-b", values="")
    add(group, "more", 3)
    one = begin(group, metadata_max_age_ms=1_000)
    two = begin(group, "logs-.*|more")
    group.rounds(one, two, records=10)
    group.store.topics.delete("logs-b")
    for _ in range(16):
        group.rounds(one, two, records=10, count=1)
        group.clock.time_ms += 20_000
    assert "logs-b" not in two._topics
    add(group, "logs-b", 1, values="1")
    found = []
    for _ in range(18):  # so rarely it looks for what has long been gone
        found += read(one, two)
        group.clock.time_ms += 20_000
    assert found == [("logs-b", b"1")]
    assert "logs-b" in topics(one)
    before = len([*group.store.groups.history("g")])
    group.rounds(one, two, records=10, count=10)
    assert len([*group.store.groups.history("g")]) == before
    group.store.topics.alter("logs-b", partitions=9)
    group.rounds(one, two, records=10, count=4)
    assert "logs-b" in topics(two)
    given = next(where for where in two.assignment() if where.topic == "logs-b")
    with group.store.producer() as producer:
        producer.send("logs-b", b"2", partition=given.partition)
    assert read(two) == [("logs-b", b"2")]


def test_a_topic_that_goes_while_topics_are_looked_for(group: Group) -> None:
    """The group has not been told of it then, so it is not forgotten yet."""

    class Meanwhile(ForwardingStorage):
        then: Callable[[], object] | None = None

        def list_folders(self, folder: str) -> list[str]:
            found = super().list_folders(folder)
            if self.then is not None:
                self.then()
            return found

    for topic in ("logs-a", "logs-b"):
        add(group, topic)
    storage = Meanwhile(group.heap)
    consumer = begin(group, storage=storage)
    group.rounds(consumer, records=10)

    def then() -> None:
        storage.then = None
        group.store.topics.delete("logs-b")
        consumer._logs.topic("logs-b").refresh()

    storage.then = then
    group.clock.time_ms += MAX_AGE_MS
    group.rounds(consumer, records=10)
    assert topics(consumer) == ["logs-a"]


def test_names_of_topics_that_are_gone_are_looked_for_once(group: Group) -> None:
    """Others may be subscribed to them for long, and the group's log go on."""
    for topic in ("logs-a", "logs-b"):
        add(group, topic)
    one = begin(group, metadata_max_age_ms=1_000)
    group.rounds(one, records=10)
    group.store.topics.delete("logs-b")
    group.rounds(one, records=10)
    counting = CountingStorage(group.heap)
    two = begin(group, storage=counting)
    group.rounds(one, two, records=10)
    counting.take()
    three = begin(group, "logs-a")
    group.rounds(one, two, three, records=10)
    assert "list_folders" not in counting.take()


def test_what_a_look_costs(group: Group) -> None:
    """One listing, and one for each topic that is new to this consumer or was deleted."""
    for number in range(5):
        add(group, f"logs-{number}")
        add(group, f"other-{number}")
    group.store.topics.delete("logs-4")
    counting = CountingStorage(group.heap)
    consumer = begin(group, storage=counting, group_id=None, metadata_max_age_ms=60_000)
    read(consumer)
    counting.take()
    read(consumer)
    usual = counting.take()
    group.clock.time_ms += 60_000
    read(consumer)
    took = counting.take()
    assert took.pop("list_folders") == 1
    assert took["list"] - usual["list"] == 1


@pytest.mark.parametrize("looks", [0, 1, 2, 5, 40])
def test_names_of_deleted_topics_are_looked_at_less_and_less_often(
    group: Group, looks: int
) -> None:
    """A store may have had thousands; one that is made anew is found after as long again."""
    add(group, "logs-live", values="")
    for number in range(5):
        add(group, f"logs-{number}")
        group.store.topics.delete(f"logs-{number}")
    counting = CountingStorage(group.heap)
    consumer = begin(group, storage=counting, group_id=None, metadata_max_age_ms=1_000)

    def look(count: int) -> list[tuple[str, bytes | None]]:
        found = []
        for _ in range(count):
            group.clock.time_ms += 1_000
            found += read(consumer)
        return found

    assert look(looks) == []
    if looks == 40:
        counting.take()
        assert look(4) == []
        assert counting.take()["list"] == 4 + 5
    add(group, "logs-3", values="n")
    assert look(min(looks, 4) + 1) == [("logs-3", b"n")]


def test_kafkas_internal_topics_are_left_out(group: Group) -> None:
    for topic in ("__consumer_offsets", "__transaction_state", "__mine", "a"):
        add(group, topic, 1)
    consumer = begin(group, ".*", group_id=None)
    assert topics(consumer) == ["__mine", "a", "out", "t"]
    consumer.subscribe(["__consumer_offsets"])
    assert topics(consumer) == ["__consumer_offsets"]


def test_a_pattern_is_of_whole_names(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """One that other clients would take for a beginning is told of."""
    add(group, "orders")
    add(group, "orders-dead")
    assert topics(begin(group, "orders", group_id=None)) == ["orders"]
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        assert topics(begin(group, "^order", group_id=None)) == []
    assert "'^order.*'" in caplog.text


@pytest.mark.parametrize("wrong", ["(", "", b"a.*", 7, re.compile(b"a"), "a{999999999999}"])
def test_what_is_no_pattern(group: Group, wrong: object) -> None:
    consumer = group.process().consumer("t", group_id="g")
    with pytest.raises(InvalidOption, match="pattern"):
        consumer.subscribe(pattern=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="or else a pattern"):
        consumer.subscribe(["t"], "t")
    with pytest.raises(InvalidOption, match="at least one"):
        consumer.subscribe()
    with pytest.raises(InvalidOption, match="metadata_max_age_ms"):
        group.process().consumer(pattern="t", config=ConsumerConfig(metadata_max_age_ms=-1))
    assert consumer._topics == ("t",)


def test_what_it_subscribes_to_next(group: Group) -> None:
    """Names after a pattern, partitions after it, and a pattern again."""
    add(group, "logs-a", values="a")
    consumer = begin(group)
    take_part(consumer)
    consumer.subscribe(["t"])
    add(group, "logs-b")
    group.clock.time_ms += MAX_AGE_MS
    group.rounds(consumer, records=100)
    assert topics(consumer) == ["t"]
    group.store.topics.delete("t")
    with pytest.raises(UnknownTopicOrPartition):
        consumer.poll()
    consumer.assign([TopicPartition("logs-a", 0)])
    assert read(consumer) == [("logs-a", b"a")]
    consumer.subscribe(pattern=re.compile("LOGS-.", re.IGNORECASE))
    group.rounds(consumer, records=100)
    assert topics(consumer) == ["logs-a", "logs-b"]


def test_the_constructor_takes_a_pattern(group: Group) -> None:
    add(group, "logs-a", values="a")
    consumer = group.process().consumer(pattern="logs-.", auto_offset_reset="earliest")
    assert read(consumer) == [("logs-a", b"a")]


def test_a_subscription_that_was_not_put_is_put_later(group: Group) -> None:
    """New topics are read only once the group knows: otherwise rebalances would never end."""
    add(group, "logs-a")
    storage = EntriesRefused(group.heap)
    consumer = begin(group, storage=storage, metadata_max_age_ms=1_000)
    group.rounds(consumer, records=1)
    add(group, "logs-b")
    group.clock.time_ms += 1_000
    storage.refuses = True
    with pytest.raises(StorageError):
        take_part(consumer)
    storage.refuses = False
    group.rounds(consumer, records=1)
    assert topics(consumer) == ["logs-a", "logs-b"]
    before = len([*group.store.groups.history("g")])
    group.rounds(consumer, records=1, count=20)
    assert len([*group.store.groups.history("g")]) == before


def test_who_waits_for_long_is_no_idle_member(group: Group) -> None:
    """Each look of a poll that waits counts as polling, and tells that it is there."""
    consumer = group.consumer("one", max_poll_interval_ms=60_000)
    assert len(consumer.poll(max_records=100)) == 40
    member = consumer._rebalancer._member  # type: ignore[union-attr]
    wait = group.clock.wait

    def tick_and_wait(event: Signal, seconds: float) -> None:
        member.tick()  # type: ignore[union-attr] # what its thread would do
        wait(event, seconds)

    group.clock.wait = tick_and_wait  # type: ignore[method-assign]
    assert consumer.poll(timeout_ms=300_000) == []
    assert group.told == [("one", "assigned", [0, 1, 2, 3])]
    assert len(entries(group, "members-joined")) == 1
    assert entries(group, "members-left") == entries(group, "members-expired") == []
    (two,) = [group.consumer("two")]
    take_part(two)
    assert consumer.poll(timeout_ms=10_000) == []
    take_part(two)
    assert len(consumer.assignment()) == len(two.assignment()) == 2


def test_who_was_taken_out_subscribes_to_something_else(group: Group) -> None:
    """It is not an error of subscribe(): the next poll joins again, with that."""
    consumer = group.consumer()
    take_part(consumer)
    group.store.groups.remove_members("g")
    consumer.subscribe(["out"])
    take_part(consumer)
    assert topics(consumer) == ["out"]


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_list_of_topics(group: Group, wrong: object) -> None:
    consumer = group.process().consumer(group_id="g")
    with pytest.raises(InvalidOption, match="names of topics"):
        consumer.subscribe(wrong)  # type: ignore[arg-type]
