"""Members that leave at one instant: one puts it for all. Requests that the dead have left."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.support.groups.group_in_steps import Group, log_of, take_part
from tests.support.simulation.slow_requests import SlowRequests
from txnlog import ConsumerConfig, names
from txnlog.consumer import Consumer
from txnlog.errors import StorageError
from txnlog.groups.presence import LeaveGroup
from txnlog.log.group_log import GroupLog
from txnlog.names import JoinRequest
from txnlog.state.group import OffsetCommit
from txnlog.state.membership import GroupMember, MembersJoined, MembersLeft
from txnlog.testing import Fault, FaultyStorage, Process, Simulation

pytestmark = pytest.mark.rule("M4")

FIRST, SECOND, OWN = (f"{number:032x}" for number in (1, 2, 9))


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize(
    "members",
    [
        10,
        pytest.param(30, marks=pytest.mark.more),
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_who_leaves_at_one_instant_leaves_together(members: int, strategy: str) -> None:
    """At 30 ms a request, a second after all are gone, and nothing is left behind."""
    simulation = Simulation(1, step_ms=(0, 0))
    simulation.store().topics.create("t", partitions=members)
    leave_ms = simulation.clock.time_ms + 12_000
    requests, took_ms = [0] * members, [0] * members

    def take_part_and_leave(number: int, process: Process) -> None:
        slow = SlowRequests(process)
        consumer = process.store().consumer(
            "t", group_id="g", config=ConsumerConfig(partition_assignment_strategy=strategy)
        )
        while (left_ms := leave_ms - simulation.clock.time_ms) > 0:
            consumer._join_in()
            process.clock.sleep(min(0.1, left_ms / 1000))
        slow.counts.clear()
        consumer.close()
        requests[number] = slow.counts.total()
        took_ms[number] = simulation.clock.time_ms - leave_ms

    for number in range(members):
        simulation.spawn(f"m{number}", partial(take_part_and_leave, number))
    simulation.run(max_steps=10_000_000)
    assert sum(requests) <= 19 * members, requests
    assert max(took_ms) <= 1_500
    assert simulation.storage.list_names("groups/g/members") == []


# -- requests, one by one ------------------------------------------------------------------------


@pytest.fixture
def group() -> Group:
    """One whose three members are FIRST, SECOND and OWN."""
    group = Group()
    told = (
        GroupMember(who, ("t",), ("range",), 45_000, 60_000, client_id=who[-1])
        for who in (FIRST, SECOND, OWN)
    )
    joined = MembersJoined("n", 0, (*told,))
    log_of(group).append(lambda _: joined)
    return group


def members(group: Group) -> list[str]:
    log = log_of(group)
    with log.lock:
        state = log.state
        return [*state.membership.members]


def ask(group: Group, *member_ids: str) -> None:
    for member_id in member_ids:
        assert group.heap.put_if_absent(names.leave_request("g", member_id), b"0\n")


def leave_having_asked(log: GroupLog, member_id: str = OWN) -> LeaveGroup:
    """One that has lost a number, and has left a request."""
    leaving = LeaveGroup(log, member_id, "closed")
    leaving._ask()
    return leaving


def requests_left(group: Group) -> list[str]:
    return [n for n in group.heap.list_names("groups/g/members") if n.endswith((".join", ".leave"))]


def test_one_puts_it_for_those_who_ask(group: Group) -> None:
    """Only members are removed."""
    ask(group, SECOND, f"{7:032x}")
    assert leave_having_asked(log_of(group), FIRST).run()
    assert members(group) == [OWN]
    assert requests_left(group) == []
    assert len(entries := group.heap.list_names("groups/g")) == 2
    assert json.loads(group.heap.get(f"groups/g/{entries[-1]}"))["member_ids"] == [FIRST, SECOND]


def test_who_finds_that_it_is_gone_puts_nothing(group: Group) -> None:
    own = leave_having_asked(log_of(group))
    assert leave_having_asked(log_of(group), FIRST).run()
    assert not own.run()
    assert members(group) == [SECOND]
    assert requests_left(group) == []


def test_nobody_waits_for_the_dead(group: Group) -> None:
    """The first in turn have asked, and died; and each look finds a new commit."""
    ask(group, FIRST, SECOND)
    offsets = [OffsetCommit("t", 0, 1)]

    def before(text: str) -> None:
        if text.startswith("list groups/g") and "members" not in text:
            log_of(group).commit(offsets, force=True)

    log = log_of(group, FaultyStorage(group.heap, before_request=before))
    begun_ms = group.clock.time_ms
    assert leave_having_asked(log).run()
    assert group.clock.time_ms - begun_ms < 2_000
    assert members(group) == []


class NoRequests(FaultyStorage):
    """Neither puts nor lists requests, nor deletes them."""

    def _fault(self, text: str) -> Fault | None:
        is_listing = text.startswith("list") and text.endswith("/members")
        return Fault.FAIL if text.endswith(".leave") or is_listing else None


def test_who_can_leave_no_request_leaves_by_itself(group: Group) -> None:
    ask(group, FIRST)
    assert leave_having_asked(log_of(group, NoRequests(group.heap))).run()
    assert members(group) == [FIRST, SECOND]


@pytest.mark.parametrize("rivals", [["joins"], ["leaves"], ["joins"] * 3])
def test_who_loses_to_others_that_leave_asks_them(group: Group, rivals: list[str]) -> None:
    """Or to anybody, and again and again."""
    other = log_of(group)
    left = [*rivals]

    def before(text: str) -> None:
        if text.startswith("put_if_absent groups/g/0") and left:
            if left.pop() == "leaves":
                other.append(lambda _: MembersLeft("n", 0, (FIRST,), "closed"))
            else:
                other.commit([OffsetCommit("t", 0, 1)], force=True)

    storage = FaultyStorage(group.heap, before_request=before)
    assert LeaveGroup(log_of(group, storage), OWN, "closed").run()
    assert left == []
    has_asked = any(text.endswith(".leave") for text in storage.requests)
    assert has_asked == (rivals != ["joins"])
    assert requests_left(group) == []


def test_what_fails_leaves_no_request(group: Group) -> None:
    class Fails(FaultyStorage):
        def _fault(self, text: str) -> Fault | None:
            return Fault.FAIL if text.startswith("put_if_absent groups/g/0") else None

    leaving = leave_having_asked(log_of(group, Fails(group.heap)))
    with pytest.raises(StorageError):
        leaving.run()
    assert requests_left(group) == []


# -- what the dead have left ---------------------------------------------------------------------


@pytest.fixture
def lone() -> tuple[Group, Consumer]:
    group = Group()
    consumer = group.consumer()
    take_part(consumer)
    return group, consumer


def test_members_delete_requests_that_are_a_minute_old(lone: tuple[Group, Consumer]) -> None:
    """No younger ones: their writers wait. By their own clock, and with no request more."""
    group, consumer = lone
    asked = JoinRequest(FIRST, 1)
    group.heap.put_if_absent(names.join_request("g", asked), b"{}")
    ask(group, SECOND)
    for _ in range(20):
        group.clock.time_ms += 3_000
        take_part(consumer)
        assert len(requests_left(group)) == 2
    group.rounds(consumer, count=3)
    assert requests_left(group) == []


def test_the_last_one_leaves_no_request_behind(lone: tuple[Group, Consumer]) -> None:
    group, consumer = lone
    ask(group, SECOND)
    consumer.close()
    assert group.heap.list_names("groups/g/members") == []
