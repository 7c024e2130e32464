"""Consumers that share a group, step by step, over virtual time: Kafka's rebalance scenarios."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import txnlog
from tests.support.groups.group_in_steps import COOPERATIVE, Group, T, take_part
from tests.support.runtime.forked_child import Child
from txnlog import ConsumerConfig
from txnlog.clock import Signal
from txnlog.consumer import Consumer
from txnlog.errors import (
    CommitFailed,
    CorruptEntry,
    FencedInstanceId,
    GroupNotEmpty,
    IllegalGeneration,
    IllegalState,
    InconsistentGroupProtocol,
    InvalidOption,
    RebalanceInProgress,
    StorageError,
    UnknownMemberId,
)
from txnlog.groups.member import Member
from txnlog.groups.presence import Observer, put_heartbeat
from txnlog.groups.rebalance import ConsumerRebalanceListener, _HeartbeatThread
from txnlog.log.group_log import find_dead_members
from txnlog.names import Heartbeat, TopicPartition, group_members
from txnlog.state.group import OffsetCommit
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import FaultyStorage

pytestmark = pytest.mark.rule("M2", "M3", "M5")

EAGER = "range"
PROTOCOLS = pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])


def numbers(consumer: Consumer) -> list[int]:
    return sorted(where.partition for where in consumer.assignment())


def state(group: Group) -> str:
    return group.store.groups.describe("g").state


@PROTOCOLS
def test_a_lone_member_has_everything_at_its_first_poll(group: Group, assignor: str) -> None:
    one = group.consumer("one", partition_assignment_strategy=assignor)
    assert len(one.poll(max_records=100)) == 40
    assert numbers(one) == [0, 1, 2, 3]
    assert group.told == [("one", "assigned", [0, 1, 2, 3])]
    assert state(group) == "Stable"
    one.close()
    assert group.told[1:] == [("one", "revoked", [0, 1, 2, 3])]
    assert state(group) == "Empty"
    assert group.heap.list_names("groups/g/members") == []


@pytest.mark.condition(57)
def test_members_that_cooperate_keep_what_is_theirs(group: Group) -> None:
    """A joining member gets partitions released by another, which reads on meanwhile."""
    one, two = group.consumer("one"), group.consumer("two")
    one.poll(max_records=1)
    assert two.poll() == []
    assert numbers(two) == []
    assert state(group) == "CompletingRebalance"
    group.rounds(one, two)
    assert numbers(one) == [0, 1]
    assert numbers(two) == [2, 3]
    assert group.told == [
        ("one", "assigned", [0, 1, 2, 3]),
        ("one", "revoked", [2, 3]),
        ("two", "assigned", [2, 3]),
    ]
    assert state(group) == "Stable"


@pytest.mark.condition(57)
def test_eager_members_give_up_everything_first(group: Group) -> None:
    one = group.consumer("one", partition_assignment_strategy=EAGER)
    two = group.consumer("two", partition_assignment_strategy=EAGER)
    one.poll(max_records=1)
    two.poll()
    assert state(group) == "PreparingRebalance"
    group.rounds(one, two)
    assert sorted([numbers(one), numbers(two)]) == [[0, 1], [2, 3]]
    assert group.told[1] == ("one", "revoked", [0, 1, 2, 3])
    assert [what for name, what, _ in group.told if name == "two"] == ["assigned"]


@pytest.mark.condition(57)
@PROTOCOLS
def test_who_leaves_is_replaced_and_nothing_is_read_twice(group: Group, assignor: str) -> None:
    one = group.consumer("one", partition_assignment_strategy=assignor)
    two = group.consumer("two", partition_assignment_strategy=assignor)
    group.rounds(one, two)
    mine = one.poll(max_records=100)
    theirs = two.poll(max_records=100)
    assert len(mine) == len(theirs) == 20
    one.close()  # commits: the listener does
    group.rounds(two)
    assert numbers(two) == [0, 1, 2, 3]
    group.send(1)
    assert len(two.poll(max_records=100)) == 4


@pytest.mark.rule("hazard 12")
@pytest.mark.condition(57)
def test_who_crashes_is_missed_after_the_session_timeout(group: Group) -> None:
    """His uncommitted records come to others; back to life, he is told that he has lost them."""
    one, two = group.consumer("one"), group.consumer("two")
    group.rounds(one, two)
    assert len(one.poll(max_records=100)) == 20
    before = group.clock.time_ms
    while numbers(two) != [0, 1, 2, 3]:
        group.rounds(two, count=1)
    assert 45_000 <= group.clock.time_ms - before <= 55_000
    found = two.poll(max_records=100)
    assert {record.offset for record in found if record.partition < 2} == {*range(10)}
    with pytest.raises(UnknownMemberId, match="does not know member"):
        one.commit({T[0]: 10})
    assert ("one", "lost", [0, 1]) not in group.told
    group.rounds(one, two)
    assert ("one", "lost", [0, 1]) in group.told
    assert sorted(numbers(one) + numbers(two)) == [0, 1, 2, 3]


def test_who_begins_anew_after_a_crash_does_not_wait_for_his_former_self(group: Group) -> None:
    """The storage tells that the old heartbeat is older than the session."""
    group.consumer("one").poll()
    group.clock.time_ms += 3_600_000
    again = group.consumer("again")
    group.rounds(again, count=12)
    assert numbers(again) == [0, 1, 2, 3]


def test_who_does_not_poll_leaves(group: Group) -> None:
    one = group.consumer("one", max_poll_interval_ms=60_000)
    two = group.consumer("two")
    group.rounds(one, two)
    member = one._rebalancer._member  # type: ignore[union-attr]
    assert member is not None
    for _ in range(25):  # what its thread would do
        group.clock.time_ms += 3_000
        member.tick()
        assert member.due_in_s() > 0, "it would not sleep"
        take_part(two)
    assert numbers(two) == [0, 1, 2, 3]
    assert group.store.groups.describe("g").members[0].member_id != member.member_id
    take_part(one)
    assert ("one", "lost", [0, 1]) in group.told


@pytest.mark.few(3)
@pytest.mark.parametrize("heartbeat_ms", [500, 3_000])
@pytest.mark.parametrize("max_poll_ms", [4_000, 300_000])
@pytest.mark.parametrize("wait_ms", [500, 15_000, 3_600_000])
@pytest.mark.parametrize("has_thread", [True, False], ids=["thread", "no thread"])
def test_who_waits_in_a_poll_takes_part(
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    *,
    heartbeat_ms: int,
    max_poll_ms: int,
    wait_ms: int,
    has_thread: bool,
) -> None:
    """However seldom it looks: it stays a member, and gives up its partitions in time."""
    options = {"heartbeat_interval_ms": heartbeat_ms, "max_poll_interval_ms": max_poll_ms}
    one = group.consumer("one", fetch_max_wait_ms=wait_ms, **options)
    one.poll(max_records=100)
    two = group.consumer("two")
    clock, begun_ms = group.clock, group.clock.time_ms
    shared_ms: list[int] = []

    def wait(event: Signal, seconds: float) -> None:
        """Pass time, while a thread sends heartbeats, if there is one; the other comes amid it."""
        until_ms = clock.time_ms + round(seconds * 1000)
        while clock.time_ms < until_ms and not event.is_set():
            clock.time_ms = min(clock.time_ms + 100, until_ms)
            member = one._rebalancer._member  # type: ignore[union-attr]
            if has_thread and member is not None and member.due_in_s() <= 0:
                member.tick()
                if member.has_news():
                    one._rebalancer._on_news()  # type: ignore[union-attr]
            if clock.time_ms - begun_ms >= 60_000 and not shared_ms:
                take_part(two)
                if len(numbers(two)) == 2:
                    shared_ms.append(clock.time_ms - begun_ms - 60_000)

    monkeypatch.setattr(clock, "wait", wait)
    assert one.poll(timeout_ms=90_000) == []
    assert [numbers(one), numbers(two)] == [[0, 1], [2, 3]]
    assert shared_ms[0] <= 2 * heartbeat_ms + 500
    kinds = [entry.kind for entry in group.store.groups.history("g")]
    assert kinds.count("members-joined") == 2
    assert {*kinds} == {"members-joined", "partitions-assigned", "offsets"}


def test_who_does_not_let_go_is_expelled_after_the_rebalance_timeout(group: Group) -> None:
    """It tells that it lives, and never polls."""
    one = group.consumer("one", max_poll_interval_ms=100_000)
    two = group.consumer("two")
    one.poll(max_records=1)
    member = one._rebalancer._member  # type: ignore[union-attr]
    assert member is not None
    member._settings = replace(member._settings, max_poll_interval_ms=10_000_000)
    for _ in range(60):
        take_part(two)
        member.tick()
        group.clock.time_ms += 3_000
    assert numbers(two) == [0, 1, 2, 3]
    (expired,) = [e for e in group.store.groups.history("g") if e.kind == "members-expired"]
    assert "rebalance.timeout.ms" in expired.detail


@pytest.mark.condition(57)
def test_a_static_member_comes_back_to_its_partitions(group: Group) -> None:
    one = group.consumer("one", group_instance_id="a")
    two = group.consumer("two", group_instance_id="b")
    group.rounds(one, two)
    generation = group.store.groups.describe("g").generation
    mine = numbers(one)
    one.close()
    group.rounds(two, count=2)
    again = group.consumer("again", group_instance_id="a")
    take_part(again)
    assert numbers(again) == mine
    assert group.store.groups.describe("g").generation == generation
    newer = group.consumer("newer", group_instance_id="b")
    take_part(newer)
    with pytest.raises(FencedInstanceId, match="'b'"):
        two.commit({T[3]: 1})
    with pytest.raises(FencedInstanceId):
        group.rounds(two)
    assert numbers(newer) == numbers(two)


def test_topics_that_grow_and_go(group: Group) -> None:
    group.store.topics.create("u", partitions=1)
    one, two = group.consumer("one"), group.consumer("two")
    one.subscribe(["t", "u"])
    two.subscribe(["t", "u"])
    group.rounds(one, two)
    assert len(one.assignment()) + len(two.assignment()) == 5
    group.store.topics.alter("t", partitions=6)
    group.rounds(one, two, records=100)
    assert sorted(map(len, (one.assignment(), two.assignment()))) == [3, 4]
    group.store.topics.delete("t")
    group.rounds(one, two, records=100)
    assert sorted([*one.assignment(), *two.assignment()]) == [TopicPartition("u", 0)]


def test_a_subscription_that_changes(group: Group) -> None:
    group.store.topics.create("u", partitions=2)
    one, two = group.consumer("one"), group.consumer("two")
    group.rounds(one, two)
    two.subscribe(["u"])
    group.rounds(one, two)
    assert {where.topic for where in one.assignment()} == {"t"}
    assert len(one.assignment()) == 4
    assert two.assignment() == [TopicPartition("u", 0), TopicPartition("u", 1)]


def test_members_without_an_assignor_in_common(group: Group) -> None:
    one = group.consumer("one", partition_assignment_strategy=["range", "sticky"])
    take_part(one)
    two = group.consumer("two", partition_assignment_strategy="roundrobin")
    with pytest.raises(InconsistentGroupProtocol, match="range or sticky, this consumer only by"):
        two.poll()
    three = group.consumer("three", partition_assignment_strategy=["roundrobin", "sticky"])
    group.rounds(one, three)
    assert group.store.groups.describe("g").assignor == "sticky"


def test_an_assignor_of_ones_own(group: Group) -> None:
    """All to the member that joined last; and one that breaks the rules is refused."""

    def last(counts: Any, subscriptions: Any, owned: Any) -> Any:
        return {[*subscriptions][-1]: [TopicPartition("t", n) for n in range(counts["t"])]}

    def twice(counts: Any, subscriptions: Any, owned: Any) -> Any:
        return {member: [T[0]] for member in [*subscriptions, "nobody"]}

    one = group.consumer("one", partition_assignment_strategy=last)
    two = group.consumer("two", partition_assignment_strategy=last)
    group.rounds(one, two)
    assert sorted(map(len, (one.assignment(), two.assignment()))) == [0, 4]
    one.close()
    two.close()
    with pytest.raises(InvalidOption, match="'twice' gave t:0"):
        take_part(group.consumer("x", partition_assignment_strategy=twice))


WRONG_SHARES: dict[str, Callable[[str], Any]] = {
    "nothing": lambda _: None,
    "a list": lambda _: [T[0]],
    "no list": lambda member: {member: 5},
    "names": lambda member: {member: ["t"]},
    "a text as number": lambda member: {member: [("t", "0")]},
    "a fraction": lambda member: {member: [("t", 0.0)]},
    "a truth": lambda member: {member: [("t", False)]},
    "a list as topic": lambda member: {member: [(["t"], 0)]},
    "too much": lambda member: {member: [("t", 0, 1)]},
    "too far": lambda member: {member: [("t", 4)]},
    "nobody": lambda _: {None: [T[0]]},
}


@pytest.mark.parametrize("wrong", WRONG_SHARES)
def test_what_an_assignor_must_not_return(group: Group, wrong: str) -> None:
    """It is refused in each poll, and hinders nobody who comes with another one."""

    def mine(counts: Any, subscriptions: Any, owned: Any) -> Any:
        (member,) = subscriptions
        return WRONG_SHARES[wrong](member)

    consumer = group.consumer(partition_assignment_strategy=mine)
    for _ in range(3):
        with pytest.raises(InvalidOption, match=r"assignor 'mine' .* nothing was assigned"):
            take_part(consumer)
    consumer.close()
    other = group.consumer("other")
    take_part(other)
    assert len(other.assignment()) == 4


# -- fencing -------------------------------------------------------------------------------------


@pytest.mark.condition(58)
def test_commits_while_a_rebalance_goes_on(group: Group) -> None:
    """Until it has let go of a partition its holder commits it; then nobody but the new owner."""
    one = group.consumer("one", partition_assignment_strategy=EAGER)
    one.poll(max_records=100)
    stale = one.group_metadata()
    two = group.consumer("two", partition_assignment_strategy=EAGER)
    take_part(two)
    one.commit({T[0]: 3})
    producer = group.process().producer(transactional_id="p")
    producer.init_transactions()
    assert stale.committer is not None
    log = group.store.logs.fresh_group("g")
    member = one._rebalancer._member  # type: ignore[union-attr]
    assert member is not None
    group.clock.time_ms += 3_000
    # It has let go of all; nobody else's turn has come yet.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(member), "_assign", lambda *_, **__: False)
        take_part(one)
    with pytest.raises(RebalanceInProgress):
        two.commit({T[0]: 4})
    group.rounds(one, two, records=1)
    with log.lock:
        known = log.state
        assert known.membership.generation > stale.committer.generation
    kept = one.assignment()[0]
    with pytest.raises(IllegalGeneration, match="again in generation"), producer.transaction():
        producer.send_offsets_to_transaction({kept: 5}, stale)
    given = two.assignment()[0]
    with pytest.raises(IllegalGeneration, match="no longer"), producer.transaction():
        producer.send_offsets_to_transaction({given: 5}, stale)
    with pytest.raises(IllegalGeneration, match="in which"):
        log.commit([OffsetCommit(*given, 5)], committer=stale.committer)
    with pytest.raises(CommitFailed, match="is assigned to"):
        one.commit({given: 5})
    two.commit({given: 5})


@pytest.mark.condition(58)
def test_a_member_that_cooperates_commits_across_a_rebalance(group: Group) -> None:
    """What it has kept all the time it may commit, whatever generation it began in."""
    one = group.consumer("one")
    records = one.poll(max_records=100)
    metadata = one.group_metadata()
    two = group.consumer("two")
    group.rounds(one, two)
    producer = group.process().producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        producer.send("out", records[0].value)
        producer.send_offsets_to_transaction({T[0]: 10}, metadata)
    with pytest.raises(IllegalGeneration), producer.transaction():
        producer.send_offsets_to_transaction({T[2]: 10}, metadata)
    two.commit({T[2]: 7})


@pytest.mark.condition(58)
def test_a_new_owner_waits_for_the_former_ones_transaction(group: Group) -> None:
    """It starts where that one has committed, when it is known whether it has."""
    one, two = group.consumer("one"), group.consumer("two")
    one.poll(max_records=100)
    producer = group.process().producer(transactional_id="p", transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T[3]: 6}, one.group_metadata())
    producer._place_all(with_offsets=True)
    take_part(two)
    group.told.clear()
    one._rebalancer._listener = ConsumerRebalanceListener()  # type: ignore[union-attr]
    group.rounds(one, two)
    assert numbers(two) == [2, 3]
    assert {record.partition for record in two.poll(max_records=100)} == {2}
    producer.commit_transaction()
    assert [record.offset for record in two.poll(max_records=100)] == [6, 7, 8, 9]


@pytest.mark.condition(56)
def test_who_is_no_member_moves_a_group_only_with_force(group: Group) -> None:
    one = group.consumer("one")
    one.poll(max_records=1)
    job = group.process()
    alone = job.consumer(group_id="g")
    alone.assign([T[0]])
    with pytest.raises(GroupNotEmpty, match="remove-members"):
        alone.commit({T[0]: 5})
    producer = job.producer(transactional_id="p")
    producer.init_transactions()
    with (
        pytest.raises(GroupNotEmpty, match=r"consumer\.group_metadata\(\)"),
        producer.transaction(),
    ):
        producer.send_offsets_to_transaction({T[0]: 5}, "g")
    with pytest.raises(GroupNotEmpty):
        job.groups.reset_offsets("g", ["t"], to=5)
    with pytest.raises(GroupNotEmpty):
        job.groups.delete("g")
    one.commit()
    with pytest.raises(GroupNotEmpty):
        job.groups.delete_offsets("g", ["t"])
    job.groups.reset_offsets("g", ["t"], to=5, force=True)
    assert [found.offset for found in job.groups.describe("g").offsets] == [5, 5, 5, 5]
    assert job.groups.remove_members("g") != ()
    alone.commit({T[0]: 6})
    assert [f.rule for f in job.examine() if f.rule] == []


def test_who_is_no_member_need_not_wait_for_the_dead(group: Group) -> None:
    """All died an hour ago: the storage's clock tells."""
    group.consumer("one").poll(max_records=1)
    group.clock.time_ms += 30_000
    with pytest.raises(GroupNotEmpty):
        group.process().groups.reset_offsets("g", ["t"], to=5)
    group.clock.time_ms += 30_000
    group.process().groups.reset_offsets("g", ["t"], to=5)
    assert state(group) == "Empty"
    assert group.heap.list_names("groups/g/members") == []
    group.consumer("two").poll(max_records=1)
    assert group.process().groups.expire(older_than_ms=0) == []
    group.clock.time_ms += 60_000
    assert group.process().groups.expire(older_than_ms=0) == ["g"]
    group.heap.time_ms = None
    group.consumer("three").poll(max_records=1)
    group.clock.time_ms += 3_600_000
    with pytest.raises(GroupNotEmpty):
        group.process().groups.reset_offsets("g", ["t"], to=5)


