"""Data at some of the roots: where it belongs, where it is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.replication.placed_roots import FILES, Set, is_whole, trim_at
from tests.support.replication.replica_world import LAG_MS, MemberHeap, Roots
from txnlog.errors import (
    InvalidConfig,
    InvalidOption,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
)
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import (
    FACTOR,
    MIN_INSYNC,
    RACK,
    Epoch,
    Member,
    Proposer,
    changed_settings,
    first_epoch,
    joined,
    joining,
    root_of,
    without,
)
from txnlog.replication.roots.old_incarnations import forget
from txnlog.replication.roots.placement import keepers, places, targets
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.root_join import join
from txnlog.replication.roots.slowness import TookTooLong
from txnlog.replication.roots.verification import verify
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import VirtualClock

WHO = Proposer("x", 0, "test")


pytestmark = [pytest.mark.usefixtures("unlogged"), pytest.mark.rule("R10")]


# -- where it belongs ----------------------------------------------------------------------------


def made(count: int, **settings: str) -> Epoch:
    keys = {key.replace("_", "."): value for key, value in settings.items()}
    return first_epoch({f"r{number}": "/x" for number in range(count)}, keys, WHO)


def roots_of(epoch: Epoch, partition: int, topic: str = "t") -> str:
    name = f"topics/{topic}/data/{partition}/x-0.log"
    return "".join(root_of(member)[1:] for member in keepers(epoch, name))


def test_partitions_go_round_the_roots() -> None:
    """The i-th partition's j-th replica is at root i + j, from where the topic begins."""
    epoch = made(4, replication_factor="2")
    begin = int(roots_of(epoch, 0)[0])
    for partition in range(9):
        expected = [(begin + partition + j) % 4 for j in range(2)]
        assert roots_of(epoch, partition) == "".join(map(str, expected))
    begins = {roots_of(epoch, 0, f"topic-{number}")[0] for number in range(40)}
    assert begins == {*"0123"}  # topics of one partition do not share a root


def test_a_root_that_is_out_is_passed_over() -> None:
    """Only its own data goes elsewhere."""
    before = made(4, replication_factor="2")
    after = without(before, "r3-0", WHO)
    for partition in range(4):
        was, now = roots_of(before, partition), roots_of(after, partition)
        assert len(now) == 2
        assert "3" not in now
        assert {*was} - {"3"} <= {*now}


def test_racks_come_first() -> None:
    racks = {f"replica_rack_r{number}": rack for number, rack in enumerate("aabb")}
    epoch = made(4, replication_factor="2", **racks)
    for partition in range(8):
        first, second = [*roots_of(epoch, partition)]
        assert (first in "01") != (second in "01")
    begins = Counter(roots_of(epoch, partition)[0] for partition in range(8))
    assert set(begins.values()) == {2}
    racks["replica_rack_r2"] = "a"
    few = made(4, replication_factor="2", **racks)
    assert all("3" in roots_of(few, partition) for partition in range(8))
    three = made(4, replication_factor="3", **racks)
    assert all(len({*roots_of(three, partition)}) == 3 for partition in range(4))


def test_who_joins_is_given_a_share_beside_the_others() -> None:
    """It may never be in sync: as many of those that are have the data without it."""
    before = without(made(3, replication_factor="2"), "r2-0", WHO)
    epoch = joining(before, "r2-1", "/x", WHO)
    for partition in range(3):
        name = f"topics/t/data/{partition}/x-0.log"
        there = set(targets(epoch, name))
        assert there - {"r2-1"} == {"r0-0", "r1-0"}
        after = joined(epoch, "r2-1", epoch.number, 0, WHO)
        assert after is not None
        assert ("r2-1" in there) == ("r2-1" in keepers(after, name))


def test_what_is_placed() -> None:
    """Segments and indexes; by topic, or all. Everything else is everywhere."""
    epoch = made(3, replication_factor_t="1")
    index = FILES[0].replace(".log", ".index")
    assert targets(epoch, FILES[0]) == targets(epoch, index)
    assert len(targets(epoch, FILES[0])) == 1
    everywhere = (
        FILES[0].replace("/t/", "/other/"),
        "topics/t/log/00000000000000000000.json",
        "topics/t/manifests/00000000000000000007-ab.arrow",
        "groups/g/00000000000000000000.json",
    )
    for name in everywhere:
        assert targets(epoch, name) == epoch.members
    assert not places(made(3))


