"""What polls, positions and auto commits make of a rebalance, over virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.groups.consumer_options import consumer_options
from tests.support.groups.group_in_steps import Group, T, take_part
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConcurrentTransactions,
    FencedInstanceId,
    IllegalState,
    InconsistentGroupProtocol,
    StorageError,
    UnknownTopicOrPartition,
    Wakeup,
)
from txnlog.groups.group_positions import GroupPositions
from txnlog.groups.member import Member
from txnlog.groups.rebalance import ConsumerRebalanceListener
from txnlog.names import TopicPartition

Partitions = Collection[TopicPartition]


def begin(
    group: Group,
    listener: ConsumerRebalanceListener | None = None,
    *,
    auto: bool = False,
    **options: Any,
) -> Consumer:
    consumer = group.process().consumer(
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=auto,
        **consumer_options({"auto_commit_interval_ms": 1_000, **options}),
    )
    consumer.subscribe(["t"], listener=listener)
    return consumer


def left_for_others(group: Group) -> int:
    """How many records the group has not committed."""
    other = begin(group)
    found = len(other.poll(max_records=1_000))
    other.close()
    return found


def interrupted(consumer: Consumer, meanwhile: Callable[[], object]) -> None:
    """Have it wait in a poll while something happens, take part in the group, and wake it up."""
    real, looks = consumer._refresh, iter(range(100))

    def look() -> None:
        if next(looks) == 1:
            meanwhile()
            consumer._rebalancer._member._log.refresh()  # type: ignore[union-attr]
            consumer._join_in()
            consumer.wakeup()
        else:
            real()

    consumer._refresh = look  # type: ignore[method-assign]
    with pytest.raises(Wakeup):
        consumer.poll(timeout_ms=60_000)
    consumer._refresh = real  # type: ignore[method-assign]


def test_what_was_lost_and_given_back_within_a_poll_that_fails_is_where_the_group_is(
    group: Group,
) -> None:
    consumer = begin(group)
    assert len(consumer.poll(max_records=100)) == 40
    consumer.commit()

    def lose() -> None:
        group.store.groups.remove_members("g")
        other = begin(group)
        group.send(5)
        assert len(other.poll()) == 20
        other.commit()
        other.close()

    interrupted(consumer, lose)
    assert consumer.poll() == []


def test_what_a_listener_seeks_stays_though_the_poll_fails(group: Group) -> None:
    class Seeks(ConsumerRebalanceListener):
        def on_partitions_assigned(self, partitions: Partitions) -> None:
            for where in partitions:
                consumer.seek(where, 7)

    consumer = begin(group, Seeks())
    assert len(consumer.poll()) == 12
    consumer.commit()
    interrupted(consumer, lambda: group.store.groups.remove_members("g"))
    assert len(consumer.poll()) == 12


def test_a_rebalance_goes_on_in_the_poll_after_one_whose_listener_raised(group: Group) -> None:
    class Raises(ConsumerRebalanceListener):
        calls = 0

        def on_partitions_revoked(self, partitions: Partitions) -> None:  # noqa: ARG002
            self.calls += 1
            if self.calls == 1:
                raise ValueError("not yet")

    listener = Raises()
    one, two = begin(group, listener), begin(group)
    group.rounds(one, two, count=1)
    with pytest.raises(ValueError, match="not yet"):
        group.rounds(one, two)
    group.rounds(one, two, count=3)
    assert listener.calls == 2
    assert (len(one.assignment()), len(two.assignment())) == (2, 2)


def test_a_fenced_consumer_is_refused_at_each_poll(group: Group) -> None:
    one = begin(group, group_instance_id="i")
    one.poll()
    begin(group, group_instance_id="i").poll()
    group.clock.time_ms += 4_000
    for _ in range(2):
        with pytest.raises(FencedInstanceId):
            one.poll()


def test_a_listener_cannot_close_its_consumer(group: Group) -> None:
    class Closes(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:  # noqa: ARG002
            consumer.close()

    consumer, other = begin(group, Closes()), begin(group)
    group.rounds(consumer, other, count=1)
    with pytest.raises(IllegalState, match="listener"):
        group.rounds(consumer, other)
    with pytest.raises(IllegalState, match="listener"):
        consumer.close()
    group.rounds(other)
    assert len(other.assignment()) == 4


def test_no_position_while_a_former_owners_transaction_is_undecided(group: Group) -> None:
    one, two = begin(group), begin(group)
    one.poll(max_records=100)
    producer = group.process().producer(transactional_id="p", transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T[3]: 6}, one.group_metadata())
    producer._place_all(with_offsets=True)
    group.rounds(one, two)
    assert T[3] in two.assignment()
    with pytest.raises(ConcurrentTransactions):
        two.position(T[3])
    producer.commit_transaction()
    assert two.position(T[3]) == 6


def test_an_auto_commit_that_the_group_refuses_does_not_end_the_loop(group: Group) -> None:
    """What was read comes again, since the group does not know that it was worked on."""
    consumer = begin(group, auto=True)
    assert len(consumer.poll(max_records=7)) == 7
    group.store.groups.remove_members("g")
    group.clock.time_ms += 2_000
    assert len(consumer.poll(max_records=100)) == 40
    consumer.close()
    assert left_for_others(group) == 0


def test_what_was_auto_committed_of_a_topic_says_nothing_of_the_one_made_anew(group: Group) -> None:
    consumer = begin(group, auto=True)
    assert len(consumer.poll(max_records=100)) == 40
    group.clock.time_ms += 2_000
    consumer.poll()
    group.store.topics.delete("t")
    group.store.topics.create("t", partitions=4)
    group.send(10)
    assert sum(len(consumer.poll(max_records=100)) for _ in range(2)) == 40
    consumer.close()
    assert left_for_others(group) == 0


def test_auto_commit_goes_on_from_a_commit_of_ones_own(group: Group) -> None:
    consumer = begin(group, auto=True)
    consumer.poll(max_records=100)
    group.clock.time_ms += 2_000
    consumer.poll()
    consumer.commit({T[0]: 5})
    consumer.close()
    assert left_for_others(group) == 0


@pytest.mark.parametrize("turn", ["subscribe", "assign"])
def test_auto_commit_of_what_is_given_up_for_something_else(group: Group, turn: str) -> None:
    consumer = begin(group, auto=True)
    consumer.poll(max_records=100)
    if turn == "subscribe":
        consumer.subscribe(["out"])
    else:
        consumer.assign([TopicPartition("out", 0)])
    consumer.close()
    assert left_for_others(group) == 0


def test_a_listener_that_commits_what_is_revoked_does_so_in_vain_where_all_is_lost(
    group: Group,
) -> None:
    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:  # noqa: ARG002
            consumer.commit()

    consumer = begin(group, Commits())
    consumer.poll()
    group.store.groups.remove_members("g")
    consumer._rebalancer._member._log.refresh()  # type: ignore[union-attr]
    assert len(consumer.poll(max_records=100)) == 40


def test_what_was_assigned_is_not_read_by_a_member(group: Group) -> None:
    other = begin(group)
    take_part(other)
    consumer = group.process().consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([T[0]])
    consumer.subscribe(["t"])
    assert consumer.poll() == []
    assert consumer.assignment() == []


def test_a_topic_that_is_gone_for_a_while(group: Group) -> None:
    one, two = begin(group), begin(group)
    group.rounds(one, two)
    group.store.topics.delete("t")
    for consumer in (one, two):
        with pytest.raises(UnknownTopicOrPartition):
            consumer.poll()
    group.store.topics.create("t", partitions=2)
    with group.store.producer() as producer:
        for number in range(8):
            producer.send("t", b"new", partition=number % 2)
    found = []
    for _ in range(6):
        for consumer in (one, two):
            found += [(r.partition, r.offset) for r in consumer.poll()]
        group.clock.time_ms += 3_000
    assert sorted(found) == [(number, offset) for number in range(2) for offset in range(4)]
    assert (len(one.assignment()), len(two.assignment())) == (1, 1)


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("partitions", [1, 3, 6])
@pytest.mark.parametrize("leaves", [False, True], ids=["at rest", "in a rebalance"])
def test_a_topic_that_is_made_anew(
    group: Group, leaves: bool, partitions: int, assignor: str
) -> None:
    """No poll fails, also where the rebalance under way has not taken what the topic lacks."""
    one, two = (begin(group, partition_assignment_strategy=assignor) for _ in range(2))
    group.rounds(one, two)
    for consumer in (one, two):
        take_part(consumer)  # so that no heartbeat is due
    if leaves:
        two.close()
        one.commit()  # so it learns of that
    group.store.topics.delete("t")
    group.store.topics.create("t", partitions=partitions)
    with group.store.producer() as producer:
        for number in range(partitions):
            producer.send("t", b"new", partition=number)
    found = []
    for _ in range(6):
        for consumer in (one,) if leaves else (one, two):
            found += [record.partition for record in consumer.poll()]
        group.clock.time_ms += 3_000
    assert sorted(found) == [*range(partitions)]


def test_a_single_member_is_removed_by_its_name(group: Group) -> None:
    begin(group, group_instance_id="ab").poll()
    begin(group, group_instance_id="a").poll()
    assert len(group.store.groups.remove_members("g", "ab")) == 1
    (left,) = group.store.groups.describe("g").members
    assert left.instance_id == "a"


def test_a_group_whose_members_are_dead_expires(group: Group) -> None:
    consumer = begin(group)
    consumer.poll()
    consumer.commit()
    group.clock.time_ms += 30_000
    assert group.process().groups.expire(older_than_ms=1_000) == []
    group.clock.time_ms += 30_000
    assert group.process().groups.expire(older_than_ms=1_000) == ["g"]


def test_the_assignor_of_members_that_are_dead_binds_nobody(group: Group) -> None:
    begin(group, partition_assignment_strategy="range").poll()
    consumer = begin(group)
    with pytest.raises(InconsistentGroupProtocol):
        consumer.poll()
    group.clock.time_ms += 60_000
    assert len(consumer.poll()) == 40


def test_seeks_after_another_subscription_are_of_its_topics(group: Group) -> None:
    """Though a member keeps what it had until a poll revokes it."""
    group.store.topics.create("u", partitions=1)
    with group.store.producer() as producer:
        for _ in range(3):
            producer.send("u", b"of u")
    consumer = begin(group)
    group.rounds(consumer)
    consumer.subscribe(["u"])
    consumer.seek(TopicPartition("u", 0), 1)
    assert [record.offset for record in consumer.poll()] == [1, 2]
    consumer.subscribe(["t"])
    consumer.seek_to_beginning()
    assert {where.topic for where in consumer.assignment()} == {"t"}


def test_a_close_that_is_repeated_commits(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its listener: the first one failed, and could not leave the group either."""

    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:  # noqa: ARG002
            consumer.commit()

    group.send(2)
    consumer = begin(group, Commits())
    group.rounds(consumer, records=100)
    with monkeypatch.context() as patch:
        for failing, call in ((GroupPositions, "commit"), (Member, "close")):
            patch.setattr(failing, call, Mock(side_effect=StorageError("down")))
        with pytest.raises(StorageError):
            consumer.close()
    consumer.close()
    assert left_for_others(group) == 0