def test_who_joined_just_now_is_not_dead_though_its_entry_is_freed_already(group: Group) -> None:
    """A disk frees names by their count; and it was stopped before its first heartbeat."""
    one = group.consumer("one")
    one.poll(max_records=1)
    log = group.process().logs.group("g")
    log.refresh()
    with log.lock:
        found = log.state
        members, newest = found.membership, found.next_entry - 1
    heap, folder = group.heap, group_members("g")
    heap.delete([f"{folder}/{name}" for name in heap.list_names(folder)])
    heap.delete([log.log.path(number) for number in range(newest)])
    assert find_dead_members(heap, group.clock, "g", members, newest) == []
    group.clock.time_ms += 45_001
    assert len(find_dead_members(heap, group.clock, "g", members, newest)) == 1


def test_who_is_missing_in_a_listing_is_not_dead(group: Group) -> None:
    """It may have missed a heartbeat that was deleted meanwhile, and the one after it."""
    one = group.consumer("one")
    one.poll(max_records=1)
    log = group.process().logs.group("g")
    log.refresh()
    with log.lock:
        found = log.state
        members, newest = found.membership, found.next_entry - 1
    (member_id,) = members.members
    group.clock.time_ms += 45_001
    put_heartbeat(group.heap, "g", Heartbeat(member_id, 99, 1, newest), 0)

    class Torn(ForwardingStorage):
        listed = 0

        def list_names(self, folder: str, start_after: str = "") -> list[str]:
            self.listed += 1
            return [] if self.listed == 1 else self.inner.list_names(folder, start_after)

    assert find_dead_members(Torn(group.heap), group.clock, "g", members, newest) == []