def test_settings_that_make_no_sense() -> None:
    epoch = made(3)
    for wrong, error, told in (
        ({FACTOR: 4}, InvalidOption, "there are 3 roots"),
        ({FACTOR: 0}, InvalidConfig, "at least 1, or 'all'"),
        ({FACTOR: "\uff12"}, InvalidConfig, "at least 1, or 'all'"),
        ({FACTOR: 1, MIN_INSYNC: 2}, InvalidOption, "min.insync.replicas is 2"),
        ({f"{FACTOR}.t": 1, MIN_INSYNC: 2}, InvalidOption, "min.insync.replicas is 2"),
        ({f"{FACTOR}.a b": 1}, InvalidConfig, "characters other than"),
        ({f"{RACK}.r9": "a"}, InvalidConfig, "not a setting of replicas"),
        ({f"{RACK}.r0": " "}, InvalidConfig, "must be a label"),
        ({f"{RACK}.r0": "x\n"}, InvalidConfig, "must be a label"),
    ):
        with pytest.raises(error, match=told):
            changed_settings(epoch, wrong)
    assert changed_settings(epoch, {f"{RACK}.r3": "a"}) == {f"{RACK}.r3": "a"}


def test_that_data_is_not_everywhere_is_not_forgotten() -> None:
    """Nobody goes back to looking at the leader alone."""
    assert changed_settings(made(3), {FACTOR: None}) == {}
    epoch = made(3, replication_factor_t="1")
    assert changed_settings(epoch, {f"{FACTOR}.t": None}) == {FACTOR: "all"}


# -- writing and reading, in memory --------------------------------------------------------------


def test_data_is_put_at_as_many_roots_and_found_at_any() -> None:
    """Small objects and large ones; listings show what the leader has not."""
    them = Set()
    them.put_files()
    large = "topics/t/data/7/x-0.log"
    with them.storage.upload(large) as upload:
        upload.write(b"12")
    them.check_placed()
    assert len(them.holders(large)) == 2
    assert [them.storage.size(name) for name in FILES] == [*map(len, FILES)]
    assert {name for name, _ in them.storage.list_all("")} == {*FILES, large}
    assert {name for name, _ in them.storage.list_all("topics/t")} == {*FILES, large}
    for folder in sorted({name.rpartition("/")[0] for name in FILES}):
        listed = [f"{folder}/{name}" for name in them.storage.list_names(folder)]
        assert listed == [name for name in FILES if name.startswith(folder)]
    assert them.storage.list_folders("topics/t/data") == [*"012347"]
    them.storage.delete([large])
    assert them.holders(large) == set()
    with pytest.raises(ObjectNotFound):
        them.storage.get(large)


@pytest.mark.parametrize("look", [1, 2])
def test_who_reads_does_not_rely_on_the_placement(look: int) -> None:
    """It is where it does not belong, and is moved while one member after the other is asked."""
    them = Set(1)
    name = FILES[0]
    belongs = keepers(them.roots.epoch(), name)[0]
    holder = next(member for member in them.roots.epoch().in_sync if member != belongs)
    them.roots.heap(holder).put(name, b"1")
    assert them.other().get(name) == b"1"
    looks = Counter[Member]()

    class Moving(ForwardingStorage):
        def __init__(self, inner: Storage, member: Member) -> None:
            super().__init__(inner)
            self._member = member

        def get(self, name: str) -> bytes:
            looks[self._member] += 1
            if self._member == holder and looks[holder] <= look:
                if looks[holder] == look:  # it goes as this is asked
                    them.roots.heap(belongs).put(name, self.inner.get(name))
                    self.inner.delete([name])
                raise ObjectNotFound(name)
            return super().get(name)

    def open_member(_: Epoch, member: Member) -> Storage:
        return Moving(them.roots.heap(member), member)

    reader = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)
    assert reader.get(name) == b"1"
    assert looks[belongs] == look + 1


def test_what_it_costs() -> None:
    """A put and a look at the epochs for each copy alone; a read at one root."""
    roots = Roots(3, {FACTOR: "2"})
    members = {member: CountingStorage(roots.heap(member)) for member in roots.epoch().members}
    controller = CountingStorage(roots.controller)

    def open_member(_: Epoch, member: Member) -> Storage:
        return members[member]

    storage = ReplicatedStorage(controller, open_member, clock=VirtualClock())
    storage.put("first", b"")  # after which all know of the epoch
    for counted in (controller, *members.values()):
        counted.take()

    def taken() -> list[dict[str, int]]:
        return [counts for counted in members.values() if (counts := dict(counted.take()))]

    name = next(name for name in FILES if "a-0" not in keepers(roots.epoch(), name))
    storage.put(name, b"1")
    assert taken() == [{"put_if_absent": 1}] * 2
    assert dict(controller.take()) == {"list": 1}
    storage.get(name)
    assert taken() == [{"get": 1}]
    assert dict(controller.take()) == {}