def test_a_listener_commits_what_a_topic_made_anew_lacks(group: Group) -> None:
    """What it has noted itself: it keeps the rebalance from nothing."""

    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:
            consumer.commit(dict.fromkeys(partitions, 1))

        on_partitions_lost = on_partitions_revoked

    group.send(2)
    consumer = begin(group, Commits())
    group.rounds(consumer, records=100)
    group.store.topics.delete("t")
    group.store.topics.create("t", partitions=1)
    group.rounds(consumer, records=100)
    assert consumer.assignment() == [TopicPartition("t", 0)]


@pytest.mark.parametrize("made_anew", [False, True], ids=["deleted", "made anew"])
@pytest.mark.parametrize("way", ["given", "noted", "positions", "async"])
def test_a_listener_commits_what_is_gone(group: Group, way: str, made_anew: bool) -> None:
    """Of a topic among others: it is told once at most, and the group goes on without it."""
    told: list[str] = []

    class Commits(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions: Partitions) -> None:
            if way == "given":
                consumer.commit(dict.fromkeys(partitions, 1))
            elif way == "noted":
                consumer.commit({T[0]: 1, **dict.fromkeys(partitions, 1)})
            elif way == "async":
                consumer.commit_async(dict.fromkeys(partitions, 1))
            else:
                consumer.commit({where: consumer.position(where) for where in partitions})

    with group.store.producer() as producer:
        producer.send("out", b"x")
    consumer = begin(group)
    consumer.subscribe(["t", "out"], listener=Commits())
    group.rounds(consumer, records=100)
    other = begin(group)
    other.subscribe(["out"])
    group.store.topics.delete("t")
    if made_anew:
        group.store.topics.create("t", partitions=1)
    for _ in range(6):
        for one in (consumer, other):
            try:
                one.poll()
            except UnknownTopicOrPartition as error:
                told.append(str(error))
        group.clock.time_ms += 3_000
    assert len(told) <= (way == "positions")
    held = sorted(where.topic for one in (consumer, other) for where in one.assignment())
    assert held == ["out", "t"][: 1 + made_anew]
    with group.store.producer() as producer:
        producer.send("out", b"y")
    found = [record.value for one in (consumer, other) for record in one.poll()]
    assert b"y" in found
    for one in (consumer, other):
        one.close()
