"""Data at some of the roots: how it is moved, and that the last copy never goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.replication.placed_roots import FILES, Set, is_whole, trim_at
from txnlog.errors import (
    InvalidOption,
    NotEnoughReplicas,
    StorageError,
)
from txnlog.names import parse_data_file
from txnlog.replication import root_names
from txnlog.replication.roots import reassignment, trim
from txnlog.replication.roots.election import change_settings, take_out
from txnlog.replication.roots.epochs import (
    FACTOR,
    RACK,
    Epoch,
    Member,
    root_of,
)
from txnlog.replication.roots.old_incarnations import forget
from txnlog.replication.roots.placement import keepers
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.replication.roots.soundness import CannotJudge
from txnlog.replication.roots.verification import ReplicaDifference, verify
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage

pytestmark = [pytest.mark.usefixtures("unlogged"), pytest.mark.rule("R11")]


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
    assert trim.trim(slow, them.roots.epoch(), {name: [gone]}, is_whole) == [name]
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


def test_a_note_that_cannot_be_read_names_everything() -> None:
    """Copies at its member do not count; others get theirs. An end of the member ends it."""
    them = Set(2)
    them.put_files()
    them.roots.heap("c-0").put(root_names.trim_note(f"{7:032x}"), b"{}")
    assert trim_at(them, FILES[0], keepers(them.roots.epoch(), FILES[0])[0]) == []
    reassign(them.agreement)
    for name in FILES:
        assert {"a-0", "b-0"} <= them.holders(name)
    take_out(them.agreement, "c")
    join(them.agreement, "c", "heap://c")
    reassign(them.agreement)
    them.check_placed()


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
    assert trim.trim(them.other().agreement, epoch, {FILES[0]: [gone]}, is_whole) == []
    assert len(them.holders(FILES[0])) == 2
    assert them.notes() == []


# -- damage --------------------------------------------------------------------------------------


def test_no_copy_is_deleted_while_those_that_stay_are_damaged() -> None:
    """They have the same size; verification repairs them, and then it is deleted."""
    them = Set(1)
    name = FILES[0]
    (kept,) = keepers(them.roots.epoch(), name)
    other = next(member for member in them.roots.epoch().in_sync if member != kept)
    them.roots.heap(kept).put(name, b"0")
    them.roots.heap(other).put(name, b"1")
    reassign(them.agreement, is_sound=is_whole)
    assert them.holders(name) == {kept, other}
    assert them.notes() == []
    (found,) = verify(them.storage, is_whole, with_contents=True, repair=True)
    assert (found.kind, found.members, found.is_repaired) == ("damaged", (kept,), True)
    (done,) = reassign(them.agreement, is_sound=is_whole)
    assert (done.copied, done.deleted) == (0, 1)
    assert them.holders(name) == {kept}
    assert them.storage.get(name) == b"1"


@pytest.mark.parametrize("where", ["where it belongs", "elsewhere"])
def test_what_is_copied_is_whole_if_any_copy_is(where: str) -> None:
    them = Set(2)
    name = FILES[0]
    first, lacking = keepers(them.roots.epoch(), name)
    other = next(one for one in them.roots.epoch().in_sync if one not in (first, lacking))
    whole, damaged = (first, other) if where == "where it belongs" else (other, first)
    them.roots.heap(damaged).put(name, b"0")
    them.roots.heap(whole).put(name, b"1")
    (done,) = reassign(them.agreement, is_sound=is_whole)
    assert (done.copied, done.deleted) == (1, int(whole == first))
    assert them.roots.heap(lacking).get(name) == b"1"
    assert them.holders(name) == {first, lacking, whole}


def test_a_segment_moves_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the index of aborted transactions it is judged: it is not left for the next run."""
    monkeypatch.setattr(reassignment, "_AT_ONCE", 1)
    them = Set(1)
    name = FILES[0]
    files = [name, name.replace(".log", ".txnindex")]
    (kept,) = keepers(them.roots.epoch(), name)
    other = next(member for member in them.roots.epoch().in_sync if member != kept)
    for file in files:
        them.roots.heap(other).put(file, file.encode())

    def judge(storage: Storage, name: str) -> bool:
        return all(is_whole(storage, file) for file in files)

    (done,) = reassign(them.agreement, is_sound=judge)
    assert (done.copied, done.deleted) == (2, 2)
    assert [them.holders(file) for file in files] == [{kept}] * 2


def test_what_is_damaged_everywhere_is_copied_as_it_is() -> None:
    """Some of it can be read."""
    them = Set(2)
    first, lacking = keepers(them.roots.epoch(), FILES[0])
    them.roots.heap(first).put(FILES[0], b"0")
    (done,) = reassign(them.agreement, is_sound=is_whole)
    assert (done.copied, done.lacking) == (1, 0)
    assert them.roots.heap(lacking).get(FILES[0]) == b"0"


@pytest.mark.parametrize("factor", [1, 2, None])
def test_an_old_incarnation_stays_while_it_alone_has_data_whole(factor: int | None) -> None:
    """Its root is out; verification takes the data from there, and then it goes."""
    them = Set(factor)
    them.put_files()
    gone = "a-0"
    whole_there = [name for name in FILES if gone in them.holders(name)]
    take_out(them.agreement, "a")
    if factor:
        reassign(them.agreement, is_sound=is_whole)
    rotten = whole_there[0]
    for member in them.holders(rotten):
        them.roots.heap(member).replace(rotten, b"0")
    for dry_run in (True, False):
        with pytest.raises(InvalidOption, match=rf"only a-0 has 1 .*{rotten}: .*verify --deep"):
            forget(them.storage, gone, is_whole, dry_run=dry_run)
    found = [*verify(them.storage, is_whole, with_contents=True, repair=True)]
    assert {(one.name, one.kind, one.is_repaired) for one in found} == {(rotten, "damaged", True)}
    assert forget(them.storage, gone, is_whole).objects
    assert them.storage.get(rotten) == rotten.encode()


