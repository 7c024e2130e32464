"""Another store's disk in a root's place: presence proves nothing, either."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import txnlog
from tests.support.replication.replica_folders import (
    SECOND,
    lose,
    make_with,
    make_written,
    objects,
    reopened,
    skip_probes,
    values,
    write,
)
from tests.support.replication.replica_world import Roots
from txnlog.errors import NotEnoughReplicas, StorageError, StoreExists
from txnlog.replication import Replicas, open_replicas, root_names
from txnlog.replication.roots import root_join
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epoch_notes import encode_epoch
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.old_incarnations import delete_incarnation
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.storage import open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import VirtualClock


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> txnlog.Store:
    skip_probes(monkeypatch)
    other = make_with(VirtualClock(seed=7), tmp_path / "other")
    other.topics.create("t", partitions=1)
    for number in range(6):
        write(other, f"other {number}")
    return make_written(tmp_path, "1", "2")


def exchange(folder: Path, root: str) -> None:
    shutil.rmtree(folder / root)
    shutil.copytree(folder / "other" / root, folder / root)


@pytest.mark.parametrize("root", "ab")
@pytest.mark.parametrize("is_open", [True, False])
def test_the_disk_of_a_root_in_sync(
    store: txnlog.Store, tmp_path: Path, root: str, *, is_open: bool
) -> None:
    assert values(store) == ["1", "2"]
    exchange(tmp_path, root)
    store = store if is_open else reopened(tmp_path)
    write(store, "3")
    assert values(store) == ["1", "2", "3"]
    assert Replicas(store).describe().in_sync == ("r1-0" if root == "a" else "r0-0",)


def test_the_disk_of_a_root_that_is_out_while_another_one_joins(
    store: txnlog.Store, tmp_path: Path
) -> None:
    Replicas(store).remove("r1")
    exchange(tmp_path, "b")
    Replicas(store).add(str(tmp_path / "c"))
    assert values(reopened(tmp_path)) == ["1", "2"]


def test_an_unclean_election_of_another_stores_disk(store: txnlog.Store, tmp_path: Path) -> None:
    Replicas(store).remove("r1")
    exchange(tmp_path, "b")
    (tmp_path / "a").rename(tmp_path / "away")
    alone = open_replicas(str(tmp_path / "control"), clock=VirtualClock())
    with pytest.raises(NotEnoughReplicas, match="another one in its place"):
        alone.elect("r1", unclean=True)


def test_what_another_store_has_is_not_deleted(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk comes while a root joins, which gives up then."""
    Replicas(store).remove("r1")
    theirs = tmp_path / "other/b"
    (theirs / "incarnation-00000").rename(theirs / "incarnation-00001")

    def mount_another(_: Agreement, __: Epoch, member: Member) -> Epoch:
        exchange(tmp_path, "b")
        raise NotEnoughReplicas(f"{member} is late")

    monkeypatch.setattr(root_join, "_finish", mount_another)
    with pytest.raises(NotEnoughReplicas, match="is late"):
        Replicas(store).add(str(tmp_path / "b"))
    assert any((tmp_path / "b/incarnation-00001/topics/t/log").iterdir())


@pytest.mark.parametrize("is_longer", [False, True])
def test_the_controllers_disk(store: txnlog.Store, tmp_path: Path, *, is_longer: bool) -> None:
    """Which may have as many epochs, or more: nobody goes on by them, or puts one there."""
    other, reader = Replicas(reopened(tmp_path / "other")), reopened(tmp_path, "a")
    if is_longer:
        other.alter({"replica.auto.return": True})
    before = objects(tmp_path / "other/control")
    bring_back = lose(tmp_path / "control")
    shutil.copytree(tmp_path / "other/control", tmp_path / "control", dirs_exist_ok=True)
    with pytest.raises(StorageError, match="another store's controller"):
        Replicas(store).remove("r1")
    assert values(reader) == ["1", "2"]
    with pytest.raises(StorageError, match="which is another store's"):
        reopened(tmp_path, "a")
    assert objects(tmp_path / "control") == before
    bring_back()
    Replicas(store).remove("r1")
    (tmp_path / "alias").symlink_to(tmp_path / "b")
    assert values(reopened(tmp_path, "alias")) == ["1", "2"]


def test_the_controllers_disk_of_a_store_that_had_the_same_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epochs name them, and as many incarnations."""
    skip_probes(monkeypatch)
    make_with(VirtualClock(seed=7), tmp_path)
    for root in "ab":
        shutil.rmtree(tmp_path / root)
    (tmp_path / "control").rename(tmp_path / "other")
    make_written(tmp_path, "1")
    (tmp_path / "control").rename(tmp_path / "away")
    (tmp_path / "other").rename(tmp_path / "control")
    with pytest.raises(StorageError, match="which is another store's"):
        reopened(tmp_path, "a")


def test_what_is_about_to_be_deleted_at_a_root_is_no_other_stores(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """The store is opened by a root whose incarnation is half forgotten."""
    Replicas(store).remove("r1")
    (mark,) = (tmp_path / SECOND / root_names.MEMBER_MARKS).glob("*.json")
    mark.rename(tmp_path / SECOND / root_names.trim_note("left"))
    assert values(reopened(tmp_path, "b")) == ["1", "2"]


def test_an_incarnation_of_another_store_is_not_deleted(
    store: txnlog.Store, tmp_path: Path
) -> None:
    replicated = find_replicated(store.storage)
    assert replicated is not None
    own = replicated.agreement.epoch().store
    exchange(tmp_path, "b")
    there = objects(tmp_path / SECOND)
    with pytest.raises(StoreExists, match="another store's"):
        delete_incarnation(open_storage(tmp_path / SECOND), root_names.member_mark("r1-0", own))
    assert objects(tmp_path / SECOND) == there != {}


def test_a_first_epoch_that_cannot_be_read_stops_no_election(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked whose it is, and tells nothing."""
    replicas = Replicas(store)
    replicas.describe()
    get, asked = LocalStorage.get, []

    def unreadable(storage: LocalStorage, name: str) -> bytes:
        if storage.url == str(tmp_path / "control") and name == root_names.epoch_file(0):
            asked.append(name)
            raise StorageError("an unreadable sector")
        return get(storage, name)

    monkeypatch.setattr(LocalStorage, "get", unreadable)
    replicas.remove("r1")
    assert asked
    assert replicas.describe().in_sync == ("r0-0",)


def test_a_server_with_another_stores_disk() -> None:
    """It is not the controller that is outdated."""
    roots = Roots(3)
    theirs = msgspec.structs.replace(roots.epoch(), store="other", number=1, leader_since=1)
    roots.heap("b-0").put(root_names.epoch_note(1), encode_epoch(theirs))
    assert roots.plain(VirtualClock()).put_if_absent("f/x", b"1")
    assert roots.epoch().in_sync == ("a-0", "c-0")
