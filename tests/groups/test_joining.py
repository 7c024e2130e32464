"""Members that join at one instant, or subscribe to something else: one puts it for all."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from tests.support.groups.group_in_steps import Group, log_of, take_part
from tests.support.simulation.slow_requests import SlowRequests
from txnlog import ConsumerConfig, names
from txnlog.errors import FencedInstanceId, InconsistentGroupProtocol
from txnlog.groups.member import Member
from txnlog.groups.presence import JoinGroup
from txnlog.log.group_log import GroupLog
from txnlog.names import JoinRequest
from txnlog.state.group import GroupState, OffsetCommit
from txnlog.state.membership import (
    MOST_BEHIND,
    GroupMember,
    Held,
    JoinAsked,
    Membership,
    MembersJoined,
    MembersLeft,
)
from txnlog.storage import envelope
from txnlog.storage.counting import CountingStorage
from txnlog.testing import Fault, FaultyStorage, Process, Simulation

pytestmark = pytest.mark.rule("M4", "M5")

FIRST, SECOND, OWN = (f"{number:032x}" for number in (1, 2, 9))


class Crowd:
    """Consumers, each in a process of its own, that join one group; what each has requested.

    ``begin_s`` is when each joins. It counts what they have asked for until the last of them has
    what it has in the end.
    """

    def __init__(self, begin_s: list[float], strategy: str, *, counted_from_s: float = 0.0) -> None:
        self.simulation = Simulation(1, step_ms=(0, 0))
        count = len(begin_s)
        self.simulation.store().topics.create("t", partitions=10 * count)
        self.begun_ms = self.simulation.clock.time_ms + round(counted_from_s * 1000)
        self.end_ms = self.begun_ms + 12_000
        self.owned: dict[int, list[int]] = {}
        self.counts = [0] * count
        self.requests = [0] * count
        """When the last one has got its share."""
        self.rest_ms = 0
        for number, at_s in enumerate(begin_s):
            body = partial(self._take_part, number, at_s, strategy)
            self.simulation.spawn(f"m{number}", body)
        self.simulation.run(max_steps=10_000_000)
        entries = self.simulation.storage.list_names("groups/g")
        self.entries = sum(name.endswith(".json") for name in entries)

    def _take_part(self, number: int, at_s: float, strategy: str, process: Process) -> None:
        requests = SlowRequests(process)
        store = process.store()
        process.clock.sleep(at_s)
        consumer = store.consumer(
            "t", group_id="g", config=ConsumerConfig(partition_assignment_strategy=strategy)
        )
        while self.simulation.clock.time_ms < self.end_ms:
            now_ms = self.simulation.clock.time_ms
            self.counts[number] += requests.counts.total() if now_ms >= self.begun_ms else 0
            requests.counts.clear()
            consumer._join_in()
            owned = sorted(where.partition for where in consumer._assigned)
            if owned != self.owned.get(number):
                self.owned[number] = owned
                self.rest_ms = self.simulation.clock.time_ms - self.begun_ms
                self.requests = [*self.counts]
            process.clock.sleep(0.1)

    def check_shared(self) -> None:
        assert {len(owned) for owned in self.owned.values()} == {10}
        assert len({number for owned in self.owned.values() for number in owned}) == 10 * len(
            self.counts
        )


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize(
    "members",
    [
        10,
        pytest.param(30, marks=pytest.mark.more),
        pytest.param(100, marks=pytest.mark.slow),
    ],
)
def test_who_joins_at_one_instant_is_joined_together(members: int, strategy: str) -> None:
    """At 30 ms a request all have their share soon, after so many requests for each of them.

    However many they are: if each joined by an entry of its own, all would read all of these.
    """
    crowd = Crowd([0.0] * members, strategy)
    crowd.check_shared()
    assert crowd.entries <= 12
    assert sum(crowd.requests) <= 60 * members, crowd.requests
    assert crowd.rest_ms <= 5_500


@pytest.mark.more
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_who_joins_a_group_together(strategy: str) -> None:
    """Ten come to twenty."""
    crowd = Crowd([0.5 * n for n in range(20)] + [30.0] * 10, strategy, counted_from_s=30.0)
    crowd.check_shared()
    assert sum(crowd.requests) <= 40 * 30, crowd.requests


def test_what_several_let_go_of_is_given_away_together(group: Group) -> None:
    """By the last of them, not by each."""
    group.store.topics.create("u", partitions=30)
    consumers = [group.consumer() for _ in range(5)]
    for consumer in consumers:
        consumer.subscribe(["u"])
    group.rounds(*consumers, count=10)
    newcomer = group.consumer()
    newcomer.subscribe(["u"])
    take_part(newcomer)
    group.clock.time_ms += 3_000
    before = group.store.groups.describe("g").generation
    for consumer in consumers:
        take_part(consumer)
    # Each has let go of one; the first member does not wait for the others.
    assert group.store.groups.describe("g").generation <= before + 2
    take_part(newcomer)
    group.rounds(*consumers, newcomer, count=2)
    assert sorted(len(c.assignment()) for c in [*consumers, newcomer]) == [5] * 6


# -- requests, one by one ------------------------------------------------------------------------


def member(member_id: str, **options: object) -> GroupMember:
    known = {"topics": ("t",), "assignors": ("range",), "instance_id": "", **options}
    return GroupMember(
        member_id=member_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        **known,  # type: ignore[arg-type]
    )


def put(group: Group, entry: MembersJoined | MembersLeft) -> None:
    log_of(group).append(lambda _: entry)


def ask(group: Group, asked: GroupMember, next_entry: int, *, named: str = "") -> None:
    request = JoinRequest(named or asked.member_id, next_entry)
    data = envelope.encode(JoinAsked(group.clock.time_ms, asked))
    assert group.heap.put_if_absent(names.join_request("g", request), data)


def join_having_asked(log: GroupLog, asks: GroupMember) -> JoinGroup:
    """One that has lost a number, and has left a request."""

    def judge(state: GroupState) -> GroupMember | None:
        return None if asks.member_id in state.membership.members else asks

    joining = JoinGroup(log, judge)
    with log.lock:
        state = log.state
        joining._ask(state, asks)
    return joining


def members(group: Group) -> dict[str, GroupMember]:
    log = log_of(group)
    with log.lock:
        state = log.state
        return {name: held.member for name, held in state.membership.members.items()}


def requests_left(group: Group) -> list[str]:
    return [n for n in group.heap.list_names("groups/g/members") if n.endswith(".join")]


def test_one_puts_it_for_those_who_ask(group: Group) -> None:
    """In their order; who comes later than others waits for them, but not for ever."""
    log = log_of(group)
    ask(group, member(FIRST), 0)
    ask(group, member(SECOND), 0)
    joining = join_having_asked(log, member(OWN))
    assert joining.run()
    assert [*members(group)] == [OWN, FIRST, SECOND]
    assert requests_left(group) == []
    assert len(group.heap.list_names("groups/g")) == 1


def test_who_finds_itself_joined_puts_nothing(group: Group) -> None:
    joining = join_having_asked(log_of(group), member(OWN))
    first = join_having_asked(log_of(group), member(FIRST))
    assert first.run()
    assert not joining.run()
    assert [*members(group)] == [FIRST, OWN]


def test_requests_that_nobody_fulfils(group: Group) -> None:
    """Requests of members that left or changed since; old, damaged, or foreign ones."""
    log = log_of(group)
    ask(group, member(FIRST), 0)
    ask(group, member(SECOND), 0)
    changed = member(SECOND, topics=("t", "out"))
    log.append(lambda _: MembersJoined("n", 0, (member(FIRST), changed)))
    log.append(lambda _: MembersLeft("n", 0, (FIRST,), "closed"))
    ask(group, member(f"{3:032x}"), 0, named=f"{4:032x}")
    group.heap.put_if_absent(names.join_request("g", JoinRequest(f"{5:032x}", 2)), b"{}")
    ask(group, member(f"{6:032x}"), 99)
    ask(group, member(f"{7:032x}", assignors=("mine",)), 2)
    ask(group, member(f"{10:032x}", topics=("t", "../t")), 2)
    ask(group, member(f"{11:032x}", client_id="x" * (1 << 20)), 2)
    group.clock.time_ms -= 60_000
    ask(group, member(f"{8:032x}"), 2)
    group.clock.time_ms += 60_000
    assert join_having_asked(log, member(OWN)).run()
    found = members(group)
    assert [*found] == [SECOND, OWN]
    assert found[SECOND].topics == ("t", "out")


def test_what_can_be_joined_in_one_entry(group: Group) -> None:
    """Each id and each instance id once, and all with an assignor in common."""
    log = log_of(group)
    with log.lock:
        state = log.state
        joinable = state.membership.joinable(
            "g",
            member(OWN, assignors=("range", "sticky"), instance_id="i"),
            [
                member(OWN),
                member(f"{3:032x}", instance_id="i"),
                member(f"{4:032x}", assignors=("sticky", "mine")),
                member(f"{5:032x}", assignors=("range",)),
                member(f"{6:032x}", instance_id="j"),
                member(f"{7:032x}", assignors=("sticky",), instance_id="j"),
            ],
        )
    assert [int(found.member_id, 16) for found in joinable] == [9, 4, 7]


def test_nobody_is_joined_under_an_id_that_is_gone() -> None:
    """As long as a request can be fulfilled it is known who is gone, and not for ever."""
    known = Membership()
    known.fold(MembersJoined("n", 0, (member(FIRST),)), 0)
    known.fold(MembersLeft("n", 0, (FIRST,), "closed"), 1)
    for number in range(2, 300):
        assert not any(known.may_join(member(FIRST), asked, number) for asked in (0, 1))
        assert known.may_join(member("f" * 32), number - 1, number)
        name = f"{number:032x}"
        known.members[name] = Held(member(name))
        known.fold(MembersLeft("n", 0, (name,), "closed"), number)
    assert FIRST not in known.gone
    assert len(known.gone) == 129


def test_who_was_joined_and_taken_for_dead_before_it_knew_joins_anew(group: Group) -> None:
    logs = group.process().logs
    late = Member(logs, "g", ConsumerConfig().membership(), ("t",))
    before = late.member_id
    log = log_of(group)
    log.append(lambda _: MembersJoined("n", 0, (member(before),)))
    log.append(lambda _: MembersLeft("n", 0, (before,), "session.timeout.ms"))
    late.join()
    assert late.member_id != before
    assert [*members(group)] == [late.member_id]


def test_who_is_joined_by_others_leaves_assigning_to_them(group: Group) -> None:
    """It tells that it is there, and looks when the next heartbeat is due."""
    storage = CountingStorage(group.heap)
    logs = group.process(storage).logs
    joined = Member(logs, "g", ConsumerConfig().membership(), ("t",))
    others = Member(group.process().logs, "g", ConsumerConfig().membership(), ("t",))
    others.join()
    log = log_of(group)
    with log.lock:
        state = log.state
        known = state.membership.members[others.member_id].member
    asked = msgspec.structs.replace(known, member_id=joined.member_id)
    log_of(group).append(lambda _: MembersJoined("n", 0, (asked,)))
    storage.take()
    joined.join()
    took = storage.take()
    assert took.pop("get") <= 3
    assert took == {"list": 1, "put_if_absent": 1}


class NoRequests(FaultyStorage):
    """Neither puts nor lists nor reads requests to join, nor lists beside them."""

    def _fault(self, text: str) -> Fault | None:
        is_listing = text.startswith("list") and text.endswith("/members")
        return Fault.FAIL if text.endswith(".join") or is_listing else None


def test_the_dead_fence_no_static_member_that_has_begun_anew(group: Group) -> None:
    """It has crashed when it had asked, and was back when others fulfilled what is asked."""
    ask(group, member(FIRST, instance_id="i"), 0)
    log = log_of(group)
    log.append(lambda _: MembersJoined("n", 0, (member(SECOND, instance_id="i"),)))
    assert join_having_asked(log, member(OWN)).run()
    assert [*members(group)] == [SECOND, OWN]


def test_who_was_joined_by_others_and_fenced_does_not_fence_the_newer_one(group: Group) -> None:
    late = Member(
        group.process().logs, "g", ConsumerConfig(group_instance_id="i").membership(), ("t",)
    )
    for name in (late.member_id, SECOND):
        put(group, MembersJoined("n", 0, (member(name, instance_id="i"),)))
    with pytest.raises(FencedInstanceId):
        late.join()
    assert [*members(group)] == [SECOND]


def test_commits_keep_nobody_waiting_for_the_dead(group: Group) -> None:
    """The first of those who ask is dead, and at each look a commit has come."""
    ask(group, member(FIRST), 0)
    offsets = [OffsetCommit("t", 0, 1)]

    def before(text: str) -> None:
        if text.startswith("list groups/g") and "members" not in text:
            log_of(group).commit(offsets, force=True)

    log = log_of(group, FaultyStorage(group.heap, before_request=before))
    begun_ms = group.clock.time_ms
    assert join_having_asked(log, member(OWN)).run()
    assert group.clock.time_ms - begun_ms < 2_000
    assert {*members(group)} == {FIRST, OWN}


def test_who_sleeps_for_too_long_joins_under_another_id(group: Group) -> None:
    """Nobody knows any more whether it was a member meanwhile, and is gone."""
    late = Member(group.process().logs, "g", ConsumerConfig().membership(), ("t",))
    before = late.member_id
    ask_first = JoinGroup._go_on

    def sleeps(self: JoinGroup) -> bool:
        with self._log.lock:
            state = self._log.state
            self._ask(state, member(late.member_id))
        others = log_of(group)
        others.append(lambda _: MembersJoined("n", 0, (member(before),)))
        others.append(lambda _: MembersLeft("n", 0, (before,), "session.timeout.ms"))
        for number in range(MOST_BEHIND // 2 + 1):
            other = member(f"{number:032x}")
            others.append(lambda _: MembersJoined("n", 0, (other,)))  # noqa: B023 - called at once
            others.append(lambda _: MembersLeft("n", 0, (other.member_id,), "closed"))  # noqa: B023
        patch.undo()
        return ask_first(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JoinGroup, "_go_on", sleeps)
        late.join()
    assert late.member_id != before
    assert [*members(group)] == [late.member_id]
    assert requests_left(group) == []


def test_a_request_that_no_listing_shows_is_not_left(group: Group) -> None:
    class NotShown(FaultyStorage):
        def list_names(self, folder: str, start_after: str = "") -> list[str]:
            found = super().list_names(folder, start_after)
            return [name for name in found if not name.endswith(".join")]

    assert join_having_asked(log_of(group, NotShown(group.heap)), member(OWN)).run()
    assert requests_left(group) == []


def test_requests_that_were_overtaken_are_deleted_by_who_sees_them(group: Group) -> None:
    """The process that fulfilled them may have died before it deleted them."""
    log = log_of(group)
    log.append(lambda _: MembersJoined("n", 0, (member(FIRST), member(SECOND))))
    log.append(lambda _: MembersLeft("n", 0, (SECOND,), "closed"))
    ask(group, member(FIRST), 0)
    ask(group, member(SECOND), 0)
    assert join_having_asked(log, member(OWN)).run()
    assert requests_left(group) == []


def test_who_can_leave_no_request_joins_by_itself(group: Group) -> None:
    ask(group, member(FIRST), 0)
    storage = NoRequests(group.heap)
    assert join_having_asked(log_of(group, storage), member(OWN)).run()
    assert [*members(group)] == [OWN]


def test_what_fails_leaves_no_request(group: Group) -> None:
    log = log_of(group)

    def judge(_: GroupState) -> GroupMember:
        raise InconsistentGroupProtocol("no")

    joining = join_having_asked(log, member(OWN))
    joining._judge = judge
    with pytest.raises(InconsistentGroupProtocol):
        joining.run()
    assert requests_left(group) == []


def test_who_loses_to_a_commit_asks_nobody(group: Group) -> None:
    """Only those who lose to others that join are a crowd."""
    one = group.consumer("one")
    one.poll(max_records=10)
    meanwhile = [one.commit]

    def before(text: str) -> None:
        if text.startswith("put_if_absent groups/g/0") and meanwhile:
            meanwhile.pop()()

    storage = FaultyStorage(group.heap, before_request=before)
    two = group.consumer("two", storage)
    take_part(two)
    assert meanwhile == []
    assert len(members(group)) == 2
    assert [text for text in storage.requests if ".join" in text] == []


def test_the_last_one_leaves_no_request_behind(group: Group) -> None:
    one = group.consumer("one")
    take_part(one)
    ask(group, member(FIRST), 1)
    one.close()
    assert group.heap.list_names("groups/g/members") == []