def test_what_an_old_incarnation_has_damaged_too_does_not_keep_it() -> None:
    them = Set(2)
    them.put_files()
    name = FILES[0]
    gone, *_ = sorted(them.holders(name))
    for member in them.holders(name):
        them.roots.heap(member).replace(name, b"0")
    take_out(them.agreement, root_of(gone))
    reassign(them.agreement, is_sound=is_whole)
    assert forget(them.storage, gone, is_whole).objects


def test_what_was_read_when_its_root_came_back_is_not_read_again() -> None:
    """The old incarnation goes without a request for data; on a disk the files are the same."""
    them = Set(3)
    them.put_files()
    take_out(them.agreement, "a")
    join(them.agreement, "a", "heap://a", is_whole)
    read: list[str] = []

    def judge(storage: Storage, name: str) -> bool:
        read.append(name)
        return is_whole(storage, name)

    assert forget(them.storage, "a-0", judge).objects
    assert read == []


def test_what_nobody_in_sync_has_keeps_an_old_incarnation_if_a_log_names_it() -> None:
    """A repair was killed when it had deleted what was damaged; its root has come back since."""
    them = Set(None)
    them.put_files()
    take_out(them.agreement, "a")
    lost, deleted = FILES[:2]
    for member in them.roots.epoch().in_sync:
        them.roots.heap(member).delete([lost, deleted])
    join(them.agreement, "a", "heap://a", is_whole)

    def judge(storage: Storage, name: str) -> bool | None:
        return None if name == deleted else is_whole(storage, name)

    with pytest.raises(InvalidOption, match=f"only a-0 has 1 data .*{lost}.*by hand"):
        forget(them.storage, "a-0", judge)
    them.storage.put(lost, lost.encode())
    assert forget(them.storage, "a-0", judge).objects


def test_nothing_is_deleted_whose_log_cannot_be_read() -> None:
    """It is copied as it is, and reported by nobody; what cannot be told stays where it is."""
    them = Set(1)
    for member in them.roots.epoch().in_sync:
        them.roots.heap(member).put(FILES[0], b"1")

    def judge(storage: Storage, name: str) -> bool:
        raise CannotJudge(f"the log of {name.split('/')[1]} cannot be read")

    assert reassign(them.agreement, is_sound=judge) == []
    assert len(them.holders(FILES[0])) == 3
    assert them.notes() == []
    change_settings(them.agreement, {FACTOR: None})
    take_out(them.agreement, "a")
    for dry_run in (True, False):
        with pytest.raises(InvalidOption, match=r"a-0 may have .*: the log of t cannot"):
            forget(them.storage, "a-0", judge, dry_run=dry_run)
    assert [*verify(them.storage, judge, with_contents=True, repair=True)] == []
    join(them.agreement, "a", "heap://a", judge)
    assert them.holders(FILES[0]) == {"a-1", "b-0", "c-0"}


def test_one_lacks_what_the_other_has_damaged() -> None:
    """And an old incarnation has it whole: both get it, by two runs at most."""
    them = Set(None)
    them.put_files()
    take_out(them.agreement, "a")
    first, second = (them.roots.heap(member) for member in them.roots.epoch().in_sync)
    first.delete([FILES[0]])
    second.replace(FILES[0], b"0")
    for _ in range(2):
        assert all(one.is_repaired for one in verify_deep(them))
    assert first.get(FILES[0]) == second.get(FILES[0]) == FILES[0].encode()
    assert verify_deep(them) == []


def verify_deep(them: Set) -> list[ReplicaDifference]:
    return [*verify(them.storage, is_whole, with_contents=True, repair=True)]


def test_a_repair_whose_source_fails_leaves_all_as_it_was() -> None:
    """No note stays, by which the copies would not count any more, and no name is lost."""
    them = Set(2)
    them.put_files()
    name = FILES[0]
    gone, kept = sorted(them.holders(name))
    take_out(them.agreement, root_of(gone))
    them.roots.heap(kept).replace(name, b"0")

    class Failing(ForwardingStorage):
        def get(self, _: str) -> bytes:
            raise StorageError("it fails")

    def open_member(_: Epoch, member: Member) -> Storage:
        heap = them.roots.heap(member)
        return Failing(heap) if member == gone else heap

    storage = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)

    def judge(at: Storage, asked: str) -> bool:
        return asked != name or at.size(asked) > 1

    with pytest.raises(StorageError, match="it fails"):
        [*verify(storage, judge, with_contents=True, repair=True)]
    assert them.roots.heap(kept).get(name) == b"0"
    assert them.notes() == []
    assert {one.name for one in verify_deep(them)} == {name}
    assert them.roots.heap(kept).get(name) == name.encode()


def test_equal_copies_are_damaged_only_if_all_of_them_are() -> None:
    """A segment is judged with its index, which may be damaged at one root."""
    them = Set(2)
    them.put_files()
    told: list[str] = []

    def judge(_: Storage, name: str) -> bool:
        told.append(name)
        return told.count(name) > 1

    assert [*verify(them.storage, judge, with_contents=True, repair=False)] == []
    assert told.count(FILES[0]) == 2
