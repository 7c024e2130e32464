"""A process sleeps just before it replaces a damaged object, and others go on meanwhile (R14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.replication.replica_world import Roots
from tests.support.replication.world_entries import entry_of
from txnlog.errors import StorageError
from txnlog.replication.roots.election import elect, take_out
from txnlog.replication.roots.epochs import joining
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.root_join import join
from txnlog.testing import HeapStorage, VirtualClock

NAME = "topics/t/log/00000000000000000001.json"
OURS, THEIRS = entry_of("", "ours"), entry_of("", "theirs")
DAMAGED = OURS.replace(b"ours", b"outs")


@pytest.fixture
def roots() -> Roots:
    """The leader has an entry, one follower has damaged it, and the other one lacks it."""
    roots = Roots(3)
    roots.heap("a-0").put(NAME, OURS)
    roots.heap("b-0").put(NAME, DAMAGED)
    return roots


def before(heap: HeapStorage, method: str, number: int, call: Callable[[], object]) -> None:
    """Have something happen before a request for the entry, of those the one with this number."""
    original = getattr(heap, method)
    seen = 0

    def interrupted(name: str, *arguments: object) -> object:
        nonlocal seen
        seen += name == NAME
        if name == NAME and seen == number:
            delattr(heap, method)
            call()
        return original(name, *arguments)

    setattr(heap, method, interrupted)


def has(roots: Roots, member: str) -> bytes:
    return roots.heap(member).get(NAME)


def test_all_others_have_it_before_it_is_replaced(roots: Roots) -> None:
    """Else one of them leads, gives the name away, and the replacement comes after that."""
    told: list[bool] = []

    def another_leads() -> None:
        other = roots.plain(VirtualClock())
        elect(other.agreement, "c")
        roots.down.add("a")
        told.append(other.put_if_absent(NAME, THEIRS))
        roots.down.clear()

    before(roots.heap("b-0"), "replace", 1, another_leads)
    assert roots.plain(VirtualClock()).get(NAME) == OURS
    assert told == [False]
    assert [has(roots, member) for member in ("a-0", "b-0", "c-0")] == [OURS] * 3


def test_the_epoch_is_still_the_newest_when_it_is_replaced(roots: Roots) -> None:
    """What members had under an earlier one they may have got too late.

    Meanwhile a root that never had the entry leads, and the name is somebody else's.
    """
    clock = VirtualClock()
    told: list[bool] = []

    def name_is_given_away() -> None:
        other = roots.plain(clock)
        elect(other.agreement, "c")
        roots.down.add("a")
        join(other.agreement, "d", "heap://d")
        elect(other.agreement, "d")
        roots.down.add("c")
        told.append(other.put_if_absent(NAME, THEIRS))
        assert (roots.epoch().leader, {*roots.epoch().in_sync}) == ("d-0", {"b-0", "d-0"})
        roots.down.clear()
        roots.heap("c-0").put(NAME, OURS)  # from a process that has slept since then

    before(roots.heap("c-0"), "get", 1, name_is_given_away)
    shown = roots.plain(clock).get(NAME)
    assert told == [True]
    assert shown == THEIRS
    assert (has(roots, "b-0"), has(roots, "d-0")) == (THEIRS, THEIRS)


def test_another_one_has_other_bytes(roots: Roots) -> None:
    """They were never acknowledged: it leaves, and then the damaged entry is replaced."""
    roots.heap("c-0").put(NAME, THEIRS)
    before(roots.heap("c-0"), "get", 9, lambda: pytest.fail("it is asked again and again"))
    assert roots.plain(VirtualClock()).get(NAME) == OURS
    assert roots.epoch().in_sync == ("a-0", "b-0")
    assert has(roots, "b-0") == OURS


def test_a_leader_hands_over_under_the_newest_epoch_alone(roots: Roots) -> None:
    """It has damaged the entry; whoever has it whole leads, unless somebody was elected since."""
    roots.heap("a-0").replace(NAME, DAMAGED)
    for member in ("b-0", "c-0"):
        heap = roots.heap(member)
        heap.delete([NAME])
        heap.put(NAME, OURS)
    other = roots.plain(VirtualClock())
    before(roots.heap("c-0"), "get", 1, lambda: elect(other.agreement, "b"))
    assert roots.plain(VirtualClock()).get(NAME) == OURS
    epochs = roots.epochs()
    assert [epoch.leader for epoch in epochs] == ["a-0", "b-0"]
    assert sorted(epochs[-1].in_sync) == ["a-0", "b-0", "c-0"]
    assert has(roots, "a-0") == OURS


def test_who_joins_waits_for_the_one_that_has_it_whole(roots: Roots) -> None:
    """That one fails for a moment: what the leader has damaged is not copied meanwhile."""
    roots.heap("a-0").replace(NAME, DAMAGED)
    roots.heap("b-0").replace(NAME, OURS)
    agreement = roots.plain(VirtualClock()).agreement
    take_out(agreement, "c")

    def fail() -> None:
        raise StorageError("not now")

    before(roots.heap("b-0"), "get", 1, fail)
    assert join(agreement, "c", "heap://c").member == "c-1"
    assert has(roots, "c-1") == OURS


def test_who_joins_is_not_given_what_is_damaged_by_readers(roots: Roots) -> None:
    """Whoever brings it in may find it whole with one that has left, and its name is taken then."""
    roots.heap("a-0").replace(NAME, DAMAGED)
    storage = roots.plain(VirtualClock())
    agreement = storage.agreement
    take_out(agreement, "b")
    put_mark(roots.heap("d-0"), "d-0", "heap://ctl", roots.epoch().store)
    assert agreement.propose(joining(roots.epoch(), "d-0", "heap://d", agreement.proposer("test")))
    assert storage.list_names("topics/t/log") == [NAME.rpartition("/")[2]]
    assert storage.get(NAME) == has(roots, "c-0") == DAMAGED
    assert not roots.heap("d-0").list_names("topics/t/log")
    assert "d-0" in roots.epoch().joining
