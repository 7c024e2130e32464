"""Data at some of the roots: how it is moved, and that the last copy never goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.replication.placed_roots import FILES, Set, trim_at
from txnlog.errors import (
    NotEnoughReplicas,
    StorageError,
)
from txnlog.names import parse_data_file
from txnlog.replication.roots import trim
from txnlog.replication.roots.election import change_settings, take_out
from txnlog.replication.roots.epochs import (
    FACTOR,
    RACK,
    Epoch,
    Member,
    root_of,
)
from txnlog.replication.roots.placement import keepers
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage

pytestmark = pytest.mark.usefixtures("unlogged")


def test_data_is_moved_when_the_settings_change() -> None:
    """More copies, fewer, others: only what has to be is copied and deleted, and only once."""
    them = Set(1)
    them.put_files()
    change_settings(them.agreement, {FACTOR: 2})
    (planned,) = reassign(them.agreement, dry_run=True)
    assert (planned.copied, planned.deleted) == (len(FILES), 0)
    assert reassign(them.agreement) == [planned]
    them.check_placed()
    change_settings(them.agreement, {FACTOR: 1, f"{RACK}.a": "x", f"{RACK}.b": "x"})
    assert reassign(them.agreement, ["other"]) == []
    (planned,) = reassign(them.agreement, ["t"], dry_run=True)
    assert reassign(them.agreement, ["t"]) == [planned]
    them.check_placed()
    assert planned.deleted >= len(FILES)
    assert reassign(them.agreement) == []
    assert them.notes() == []
    change_settings(them.agreement, {FACTOR: None})
    reassign(them.agreement)
    them.check_placed()


def test_copies_that_differ_stay() -> None:
    """One of them is damaged, and it may be the one that belongs there."""
    them = Set(1)
    name = FILES[0]
    for member, data in (("a-0", b"1"), ("b-0", b""), ("c-0", b"1")):
        them.roots.heap(member).put(name, data)
    assert reassign(them.agreement) == []
    assert len(them.holders(name)) == 3


def test_what_is_cut_short_is_not_copied() -> None:
    them = Set(3)
    for member, data in (("a-0", b""), ("b-0", b"1")):
        them.roots.heap(member).put(FILES[0], data)
    reassign(them.agreement)
    assert them.roots.heap("c-0").get(FILES[0]) == b"1"


class Fails(ForwardingStorage):
    """All requests from some on fail, as to a process that is killed."""

    def __init__(self, inner: Storage, lives: Callable[[], None]) -> None:
        super().__init__(inner)
        self._lives = lives

    def put(self, name: str, data: bytes) -> None:
        self._lives()
        self.inner.put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._lives()
        return self.inner.put_if_absent(name, data)

    def delete(self, names: Any) -> None:
        self._lives()
        self.inner.delete(names)


class Killed(BaseException):
    """Nothing runs after it."""


def test_whoever_is_killed_leaves_nothing_but_work() -> None:
    """At each of its writes; the next one does the rest, as far as there are roots to take it."""
    for lives in range(400):
        them = Set(2, count=4)
        them.put_files()
        change_settings(them.agreement, {FACTOR: 1, f"{RACK}.a": "x", f"{RACK}.b": "x"})
        left = [lives]

        def live(left: Sequence[int] = left) -> None:
            assert isinstance(left, list)
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        def open_member(_: Epoch, member: Member, them: Set = them, live: Any = live) -> Storage:
            return Fails(them.roots.heap(member), live)

        doomed = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)
        try:
            reassign(doomed.agreement)
        except Killed:
            pass
        else:
            break
        assert all(them.holders(name) for name in FILES)
        reassign(them.agreement)
        assert all(len(them.holders(name)) in (1, 2) for name in FILES)
        assert [them.storage.get(name) for name in FILES] == [name.encode() for name in FILES]
    assert 5 < lives < 400
    them.check_placed()


def test_of_two_who_rely_on_each_others_copy_none_deletes() -> None:
    """One sleeps between his look and his deletion, for as long as he likes."""
    them = Set(1)
    name = FILES[0]
    for member in ("a-0", "b-0"):
        them.roots.heap(member).put(name, b"1")
    (kept,) = keepers(them.roots.epoch(), name, {"c-0"})
    gone = "b-0" if kept == "a-0" else "a-0"
    them.roots.heap("c-0").put(name, b"1")
    slow = them.other().agreement
    is_newest = slow.is_newest

    def sleep(epoch: Epoch) -> bool:
        newest = is_newest(epoch)
        assert trim_at(them, name, kept) == [name]  # c has it
        assert trim_at(them, name, "c-0") == []  # the others are noted, or gone
        return newest

    slow.is_newest = sleep  # type: ignore[method-assign]
    assert trim.trim(slow, them.roots.epoch(), {name: [gone]}) == [name]
    assert them.holders(name) == {"c-0"}
    assert them.notes() == []


def test_a_deletion_that_is_not_answered_may_come_late() -> None:
    """Files in its note no longer count at that root; a new incarnation is another member."""
    them = Set(1)
    name = FILES[0]
    first, second = keepers(them.roots.epoch(), name)[0], "?"
    second = next(member for member in them.roots.epoch().in_sync if member != first)
    for member in (first, second):
        them.roots.heap(member).put(name, b"1")

    def open_member(_: Epoch, member: Member) -> Storage:
        return Unanswered(them.roots.heap(member))

    late = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)
    with pytest.raises(NotEnoughReplicas, match="failed while data was reassigned"):
        reassign(late.agreement)
    assert len(them.notes()) == 1
    assert trim_at(them, name, first) == []
    reassign(them.agreement)
    assert first in them.holders(name)
    take_out(them.agreement, root_of(first))
    reassign(them.agreement)
    third = ({*them.roots.epoch().in_sync} - {second}).pop()
    assert third in them.holders(name)  # not second's, which may go


class Unanswered(ForwardingStorage):
    """Deletions of data are lost, or come late: nobody knows."""

    def delete(self, names: Any) -> None:
        doomed = [*names]
        if any(parse_data_file(name) for name in doomed):
            raise StorageError("no answer")
        self.inner.delete(doomed)


def test_a_copy_that_may_not_be_durable_yet_is_not_relied_on() -> None:
    """Others' copies are confirmed before one is deleted: who makes them may not be done."""
    them = Set(1)
    name = FILES[0]
    (kept,) = keepers(them.roots.epoch(), name)
    gone = next(member for member in them.roots.epoch().in_sync if member != kept)
    for member in (kept, gone):
        them.roots.heap(member).put(name, b"1")

    class Unconfirmed(ForwardingStorage):
        def confirm(self, _: str) -> None:
            raise StorageError("it cannot be made durable")

    def open_member(_: Epoch, member: Member) -> Storage:
        heap = them.roots.heap(member)
        return Unconfirmed(heap) if member == kept else heap

    storage = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)
    with pytest.raises(NotEnoughReplicas, match="it cannot be made durable"):
        reassign(storage.agreement)
    assert them.holders(name) == {kept, gone}
    assert them.notes() == []


def test_nothing_is_deleted_under_an_epoch_that_has_passed() -> None:
    them = Set(1)
    for member in ("a-0", "b-0", "c-0"):
        them.roots.heap(member).put(FILES[0], b"1")
    epoch = them.roots.epoch()
    take_out(them.agreement, root_of(keepers(epoch, FILES[0])[0]))
    gone = next(member for member in them.roots.epoch().in_sync)
    assert trim.trim(them.other().agreement, epoch, {FILES[0]: [gone]}) == []
    assert len(them.holders(FILES[0])) == 2
    assert them.notes() == []