def test_time_in_which_nobody_looked_counts_in_part() -> None:
    """Who slept finds everybody silent at once: half of the timeout counts, no more."""
    observer, timeouts_s = Observer(), {"m": 10.0}
    observer.look(0.0, {}, {}, timeouts_s)
    observer.look(1000.0, {}, {"m": 1}, timeouts_s)
    assert observer.silence("m") == (-1, 5.0)
    observer.look(1004.0, {}, {"m": 1}, timeouts_s)
    assert observer.silence("m") == (-1, 9.0)
    assert observer.holds_for("m") == 4.0
    observer.look(5000.0, {}, {"m": 1}, timeouts_s)
    assert observer.holds_for("m") == 9.0


def test_who_looks_for_the_dead_meets_a_member_that_tidies(group: Group) -> None:
    """It deletes what it takes for a stranger's heartbeat: how the other one asks for the time."""
    group.consumer("one").poll(max_records=1)
    group.process().consumer(group_id="idle").commit({T[0]: 1})
    group.clock.time_ms += 1
    joined: list[Consumer] = []

    def join(request: str) -> None:
        if request.startswith("modified groups/g/members/") and not joined:
            joined.append(group.consumer("two"))
            joined[0].poll(max_records=1)
            assert request.removeprefix("modified ") not in dict(group.heap.list_all(""))

    watcher = group.process(FaultyStorage(group.heap, before_request=join))
    assert watcher.groups.expire(older_than_ms=0) == ["idle"]
    assert joined