def test_a_put_that_was_not_answered_is_confirmed_where_it_belongs() -> None:
    """A member that lacks it is given it."""
    them = Set(2)
    first, second = keepers(them.roots.epoch(), FILES[0])
    them.roots.heap(second).put(FILES[0], b"1")
    them.storage.confirm(FILES[0])
    assert them.holders(FILES[0]) == {first, second}
    with pytest.raises(ObjectNotFound):
        them.storage.confirm(FILES[1])


def test_an_upload_to_a_root_that_is_down_goes_to_the_next_one() -> None:
    """Once that is put out; if it goes down while something is uploaded, the next upload does."""
    them = Set(1)
    (first,) = keepers(them.roots.epoch(), FILES[0])
    them.roots.down.add(root_of(first))
    began_ms = them.clock.time_ms
    with them.storage.upload(FILES[0]) as upload:
        upload.write(b"1")
    assert them.clock.time_ms - began_ms < 2 * LAG_MS
    (second,) = them.holders(FILES[0])
    assert second != first

    def fail() -> None:
        raise StorageError("it is down")

    begun = them.storage.upload(FILES[5])
    begun._uploads[second].close = fail  # type: ignore[attr-defined]
    them.roots.down.add(root_of(second))
    with pytest.raises(StorageError):
        begun.close()
    assert len(them.roots.epoch().in_sync) == 1
    with them.storage.upload(FILES[10]) as upload:
        upload.write(b"1")
    assert them.holders(FILES[10])


def test_the_only_copy_is_at_a_root_that_is_out() -> None:
    """It is read there while that answers; else it is told which root may have it."""
    them = Set(1)
    them.put_files()
    (holder,) = them.holders(FILES[0])
    take_out(them.agreement, root_of(holder))
    assert them.storage.get(FILES[0]) == FILES[0].encode()
    assert [*them.storage.copies_of(FILES[0])]
    with pytest.raises(ObjectNotFound):
        them.storage.get(FILES[0].replace("-0.log", "-1.log"))
    them.roots.down.add(root_of(holder))
    with pytest.raises(NotEnoughReplicas, match=f"may be on a root that is out.*{holder}"):
        them.storage.get(FILES[0])
    them.roots.down.clear()
    before = {name for name in FILES if not them.holders(name)}
    assert before
    with pytest.raises(InvalidOption, match=f"no root in sync has {len(before)} data files"):
        forget(them.storage, holder, is_whole)
    (done,) = reassign(them.agreement)
    assert (done.copied, done.deleted, done.lacking) == (len(before), 0, 0)
    them.check_placed()
    forget(them.storage, holder, is_whole)
    them.check_placed()


def _where_one_hangs(
    them: Set, hanging: Member, hangs: Callable[[Storage], Storage], limits: list[float]
) -> ReplicatedStorage:
    """One member is what ``hangs`` makes of it; ``limits`` are those of the requests under way."""

    def run_within(
        call: Callable[[], Any], for_s: float, go_on: object = None, is_over: object = None
    ) -> Any:
        limits.append(for_s)
        try:
            return call()
        finally:
            limits.pop()

    def open_member(_: Epoch, member: Member) -> Storage:
        heap = them.roots.heap(member)
        return hangs(heap) if member == hanging else heap

    controller = them.roots.controller
    return ReplicatedStorage(controller, open_member, clock=them.clock, run_within=run_within)


def test_a_root_that_is_out_and_hangs_is_not_waited_for() -> None:
    """Nobody puts it out, so nothing else would end the wait."""
    them = Set(1)
    them.put_files()
    (holder,) = them.holders(FILES[0])
    take_out(them.agreement, root_of(holder))
    limits: list[float] = []

    class Hangs(ForwardingStorage):
        def get(self, name: str) -> bytes:
            assert limits, f"{name} is waited for without end"
            raise TookTooLong("no answer")

    storage = _where_one_hangs(them, holder, Hangs, limits)
    with pytest.raises(NotEnoughReplicas, match=f"may be on a root that is out.*{holder}"):
        storage.get(FILES[0])


