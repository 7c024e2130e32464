"""Data at some of the roots: where it belongs, where it is found, how it is moved."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from replica_folders import lose, objects, reopened, values, write
from replica_world import Roots

import txnlog
from txnlog import root_names
from txnlog.errors import (
    InvalidConfig,
    InvalidOption,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
)
from txnlog.names import parse_data_file
from txnlog.replicas import opening, trimming
from txnlog.replicas.agreement import Agreement
from txnlog.replicas.electing import change_settings, take_out
from txnlog.replicas.epochs import (
    FACTOR,
    MIN_INSYNC,
    RACK,
    Epoch,
    Member,
    Proposer,
    changed_settings,
    first_epoch,
    root_of,
    without,
)
from txnlog.replicas.forgetting import forget
from txnlog.replicas.joining import join
from txnlog.replicas.placement import keepers, places, targets
from txnlog.replicas.reassigning import reassign
from txnlog.replicas.replicated_storage import ReplicatedStorage
from txnlog.replicas.verifying import verify
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import VirtualClock

WHO = Proposer("x", 0, "test")
FILES = [f"topics/t/data/{number % 5}/{number:032x}-0.log" for number in range(12)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every epoch is logged; the probe is tested elsewhere."""
    monkeypatch.setattr(opening, "probe", lambda _: None)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# -- where it belongs --------------------------------------------------------------------------


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
        first, second = roots_of(epoch, partition)
        assert (first in "01") != (second in "01")
    begins = Counter(roots_of(epoch, partition)[0] for partition in range(8))
    assert set(begins.values()) == {2}
    three = made(4, replication_factor="3", **racks)
    assert all(len({*roots_of(three, partition)}) == 3 for partition in range(4))


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
        ({FACTOR: 1, MIN_INSYNC: 2}, InvalidOption, "min.insync.replicas is 2"),
        ({f"{FACTOR}.t": 1, MIN_INSYNC: 2}, InvalidOption, "min.insync.replicas is 2"),
        ({f"{FACTOR}.a b": 1}, InvalidConfig, "characters other than"),
        ({f"{RACK}.r9": "a"}, InvalidConfig, "no setting of replicas"),
        ({f"{RACK}.r0": " "}, InvalidConfig, "must be a label"),
    ):
        with pytest.raises(error, match=told):
            changed_settings(epoch, wrong)
    assert changed_settings(epoch, {f"{RACK}.r3": "a"}) == {f"{RACK}.r3": "a"}


def test_that_data_is_not_everywhere_is_not_forgotten() -> None:
    """Nobody goes back to looking at the leader alone."""
    assert changed_settings(made(3), {FACTOR: None}) == {}
    epoch = made(3, replication_factor_t="1")
    assert changed_settings(epoch, {f"{FACTOR}.t": None}) == {FACTOR: "all"}


# -- writing and reading, in memory ------------------------------------------------------------


class Set:
    """Three roots in memory, and one process."""

    def __init__(self, factor: int = 2, count: int = 3) -> None:
        self.clock = VirtualClock()
        self.roots = Roots(count, {FACTOR: str(factor)})
        self.storage = self.roots.plain(self.clock)

    @property
    def agreement(self) -> Agreement:
        return self.storage.agreement

    def other(self) -> ReplicatedStorage:
        """What another process sees."""
        return self.roots.plain(self.clock)

    def put_files(self) -> None:
        for name in FILES:
            self.storage.put(name, name.encode())

    def holders(self, name: str) -> set[Member]:
        found = set()
        for member in self.roots.epoch().in_sync:
            try:
                self.roots.heap(member).get(name)
            except ObjectNotFound:
                continue
            found.add(member)
        return found

    def check_placed(self) -> None:
        """Each file is where it belongs and nowhere else, and can be read."""
        epoch = self.roots.epoch()
        for name in FILES:
            assert self.holders(name) == {*keepers(epoch, name)}
            assert self.storage.get(name) == name.encode()

    def notes(self) -> list[str]:
        listed = [self.roots.heap(m).list_names(".replica") for m in self.roots.epoch().in_sync]
        return [name for names in listed for name in names if root_names.is_trim_note(name)]


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
    folder = "topics/t/data/0"
    listed = [f"{folder}/{name}" for name in them.storage.list_names(folder)]
    assert listed == [name for name in FILES if name.startswith(folder)]
    assert them.storage.list_folders("topics/t/data") == [*"012347"]
    them.storage.delete([large])
    assert them.holders(large) == set()
    with pytest.raises(ObjectNotFound):
        them.storage.get(large)