# -- what it costs -------------------------------------------------------------------------------


def test_what_membership_costs(group: Group) -> None:
    """A join is three puts; a steady member puts and lists once in a heartbeat interval."""
    counting = CountingStorage(group.heap)
    one = group.consumer("one", counting)
    counting.take()
    one._join_in()
    assert counting.take()["put_if_absent"] == 3
    group.clock.time_ms += 3_000
    one._join_in()  # the first tick after a rebalance looks whether it is over
    counting.take()
    for _ in range(9):
        group.clock.time_ms += 3_000
        one._join_in()
    took = counting.take()
    assert took["put_if_absent"] == 9
    assert took["list"] <= 9 + 1
    assert took["delete"] <= 2
    assert sum(took.values()) <= 9 + 9 + 3


# -- threads and processes -----------------------------------------------------------------------


def test_a_consumer_that_nobody_uses_any_more_leaves(tmp_path: Path) -> None:
    """With a real clock: its thread tells that it is there, and leaves when it is collected."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2)
    others = set(threading.enumerate())
    consumer = store.consumer(
        "t",
        group_id="g",
        config=ConsumerConfig(heartbeat_interval_ms=20, session_timeout_ms=60),
    )
    assert len(consumer.assignment()) == 2
    begun = set(threading.enumerate()) - others
    (thread,) = [thread for thread in begun if thread.name.startswith("txnlog-heartbeat")]
    assert store.groups.describe("g").state == "Stable"
    del consumer
    gc.collect()
    thread.join(30)
    assert store.groups.list() == []
    assert [e.detail for e in store.groups.history("g")][-1] == "never closed"
    assert store.storage.list_names("groups/g/members") == []


def test_a_child_of_a_fork_is_a_member_of_its_own(tmp_path: Path) -> None:
    """It neither leaves for its parent nor commits as him."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2)
    consumer = store.consumer("t", group_id="g")
    assert len(consumer.assignment()) == 2
    mine = consumer._committer()

    def work() -> tuple[bool, int]:
        with pytest.raises(UnknownMemberId):
            consumer.commit({T[0]: 1})
        consumer.poll()
        other = consumer._committer()
        consumer.close()
        return other != mine, len(store.groups.describe("g").members)

    assert Child(work).result() == "(True, 1)"
    consumer.commit({T[0]: 1})
    consumer.close()
    assert store.groups.describe("g").state == "Empty"


