"""A replicated store from outside: made, opened, without one of its roots, and with it again."""

from __future__ import annotations

import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import txnlog
from tests.support.replication.replica_folders import (
    lose,
    make,
    make_written,
    objects,
    reopened,
    values,
    write,
)
from tests.support.runtime.forked_child import in_child
from tests.support.runtime.held_locks import locks_held
from txnlog import names
from txnlog.errors import (
    CorruptEntry,
    InvalidOption,
    LogTruncated,
    NotAStore,
    NotEnoughReplicas,
    ObjectNotFound,
    StorageError,
    StoreExists,
    StoreNotFound,
)
from txnlog.replication import Replicas, open_replicas, root_names
from txnlog.replication import replicas as replica_admin
from txnlog.replication.roots import copies, root_join
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.epochs import Epoch, Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage import envelope
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.counting import CountingStorage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R1", "R2", "R4", "R5", "R6", "R7")

LAG_MS = 10_000


@pytest.fixture
def made(tmp_path: Path) -> txnlog.Store:
    return make(tmp_path)


def test_every_root_holds_the_same(made: txnlog.Store, tmp_path: Path) -> None:
    made.topics.create("t", partitions=1)
    write(made, "1", "2")
    first, second = (
        objects(tmp_path / "a/incarnation-00000"),
        objects(tmp_path / "b/incarnation-00000"),
    )
    assert first == second
    assert len(first) >= 4


@pytest.mark.parametrize("which", ["control", "a", "b"])
def test_the_controller_or_any_root_is_enough(
    made: txnlog.Store, tmp_path: Path, which: str
) -> None:
    made.topics.create("t", partitions=1)
    write(made, "1")
    store = reopened(tmp_path, which)
    assert values(store) == ["1"]
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")
    assert values(pickle.loads(pickle.dumps(store))) == ["1"]


@pytest.mark.parametrize("gone", ["a", "b"])
def test_one_disk_is_not_mounted(made: txnlog.Store, tmp_path: Path, gone: str) -> None:
    """An empty folder in its place does not pass for the root; it returns, the other goes."""
    made.topics.create("t", partitions=1)
    write(made, "1")
    bring_back = lose(tmp_path / gone)
    write(made, "2")
    assert not list((tmp_path / gone).rglob("*.json"))
    assert len(Replicas(made).describe().in_sync) == 1
    assert values(made) == ["1", "2"]
    assert values(reopened(tmp_path)) == ["1", "2"]

    bring_back()
    joined = Replicas(made).add(str(tmp_path / gone))
    assert joined.objects + joined.kept_objects >= 6
    assert sorted(Replicas(made).describe().in_sync) == sorted(
        [joined.member, {"a": "r1-0", "b": "r0-0"}[gone]]
    )
    write(made, "3")
    lose(tmp_path / {"a": "b", "b": "a"}[gone])
    store = reopened(tmp_path)
    write(store, "4")
    assert values(store) == ["1", "2", "3", "4"]


def test_a_root_more(made: txnlog.Store, tmp_path: Path) -> None:
    made.topics.create("t", partitions=1)
    write(made, "1")
    Replicas(made).add(str(tmp_path / "c"))
    write(made, "2")
    assert objects(tmp_path / "c/incarnation-00000") == objects(tmp_path / "a/incarnation-00000")
    Replicas(made).remove("r0")
    described = Replicas(made).describe()
    assert described.leader == "r1-0"
    assert described.out == ("r0",)
    assert values(made) == ["1", "2"]


def test_nothing_is_acknowledged_below_min_insync(tmp_path: Path) -> None:
    store = make(tmp_path, **{"min.insync.replicas": 2})
    store.topics.create("t", partitions=1)
    write(store, "1")
    lose(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas):
        store.storage.put_if_absent("x", b"1")  # which finds that a root is gone
    with pytest.raises(NotEnoughReplicas, match=r"and min\.insync\.replicas is 2"):
        store.storage.put_if_absent("y", b"1")
    assert values(store) == ["1"]
    with pytest.raises(ObjectNotFound):
        store.storage.get("y")


def test_nothing_is_acknowledged_without_the_controller(made: txnlog.Store, tmp_path: Path) -> None:
    made.topics.create("t", partitions=1)
    write(made, "1")
    scan = made.scan("t")
    lose(tmp_path / "control")
    with pytest.raises(StorageError, match="controller's disk"):
        made.storage.put_if_absent("x", b"1")
    with pytest.raises(StorageError, match="controller's disk"):
        made.storage.list_names("")
    assert scan.to_arrow().num_rows == 1  # what is pinned is read on