def test_who_reads_does_not_rely_on_the_placement() -> None:
    """It was put under other settings, or it is being moved while it is looked for."""
    them = Set(1)
    them.put_files()
    change_settings(them.agreement, {f"{RACK}.{root}": "x" for root in "ac"})
    assert [them.other().get(name) for name in FILES] == [name.encode() for name in FILES]
    (holder,) = them.holders(FILES[0])
    at = [member for member in them.roots.epoch().in_sync if member != holder]
    asked = Counter[Member]()

    class Moving(ForwardingStorage):
        def __init__(self, inner: Storage, member: Member) -> None:
            super().__init__(inner)
            self._member = member

        def get(self, name: str) -> bytes:
            asked[self._member] += 1
            if self._member == holder and asked[holder] == 1:  # it goes as this is asked
                them.roots.heap(at[0]).put(name, self.inner.get(name))
                self.inner.delete([name])
            return super().get(name)

    def open_member(_: Epoch, member: Member) -> Storage:
        return Moving(them.roots.heap(member), member)

    reader = ReplicatedStorage(them.roots.controller, open_member, clock=them.clock)
    assert reader.get(FILES[0]) == FILES[0].encode()


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
        forget(them.storage, holder)
    (done,) = reassign(them.agreement)
    assert (done.copied, done.deleted, done.lacking) == (len(before), 0, 0)
    them.check_placed()
    forget(them.storage, holder)
    them.check_placed()


def test_a_root_that_joins_takes_its_share() -> None:
    them = Set(1)
    take_out(them.agreement, "c")
    them.put_files()
    them.storage.put_if_absent("topics/t/log/0", b"1")
    joined = join(them.agreement, "c", "heap://c")
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


# -- moving ------------------------------------------------------------------------------------


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


def trim_at(them: Set, name: str, member: Member) -> list[str]:
    return trimming.trim(them.other().agreement, them.roots.epoch(), {name: [member]})


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
    assert trimming.trim(slow, them.roots.epoch(), {name: [gone]}) == [name]
    assert them.holders(name) == {"c-0"}
    assert them.notes() == []


def test_a_deletion_that_is_not_answered_may_come_late() -> None:
    """What it was to delete is relied on no more at that root; a new incarnation is another."""
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
    assert trimming.trim(them.other().agreement, epoch, {FILES[0]: [gone]}) == []
    assert len(them.holders(FILES[0])) == 2
    assert them.notes() == []


# -- in folders --------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    found = txnlog.open(
        str(tmp_path / "a"),
        replicas=[str(tmp_path / "b"), str(tmp_path / "c")],
        controller=str(tmp_path / "control"),
        create=True,
        config={FACTOR: 2},
        clock=VirtualClock(),
    )
    found.create_topic("t", partitions=1)
    for number in range(4):
        write(found, str(number))
    return found


def copies(tmp_path: Path, store: txnlog.Store) -> Counter[str]:
    """At how many roots in sync each data file is."""
    found: Counter[str] = Counter()
    for member in store.replicas().in_sync:
        root, _, number = member.rpartition("-")
        folder = tmp_path / "abc"[int(root[1:])] / root_names.incarnation_folder(int(number))
        found.update(name for name in objects(folder) if parse_data_file(name))
    return found


@pytest.mark.condition(62)
@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_root_is_lost_and_comes_back(store: txnlog.Store, tmp_path: Path, gone: str) -> None:
    """Everything is read, writes go on; then each file is at two roots again."""
    assert set(copies(tmp_path, store).values()) == {2}
    bring_back = lose(tmp_path / gone)
    write(store, "4")
    assert values(store) == [*"01234"]
    described = store.replicas(with_lag=True)
    assert len(described.in_sync) == 2
    if described.under_replicated:
        assert described.under_replicated_bytes
    bring_back()
    store.add_replica(str(tmp_path / gone))
    store.reassign_replicas()
    found = copies(tmp_path, store)
    assert set(found.values()) == {2}
    assert len(found) == 5
    assert values(reopened(tmp_path)) == [*"01234"]
    assert store.replicas(with_lag=True).under_replicated == 0
    assert store.reassign_replicas() == []


def test_a_root_that_is_taken_out_leaves_enough_copies(store: txnlog.Store, tmp_path: Path) -> None:
    """Before it goes, what too few others have is copied; by force nothing is."""
    planned = store.remove_replica("r0", dry_run=True)
    assert store.replicas().in_sync == ("r0-0", "r1-0", "r2-0")
    done = store.remove_replica("r0")
    assert sum(one.copied for one in planned) == sum(one.copied for one in done) > 0
    assert set(copies(tmp_path, store).values()) == {2}
    store.add_replica(str(tmp_path / "a"), rack="x")
    assert {one.key: one.value for one in store.alter_replicas({})}[f"{RACK}.r0"] == "x"
    store.reassign_replicas()
    holds = "b" if any(map(parse_data_file, objects(tmp_path / "b/incarnation-00000"))) else "c"
    assert store.remove_replica("r1" if holds == "b" else "r2", force=True) == []
    assert 1 in copies(tmp_path, store).values()
    assert values(store) == [*"0123"]


def test_the_factor_is_no_setting_of_a_topic(store: txnlog.Store) -> None:
    with pytest.raises(InvalidConfig, match=r"txnlog replicas config replication.factor.<topic>=2"):
        store.create_topic("u", config={"replication.factor": 2})
    store.alter_replicas({f"{FACTOR}.u": 1})
    with pytest.raises(InvalidOption, match="every root has everything"):
        reassign(Roots(2).plain(VirtualClock()).agreement)


def test_a_store_with_placed_data_is_examined_and_cleaned(store: txnlog.Store) -> None:
    found = [one for one in store.examine(with_probe=False) if one.state != "ok"]
    assert found == []
    assert store.merge_topic("t")
    assert values(store) == [*"0123"]