@PROTOCOLS
def test_what_a_member_hands_over_is_committed_if_it_commits_by_itself(
    group: Group, assignor: str
) -> None:
    """The new owner goes on after it; and partitions that return count again."""
    one, two = (
        group.process().consumer(
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            config=ConsumerConfig(partition_assignment_strategy=assignor),
        )
        for _ in range(2)
    )
    for consumer in (one, two):
        consumer.subscribe(["t"])
    assert len(one.poll(max_records=100)) == 40
    group.rounds(one, two)
    assert len(numbers(two)) == 2
    assert two.poll(max_records=100) == []
    group.send(1)
    assert len(two.poll(max_records=100)) == 2
    two.close()
    group.rounds(one)
    assert len(one.poll(max_records=100)) == 2
    one.close()
    offsets = {at.partition: at.offset for at in group.store.groups.describe("g").offsets}
    assert offsets == dict.fromkeys(range(4), 11)


@pytest.mark.parametrize("again", ["subscribe", "assign"])
def test_who_unsubscribes_leaves_and_may_come_back(group: Group, again: str) -> None:
    one, two = group.consumer("one"), group.consumer("two")
    group.rounds(one, two)
    assert len(one.poll(max_records=100)) == 20
    one.unsubscribe()
    assert one.assignment() == []
    assert ("one", "revoked", [0, 1]) in group.told
    with pytest.raises(IllegalState, match="subscribe"):
        one.poll()
    assert len(group.store.groups.describe("g").members) == 1
    group.rounds(two)
    assert numbers(two) == [0, 1, 2, 3]
    assert len(two.poll(max_records=100)) == 20
    if again == "assign":
        one.assign(T[:1])
        assert len(one.poll(max_records=100)) == 0  # from where its listener has committed
        group.send(1)
        assert len(one.poll(max_records=100)) == 1
        return
    one.subscribe(["t"])
    group.rounds(one, two)
    assert sorted([*numbers(one), *numbers(two)]) == [0, 1, 2, 3]
    assert len(numbers(one)) == 2
    group.send(1)
    assert len(one.poll(max_records=100)) == 2


