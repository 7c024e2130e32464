"""What replicas cost in requests, and how long the loss of one holds others up."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.replication.replica_world import CONTROLLER, LAG_MS, Roots
from tests.support.storage.timeline import OnTimeline, Timeline
from txnlog.errors import StorageError
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

PUTS = ("put", "put_if_absent", "upload")


def commit_one(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", value=b"1")


def test_a_commit_puts_twice_what_it_does_on_one_root() -> None:
    """And looks at the epochs once for each round of requests."""
    single = CountingStorage(HeapStorage())
    plain = attach(single, create=True, clock=VirtualClock())
    roots = Roots(2)
    control = CountingStorage(roots.controller)
    members = {name: CountingStorage(roots.heap(name)) for name in roots.epoch().members}

    def open_member(_: Epoch, member: Member) -> CountingStorage:
        return members[member]

    clock = VirtualClock()
    storage = ReplicatedStorage(control, open_member, clock=clock)
    storage.trust(probed=True)
    replicated = attach(storage, create=True, clock=clock)
    for store in (plain, replicated):
        store.topics.create("t", partitions=1)
        commit_one(store)
    for counted in (single, control, *members.values()):
        counted.take()
    commit_one(plain)
    commit_one(replicated)
    alone = single.take()
    asked = {name: counted.take() for name, counted in members.items()}
    for counts in asked.values():
        assert [counts.get(kind) for kind in PUTS] == [alone.get(kind) for kind in PUTS]
        assert counts.get("list", 0) == alone.get("list", 0)
        assert counts.get("get", 0) <= alone.get("get", 0)
    looks = Counter(control.take())
    assert set(looks) == {"list"}
    assert looks["list"] <= alone["list"] + sum(alone.get(kind, 0) for kind in PUTS)


def test_a_transaction_on_two_roots_takes_half_as_long_again() -> None:
    """With a controller that takes a tenth of what they do.

    Seven rounds of requests. In the three that decide something a follower waits for the leader;
    five wait for a look at the epochs.
    """
    root_ms, controller_ms = 30, 3
    line = Timeline()
    roots = Roots(2)
    control = CountingStorage(OnTimeline(roots.controller, line, controller_ms))
    members = {one: OnTimeline(roots.heap(one), line, root_ms) for one in roots.epoch().members}
    clock = VirtualClock()
    storage = ReplicatedStorage(control, lambda _, member: members[member], clock=clock)
    storage.trust(probed=True)
    alone = attach(OnTimeline(HeapStorage(), line, root_ms), create=True, clock=VirtualClock())
    took_ms = []
    for store in (alone, attach(storage, create=True, clock=clock)):
        for topic in ("a", "b"):
            store.topics.create(topic, partitions=1)
        producer = store.producer(transactional_id="p")
        producer.init_transactions()
        for _ in range(3):
            began_ms = line.now_ms
            control.take()
            with producer.transaction():
                for topic in ("a", "b"):
                    producer.send(topic, value=b"1")
        took_ms.append(line.now_ms - began_ms)
    puts_first, puts_beside, looks = 3, 4, 5
    one, two = took_ms
    assert one == 7 * root_ms
    assert two == (2 * puts_first + puts_beside) * root_ms + looks * controller_ms
    assert two <= 1.5 * one
    assert control.take() == {"list": 8}


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_who_loses_a_root_goes_on_within_two_timeouts(gone: str) -> None:
    roots, clock = Roots(3), VirtualClock()
    storage = roots.plain(clock)
    storage.put("before", b"1")
    roots.down.add(gone)
    began_ms = clock.time_ms
    assert storage.put_if_absent("after", b"1")
    assert LAG_MS <= clock.time_ms - began_ms < 2 * LAG_MS
    began_ms = clock.time_ms
    assert storage.list_names("") == ["after", "before"]
    assert clock.time_ms == began_ms


def test_whoever_is_left_goes_on_within_two_timeouts() -> None:
    """The leader and the one that could follow it fail at once."""
    roots, clock = Roots(3), VirtualClock()
    storage = roots.plain(clock)
    storage.put("before", b"1")
    roots.down.update("ab")
    began_ms = clock.time_ms
    assert storage.put_if_absent("after", b"1")
    assert clock.time_ms - began_ms < 2 * LAG_MS
    assert roots.epoch().leader == "c-0"


def test_requests_that_fail_now_and_then_put_nobody_out() -> None:
    roots, clock = Roots(2), VirtualClock()
    storage = roots.plain(clock)
    roots.down.add("b")
    sleep = clock.sleep

    def come_back(seconds: float) -> None:
        roots.down.clear()
        sleep(seconds)

    clock.sleep = come_back  # type: ignore[method-assign]
    assert storage.put_if_absent("x", b"1")
    assert roots.epoch().number == 0
    roots.down.add(CONTROLLER)
    with pytest.raises(StorageError):
        storage.put_if_absent("y", b"1")


def test_a_root_that_joins_costs_three_requests_an_object() -> None:
    """Two at the leader, which must not lose what others have; one where it is copied to."""
    roots, clock = Roots(2), VirtualClock()
    counted: dict[Member, CountingStorage] = {}

    def open_member(_: Epoch, member: Member) -> CountingStorage:
        return counted.setdefault(member, CountingStorage(roots.heap(member)))

    storage = ReplicatedStorage(roots.controller, open_member, clock=clock)
    names = [f"f/{number}" for number in range(100)]
    for name in names:
        storage.put_if_absent(name, b"1")
    for one in counted.values():
        one.take()
    assert join(storage.agreement, "d", "heap://d").objects == len(names)
    asked = {member: Counter(one.take()) for member, one in counted.items()}
    assert asked["a-0"].total() <= 2 * len(names) + 12
    assert asked["d-0"].total() == len(names) + 5


def stall(roots: Roots, gone: str, waits_s: int, clock: VirtualClock) -> None:
    """From now on requests to a root fail after so long."""

    class Stalled(set[str]):
        def __contains__(self, root: object) -> bool:
            if root == gone:
                clock.sleep(waits_s)
            return root == gone

    roots.down = Stalled()


@pytest.mark.parametrize("gone", ["a", "b"])
@pytest.mark.parametrize("waits_s", [1, 15])
def test_a_root_that_does_not_answer_is_put_out(gone: str, waits_s: int) -> None:
    """However long its adapter waits: that is a part of the time for which it fails."""
    roots, clock = Roots(2), VirtualClock()
    storage = roots.plain(clock)
    storage.put("before", b"1")
    stall(roots, gone, waits_s, clock)
    began_ms = clock.time_ms
    assert storage.put_if_absent("after", b"1")
    assert clock.time_ms - began_ms < LAG_MS + 3 * waits_s * 1000
    assert roots.epoch().in_sync == (f"{({*'ab'} - {gone}).pop()}-0",)


def test_who_is_second_to_put_a_root_out_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it has waited by then."""
    roots, clock = Roots(2), VirtualClock()
    storage, other = roots.plain(clock), roots.plain(clock)
    storage.put("before", b"1")
    stall(roots, "a", 15, clock)
    propose = Agreement.propose

    def be_second(agreement: Agreement, epoch: Epoch) -> bool:
        monkeypatch.setattr(Agreement, "propose", propose)
        assert other.agreement.put_out(roots.epoch(), "a-0", "was first")
        return propose(agreement, epoch)

    monkeypatch.setattr(Agreement, "propose", be_second)
    assert storage.put_if_absent("after", b"1")
    assert roots.epoch().why.endswith("was first")