def test_a_follower_that_differs_is_put_out(made: txnlog.Store, tmp_path: Path) -> None:
    """It has what was never acknowledged: the leader decides."""
    LocalStorage(str(tmp_path / "b/incarnation-00000")).put_if_absent("x", b"never")
    assert made.storage.put_if_absent("x", b"mine")
    assert Replicas(made).describe().in_sync == ("r0-0",)
    assert made.storage.get("x") == b"mine"


def test_what_only_the_leader_has_is_copied_before_it_is_shown(
    made: txnlog.Store, tmp_path: Path
) -> None:
    LocalStorage(str(tmp_path / "a/incarnation-00000")).put_if_absent("f/x", b"1")
    follower = LocalStorage(str(tmp_path / "b/incarnation-00000"))
    assert made.storage.list_names("f") == ["x"]
    assert follower.get("f/x") == b"1"
    assert not made.storage.put_if_absent("f/x", b"2")


def test_what_only_a_follower_has_is_not_shown(made: txnlog.Store, tmp_path: Path) -> None:
    LocalStorage(str(tmp_path / "b/incarnation-00000")).put_if_absent("f/x", b"1")
    assert made.storage.list_names("f") == []
    with pytest.raises(ObjectNotFound):
        made.storage.get("f/x")


def test_what_is_deleted_while_it_is_copied_is_deleted_again(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion begins at the leader; it may have passed the follower before the copy came."""
    leader = LocalStorage(str(tmp_path / "a/incarnation-00000"))
    leader.put_if_absent("f/x", b"1")
    put_at = copies.put_at

    def delete_behind(*arguments: Any) -> bool:
        put = put_at(*arguments)
        leader.delete(["f/x"])
        return put

    monkeypatch.setattr(copies, "put_at", delete_behind)
    assert made.storage.list_names("f") == []
    assert not (tmp_path / "b/incarnation-00000/f/x").exists()


def test_a_deletion_is_everywhere(made: txnlog.Store, tmp_path: Path) -> None:
    made.storage.put("f/x", b"1")
    made.storage.delete(["f/x"])
    assert not (tmp_path / "a/incarnation-00000/f").exists()
    assert not (tmp_path / "b/incarnation-00000/f").exists()


def test_a_round_of_puts_is_one_look_at_the_epochs(
    made: txnlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = made.storage
    assert isinstance(storage, ReplicatedStorage)
    looks = 0
    newest = Controller.newest

    def counted(self: Controller, known: Epoch | None = None) -> Epoch:
        nonlocal looks
        looks += 1
        return newest(self, known)

    monkeypatch.setattr(Controller, "newest", counted)
    storage.put_round([partial(storage.put, f"f/{n}", b"1") for n in range(5)])
    assert looks == 1
    assert storage.list_names("f") == [str(n) for n in range(5)]


def test_a_storage_around_it_changes_nothing(made: txnlog.Store) -> None:
    counting = txnlog.attach(CountingStorage(made.storage))
    assert Replicas(counting).describe() == Replicas(made).describe()


def test_what_makes_no_sense_is_refused(made: txnlog.Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="in sync already"):
        Replicas(made).add(str(tmp_path / "a"))
    with pytest.raises(InvalidOption, match="r7 is not one of"):
        Replicas(made).remove("r7")
    with pytest.raises(InvalidOption, match="given together"):
        open_replicas([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(InvalidOption, match="must all differ"):
        open_replicas(
            [str(tmp_path / "d"), str(tmp_path / "d")], controller=str(tmp_path / "e"), create=True
        )
    with pytest.raises(StoreExists, match="other roots"):
        open_replicas(
            [str(tmp_path / "a"), str(tmp_path / "c")],
            controller=str(tmp_path / "control"),
            create=True,
        )
    plain = txnlog.open(str(tmp_path / "plain"), create=True)
    with pytest.raises(InvalidOption, match="no replicas"):
        Replicas(plain).describe()


def test_what_is_written_just_before_a_root_is_named_is_copied(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing that is copied is made after the epoch that names who joins."""
    other = reopened(tmp_path)
    propose = Agreement.propose

    def write_first(agreement: Agreement, epoch: Epoch) -> bool:
        if epoch.joining:
            other.storage.put("before", b"1")
        return propose(agreement, epoch)

    monkeypatch.setattr(Agreement, "propose", write_first)
    Replicas(made).add(str(tmp_path / "c"))
    assert objects(tmp_path / "c/incarnation-00000")["before"] == b"1"


def test_who_has_copied_from_another_leader_is_not_in_sync(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = root_join._copy

    def elect_meanwhile(*given: Any) -> tuple[int, int, int, int]:
        done = copy(*given)
        Replicas(reopened(tmp_path)).remove("r0")
        return done

    monkeypatch.setattr(root_join, "_copy", elect_meanwhile)
    with pytest.raises(NotEnoughReplicas, match="the leader has changed"):
        Replicas(made).add(str(tmp_path / "c"))
    assert Replicas(made).describe().in_sync == ("r1-0",)
    monkeypatch.setattr(root_join, "_copy", copy)
    assert Replicas(made).add(str(tmp_path / "c")).member == "r2-1"


def test_what_is_deleted_while_a_root_copies_is_gone_there_too(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody whose deletion had not heard of the new member when it reached the leader."""
    made.storage.put("f/x", b"1")
    listed = root_join._asked

    def delete_behind(agreement: Agreement, epoch: Epoch) -> list[tuple[str, int]]:
        if (tmp_path / "c/incarnation-00000/f/x").exists():
            LocalStorage(str(tmp_path / "a/incarnation-00000")).delete(["f/x"])
        return listed(agreement, epoch)

    monkeypatch.setattr(root_join, "_asked", delete_behind)
    Replicas(made).add(str(tmp_path / "c"))
    assert not (tmp_path / "c/incarnation-00000/f/x").exists()


def test_a_leader_that_was_not_in_sync_only_if_that_is_allowed(tmp_path: Path) -> None:
    """Clean elections lose nothing; an unclean one says since when it may have."""
    clean = make(tmp_path / "clean")
    clean.storage.put("x", b"1")
    allowed = make(tmp_path / "unclean", **{"unclean.leader.election.enable": True})
    allowed.storage.put("x", b"1")
    for store, folder in ((clean, tmp_path / "clean"), (allowed, tmp_path / "unclean")):
        Replicas(store).remove("r1")
        store.storage.put("y", b"1")
        lose(folder / "a")
    with pytest.raises(NotEnoughReplicas):
        clean.storage.put("z", b"1")
    with pytest.raises(LogTruncated):
        allowed.storage.put("z", b"1")
    allowed = reopened(tmp_path / "unclean")
    allowed.storage.put("z", b"1")
    epoch = allowed.storage.agreement.epoch()  # type: ignore[attr-defined]
    assert (epoch.leader, epoch.unclean) == ("r1-0", 1)
    assert allowed.storage.list_names("") == [names.STORE_FILE, "x", "z"]


def test_the_last_roots_disk_is_not_mounted(made: txnlog.Store, tmp_path: Path) -> None:
    """No other member's listing differs: nothing but the mark tells that it is not empty."""
    made.topics.create("t", partitions=1)
    Replicas(made).remove("r1")
    bring_back = lose(tmp_path / "a")
    with pytest.raises(StorageError, match="Is its disk mounted"):
        made.storage.list_names("topics/t/log")
    with pytest.raises(StorageError):
        made.storage.list_folders("topics")
    bring_back()
    assert made.storage.list_folders("topics") == ["t"]


def test_two_bring_in_different_roots_at_once(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both call theirs r2: who was refused writes to the other one's from then on."""
    made.topics.create("t", partitions=1)
    propose = Agreement.propose

    def be_second(agreement: Agreement, epoch: Epoch) -> bool:
        monkeypatch.setattr(Agreement, "propose", propose)
        Replicas(reopened(tmp_path)).add(str(tmp_path / "d"))
        return propose(agreement, epoch)

    monkeypatch.setattr(Agreement, "propose", be_second)
    with pytest.raises(NotEnoughReplicas, match="try again"):
        Replicas(made).add(str(tmp_path / "c"))
    made.storage.put("x", b"1")
    assert objects(tmp_path / "d/incarnation-00000")["x"] == b"1"
    assert "x" not in objects(tmp_path / "c/incarnation-00000")


def fail_reads(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """An object cannot be read from one root; everything else can."""
    get_range = LocalStorage.get_range

    def failing(storage: LocalStorage, path: str, start: int, stop: int) -> bytes:
        if path == name and storage.url.startswith(str(folder)):
            raise StorageError("it cannot be read")
        return get_range(storage, path, start, stop)

    monkeypatch.setattr(LocalStorage, "get_range", failing)


def test_who_fails_while_a_root_copies_is_named(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the leader that cannot be read, and not the one that asks it."""
    made.storage.put("x", b"1")
    fail_reads(monkeypatch, tmp_path / "a", "x")
    with pytest.raises(NotEnoughReplicas, match="r0-0 failed while r2-0 joined"):
        Replicas(made).add(str(tmp_path / "c"))


def test_who_fails_at_the_end_of_an_upload_is_named(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one that has the whole of it, and not the one that is to have a copy."""
    upload: Any = made.storage.upload("f/x")
    upload.write(b"1")
    upload._uploads.pop("r1-0").discard()
    fail_reads(monkeypatch, tmp_path / "a", "f/x")
    monkeypatch.setattr(Agreement, "propose", lambda *_: False)
    with pytest.raises(NotEnoughReplicas, match="the leader r0-0 at"):
        upload.close()


@pytest.mark.parametrize("size", [5, copies.CHUNK_BYTES + 5])
def test_what_was_damaged_since_it_was_written_is_not_copied_at_the_end_of_an_upload(
    made: txnlog.Store, tmp_path: Path, size: int
) -> None:
    """One of two that have it whole has other bytes by then: it is copied from the other one."""
    Replicas(made).add(str(tmp_path / "c"))
    data = b"1" * size
    upload: Any = made.storage.upload("f/x")
    upload.write(data[:3])
    upload.write(data[3:])
    upload._uploads.pop("r2-0").discard()
    need = upload._need

    def decay(epoch: Epoch) -> None:
        (tmp_path / "a/incarnation-00000/f/x").write_bytes(data[:-1] + b"0")
        need(epoch)

    upload._need = decay
    upload.close()
    assert (tmp_path / "c/incarnation-00000/f/x").read_bytes() == data


def test_a_root_that_has_become_another_meanwhile_is_left(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = root_join.join

    def be_second(*told: Any) -> object:
        monkeypatch.setattr(replica_admin, "join", join)
        Replicas(reopened(tmp_path)).add(str(tmp_path / "d"))
        Replicas(made).remove("r2")
        return join(*told)

    monkeypatch.setattr(replica_admin, "join", be_second)
    with pytest.raises(NotEnoughReplicas, match="r2 has become"):
        Replicas(made).add(str(tmp_path / "c"))
    assert made.storage.agreement.refresh().roots["r2"].url == str(tmp_path / "d")  # type: ignore[attr-defined]


def test_a_controller_has_a_folder_of_its_own(made: txnlog.Store, tmp_path: Path) -> None:
    """In a store's folder it would never be found again, nor in another one's root."""
    txnlog.open(str(tmp_path / "plain"), create=True)
    for taken in ("plain", "a"):
        with pytest.raises(NotAStore, match="a folder of its own"):
            open_replicas(
                [str(tmp_path / "c"), str(tmp_path / "d")],
                controller=str(tmp_path / taken),
                create=True,
            )
    assert Replicas(made).describe().in_sync == ("r0-0", "r1-0")


def test_a_new_epoch_0_does_not_take_old_roots(made: txnlog.Store, tmp_path: Path) -> None:
    """Their first incarnations may have been deleted; the controller's disk is not mounted."""
    for _ in range(2):
        Replicas(made).remove("r0")
        Replicas(made).add(str(tmp_path / "a"))
        Replicas(made).remove("r1")
        Replicas(made).add(str(tmp_path / "b"))
    for folder in "ab":
        shutil.rmtree(tmp_path / folder / "incarnation-00000")
    lose(tmp_path / "control")
    with pytest.raises(StorageError, match="later incarnations"):
        make(tmp_path)


def test_a_root_under_another_name_is_no_other_root(made: txnlog.Store, tmp_path: Path) -> None:
    """As with a disk that is mounted twice: both copies would be one."""
    shutil.copytree(tmp_path / "b", tmp_path / "e")
    with pytest.raises(InvalidOption, match="in sync already, as r1"):
        Replicas(made).add(str(tmp_path / "e"))


def test_a_controller_without_its_first_epoch_is_not_believed(
    made: txnlog.Store, tmp_path: Path
) -> None:
    Replicas(made).remove("r1")
    (tmp_path / "control" / root_names.epoch_file(0)).unlink()
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        reopened(tmp_path)
    with pytest.raises(StorageError, match="later ones: is the controller's disk mounted"):
        Controller(LocalStorage(str(tmp_path / "control"))).newest()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"number": 7}, "epoch 7"),
        ({"leader": "r9-0"}, "not in sync"),
        ({"in_sync": ()}, "not in sync"),
        ({"in_sync": ("r0-0", "r0-0")}, "twice"),
        ({"in_sync": ("r0-0", "r1-x")}, "makes no sense"),
        ({"in_sync": ("r0-0", "r1-4")}, "no incarnation r1-4"),
        ({"roots": {}}, "no incarnation r0-0"),
        ({"settings": {"min.insync.replicas": "0"}}, "at least 1"),
        ({"settings": {"replica.lag.time.max.ms": "soon"}}, "at least 1"),
    ],
)
def test_an_epoch_that_makes_no_sense_is_refused(
    made: txnlog.Store, tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    epoch = made.storage.agreement.epoch()  # type: ignore[attr-defined]
    bad = msgspec.structs.replace(epoch, **{"number": 1, **changed})
    (tmp_path / "control" / root_names.epoch_file(1)).write_bytes(envelope.encode(bad))
    with pytest.raises(CorruptEntry, match=says):
        reopened(tmp_path)


def test_options_are_for_those_they_name(tmp_path: Path) -> None:
    """A root on a disk is opened with what is for the others; what is for none is refused."""
    url = f"memory://{tmp_path.name}"
    options = {"s3://elsewhere/x": {"key": "k"}}
    open_replicas(
        [str(tmp_path / "a"), str(tmp_path / "b")], controller=url, create=True
    ).store.topics.create("t")
    for where in (str(tmp_path / "a"), url):
        store = txnlog.open(where, storage_options=options)
        assert Replicas(store).describe().controller == url
    local = make(tmp_path / "disks")
    again = txnlog.open(str(tmp_path / "disks/b"), storage_options={"key": "k"})
    assert again.store_id == local.store_id
    with pytest.raises(InvalidOption, match="takes no storage options"):
        txnlog.open(str(tmp_path / "new"), create=True, storage_options={"key": "k"})


def test_what_is_no_store_is_told_of_a_path_too(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        txnlog.open(tmp_path / "none")


@pytest.mark.parametrize("wrong", [None, 5, b"x", ""])
def test_what_is_no_path_is_told(wrong: Any) -> None:
    """Also where it was looked for as a root."""
    with pytest.raises(InvalidOption, match="non-empty string"):
        txnlog.open(wrong)


def test_a_missing_store_on_a_filesystem_that_holds_no_replicas() -> None:
    """It is opened for a single writer: who has said so is not told to say so."""
    fsspec.register_implementation("single", MemoryFileSystem, clobber=True)
    with pytest.raises(StoreNotFound):
        txnlog.open("single://none", unsafe_single_writer=True)


def test_roots_are_paths_or_text(tmp_path: Path) -> None:
    """One name of a root is not a list of letters."""
    roots: list[Any] = [tmp_path / name for name in "abc"]
    store = open_replicas([roots[0], roots[1]], controller=roots[2], create=True).store
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")
    assert Replicas(store).add(tmp_path / "d").member == "r2-0"  # type: ignore[arg-type]
    one = str(tmp_path / "f")
    again = open_replicas(
        [str(tmp_path / "e"), one], controller=str(tmp_path / "g"), create=True
    ).store
    assert [root.url for root in Replicas(again).describe().replicas] == [
        str(tmp_path / n) for n in "ef"
    ]


def test_a_server_that_cannot_be_reached_at_all_hides_nothing(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some adapters connect when they are opened."""
    made.topics.create("t", partitions=1)
    write(made, "1")
    opened = MemberOpener.at

    def at(self: MemberOpener, root: Root, member: str, store: str) -> Any:
        if member == "r1-0":
            raise StorageError("no route to host")
        return opened(self, root, member, store)

    monkeypatch.setattr(MemberOpener, "at", at)
    data = next(name for name in objects(tmp_path / "a/incarnation-00000") if "/data/" in name)
    control, options = LocalStorage(str(tmp_path / "control")), MemberOpener()
    assert ReplicatedStorage(control, options, clock=VirtualClock()).size(data) > 0


@pytest.mark.usefixtures("frozen_heap")
def test_a_child_of_a_fork_waits_for_no_lock_of_its_parents_threads(tmp_path: Path) -> None:
    """The storage on all roots is the parent's, which counts its requests, and so is a snapshot."""
    store = make_written(tmp_path, "1")
    counted = txnlog.store.attach(CountingStorage(store.storage), clock=store.logs.clock)
    snapshot = counted.snapshot(["t"])

    def work() -> object:
        write(counted, "2")
        return snapshot.scan("t").record_count, values(counted)

    with locks_held(counted, snapshot):
        assert in_child(work) == "(1, ['1', '2'])"