def test_unsubscribing_without_a_group(group: Group) -> None:
    """It starts over then, as one that was just made; what has no subscription has none to end."""
    consumer = group.store.consumer("t", auto_offset_reset="earliest")
    assert len(consumer.poll(max_records=100)) == 40
    for _ in range(2):
        consumer.unsubscribe()
        assert consumer.assignment() == []
    consumer.subscribe(["t"])
    assert len(consumer.poll(max_records=100)) == 40


def test_a_listener_can_neither_unsubscribe_nor_keep_a_consumer_from_it(group: Group) -> None:
    class Stubborn(ConsumerRebalanceListener):
        def on_partitions_revoked(self, _: object) -> None:
            consumer.unsubscribe()

    consumer = group.consumer()
    consumer.subscribe(["t"], listener=Stubborn())
    take_part(consumer)
    with pytest.raises(IllegalState, match="by a rebalance listener"):
        consumer.unsubscribe()
    assert consumer.assignment() == []
    group.consumer("next").poll(max_records=1)
    assert group.told == [("next", "assigned", [0, 1, 2, 3])]


class Silent:
    """A member that has nothing to do."""

    member_id, group_id = "m", "g"
    reasons: tuple[str, ...] = ()

    def due_in_s(self) -> float:
        return 3600.0

    def close(self, reason: str) -> None:
        self.reasons = (*self.reasons, reason)