@pytest.mark.parametrize("hanging", ["a-0", "b-0"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_listing_of_a_root_that_hangs_is_given_up(hanging: str, after: int) -> None:
    """The leader's or another one's, at its beginning or in the midst of it."""
    them = Set(1)
    them.put_files()
    limits: list[float] = []

    class Hangs(ForwardingStorage):
        def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
            yield from list(super().list_all(folder))[:after]
            assert limits, f"{folder} is waited for without end"
            raise TookTooLong("no answer")

    storage = _where_one_hangs(them, hanging, Hangs, limits)
    with pytest.raises(TookTooLong):
        list(storage.list_all("topics/t"))
    assert {name for name, _ in them.storage.list_all("topics/t/data")} >= {*FILES}


def test_a_root_that_shows_nothing_has_not_lost_data() -> None:
    """The folder in its place has no mark: it leaves the set, and may have the only copy."""
    them = Set(1)
    them.put_files()
    name = next(name for name in FILES if them.holders(name) != {"a-0"})
    (holder,) = them.holders(name)
    them.roots.heaps[holder] = MemberHeap()
    with pytest.raises(NotEnoughReplicas, match=f"may be on a root that is out.*{holder}"):
        them.other().get(name)


def test_a_root_that_is_gone_for_good_is_given_up() -> None:
    """From then on what nobody has is missing, and nobody waits for it."""
    them = Set(1)
    them.put_files()
    (holder,) = them.holders(FILES[0])
    take_out(them.agreement, root_of(holder))
    with pytest.raises(InvalidOption, match="answers: it is not lost"):
        forget(them.storage, holder, is_whole, lost=True)
    them.roots.down.add(root_of(holder))
    with pytest.raises(NotEnoughReplicas):
        them.storage.size(FILES[0])
    with pytest.raises(StorageError):
        forget(them.storage, holder, is_whole)
    forget(them.storage, holder, is_whole, lost=True, dry_run=True)
    assert holder in them.roots.epoch().left
    assert forget(them.storage, holder, is_whole, lost=True).objects == 0
    began_ms = them.clock.time_ms
    with pytest.raises(ObjectNotFound):
        them.storage.size(FILES[0])
    assert them.clock.time_ms == began_ms
    with pytest.raises(InvalidOption, match="let go of before"):
        forget(them.storage, holder, is_whole, lost=True)


def test_a_root_that_joins_takes_its_share() -> None:
    them = Set(1)
    take_out(them.agreement, "b")
    them.put_files()
    them.storage.put_if_absent("topics/t/log/0", b"1")
    joined = join(them.agreement, "b", "heap://b")
    epoch = them.roots.epoch()
    share = {name for name in FILES if joined.member in keepers(epoch, name)}
    assert 0 < len(share) < len(FILES)
    assert joined.objects == len(share) + 1
    assert {name for name in FILES if joined.member in them.holders(name)} == share
    reassign(them.agreement)
    them.check_placed()


def test_a_copy_that_differs_is_found_and_what_is_elsewhere_is_not_missed() -> None:
    them = Set()
    them.put_files()
    assert [*verify(them.storage, lambda *_: None, with_contents=True, repair=False)] == []
    damaged = keepers(them.roots.epoch(), FILES[0])[0]
    heap = them.roots.heap(damaged)
    heap.delete(FILES[:1])
    heap.put(FILES[0], b"?" * len(FILES[0]))

    def is_sound(storage: Storage, name: str) -> bool:
        return storage.get(name) == name.encode()

    assert [*verify(them.storage, is_sound, with_contents=False, repair=False)] == []
    (found,) = verify(them.storage, is_sound, with_contents=True, repair=True)
    assert (found.kind, found.members, found.is_repaired) == ("damaged", (damaged,), True)
    them.check_placed()
    assert them.notes() == []


def test_a_copy_that_is_repaired_is_not_counted_on_before() -> None:
    """It is deleted first, and may stay so."""
    them = Set(1)
    for name in FILES:
        if keepers(them.roots.epoch(), name, {"b-0"}) == ["a-0"]:
            break
    them.roots.heap("a-0").put(name, b"?")
    them.roots.heap("b-0").put(name, b"1")
    tried = []

    def is_sound(storage: Storage, name: str) -> bool:
        if them.notes():
            tried.append(trim_at(them, name, "b-0"))
        return storage.get(name) == b"1"

    (found,) = verify(them.storage, is_sound, with_contents=True, repair=True)
    assert (found.kind, found.members, found.is_repaired) == ("damaged", ("a-0",), True)
    assert tried == [[]]
    assert trim_at(them, name, "b-0") == [name]
    assert them.storage.get(name) == b"1"