class Eventful(Silent):
    """A member that is due at once, and learns of something by its third heartbeat."""

    ticks = 0

    def due_in_s(self) -> float:
        return 0.0

    def tick(self) -> None:
        self.ticks += 1

    def has_news(self) -> bool:
        return self.ticks == 3


def test_its_thread_tells_of_news() -> None:
    """A poll that waits need not wait for its next look."""
    member, owner = Eventful(), Silent()
    told: list[int] = []

    def tell() -> None:
        told.append(member.ticks)
        thread.stop()

    thread = _HeartbeatThread(member, owner, tell)  # type: ignore[arg-type]
    thread._thread.start()
    thread._thread.join(10)
    assert told == [3]


class Failing(Silent):
    """A member that is due at once, and whose first heartbeats fail."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = iter(errors)
        self.ended = threading.Event()

    def due_in_s(self) -> float:
        return 3600.0 if self.ended.is_set() else 0.0

    def tick(self) -> None:
        error = next(self.errors, None)
        if error is not None:
            raise error
        self.ended.set()

    def has_news(self) -> bool:
        return False


FAILURES = {
    "the storage": StorageError("down"),
    "an assignor": KeyError("mine"),
    "its result": InvalidOption("wrong"),
    "the log": CorruptEntry("damaged"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_its_thread_goes_on_whatever_fails(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    """The application may work for longer than its session before it polls; an error passes."""
    error = FAILURES[failure]
    member, owner = Failing(error, error, error), Silent()
    thread = _HeartbeatThread(member, owner, int)  # type: ignore[arg-type]
    thread._thread.start()
    assert member.ended.wait(10)
    thread.stop()
    thread._thread.join(10)
    is_passing = isinstance(error, StorageError)
    assert thread.has_failed is not is_passing
    assert len(caplog.records) == (3 if is_passing else 1)


def test_a_poll_raises_what_its_thread_has_met(group: Group) -> None:
    """As long as it happens; then it is forgotten."""
    raises = False

    def mine(counts: Any, subscriptions: Any, owned: Any) -> Any:
        if raises:
            raise KeyError("mine")
        return {next(iter(subscriptions)): T}

    one = group.consumer("one", partition_assignment_strategy=mine)
    two = group.consumer("two", partition_assignment_strategy=mine)
    group.rounds(one, two)
    rebalancer = one._rebalancer
    assert rebalancer is not None
    member = rebalancer._member
    assert member is not None
    two.close()
    raises = True
    rebalancer._thread = thread = _HeartbeatThread(Silent(), rebalancer, int)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="mine"):
        member.tick()  # by the thread
    thread.has_failed = True
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            one.poll()
    raises = False
    one.poll()
    assert not thread.has_failed
    one.close()


@pytest.mark.parametrize("then", ["poll", "subscribe", "close"])
@pytest.mark.parametrize("step", ["_look", "_beat"])
def test_who_joined_and_failed_then_and_was_expired_joins_anew(
    group: Group, monkeypatch: pytest.MonkeyPatch, step: str, then: str
) -> None:
    """It has no thread yet, so others take it for dead if it polls late."""
    one, two = group.consumer("one"), group.consumer("two")
    group.rounds(one)

    def fails(*_: object, **__: object) -> None:
        raise KeyError(step)

    with monkeypatch.context() as patch:
        patch.setattr(Member, step, fails)
        with pytest.raises(KeyError, match=step):
            two.poll()
    group.rounds(one, count=25)
    assert len(group.store.groups.describe("g").members) == 1
    if then == "close":
        two.close()
        return
    if then == "subscribe":
        two.subscribe(["t", "out"])
    group.rounds(two, one)
    more = [TopicPartition("out", 0)] if then == "subscribe" else []
    assert two.assignment()
    assert sorted([*one.assignment(), *two.assignment()]) == [*more, *T]


@pytest.mark.parametrize("line", [0, 1])
def test_a_consumer_is_collected_while_its_thread_begins_to_wait(line: int) -> None:
    """Python may collect it in that very thread, which must not wait for a lock of its own then."""
    member, owner = Silent(), Silent()
    thread = _HeartbeatThread(member, owner, int)  # type: ignore[arg-type]
    lines = iter(range(1000))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "wait" and event == "line" and next(lines) == line:
            thread.abandon()
        return trace

    threading.settrace(trace)
    try:
        thread._thread.start()
        thread._thread.join(10)
    finally:
        threading.settrace(None)
    assert member.reasons == ("never closed",)


def heartbeat_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("txnlog-heartbeat")]


@pytest.mark.parametrize("comes", ["before", "after"])
def test_an_interrupt_amid_the_start_of_heartbeats(
    monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """The next poll starts the thread, or finds that it has started; closing ends it."""
    others = heartbeat_threads()
    store = txnlog.open(f"memory://heartbeats-{comes}", create=True)
    store.topics.create("t")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if not thread.name.startswith("txnlog-heartbeat"):
            start(thread)
            return
        monkeypatch.setattr(threading.Thread, "start", start)
        if comes == "after":
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    consumer = store.consumer("t", group_id="g")
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(max_records=1)
    consumer.poll(max_records=1)
    (thread,) = (found for found in heartbeat_threads() if found not in others)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive()


def test_closing_leaves_a_group_that_was_being_joined(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt came when it was in the group, and did not know of it yet."""
    put_joined = Member._put_joined

    def interrupted(member: Member) -> bool:
        put_joined(member)
        raise KeyboardInterrupt

    consumer, other = group.consumer("one"), group.consumer("other")
    other.poll(max_records=1)
    monkeypatch.setattr(Member, "_put_joined", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll()
    monkeypatch.undo()
    assert len(group.store.groups.describe("g").members) == 2
    consumer.close()
    assert len(group.store.groups.describe("g").members) == 1
    group.rounds(other)
    assert numbers(other) == [0, 1, 2, 3]
